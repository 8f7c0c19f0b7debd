"""NVIDIA's own driver partitions an emulated GPU with MIG.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.gpu.trace import IncidentKind
from suites.e2e.real_driver.cdi import asking_for, offer_by_cdi
from suites.e2e.real_driver.complaints import complaints_in
from suites.e2e.real_driver.conftest import OPEN_S, open_gpus
from suites.e2e.runtime.kubelet import Container, Kubelet

if TYPE_CHECKING:
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.lab.node import Node
    from harness.settings import Settings
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

#: A MIG device in `nvidia-smi -L`: the GPCs of its compute instance, if not all, and of its GPU
#: instance.
_DEVICE = re.compile(
    r"^  MIG ((?:\dc\.)?\dg)\.\S+ +Device +\d+: \(UUID: (MIG-\S+)\)$", re.MULTILINE
)


def nvidia_smi(node: Node, *words: str) -> str:
    return node.guest.output_of("nvidia-smi", *words, timeout_s=OPEN_S)


def mig_devices(node: Node) -> list[str]:
    """Return the kind of each MIG device; each device has a different UUID."""
    found = _DEVICE.findall(nvidia_smi(node, "-L"))
    assert len({uuid for _, uuid in found}) == len(found)
    return [kind for kind, _ in found]


def node_with_mig(node_with_driver: NodeWithDriver, model: GpuModel) -> Node:
    node = node_with_driver(model)
    open_gpus(node)
    nvidia_smi(node, "-mig", "1")
    return node


@pytest.mark.parametrize("model", ["a100-sxm4-40gb", "h100-sxm5-80gb", "h200-sxm5-141gb"])
def test_mig_devices_exist_until_mig_is_switched_off(
    node_with_driver: NodeWithDriver, gpu_catalogue: Catalogue, model: str
) -> None:
    node = node_with_mig(node_with_driver, gpu_catalogue.get(model))

    nvidia_smi(node, "mig", "-cgi", "14,19", "-C")
    assert mig_devices(node) == ["2g", "1g"]

    nvidia_smi(node, "mig", "-dci")
    nvidia_smi(node, "mig", "-gi", "3", "-cci", "0,0")
    assert mig_devices(node) == ["1c.2g", "1c.2g"]

    nvidia_smi(node, "mig", "-dci")
    nvidia_smi(node, "mig", "-dgi")
    nvidia_smi(node, "-mig", "0")
    assert mig_devices(node) == []
    assert complaints_in(node.guest.output_of("dmesg")) == []
    assert node.gpu().trace.incidents_of(IncidentKind.COMMAND_UNKNOWN) == ()


def test_pod_has_only_the_mig_device_that_it_requests_by_cdi(
    node_with_driver: NodeWithDriver, a100: GpuModel, settings: Settings
) -> None:
    node = node_with_mig(node_with_driver, a100)
    nvidia_smi(node, "mig", "-cgi", "14,19", "-C")
    offer_by_cdi(node)
    devices = {found[2]: found[0] for found in _DEVICE.finditer(nvidia_smi(node, "-L"))}
    uuid = list(devices)[1]

    answers = Kubelet(node, settings).run_pod(
        {
            "asks": Container(script="nvidia-smi -L", config=asking_for(uuid)),
            "silent": Container(script="nvidia-smi -L"),
        }
    )

    assert len(devices) == 2
    assert answers["asks"].ok, answers
    seen = _DEVICE.findall(answers["asks"].stdout)
    assert seen == [("1g", uuid)], answers
    assert not answers["silent"].ok
