"""Tests with GPUs of the host that are passed through to nodes.

The tests run with `pytest suites/passthrough` or `tox -e passthrough`; docs/gpu-lab.md says what a
host needs. With `--gpu-source=emulated` the same tests run with emulated GPUs.
"""
