"""Imports fixtures of the unit tests."""

from suites.unit.gpu.passthrough.conftest import folder, host, kernel, pool  # noqa: F401
