"""Loads the fixtures; what they do lies in `fixtures` and `harness`."""

from __future__ import annotations

pytest_plugins = [
    "fixtures.existing",
    "fixtures.layers",
    "fixtures.machines",
    "fixtures.properties",
    "fixtures.shell",
    "fixtures.workers",
]
