"""Faults of a GPU that NVIDIA's own driver has opened, as the driver reports them.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.gpu.trace import IncidentKind
from suites.e2e.real_driver.conftest import OPEN_S, open_gpus

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.lab.node import Node
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_SLOT = "0000:02:00"
_SEND_COMMAND = Path(__file__).with_name("send_command.py")
_WITHIN_S = 60.0
_XIDS = (13, 31, 43, 48, 63, 64, 74, 94, 95)
_UNTIL_LOGGED = 'until dmesg | grep -F -e "$1"; do sleep 0.2; done'


@pytest.fixture
def a100_node(node_with_driver: NodeWithDriver, a100: GpuModel) -> Node:
    """Return a node whose driver has opened its A100."""
    node = node_with_driver(a100)
    open_gpus(node)
    return node


def _words_of(xid: int) -> str:
    return f"NVRM: Xid (PCI:{_SLOT}): {xid},"


def wait_for_kernel_line(node: Node, words: str) -> None:
    node.guest.output_of("sh", "-c", _UNTIL_LOGGED, "wait", words, timeout_s=_WITHIN_S)


@pytest.fixture(scope="module")
def evidence_of_xids(opened_node: Node) -> Evidence:
    """Raise each Xid once, and gather evidence after the driver has logged the last Xid.

    The device raises an interrupt, and the driver takes the event from the queue of messages.
    """
    for xid in _XIDS:
        opened_node.gpu().raise_xid(xid)
    wait_for_kernel_line(opened_node, _words_of(_XIDS[-1]))
    return opened_node.evidence()


@pytest.mark.parametrize("xid", _XIDS)
def test_xid_is_logged_by_the_driver(evidence_of_xids: Evidence, xid: int) -> None:
    expect.kernel_log_line(evidence_of_xids, _words_of(xid))


def test_gpu_off_the_bus_causes_xid_79_and_nvidia_smi_reports_it_as_lost(a100_node: Node) -> None:
    a100_node.gpu().fall_off_bus()

    query = a100_node.guest.run("nvidia-smi", timeout_s=OPEN_S)

    wait_for_kernel_line(a100_node, "GPU has fallen off the bus")
    assert query.exit_code != 0
    evidence = a100_node.evidence()
    expect.kernel_log_line(evidence, f"Xid (PCI:{_SLOT}): 79")


def test_unresponsive_gsp_is_logged_as_xid_119(a100_node: Node) -> None:
    """The GSP hangs, and the driver reports the timeout."""
    a100_node.gpu().hang()

    # Each request to the GSP times out after six seconds.
    a100_node.guest.output_of("systemd-run", "--unit=asks", "nvidia-smi", "-q")

    wait_for_kernel_line(a100_node, f"NVRM: Xid (PCI:{_SLOT}): 119")
    a100_node.guest.output_of("systemctl", "kill", "--signal=KILL", "asks")
    expect.kernel_log_line(a100_node.evidence(), "Timeout after")


def test_remapped_rows_are_shown_by_nvidia_smi(a100_node: Node) -> None:
    errors = a100_node.gpu().memory_errors
    errors.rows_after_corrected, errors.rows_after_uncorrected = 3, 1
    errors.is_remapping_pending = True

    report = a100_node.guest.output_of("nvidia-smi", "-q", "-x", timeout_s=OPEN_S)

    (gpu,) = ET.fromstring(report).iter("gpu")  # noqa: S314 - a program of the test's own node
    rows = {each.tag: each.text for each in gpu.iterfind("remapped_rows/*")}
    assert rows["remapped_row_corr"] == "3"
    assert rows["remapped_row_unc"] == "1"
    assert rows["remapped_row_pending"] == "Yes"
    assert rows["remapped_row_failure"] == "No"


def test_gpu_that_fell_off_the_bus_is_opened_after_an_unplug_and_a_plug(
    a100_node: Node, a100: GpuModel
) -> None:
    guest = a100_node.guest
    a100_node.gpu().fall_off_bus()
    guest.run("nvidia-smi", timeout_s=OPEN_S)
    guest.run("nvidia-smi", "-pm", "0", timeout_s=OPEN_S)

    a100_node.hot_unplug("gpu0", in_use=True)
    a100_node.hot_plug(a100)

    guest.output_of(
        "sh", "-c", "until nvidia-smi -L | grep A100; do sleep 1; done", timeout_s=OPEN_S
    )


def test_gpu_can_be_opened_five_times_in_a_row(
    node_with_driver: NodeWithDriver, a100: GpuModel
) -> None:
    """Each `nvidia-smi -L` opens and closes the GPU.

    `harness bench gpu --open` does so twenty times.
    """
    node = node_with_driver(a100)

    for _ in range(5):
        assert a100.title in node.guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)


def test_gpu_is_opened_again_after_its_module_was_unloaded(
    a100_node: Node, a100: GpuModel
) -> None:
    guest = a100_node.guest
    guest.output_of("nvidia-smi", "-pm", "0", timeout_s=OPEN_S)

    guest.output_of("modprobe", "-r", "nvidia-uvm", "nvidia", timeout_s=OPEN_S)
    # Device nodes stay: nvidia-modprobe made them, not the kernel.
    assert a100_node.evidence().loaded_modules.keys().isdisjoint({"nvidia", "nvidia_uvm"})
    open_gpus(a100_node)

    assert a100.title in guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)


def test_gpu_is_reset_by_nvidia_smi(a100_node: Node, a100: GpuModel) -> None:
    guest = a100_node.guest
    guest.output_of("nvidia-smi", "-pm", "0", timeout_s=OPEN_S)

    reset = guest.output_of("nvidia-smi", "--gpu-reset", "-i", "0", timeout_s=OPEN_S)

    assert "was successfully reset" in reset
    assert a100.title in guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)


def test_persistence_daemon_keeps_the_gpu_open(a100_node: Node) -> None:
    guest = a100_node.guest
    guest.output_of("nvidia-smi", "-pm", "0", timeout_s=OPEN_S)

    guest.output_of("nvidia-persistenced", timeout_s=OPEN_S)

    mode = guest.output_of(
        "nvidia-smi", "--query-gpu=persistence_mode", "--format=csv,noheader", timeout_s=OPEN_S
    )
    assert mode.strip() == "Enabled"


def test_unknown_command_is_in_the_evidence(a100_node: Node) -> None:
    """The driver forwards undocumented commands.

    A program in the guest sends an invented command.
    """
    program = _SEND_COMMAND.read_text()

    status = a100_node.guest.output_of("python3", "-c", program, "0x2080ff01", timeout_s=OPEN_S)

    assert int(status, 0) != 0
    trace = a100_node.evidence().gpu_traces["gpu0"]
    unknown = [one.words for one in trace.incidents_of(IncidentKind.COMMAND_UNKNOWN)]
    assert unknown == ["0x2080ff01"]
