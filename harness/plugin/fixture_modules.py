"""Provides the harness's fixtures to every project."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def register(config: pytest.Config, *modules: str) -> None:
    """Register modules of `harness.fixtures`, by name, since these modules import the plugin themselves.

    This function does not use a list `pytest_plugins`: pytest would mark the listed modules for
    assertion rewriting. In the second run in one process, pytest would warn that they are already
    imported.
    """
    for name in modules:
        full_name = f"harness.fixtures.{name}"
        # A project's own conftest may load the module by `pytest_plugins`.
        if not config.pluginmanager.hasplugin(full_name):
            config.pluginmanager.register(importlib.import_module(full_name), full_name)
