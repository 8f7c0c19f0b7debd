"""Verdicts on kernel logs: logs from public reports of faults, and logs of healthy GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.expect.every_node import judge_node, node_expectations
from harness.expect.gpus import gpus_refused
from suites.unit.evidence.folders import a_serving_node
from suites.unit.provisioning.driver_logs import PUBLIC_LOGS

if TYPE_CHECKING:
    from pathlib import Path

LINUX = "[    0.0] Linux version 6.8.0\n"
#: The driver's log lines on working nodes with an H100 and an H200, with the open module
#: 580.159.04.
SOUND = """\
[    0.170043] pci 0000:00:06.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint
[    0.530006] nvidia: loading out-of-tree module taints kernel.
[    0.607188] nvidia-nvlink: Nvlink Core is being initialized, major device number 240
[    0.607199] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@)
[    1.230472] NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.
[    3.443859] NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.
[   33.415946] python3[1017]: segfault at 1 ip 00007fdd31be1270 sp 00007fff4ad69960 error 4 in libnvidia-ml.so.580.159.04
"""
UNKNOWN = "NVRM: something that no release has said yet"


def judged(folder: Path, log: str) -> tuple[str, str]:
    evidence = a_serving_node(folder).command("dmesg", LINUX + log).evidence
    (verdict,) = judge_node(evidence, node_expectations(["log"], source="a test"))
    return verdict.state.value, verdict.sentence


def test_each_public_kernel_log_gets_the_expected_verdict(tmp_path: Path) -> None:
    for log in PUBLIC_LOGS:
        state, sentence = judged(tmp_path, log.text)

        assert (log.source, state) == (log.source, log.says.value), sentence
        assert log.words in sentence


def test_kernel_log_of_healthy_gpus_is_accepted(tmp_path: Path) -> None:
    assert judged(tmp_path, SOUND) == ("met", "The kernel log has no GPU error.")


def test_unknown_wording_of_a_gpu_refusal_makes_the_verdict_unknown(tmp_path: Path) -> None:
    log = (
        "[ 1.1] NVRM: The NVIDIA GPU 0001:0b:00.0 (PCI ID: 10de:2bb5)\n"
        "               NVRM: installed in this system is too good for this release.\n"
    )
    evidence = a_serving_node(tmp_path).command("dmesg", LINUX + log).evidence

    assert judged(tmp_path, log)[0] == "unknown"
    with pytest.raises(HarnessError, match="It is unknown which GPUs the driver refuses"):
        gpus_refused(evidence)


def test_gpu_error_makes_the_verdict_not_met_despite_an_unknown_message(tmp_path: Path) -> None:
    for number, state in ((48, "not met"), (31, "unknown")):
        log = f"[ 1.1] NVRM: Xid (PCI:0000:01:00): {number}, pid=1\n[ 1.2] {UNKNOWN}\n"

        assert judged(tmp_path, log)[0] == state


def test_gpu_error_is_quoted_instead_of_application_errors(tmp_path: Path) -> None:
    log = "".join(f"[ 1.{n}] NVRM: Xid (PCI:0000:01:00): {n}, pid=1\n" for n in (31, 48, 45))

    state, sentence = judged(tmp_path, log)

    assert state == "not met"
    assert "1 lines with an error; the last is '[ 1.48] NVRM: Xid (PCI:0000:01:00): 48" in sentence


def test_log_verdict_counts_errors_that_applications_caused(tmp_path: Path) -> None:
    for numbers, words in (
        ((31, 43, 13), "except 3 that applications caused; the last is '[ 1.13]"),
        ((31, 14), "except 1 that applications caused; the last is '[ 1.31]"),
        ((14,), "The kernel log has no GPU error."),
    ):
        log = "".join(f"[ 1.{n}] NVRM: Xid (PCI:0000:01:00): {n}, pid=1\n" for n in numbers)

        state, sentence = judged(tmp_path, log)

        assert state == "met"
        assert words in sentence


def test_last_of_two_gpu_errors_is_quoted(tmp_path: Path) -> None:
    log = "".join(f"[ 1.{n}] NVRM: Xid (PCI:0000:0{n % 10}:00): {n}, pid=1\n" for n in (48, 79))

    assert "there are 2 lines with an error; the last is '[ 1.79]" in judged(tmp_path, log)[1]


def test_verdict_quotes_the_last_unknown_log_line(tmp_path: Path) -> None:
    log = f"{SOUND}[ 1.1] {UNKNOWN}\n[ 1.2] {UNKNOWN} either\n"

    state, sentence = judged(tmp_path, log)

    assert state == "unknown"
    assert "does not know 2 of" in sentence
    assert f"'[ 1.2] {UNKNOWN} either'" in sentence


def test_gpus_refused_requires_exactly_the_gpus_that_the_driver_refused(
    tmp_path: Path,
) -> None:
    log = "".join(
        f"NVRM: The NVIDIA GPU 0000:0{n}:00.0 (PCI ID: 10de:2bb{n})\n"
        "NVRM: installed in this system is not supported by the\n"
        for n in (5, 1)
    )
    evidence = a_serving_node(tmp_path).command("dmesg", LINUX + log).evidence

    gpus_refused(evidence, "10de:2bb5", "2bb1")
    for others in (("2bb1",), ("2bb1", "2bb5", "2bb5"), ("2bb1", "2bb6"), ()):
        with pytest.raises(ExpectationError, match=r"\['2bb1', '2bb5'\]"):
            gpus_refused(evidence, *others)
    # An unknown message beside the refusals changes nothing.
    assert "does not support ['2bb1', '2bb5']." in judged(tmp_path, f"{log}{UNKNOWN}\n")[1]


def test_error_quotes_the_invalid_bar_instead_of_the_failed_probe(tmp_path: Path) -> None:
    log = (
        "[ 5.0] NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
        "               NVRM: BAR1 is 0M @ 0x0 (PCI:0000:05:00.0)\n"
        "[ 5.1] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
        "[ 5.2] NVRM: None of the NVIDIA devices were initialized.\n"
    )

    state, sentence = judged(tmp_path, log)

    assert state == "not met"
    assert (
        "there are 2 lines with an error; the last is '[ 5.0] NVRM: This PCI I/O region"
        in sentence
    )
    assert "The memory region BAR1 of the GPU 0000:05:00.0 is invalid (0M @ 0x0)" in sentence
