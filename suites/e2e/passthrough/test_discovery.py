"""Tests of `harness gpu host ls` on a host with real sysfs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.machine.monitored_machine import MonitoredMachine
from suites.e2e.passthrough.conftest import DRIVER

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu import GpuModel
    from harness.gpu.emulated import EmulatedGpu
    from harness.lab.machine import LabMachine
    from suites.e2e.passthrough.conftest import StartHost

_LS_S = 120.0
_HEADER_TYPE = 0x0E
_HAS_SEVERAL_FUNCTIONS = 0x80
_DISK_BYTES = 64 << 20
_USE_DISK = (
    "mkfs.ext4 -q /dev/disk/by-id/virtio-shared && mount /dev/disk/by-id/virtio-shared /mnt"
)
_USE_CARD = 'ip address add 192.0.2.1/24 dev "$1" && ip link set "$1" up && ip route add default via 192.0.2.2'


@pytest.mark.vm_driver("qemu", reason="the test plugs multi-function cards by QEMU's monitor")
def test_every_gpu_is_listed_with_its_verdict_and_reason(
    start_host: StartHost, h100: GpuModel, tmp_path: Path
) -> None:
    """One GPU is free; two GPUs are on cards with a mounted disk and with the network card."""
    host = start_host(1)
    disk = tmp_path / "shared.img"
    disk.touch()
    with disk.open("r+b") as file:
        file.truncate(_DISK_BYTES)
    _monitored(host).monitor.execute(
        "blockdev-add",
        {"driver": "file", "node-name": "shared", "filename": str(disk)},
    )
    _plug_beside(
        host, h100, "rp1", {"driver": "virtio-blk-pci", "drive": "shared", "serial": "shared"}
    )
    _monitored(host).monitor.execute("netdev_add", {"type": "user", "id": "other"})
    _plug_beside(host, h100, "rp2", {"driver": "virtio-net-pci", "netdev": "other", "romfile": ""})
    host.wait_for_gpu(h100, count=3)
    host.guest.output_of("udevadm", "settle")
    host.guest.output_of("sh", "-euc", _USE_DISK)
    cards = host.guest.output_of("ls", "/sys/class/net").split()
    host.guest.output_of("sh", "-euc", _USE_CARD, "sh", max(cards, key=_card_number))

    listed = json.loads(
        host.guest.output_of("harness", "gpu", "host", "ls", "--json", timeout_s=_LS_S)
    )

    free, with_disk, with_card = sorted(listed["gpus"], key=lambda gpu: str(gpu["address"]))
    assert [free["verdict"], free["models"]] == ["usable", [h100.name]]
    (function,) = free["functions"]
    assert (function["driver"], function["reset_methods"]) == (DRIVER, ["bus"])
    assert free["iommu_group"] == function["group"]
    _require_refused(with_disk, "mounted")
    _require_refused(with_card, "default route")
    assert listed["leases"] == []


def _plug_beside(host: LabMachine, model: GpuModel, port: str, other: dict[str, object]) -> None:
    """Plug a card with the functions `other` and a GPU into `port`, the first free port.

    QEMU shows the card to the guest once the card has function 0.
    """
    server = host.gpus.serve(model)
    _mark_as_part_of_a_card(server.gpu)
    attachment = server.attachment()
    host.vm.plug(replace(attachment, properties={**attachment.properties, "addr": "0x0.0x1"}))
    _monitored(host).monitor.execute(
        "device_add",
        {**other, "id": f"beside-{port}", "bus": port, "addr": "0x0.0x0", "multifunction": True},
    )


def _mark_as_part_of_a_card(gpu: EmulatedGpu) -> None:
    """Set the multi-function bit in the GPU's header, as in each function of a card.

    Linux puts the functions of a card into one IOMMU group only if each function has this bit.
    """
    config = gpu._config
    header = bytearray(config._initial)
    header[_HEADER_TYPE] |= _HAS_SEVERAL_FUNCTIONS
    config._initial = bytes(header)
    config.reset()


def _monitored(host: LabMachine) -> MonitoredMachine:
    assert isinstance(host.vm, MonitoredMachine)
    return host.vm


def _card_number(name: str) -> int:
    return int(name.removeprefix("eth")) if name.startswith("eth") else -1


def _require_refused(gpu: dict[str, object], reason: str) -> None:
    assert gpu["verdict"] == "refused", gpu
    assert reason in str(gpu["reasons"]), gpu
