"""Expectations on GPUs of any vendor: which functions are GPUs follows from the models."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError
from harness.gpu.catalogue import load_catalogue
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel

_HOST_BRIDGE = "00:00.0 Host bridge [0600]: Intel Corporation 82G33 [8086:29c0]\n"
_NVIDIA = "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
_NVIDIA_SWITCH = "02:00.0 Bridge [0680]: NVIDIA Corporation GH100 [10de:22a3] (rev a1)\n"
_OTHER = (
    "03:00.0 Processing accelerators [1200]: Acme Corporation A1 [1de5:0007]\n"
    "\tKernel driver in use: nvidia\n"
)
_OTHER_SOUND = "03:00.1 Audio device [0403]: Acme Corporation A1 [1de5:0008]\n"


@pytest.fixture
def nvidia() -> GpuModel:
    return load_catalogue().get("h100-sxm5-80gb")


@pytest.fixture
def acme(nvidia: GpuModel) -> GpuModel:
    """Return a model of a vendor that the catalogue lacks, of another class."""
    pci = replace(nvidia.pci, vendor=0x1DE5, device=7, class_code=0x120000)
    return replace(nvidia, name="acme-a1", pci=pci)


def on_bus(folder: Path, *functions: str) -> EvidenceFolder:
    return EvidenceFolder(folder).command("lspci", "".join((_HOST_BRIDGE, *functions)))


def test_vendor_of_a_gpu_is_that_of_its_model(
    tmp_path: Path, nvidia: GpuModel, acme: GpuModel
) -> None:
    evidence = on_bus(tmp_path, _NVIDIA, _NVIDIA_SWITCH, _OTHER, _OTHER_SOUND).evidence

    expect.gpus_on_bus(evidence, acme, nvidia)
    expect.gpus_on_bus(evidence, nvidia)
    expect.gpus_on_bus(evidence, acme)
    expect.gpus_on_bus(evidence, "10de:2330")
    expect.gpus_driven(evidence, acme)
    expect.gpus_on_bus(evidence, acme, "2330")
    assert expect.has_gpus(
        on_bus(tmp_path / "two", _NVIDIA, _NVIDIA.replace("01:", "02:")).evidence
    ) == ("The PCI bus has 10de:2330 at 01:00.0, 10de:2330 at 02:00.0.")
    with pytest.raises(ExpectationError, match=r"\['/dev/nvidiactl', '/dev/nvidia0'\] were"):
        expect.gpu_bound(on_bus(tmp_path, _OTHER).paths().evidence, device=acme)
    with pytest.raises(ExpectationError, match=r"\['1de5:0007'\] were expected .* were \[\]\."):
        expect.gpus_on_bus(on_bus(tmp_path, _NVIDIA).evidence, acme)


def test_gpu_of_another_vendor_with_the_same_device_id_is_refused(
    tmp_path: Path, nvidia: GpuModel, acme: GpuModel
) -> None:
    both = replace(acme, pci=replace(acme.pci, device=nvidia.pci.device))
    evidence = on_bus(tmp_path, _NVIDIA).evidence

    expect.gpus_on_bus(evidence, nvidia)
    with pytest.raises(ExpectationError, match=r"\['1de5:2330'\] were expected"):
        expect.gpus_on_bus(evidence, both)
    with pytest.raises(ExpectationError, match=r"\['1de5:2330'\] were expected"):
        expect.gpus_on_bus(evidence, "1de5:2330")


def test_second_gpu_of_the_vendor_is_refused(tmp_path: Path, acme: GpuModel) -> None:
    other = _OTHER.replace("03:", "04:").replace("0007", "0009")

    with pytest.raises(ExpectationError, match=r"were \['1de5:0007', '1de5:0009'\]"):
        expect.gpus_on_bus(on_bus(tmp_path, _OTHER, other).evidence, acme)


def test_function_of_a_vendor_that_is_no_gpu_counts_as_none(tmp_path: Path) -> None:
    expect.no_gpu(on_bus(tmp_path, _NVIDIA_SWITCH, _OTHER).evidence)
    with pytest.raises(ExpectationError, match=r"No GPU was expected, but .*device='2330'"):
        expect.no_gpu(on_bus(tmp_path, _NVIDIA_SWITCH, _NVIDIA).evidence)
