"""A GPU is detached from a running guest, and attached to the guest again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.api import GpuChoice, HarnessError, NodeRequest
from suites.passthrough.conftest import ANY
from suites.passthrough.guest_gpu import NOTHING, addresses_of, first_register_of

if TYPE_CHECKING:
    from pathlib import Path

    from harness.api import BootNode, Image
    from suites.passthrough.conftest import StartNode, Step

#: Keeps the GPU open until the process is killed, like a job.
_HOLD = ["systemd-run", "--unit=job", "sh", "-c", "exec sleep infinity </dev/nvidia0"]


def test_idle_gpu_is_detached_and_attached_again(start_node: StartNode, step: Step) -> None:
    """After the attach, the guest uses the GPU as before."""
    node = start_node("detach")
    (gpu,) = node.machine.gpus.provided

    with step("detach"):
        node.hot_unplug(gpu.device_id)
    assert addresses_of(node, gpu.pci) == []
    with step("attach"):
        node.hot_plug(GpuChoice())
        node.machine.wait_for_gpus()

    (address,) = addresses_of(node, gpu.pci)
    assert first_register_of(node, address) not in NOTHING


def test_gpu_in_use_is_not_detached(boot_node: BootNode, driver_image: Image) -> None:
    """The error names the process that uses the GPU; the GPU can be detached afterwards."""
    node = boot_node(
        NodeRequest(name="busy", image=driver_image, gpus=[ANY], skip_cloud_init=True)
    )
    (gpu,) = node.machine.gpus.provided
    for unit in ("kubelet", "nvidia-persistenced", "nvidia-device-plugin", "nvidia-dcgm"):
        node.guest.run("systemctl", "stop", unit)
    node.guest.output_of(*_HOLD)
    node.guest.output_of(
        "sh", "-c", "until ls -l /proc/*/fd 2>&1 | grep -q nvidia0; do sleep 0.1; done"
    )

    with pytest.raises(HarnessError, match=r"in use in the guest: .*'sleep' \(PID \d+\).*nvidia0"):
        node.hot_unplug(gpu.device_id)

    assert len(addresses_of(node, gpu.pci)) == 1
    node.guest.output_of("systemctl", "stop", "job")
    node.guest.output_of("sh", "-c", "modprobe -r nvidia-uvm; modprobe -r nvidia")
    node.hot_unplug(gpu.device_id)
    assert addresses_of(node, gpu.pci) == []


def test_machine_with_a_gpu_is_not_saved(start_node: StartNode, tmp_path: Path) -> None:
    """The harness names the GPU that prevents the save, and QEMU refuses it too."""
    node = start_node("suspend")
    (gpu,) = node.machine.gpus.provided

    with pytest.raises(HarnessError, match=rf"has the GPU '{re.escape(gpu.device_id)}'; unplug"):
        node.machine.save(tmp_path / "state", nonce="any")
    with pytest.raises(HarnessError):
        node.machine.vm.save(tmp_path / "state")

    assert not (tmp_path / "state").exists() or (tmp_path / "state").stat().st_size == 0
