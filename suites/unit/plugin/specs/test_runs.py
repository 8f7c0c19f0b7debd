"""Which other plugins keep examples from the short way that leaves out pytest's phases."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace

import pytest

from harness.plugin.specs.runs import _others_follow_the_protocol


def _config_with(plugin: ModuleType | object, **options: object) -> pytest.Config:
    manager = pytest.PytestPluginManager()
    manager.register(plugin)
    return SimpleNamespace(  # type: ignore[return-value]  # all that is asked of it
        hook=manager.hook,
        getoption=lambda name, default=None: options.get(name, default),
        getini=lambda _name: None,
    )


class _Plugin:
    @pytest.hookimpl
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Have a hook that runs for each test."""


def test_plugin_with_a_run_protocol_hook_is_followed() -> None:
    assert _others_follow_the_protocol(_config_with(_Plugin()))


def test_plugin_of_hypothesis_does_nothing_for_an_example() -> None:
    assert not _others_follow_the_protocol(
        _config_with(importlib.import_module("_hypothesis_pytestplugin"))
    )


def test_plugin_that_seeds_random_numbers_does_nothing_for_an_example() -> None:
    assert not _others_follow_the_protocol(
        _config_with(importlib.import_module("pytest_randomly"))
    )


@pytest.mark.parametrize(
    ("options", "follows"), [({}, False), ({"reruns": 2}, True), ({"force_reruns": 0}, True)]
)
def test_rerunfailures_is_followed_only_if_reruns_are_requested(
    options: dict[str, object], follows: bool
) -> None:
    plugin = importlib.import_module("pytest_rerunfailures")

    assert _others_follow_the_protocol(_config_with(plugin, **options)) is follows
