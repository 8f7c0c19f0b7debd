"""`harness gpu ls` prints the catalogue, including a user's own models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import gpus, main
from harness.entry_points import Group, Plugin, PluginError
from harness.gpu.catalogue import load_catalogue

if TYPE_CHECKING:
    import pytest

_SHIPPED = Path("harness/gpu/models/t4-16gb.yaml")


def test_command_gpu_ls_prints_a_line_for_each_model_and_each_node(
    capsys: pytest.CaptureFixture[str],
) -> None:
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


def test_json_of_gpu_ls_has_all_facts_of_each_model_and_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _SHIPPED.read_text().replace("subsystem_vendor: 0x10de", "subsystem_vendor: 0x0e11")
    (tmp_path / "mine.yaml").write_text(text.replace("3: 16}", "3: 8}"))

    assert main(["gpu", "ls", "--json", f"--gpu-models={tmp_path}"]) == 0

    document = json.loads(capsys.readouterr().out)
    models = {model["name"]: model for model in document["models"]}
    found = models["mine"]
    assert found.pop("ids_from").startswith("id: pci.ids")
    assert found == {
        "name": "mine",
        "title": "Tesla T4",
        "architecture": "Turing",
        "vendor": "10de", "device": "1eb8", "subsystem_vendor": "0e11", "subsystem": "12a2",
        "class_code": "030200", "revision": "a1",
        "bars": {
            "mpqemu": {str(bar): {"mib": mib, "bits": 32} for bar, mib in ((0, 16), (1, 16), (3, 8))},
            "vfio_user": {
                "0": {"mib": 16, "bits": 32},
                "1": {"mib": 256, "bits": 64},
                "3": {"mib": 32, "bits": 64},
            },
        },
        "boot_registers": {"0x0": "0x164000a1", "0xa00": "0x164a1000"},
        "driver_kinds": ["cuda", "grid"],
        "has_mig": False,
    }  # fmt: skip
    assert models["h100-sxm5-80gb"]["has_mig"]
    (node,) = document["nodes"]
    assert (node["model"], node["count"], node["needs_fabric_manager"]) == (
        *("h100-sxm5-80gb", 8, True),
    )


def test_package_with_unusable_models_does_not_hide_other_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = Plugin(group=Group.GPU_MODELS, name="theirs", value="x", distribution="theirs 1")
    errors = tuple(PluginError(f"{word} is wrong.", plugin=plugin) for word in ("This", "That"))
    whole = replace(load_catalogue(), errors=errors)
    monkeypatch.setattr(gpus, "load_catalogue", lambda *_: whole)

    assert main(["gpu", "ls", "--json"]) == 0

    streams = capsys.readouterr()
    assert streams.err == "harness: This is wrong.\nharness: That is wrong.\n"
    assert len(json.loads(streams.out)["models"]) == len(whole.models)


def test_exit_code_is_2_for_an_invalid_model_file_and_the_error_has_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(_SHIPPED.read_text().replace("chip:", "chip_id:"))

    assert main(["gpu", "ls", f"--gpu-models={tmp_path}"]) == 2

    streams = capsys.readouterr()
    assert f"{tmp_path}/mine.yaml:12: key 'chip_id'" in streams.err
    assert streams.out == ""
