"""A provisioner in the style of a cloud vendor, with tests on machines and planted regressions."""
