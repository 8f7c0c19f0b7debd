"""The client that opens GPUs without NVIDIA's libraries, tested with files in place of a driver."""

from __future__ import annotations

import ast
import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.gpu.gsp import open_gpus
from harness.gpu.gsp.open_gpus import main

if TYPE_CHECKING:
    import pytest

INFORMATION = """\
Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 24
GPU UUID: \t GPU-00000000-0000-4000-8000-000000000001
Bus Location: \t 0000:02:00.0
Device Minor: \t {minor}
"""


def a_driver(folder: Path, *opens: bool) -> tuple[Path, Path]:
    """Return the folders of GPUs and device nodes; a node that can't be opened is a folder."""
    gpus, devices = folder / "gpus", folder / "dev"
    devices.mkdir()
    (devices / "nvidiactl").touch()
    for minor, does_open in enumerate(opens):
        gpu = gpus / f"0000:{minor + 2:02x}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(INFORMATION.format(minor=minor))
        node = devices / f"nvidia{minor}"
        node.touch() if does_open else node.mkdir()
    return gpus, devices


def test_client_prints_a_json_line_with_driver_answers_for_each_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*a_driver(tmp_path, True, True)) == 0

    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["Model"], first["GPU UUID"][-1]) == ("NVIDIA A100-SXM4-40GB", "1")
    assert [each["address"] for each in (first, second)] == ["0000:02:00.0", "0000:03:00.0"]


def test_missing_device_nodes_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, devices = a_driver(tmp_path, True, True)
    for each in (*devices.iterdir(),):
        each.unlink()
    made = {}

    def mknod(path: Path, mode: int, device: int) -> None:
        path.touch()
        made[path.name] = (mode, os.major(device), os.minor(device))

    monkeypatch.setattr(os, "mknod", mknod)

    assert main(gpus, devices) == 0
    mode = stat.S_IFCHR | 0o666
    minors = {"nvidiactl": 255, "nvidia0": 0, "nvidia1": 1}
    assert made == {name: (mode, 195, minor) for name, minor in minors.items()}


def test_gpu_that_does_not_open_is_reported_and_the_other_gpus_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*a_driver(tmp_path, False, True)) == 1

    printed = capsys.readouterr()
    assert "GPU 0000:02:00.0 did not open: Is a directory." in printed.err
    assert json.loads(printed.out)["address"] == "0000:03:00.0"


def test_client_fails_on_a_node_without_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*a_driver(tmp_path)) == 1

    assert "has no GPU" in capsys.readouterr().err


def test_client_imports_only_the_standard_library() -> None:
    tree = ast.parse(Path(open_gpus.__file__).read_text())
    modules = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert modules <= sys.stdlib_module_names
