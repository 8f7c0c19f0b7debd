"""Suites for real GPUs; there are none yet, since passthrough is not built."""
