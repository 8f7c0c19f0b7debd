"""Modules of fixtures that a project has loaded before the plugin registers them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import harness.fixtures.shell
from harness.plugin.fixture_modules import register


def test_fixture_module_is_registered_once_by_its_full_name() -> None:
    manager = pytest.PytestPluginManager()
    manager.register(harness.fixtures.shell, "harness.fixtures.shell")
    manager.register(object(), "machines")
    config: Any = SimpleNamespace(pluginmanager=manager)

    register(config, "shell", "machines")

    assert manager.hasplugin("harness.fixtures.machines")
