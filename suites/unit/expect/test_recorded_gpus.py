"""The harness reads the recorded output of nodes with a real H100 and a real H200."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence.causes import find_causes
from harness.expect.driver_report import NVIDIA_SMI, driver_reports_health
from harness.expect.gpus import every_gpu_driven, has_gpus, no_gpu_error_logged
from harness.fixtures.recordings import load_recording
from harness.gpu.catalogue import load_catalogue
from harness.provisioning.kernel_modules import read_resident_version
from harness.provisioning.node_files import NodeFiles
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

_DRIVER = "580.159.04"
_PROC = "/proc/driver/nvidia"
_CARDS = {"h100": ("h100-sxm5-80gb", "2330"), "h200": ("h200-sxm5-141gb", "2335")}

each_card = pytest.mark.parametrize("card", _CARDS)


def recorded(tool: str, case: str) -> str:
    return load_recording(f"{tool}/{_DRIVER}-{case}").text


def a_recorded_node(folder: Path, card: str) -> EvidenceFolder:
    """Return the evidence of the card's node; the node had no lspci, so that output is made up."""
    device = _CARDS[card][1]
    return (
        EvidenceFolder(folder)
        .command(
            "lspci",
            f"00:06.0 3D controller [0302]: NVIDIA Corporation Device [10de:{device}] (rev a1)\n"
            "\tKernel driver in use: nvidia\n",
        )
        .command("dmesg", recorded("nvidia-module", f"{card}-kernel-log"))
        .command(NVIDIA_SMI, recorded("nvidia-smi", f"{card}-q"))
        .file(f"{_PROC}/version", recorded("nvidia-module", "version"))
        .file(
            f"{_PROC}/gpus/0000:00:06.0/information",
            recorded("nvidia-module", f"{card}-information"),
        )
        .paths(
            "c 666 0 1795723080.0000000000 /dev/nvidia0",
            "c 666 0 1795723080.0000000000 /dev/nvidiactl",
        )
    )


@each_card
def test_healthy_recorded_gpu_node_meets_the_expectations(tmp_path: Path, card: str) -> None:
    """The module logs a cleared interrupt and a deprecated mode, which are no faults."""
    node = a_recorded_node(tmp_path, card)
    evidence = node.evidence
    model = load_catalogue().get(_CARDS[card][0])

    assert evidence.driver_version == _DRIVER
    assert evidence.driver_gpu_names == {"0000:00:06.0": model.title}
    assert evidence.refused_gpus == []
    expect.gpus_on_bus(evidence, model)
    expect.driver_names_gpus(evidence, model.title)
    assert has_gpus(evidence)
    assert f"driver {_DRIVER} drives" in every_gpu_driven(evidence)
    assert no_gpu_error_logged(evidence)
    assert find_causes("", [node.root]) == []
    assert driver_reports_health(evidence) == "nvidia-smi reports 1 GPU without a fault."


def test_resident_driver_version_is_read_from_a_recorded_proc_file(tmp_path: Path) -> None:
    proc = tmp_path / "proc/driver/nvidia"
    proc.mkdir(parents=True)
    (proc / "version").write_text(recorded("nvidia-module", "version"))

    assert read_resident_version(NodeFiles(tmp_path)) == _DRIVER
