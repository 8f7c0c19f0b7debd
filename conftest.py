"""Loads what only this repository's own suites need beside the fixtures of the plugin."""

from __future__ import annotations

pytest_plugins = [
    "suites.hypothesis_profiles",
    "suites.lagging_mirror",
    "suites.time_limits",
    "suites.workers",
]
