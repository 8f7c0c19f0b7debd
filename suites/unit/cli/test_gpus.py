"""`harness gpu ls` prints the catalogue, a user's own models among it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import main
from harness.gpu.catalogue import load_catalogue

if TYPE_CHECKING:
    import pytest

_SHIPPED = Path("harness/gpu/models/t4-16gb.yaml")


def test_every_model_has_a_line_and_every_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "ls"]) == 0

    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line]
    catalogue = load_catalogue()
    assert [line.split()[0] for line in lines] == [
        "MODEL",
        *catalogue.models,
        "NODE",
        *catalogue.nodes,
    ]
    assert "10de:2330  10de:16c1  16M,128G,32M  cuda,grid  yes  NVIDIA H100 80GB HBM3" in printed


def test_json_has_all_known_facts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu", "ls", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    t4 = next(model for model in document["models"] if model["name"] == "t4-16gb")
    assert t4["boot_registers"] == {"0x0": "0x164000a1", "0xa00": "0x164a1000"}
    assert t4["bars"]["vfio_user"]["1"] == {"mib": 256, "bits": 64}
    assert (t4["subsystem"], t4["class_code"]) == ("12a2", "030200")
    assert document["nodes"][0]["count"] == 8


def test_models_of_a_named_folder_are_listed_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(_SHIPPED.read_text().replace("Tesla T4", "Mine"))

    assert main(["gpu", "ls", f"--gpu-models={tmp_path}"]) == 0

    assert "Mine" in capsys.readouterr().out


def test_invalid_model_file_ends_with_2_and_names_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(_SHIPPED.read_text().replace("chip:", "chip_id:"))

    assert main(["gpu", "ls", f"--gpu-models={tmp_path}"]) == 2

    streams = capsys.readouterr()
    assert f"{tmp_path}/mine.yaml:12: key 'chip_id'" in streams.err
    assert streams.out == ""
