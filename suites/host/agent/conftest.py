"""Imports fixtures of the unit tests."""

from suites.unit.agent.conftest import bench  # noqa: F401
