"""Imports fixtures of the unit tests."""

from suites.unit.machine.channels.conftest import agent, guest, ready  # noqa: F401
