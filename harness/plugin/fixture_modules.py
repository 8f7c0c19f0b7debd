"""Gives every project the fixtures that come with the harness."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def register(config: pytest.Config, *modules: str) -> None:
    """Register modules of `harness.fixtures`, by name, since these modules import the plugin themselves.

    If a list `pytest_plugins` named these modules, pytest would mark them for assertion rewriting, and
    warn if they are already imported, as happens in the second run in one process.
    """
    for name in modules:
        full_name = f"harness.fixtures.{name}"
        # A project's own conftest may load the module by `pytest_plugins`.
        if not config.pluginmanager.hasplugin(full_name):
            config.pluginmanager.register(importlib.import_module(full_name), full_name)
