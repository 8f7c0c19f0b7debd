"""Which plugins and options make examples run through pytest's phases, and how host errors are explained."""

from __future__ import annotations

import errno
import importlib
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin.specs.runs import SpecRuns, _others_follow_the_protocol

if TYPE_CHECKING:
    from pathlib import Path


def _config_with(plugin: ModuleType | object, **options: object) -> pytest.Config:
    manager = pytest.PytestPluginManager()
    manager.register(plugin)
    return SimpleNamespace(  # type: ignore[return-value]  # SpecRuns uses only these attributes
        hook=manager.hook,
        getoption=lambda name, default=None: options.get(name, default),
        getini=lambda _name: None,
    )


class _Plugin:
    @pytest.hookimpl
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Do nothing; pytest calls this hook for each test."""


def test_examples_run_in_the_pytest_protocol_if_another_plugin_hooks_into_that_protocol() -> None:
    assert _others_follow_the_protocol(_config_with(_Plugin()))


def test_hypothesis_plugin_and_randomly_plugin_do_not_require_the_pytest_protocol() -> None:
    """The test registers fake plugins of these names, since the real plugins take long to import."""
    for name in ("_hypothesis_pytestplugin", "pytest_randomly"):

        def pytest_runtest_setup(item: pytest.Item) -> None:
            del item

        pytest_runtest_setup.__module__ = name
        plugin = ModuleType(name)
        plugin.pytest_runtest_setup = pytest_runtest_setup  # type: ignore[attr-defined]

        assert not _others_follow_the_protocol(_config_with(plugin)), name


def test_rerunfailures_plugin_requires_the_pytest_protocol_only_if_reruns_are_requested() -> None:
    rows: list[tuple[dict[str, object], bool]] = [
        ({}, False),
        ({"reruns": 2}, True),
        ({"force_reruns": 0}, True),
    ]
    for options, follows in rows:
        plugin = importlib.import_module("pytest_rerunfailures")

        assert _others_follow_the_protocol(_config_with(plugin, **options)) is follows, options


def test_setup_show_option_and_pdb_option_disable_fast_runs_of_examples() -> None:
    rows: list[tuple[dict[str, object], bool]] = [
        ({}, True),
        ({"setupshow": True}, False),
        ({"usepdb": True}, False),
    ]
    for options, is_fast in rows:
        runs = SpecRuns.__new__(SpecRuns)
        runs.config = _config_with(object(), **options)

        assert runs.is_fast is is_fast, options


def test_operating_system_error_of_the_shell_is_explained_with_a_remedy(tmp_path: Path) -> None:
    for error, shown in (
        (OSError(errno.EMFILE, "Too many"), "a_spec.sh' can't run: Too many; raise the limit on"),
        (OSError(errno.ENFILE, "Too many"), "Too many; raise the limit on open files"),
        (OSError(errno.ENOSPC, "No space"), "No space; free space in"),
        (OSError(errno.EDQUOT, "Quota"), "Quota; free space in"),
        (OSError(errno.EACCES, "Denied", "/x"), "can't run: Denied (/x)."),
        (OSError("odd"), "can't run: odd."),
    ):
        runs = SpecRuns.__new__(SpecRuns)
        file: Any = SimpleNamespace(spec=SimpleNamespace(path="a_spec.sh"))
        for folder, expected in ((tmp_path, shown), (tmp_path / "gone", "gone', was deleted")):
            runs.scratch = SimpleNamespace(path=folder)  # type: ignore[assignment]  # only `path` is used
            assert expected in runs._explain(file, error), error
