"""Loads the plug-ins that only this repository's own suites need."""

from __future__ import annotations

pytest_plugins = [
    "suites.hypothesis_profiles",
    "suites.lagging_mirror",
    "suites.time_limits",
    "suites.workers",
]
