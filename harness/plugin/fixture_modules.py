"""Gives every project the fixtures that come with the harness."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def register(config: pytest.Config, *modules: str) -> None:
    """Register modules of `harness.fixtures`, by name, since they import the plugin themselves.

    A list `pytest_plugins` would make pytest mark them for assertion rewriting, and warn if a second
    run in one process finds them imported.
    """
    for name in modules:
        full_name = f"harness.fixtures.{name}"
        # A project's own conftest may load the module by `pytest_plugins`.
        if not config.pluginmanager.hasplugin(full_name):
            config.pluginmanager.register(importlib.import_module(full_name), full_name)
