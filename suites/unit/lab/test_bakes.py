"""What a bake of a stock image refuses before it boots anything, and how a disk is handed on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.lab.bakes import bake_stock, write_alone
from harness.provisioning.command import CommandResult, LocalRunner
from suites.unit.lab.test_lab import lab as lab  # noqa: PLC0414 - a fixture of that module's
from suites.unit.lab.test_stock import a_stock_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.lab import Lab


def test_bake_of_nobody_knows_which_driver_is_refused(lab: Lab) -> None:
    with pytest.raises(BadInputError, match="Nothing says which driver to bake"):
        bake_stock(lab, a_stock_image(driver=None))


def test_place_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.qcow2").write_text("mine")

    with pytest.raises(BadInputError, match="There is such a file already"):
        write_alone(a_stock_image(), tmp_path / "mine.qcow2")

    assert (tmp_path / "mine.qcow2").read_text() == "mine"


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"could not be written there \(No such file"):
        write_alone(a_stock_image(), tmp_path / "absent" / "mine.qcow2")


def test_disk_that_cannot_be_converted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalRunner, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        return CommandResult(
            argv=tuple(argv),
            exit_code=1,
            stdout="",
            stderr="qemu-img: No space left on device",
            duration_s=timeout_s,
        )

    monkeypatch.setattr(LocalRunner, "run", refuse)

    with pytest.raises(HarnessError, match="No space left on device"):
        write_alone(replace(a_stock_image()), tmp_path / "mine.qcow2")

    assert list(tmp_path.iterdir()) == []
