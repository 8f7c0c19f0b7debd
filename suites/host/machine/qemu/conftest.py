"""Imports fixtures of the unit tests."""

from suites.unit.machine.qemu.conftest import program  # noqa: F401
