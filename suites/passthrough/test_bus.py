"""A GPU that is passed through to a guest, as the guest sees it before a driver is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.api import NodeRequest
from suites.passthrough.conftest import ANY, BUS_MEMORY_MIB, require_gpus
from suites.passthrough.guest_gpu import NOTHING, addresses_of, bars_of, first_register_of

if TYPE_CHECKING:
    import pytest

    from harness.api import Image, Lab
    from suites.passthrough.conftest import StartNode, Step


def test_guest_sees_the_ids_and_bars_of_the_gpu(start_node: StartNode, step: Step) -> None:
    """Each BAR has an address, and the same size as on the host."""
    with step("start with a GPU"):
        node = start_node("bus")
    (gpu,) = node.machine.gpus.provided

    (address,) = addresses_of(node, gpu.pci)

    assert bars_of(node, address) == gpu.bars


def test_guest_reads_the_chip_id_from_the_gpu(start_node: StartNode) -> None:
    """The register with the chip id has the same value at each read."""
    node = start_node("register")
    (gpu,) = node.machine.gpus.provided
    (address,) = addresses_of(node, gpu.pci)

    values = {first_register_of(node, address) for _ in range(3)}

    assert len(values) == 1, f"One value was expected, but the guest read {values}."
    assert not values & NOTHING, f"A chip was expected, but the guest read {values}."


def test_two_running_nodes_each_have_their_own_gpu(
    pytestconfig: pytest.Config, start_node: StartNode, step: Step
) -> None:
    """Neither node sees the GPU of the other; both work at the same time."""
    require_gpus(pytestconfig, [ANY, ANY])
    with step("start two"):
        nodes = [start_node("one"), start_node("two")]

    for node in nodes:
        (gpu,) = node.machine.gpus.provided
        (address,) = addresses_of(node, gpu.pci)
        assert first_register_of(node, address) not in NOTHING


def test_next_node_can_use_the_gpu_after_its_machine_was_killed(
    lab: Lab, node_image: Image, start_node: StartNode, step: Step
) -> None:
    """The first machine is killed; after a reset, the second machine sees the same GPU state."""
    request = NodeRequest(
        name="first",
        image=node_image,
        gpus=[ANY],
        command=None,
        skip_cloud_init=True,
        memory_mib=BUS_MEMORY_MIB,
    )
    with lab.boot(request) as first:
        (gpu,) = first.machine.gpus.provided
        (address,) = addresses_of(first, gpu.pci)
        before = first_register_of(first, address)
        first.machine.kill()

    with step("start with the same GPU"):
        second = start_node("second")
    (again,) = second.machine.gpus.provided
    (address,) = addresses_of(second, again.pci)

    assert (again.pci, again.bars) == (gpu.pci, gpu.bars)
    assert first_register_of(second, address) == before
    assert bars_of(second, address) == gpu.bars


def test_guest_has_the_same_gpu_after_a_reboot(start_node: StartNode, step: Step) -> None:
    """The machine resets the GPU, and the new kernel sees the same GPU state."""
    with step("boot from cold"):
        node = start_node("reboot", may_reboot=True)
    (gpu,) = node.machine.gpus.provided
    (address,) = addresses_of(node, gpu.pci)
    before = first_register_of(node, address)

    with step("reboot"):
        node.machine.reboot(node.machine.deadline(60))

    (address,) = addresses_of(node, gpu.pci)
    assert bars_of(node, address) == gpu.bars
    assert first_register_of(node, address) == before
