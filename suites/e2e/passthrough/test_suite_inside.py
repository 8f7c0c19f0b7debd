"""Runs `suites/passthrough` as a lab does, on the emulated host with its own KVM, VFIO and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.e2e.passthrough.conftest import DRIVER
from suites.e2e.passthrough.holders import gpu_drivers
from suites.e2e.passthrough.nested_suite import run_suite

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab.machine import LabMachine


def test_nodes_get_the_gpus_of_the_host(node_host: LabMachine, nested_node_image: Image) -> None:
    """Each test starts a machine with KVM, which gets a GPU by hot-plug from vfio-pci."""
    outcomes = run_suite(
        node_host,
        nested_node_image.name,
        "suites/passthrough/test_bus.py::test_guest_sees_the_ids_and_bars_of_the_gpu",
        "suites/passthrough/test_bus.py::test_next_node_can_use_the_gpu_after_its_machine_was_killed",
        "suites/passthrough/test_bus.py::test_two_running_nodes_each_have_their_own_gpu",
    )

    assert len(outcomes) == 3, outcomes
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert gpu_drivers(node_host) == [DRIVER, DRIVER]
