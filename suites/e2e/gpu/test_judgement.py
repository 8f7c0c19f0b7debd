"""A node is judged by the messages of its driver and the state of its PCI bus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError, HarnessError
from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

UNKNOWN = "NVRM: words that no release of the driver has said yet"


def _wait_for_kernel_line(node: Node, words: str) -> None:
    until = 'until dmesg | grep -qF -e "$1"; do sleep 0.2; done'
    node.guest.output_of("sh", "-c", until, "wait", words, timeout_s=60.0)


@pytest.mark.nightly
def test_node_is_judged_by_the_messages_of_its_driver(start_validated: StartNode) -> None:
    """The test logs messages by increasing severity, because the log keeps all messages of a boot."""
    node = start_validated("judged")
    assert expect.no_gpu_error_logged(node.evidence()) == "The kernel log has no GPU error."

    node.gpu().raise_xid(31)
    _wait_for_kernel_line(node, "): 31, pid=")
    assert "1 that applications caused" in expect.no_gpu_error_logged(node.evidence())

    node.guest.output_of(*shell(f"echo '{UNKNOWN}' >/dev/kmsg"))
    with pytest.raises(HarnessError, match="words that no release of the driver has said yet"):
        expect.no_gpu_error_logged(node.evidence())

    node.gpu().raise_xid(48)
    _wait_for_kernel_line(node, "): 48, pid=")
    with pytest.raises(ExpectationError, match="Xid 48: Errors of a GPU's memory"):
        expect.no_gpu_error_logged(node.evidence())


@pytest.mark.nightly
def test_gpu_that_left_the_bus_fails_the_expectation_every_gpu_driven(
    start_validated: StartNode,
) -> None:
    """The kernel still shows the ids of the GPU and the driver bound to it."""
    node = start_validated("left-bus")
    assert "drives 10de:2330" in expect.every_gpu_driven(node.evidence())

    node.gpu().fall_off_bus()

    evidence = node.evidence()
    (gpu,) = [each for each in evidence.pci_functions if each.vendor == "10de"]
    assert gpu.driver_in_use == "nvidia"
    with pytest.raises(ExpectationError, match="reads all ones: the GPU has fallen off the bus"):
        expect.every_gpu_driven(evidence)
