"""Provides the harness's fixtures to every project."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def register(config: pytest.Config, *modules: str) -> None:
    """Import and register modules of `harness.fixtures` by name: plain imports would be circular.

    This function does not use a list `pytest_plugins`, because pytest would mark the listed modules
    for assertion rewriting. In a second run of pytest in the same process, pytest would then warn
    that the marked modules are already imported.
    """
    for name in modules:
        full_name = f"harness.fixtures.{name}"
        # A project's own conftest may load the module by `pytest_plugins`.
        if not config.pluginmanager.hasplugin(full_name):
            config.pluginmanager.register(importlib.import_module(full_name), full_name)
