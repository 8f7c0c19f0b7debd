"""Imports fixtures of the unit tests."""

from suites.unit.cli.conftest import host, kernel  # noqa: F401
