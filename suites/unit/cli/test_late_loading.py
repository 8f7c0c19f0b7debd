"""Modules that are loaded when one of their attributes is first used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.cli.late_loading import load_on_use

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

NAME = "late_loading_example"


@pytest.fixture(autouse=True)
def _example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("print('loads')\nVALUE = 7\n")
    (folder / "part.py").write_text("VALUE = 8\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == NAME]:
        del sys.modules[name]


def imported() -> ModuleType:
    return __import__(NAME)


def test_import_of_a_lazy_module_does_not_load_the_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load_on_use(NAME)

    imported()
    imported()

    assert capsys.readouterr().out == ""


def test_use_of_an_attribute_loads_the_module_once(capsys: pytest.CaptureFixture[str]) -> None:
    load_on_use(NAME)
    module = imported()

    assert [module.VALUE, module.VALUE, imported().VALUE] == [7, 7, 7]
    assert capsys.readouterr().out == "loads\n"


def test_import_of_a_name_or_of_a_submodule_loads_the_module() -> None:
    load_on_use(NAME)

    assert __import__(NAME, fromlist=["VALUE"]).VALUE == 7
    assert __import__(f"{NAME}.part", fromlist=["VALUE"]).VALUE == 8


def test_loaded_module_is_not_replaced_by_a_lazy_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = imported()

    load_on_use(NAME)

    assert imported() is module
    assert capsys.readouterr().out == "loads\n"
