"""Loads the fixture modules."""

from __future__ import annotations

pytest_plugins = [
    "fixtures.existing_node",
    "fixtures.saved_states",
    "fixtures.machines",
    "fixtures.properties",
    "fixtures.shell",
    "fixtures.workers",
]
