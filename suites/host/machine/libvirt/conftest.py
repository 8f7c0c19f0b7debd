"""Imports fixtures of the unit tests."""

from suites.unit.machine.libvirt.conftest import libvirt  # noqa: F401
