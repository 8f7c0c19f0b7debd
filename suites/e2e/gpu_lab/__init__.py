"""The nightly run of a GPU lab, on the emulated host of `suites/e2e/passthrough`."""
