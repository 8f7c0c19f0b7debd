"""`suites/passthrough`, as a lab runs it, on the emulated host: its KVM, its VFIO, its own GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suites.e2e.passthrough.holders import driver_of, gpu_addresses
from suites.e2e.passthrough.nested_suite import run_suite

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab.saved_states import SavedState


def test_nodes_get_the_gpus_of_the_host(
    clone: CloneState, host_of_nodes: SavedState, nested_node_image: Image, h100: GpuModel
) -> None:
    """Each test starts a machine with KVM, which gets a GPU by hot-plug from vfio-pci."""
    host = clone(host_of_nodes, "host", gpus=[h100, h100])
    host.wait_for_gpu(h100, count=2)
    before = [driver_of(host, address) for address in gpu_addresses(host)]

    outcomes = run_suite(
        host,
        nested_node_image.name,
        "suites/passthrough/test_bus.py::test_guest_sees_the_ids_and_bars_of_the_gpu",
        "suites/passthrough/test_bus.py::test_gpu_serves_the_next_node_after_a_power_loss",
        "suites/passthrough/test_bus.py::test_two_nodes_have_a_gpu_each_at_once",
    )

    assert len(outcomes) == 3, outcomes
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert [driver_of(host, address) for address in gpu_addresses(host)] == before
