"""Gives these tests the installed wheel."""

from __future__ import annotations

from suites.installed_wheel import installed_wheel  # noqa: F401 - a fixture
