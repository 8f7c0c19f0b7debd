"""Imports the fixture of the installed wheel for the tests in this folder."""

from __future__ import annotations

from suites.installed_wheel import installed_wheel  # noqa: F401 - a fixture
