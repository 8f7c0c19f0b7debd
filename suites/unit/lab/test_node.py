"""What a node is asked to be, and where its evidence goes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, HarnessError
from harness.evidence import Evidence
from harness.gpu.transport import Transport
from harness.image import DriverImage, Image, Kernel
from harness.lab.layers import node_spec
from harness.lab.machine import Equipment, LabMachine
from harness.lab.node import Node, NodeRequest, stand_in_files
from harness.machine.broker import Broker
from harness.machine.spec import Accelerator
from harness.machine.ssh import SshIdentity
from harness.payload import Payload
from suites.unit.lab.drivers import StuckDriver

if TYPE_CHECKING:
    from collections.abc import Callable


def an_image() -> Image:
    folder = Path("/images/debian-12")
    return Image(
        name="debian-12",
        key="0" * 64,
        folder=folder,
        disk=folder / "disk.qcow2",
        kernels=tuple(
            Kernel(version=version, vmlinuz=folder / version, initrd=folder / f"{version}.img")
            for version in ("6.1.0-55", "6.1.0-56")
        ),
        driver=DriverImage(
            repository="mcr.microsoft.com/aks/aks-gpu-cuda-lts",
            version="580.1",
            sha="2026",
        ),
    )


def a_request(**changes: Any) -> NodeRequest:
    return replace(NodeRequest(name="node", image=an_image()), **changes)


def an_equipment(folder: Path) -> Equipment:
    return Equipment(
        driver=StuckDriver(),
        agent_program=b"",
        identity=SshIdentity(folder=folder),
        broker=Broker(folder / "room"),
        transport=lambda: Transport.MPQEMU,
        tell=lambda _: None,
    )


def a_node(folder: Path, **changes: Any) -> Node:
    request = a_request(**changes)
    spec = node_spec(
        request.name,
        image=an_image(),
        kernel=request.kernel,
        accelerator=Accelerator.TCG,
        qemu="qemu-that-is-not-there",
        disk=folder / "disk.qcow2",
    )
    return Node(
        request,
        LabMachine(spec, folder, an_equipment(folder)),
        payload=Payload(content=b"", digest="0" * 64),
        identity=SshIdentity(folder=folder),
    )


def test_newest_kernel_is_booted_unless_another_is_asked_for() -> None:
    assert a_request().booted_kernel.version == "6.1.0-56"
    assert a_request(kernel=an_image().other_kernel).booted_kernel.version == "6.1.0-55"


def test_configuration_follows_from_the_image() -> None:
    assert a_request().node_config() == {
        "gpu_node": False,
        "config_gpu_driver_if_needed": True,
        "gpu_driver_type": "cuda-lts",
        "gpu_driver_version": "580.1",
        "gpu_image_sha": "2026",
    }


def test_image_without_a_driver_configures_none() -> None:
    config = a_request(image=replace(an_image(), driver=None)).node_config()

    assert not {"gpu_driver_version", "gpu_image_sha"} & config.keys()


def test_configuration_that_was_asked_for_wins() -> None:
    config = a_request(config={"gpu_node": True, "gpu_driver_version": "1"}).node_config()

    assert (config["gpu_node"], config["gpu_driver_version"]) == (True, "1")


def test_tags_and_size_lie_in_the_metadata_cache() -> None:
    file = a_request(tags={"SkipGPUDriverInstall": 'it\'s, "true"'}, vm_size="x").metadata_cache()

    assert json.loads(file.content) == {
        "compute": {
            "tagsList": [{"name": "SkipGPUDriverInstall", "value": 'it\'s, "true"'}],
            "vmSize": "x",
        }
    }


def test_stand_ins_get_a_file_of_variables_each() -> None:
    (dcgm,) = stand_in_files({"nvidia-dcgm": {"START_DELAY_S": "30", "EXIT_CODE": "1"}})

    assert dcgm.path == "/etc/gpu-node/stand-ins/nvidia-dcgm.env"
    assert dcgm.content == b"START_DELAY_S=30\nEXIT_CODE=1\n"


@pytest.mark.parametrize("name", ["../up", "a b", ""])
def test_name_that_is_no_machine_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInputError, match="is no machine name"):
        a_node(tmp_path, name=name)


@pytest.fixture
def gather(monkeypatch: pytest.MonkeyPatch) -> Callable[[Node, str], Evidence]:
    """Return a function that gathers a node's evidence, of which the guest says `text`."""
    said: list[str] = []

    def collect(_: Node, folder: Path) -> Evidence:
        folder.mkdir()
        if said[-1]:
            (folder / said[-1]).touch()
        return Evidence(folder)

    def run(node: Node, name: str) -> Evidence:
        said.append(name)
        return node.evidence()

    monkeypatch.setattr(Node, "collect", collect)
    return run


def test_evidence_gathered_again_has_nothing_of_the_first(
    tmp_path: Path, gather: Callable[[Node, str], Evidence]
) -> None:
    """A record that a teardown took away must not be seen in what is gathered after it."""
    node = a_node(tmp_path)

    before = gather(node, "record")
    after = gather(node, "")

    assert [path.name for path in before.folder.iterdir()] == ["record"]
    assert list(after.folder.iterdir()) == []
    assert node.gathered == (before, after)


def test_nothing_is_gathered_before_somebody_asks(tmp_path: Path) -> None:
    assert a_node(tmp_path).gathered == ()


def test_machine_whose_kernel_qemu_loads_is_not_rebooted(tmp_path: Path) -> None:
    machine = a_node(tmp_path).machine

    with pytest.raises(HarnessError, match="ends when its guest reboots; boot it by firmware"):
        machine.reboot(machine.deadline(1))
