"""The table of GPU models and drivers, which is generated from JUnit files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.e2e.real_driver.table import read_cells, render_table, replace_table

if TYPE_CHECKING:
    from pathlib import Path

_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build"
_PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Mon Jul 14"


def junit(file: Path, *cases: dict[str, str]) -> Path:
    """Write a JUnit file whose tests recorded these properties."""
    tests = "".join(
        "<testcase name='t'><properties>"
        + "".join(f'<property name="{name}" value="{value}"/>' for name, value in case.items())
        + "</properties></testcase>"
        for case in cases
    )
    file.write_text(f"<testsuites><testsuite>{tests}</testsuite></testsuites>")
    return file


def test_table_cells_are_read_from_junit_by_driver_and_qemu_version_and_gpu(
    tmp_path: Path,
) -> None:
    file = junit(
        tmp_path / "junit.xml",
        {"driver": _OPEN, "qemu": "QEMU emulator version 11.1.3", "gpu": "a", "cell": "opened"},
        {"driver": _PROPRIETARY, "qemu": "QEMU emulator version 7.2.22", "gpu": "a"},
        {},
    )

    assert read_cells(file) == {
        ("550.163.01 open, QEMU 11.1", "a"): "opened",
        ("535.261.03 proprietary, QEMU 7.2", "a"): "failed",
    }


def test_table_has_a_row_for_each_gpu_and_an_empty_cell_if_nothing_ran() -> None:
    cells = {("one", "b"): "opened", ("two", "a"): "refused by the driver"}

    assert render_table(cells) == (
        "| GPU | one | two |\n|---|---|---|\n"
        "| `a` |  | refused by the driver |\n| `b` | opened |  |\n"
    )


def test_table_replaces_the_text_between_its_marks() -> None:
    begin, end = "<!-- Written by suites/e2e/real_driver/table.py -->\n", "<!-- End -->\n"

    assert replace_table(f"a\n{begin}old\n{end}b\n", "new\n") == f"a\n{begin}\nnew\n\n{end}b\n"


def test_page_without_marks_for_the_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="has no lines"):
        replace_table("a\n", "new\n")
