"""Imports fixtures of the unit tests."""

from suites.unit.provisioner.conftest import project  # noqa: F401
