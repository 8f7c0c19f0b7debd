"""What `nvidia-smi -q` reports of each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.expect.driver_report import NVIDIA_SMI, driver_reports_health
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
==============NVSMI LOG==============

Timestamp                                 : Mon Nov 23 01:30:02 2026
Driver Version                            : 580.126.09
CUDA Version                              : 13.0

Attached GPUs                             : 2
"""
GPU = """
GPU {address}
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    PCI
        Bus                               : 0x65
    FB Memory Usage
        Total                             : 81559 MiB
        Pending                           : Yes
    ECC Errors
        Volatile
            SRAM Correctable              : 7
            SRAM Uncorrectable Parity     : 0
            DRAM Uncorrectable            : 0
        Aggregate
            DRAM Uncorrectable            : 3
    Retired Pages
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 1
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
    Processes                             : None
"""
FIRST, SECOND = (GPU.format(address=f"00000000:{bus}:00.0") for bus in ("65", "66"))
BUS = "".join(
    f"{bus}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [10de:2330] (rev a1)\n"
    "\tKernel driver in use: nvidia\n"
    for bus in ("65", "66")
)


def a_node(folder: Path, report: str, *, exit_code: int = 0, bus: str = BUS) -> EvidenceFolder:
    made = EvidenceFolder(folder).command("lspci", bus)
    return made.command(NVIDIA_SMI, report, exit_code)


def test_healthy_gpus_are_counted(tmp_path: Path) -> None:
    """Errors that were corrected, and those of the GPU's life before, are no fault of now."""
    evidence = a_node(tmp_path, HEAD + FIRST + SECOND).evidence

    assert driver_reports_health(evidence) == "nvidia-smi reports no fault of 2 GPUs."


@pytest.mark.parametrize(
    ("healthy", "broken", "words"),
    [
        ("Pending                           : No", "Pending                           : Yes", "wait to be remapped"),
        ("Occurred        : No", "Occurred        : Yes", "could not be remapped"),
        ("Blacklist            : N/A", "Blacklist            : Yes", "wait to be retired"),
        ("Required                    : No", "Required                    : Yes", "has to be reset"),
        ("Recommended       : No", "Recommended       : Yes", "drained and reset"),
        ("DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 2", "2 errors of its memory"),
        ("Parity     : 0", "Parity     : 1", "1 errors of its memory"),
        (": 81559 MiB", ": [GPU is lost]", "does not answer"),
        (": NVIDIA H100 80GB HBM3", ": ERR!", "does not answer"),
    ],
)  # fmt: skip
def test_fault_of_the_second_gpu_is_named(
    tmp_path: Path, healthy: str, broken: str, words: str
) -> None:
    assert SECOND.count(healthy) == 1
    evidence = a_node(tmp_path, HEAD + FIRST + SECOND.replace(healthy, broken)).evidence

    with pytest.raises(ExpectationError) as refused:
        driver_reports_health(evidence)

    assert words in str(refused.value)
    assert "GPU 00000000:66:00.0" in str(refused.value)
    assert "65:00.0" not in str(refused.value)


def test_gpu_that_the_tool_does_not_report_is_missed(tmp_path: Path) -> None:
    report = HEAD.replace(": 2", ": 1") + FIRST

    with pytest.raises(
        ExpectationError, match=r"bound to 2 GPUs, but `nvidia-smi -q` reports 1: "
    ):
        driver_reports_health(a_node(tmp_path, report).evidence)


def test_failed_tool_is_quoted(tmp_path: Path) -> None:
    node = a_node(tmp_path, "Failed to initialize NVML: Driver/library mismatch", exit_code=18)

    with pytest.raises(ExpectationError, match=r"ended with 18 and printed: Failed to initialize"):
        driver_reports_health(node.evidence)


def test_node_without_the_tool_lacks_its_programs(tmp_path: Path) -> None:
    with pytest.raises(ExpectationError, match=r"no such program\. Install"):
        driver_reports_health(a_node(tmp_path, "", exit_code=127).evidence)


@pytest.mark.parametrize(
    "report",
    ["", "nothing of interest", HEAD, HEAD + FIRST, HEAD.replace("Attached", "Other") + FIRST],
)
def test_report_that_can_not_be_read_is_not_taken_for_health(tmp_path: Path, report: str) -> None:
    with pytest.raises(HarnessError, match="'Attached GPUs' and a block for each") as unknown:
        driver_reports_health(a_node(tmp_path, report).evidence)

    assert not isinstance(unknown.value, AssertionError)


def test_node_that_was_not_asked_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no output of"):
        driver_reports_health(EvidenceFolder(tmp_path).command("lspci", BUS).evidence)
