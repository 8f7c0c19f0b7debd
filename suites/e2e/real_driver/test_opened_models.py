"""The loaded driver opens or refuses each model of the catalogue.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from harness.gpu.catalogue import load_catalogue
from harness.gpu.trace import IncidentKind
from harness.gpu.transport import Transport
from harness.lab.node_request import NodeRequest
from harness.plugin.evidence_sources import NodeEvidenceSource
from harness.plugin.report import kept_on_failure
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from suites.e2e.real_driver.complaints import complaints_in
from suites.e2e.real_driver.conftest import LOAD_S, OPEN_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.gpu.emulated import EmulatedGpu
    from harness.image import Image
    from harness.lab import Lab
    from harness.lab.node import Node
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_FACTS = "--query-gpu=name,uuid,memory.total,pci.bus_id"
#: The messages for a GPU that is too new, that has no GSP, or whose registers the proprietary
#: modules cannot use.
_REFUSALS = r"is not supported by|does not include the required GPU|RmInitAdapter failed"
#: The most memory of a GPU that the driver reserves for itself.
_OWN_MIB = 1024
_QEMU_S = 30.0
#: The PCI address of a GPU slot on the node.
_PLACE = re.compile(r"00000000:0[2-5]:00\.0")


@pytest.fixture(scope="module")
def booted_node(
    pytestconfig: pytest.Config, lab: Lab, opened_gpu_image: Image
) -> Iterator[Node | None]:
    """Boot one node for all models if the transport works only in booted machines; else return None."""
    if lab.transport is not Transport.MPQEMU:
        yield None
        return
    with contextlib.ExitStack() as stack:
        with requirements(lab.settings):
            node = stack.enter_context(
                lab.boot(NodeRequest(name="booted", image=opened_gpu_image, command=None))
            )
        stack.enter_context(kept_on_failure(pytestconfig, NodeEvidenceSource(node)))
        node.wait_until_provisioned()
        yield node


@pytest.fixture
def node_with(
    booted_node: Node | None, node_with_driver: NodeWithDriver
) -> Iterator[Callable[[GpuModel], tuple[Node, EmulatedGpu]]]:
    """Return a function that gives a node one GPU, which the driver has not opened yet."""
    with contextlib.ExitStack() as stack:

        def plug(model: GpuModel) -> tuple[Node, EmulatedGpu]:
            if booted_node is None:
                node = node_with_driver(model)
                return node, node.gpu()
            booted_node.guest.output_of("dmesg", "--clear")
            device_id = booted_node.hot_plug(model)
            stack.callback(booted_node.hot_unplug, device_id, in_use=True)
            booted_node.machine.wait_for_gpu(model)
            booted_node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)
            return booted_node, booted_node.gpu(device_id)

        yield plug


@pytest.fixture(scope="session")
def qemu_release(lab: Lab) -> str:
    """Return the first line of `qemu --version`."""
    asked = LocalRunner().run([lab.settings.qemu, "--version"], timeout_s=_QEMU_S)
    return asked.check("Asking QEMU's release").stdout.splitlines()[0]


@pytest.mark.parametrize("name", sorted(load_catalogue().models))
def test_driver_opens_each_model_with_a_gsp_and_refuses_the_others(
    node_with: Callable[[GpuModel], tuple[Node, EmulatedGpu]],
    gpu_catalogue: Catalogue,
    qemu_release: str,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    """A model with a GSP is opened with the right name, UUID, memory and address; others are refused.

    The test records a cell for the table in `docs/gpus.md`, which `table.py` writes.
    """
    model = gpu_catalogue.get(name)
    node, gpu = node_with(model)

    query = node.guest.run("nvidia-smi", _FACTS, "--format=csv,noheader,nounits", timeout_s=OPEN_S)

    log = node.guest.output_of("dmesg")
    facts = request.node.user_properties
    facts.append(("driver", node.guest.output_of("head", "-n1", "/proc/driver/nvidia/version")))
    facts += [("qemu", qemu_release), ("gpu", name)]
    assert complaints_in(log) == []
    if model.gsp is None:
        assert model.title not in query.stdout
        assert re.search(_REFUSALS, log), log[-2000:]
        facts.append(("cell", "refused by the driver"))
        return
    title, uuid, memory, bus_id = query.check("nvidia-smi").stdout.strip().split(", ")
    assert title == model.title
    assert uuid.startswith("GPU-00000000-0000-4000-8000-")
    assert model.gsp.memory_mib - _OWN_MIB <= int(memory) <= model.gsp.memory_mib
    assert _PLACE.fullmatch(bus_id)
    assert gpu.trace.incidents_of(IncidentKind.COMMAND_UNKNOWN) == ()
    facts.append(("cell", "opened"))
