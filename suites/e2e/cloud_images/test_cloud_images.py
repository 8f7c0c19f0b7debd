"""Tests of an unchanged distribution image, with firmware and the image's boot loader and cloud-init."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cli import main
from harness.cloudinit import CloudInitStatus
from harness.image.cloud.source import Algorithm, LocalImage
from harness.image.cloud.store import open_local
from harness.lab.bakes import bake_evidence
from harness.lab.boot_loader import boot_always, boot_once, menu_of
from harness.lab.cloud_images import CloudImageBoot
from harness.lab.node_request import NodeRequest
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.fixtures.machines import BootCloudImage, BootNode
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.image import CloudImage, CloudImageKernel, Image
    from harness.image.cloud.source import CloudImageRecipe
    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

_CLOUD_INIT_KVM_S = 60.0
_REBOOT_KVM_S = 60.0
_COMPARE_S = 300.0
_GIB = 1 << 30
#: A node with a driver removes the driver image; a node that needs the image again pulls it.
_SERVE_DRIVER = ("systemctl", "start", "docker-registry")


def _root_bytes(machine: LabMachine) -> int:
    return int(machine.guest.output_of("df", "--output=size", "-B1", "/").splitlines()[-1])


def _version(image: CloudImage) -> str:
    assert image.driver is not None
    return image.driver.version


def _is_uefi(machine: LabMachine) -> bool:
    return machine.guest.run("test", "-d", "/sys/firmware/efi").ok


def test_clone_was_booted_by_ovmf_and_its_root_disk_was_grown_by_cloud_init(
    clone: CloneState, booted: SavedState, fetched: CloudImage, cloud_like: Image
) -> None:
    """The test inspects a clone, which continues where the first boot ended."""
    machine = clone(booted, hostname="grown")

    assert _is_uefi(machine)
    assert machine.guest.output_of("uname", "-r") == cloud_like.newest_kernel.version
    assert machine.guest.cloud_init_report().status is CloudInitStatus.DONE
    assert machine.guest.output_of("hostname") == "grown"
    assert fetched.virtual_bytes < 5 * _GIB < 9 * _GIB < _root_bytes(machine)
    assert machine.guest.output_of("systemctl", "is-active", "serial-getty@ttyS0") == "active"
    assert machine.guest.run("test", "-e", "/etc/netplan/50-cloud-init.yaml").ok
    assert "10.0.2.15" in machine.guest.output_of("ip", "-4", "address", "show", "dev", "eth0")


def test_kernel_that_is_booted_once_finds_the_gpu_and_does_not_become_the_default(
    clone: CloneState, booted: SavedState, cloud_like: Image, h100: GpuModel
) -> None:
    """The firmware of the clone finds the GPU, which was plugged in while the machine ran."""
    machine = clone(booted, gpus=[h100])
    other = cloud_like.other_kernel.version

    boot_once(machine.guest, other)
    machine.reboot(machine.deadline(_REBOOT_KVM_S))

    assert _is_uefi(machine)
    machine.wait_for_gpu(h100)
    assert machine.guest.output_of("uname", "-r") == other
    assert "next_entry=\n" in machine.guest.output_of("grub-editenv", "list") + "\n"


@pytest.mark.nightly
def test_bake_adds_the_driver_and_keeps_the_kernels_of_the_image(
    lab: Lab, baked: CloudImage, cloud_like: Image
) -> None:
    """The evidence lists the baked files.

    The disk has no backing file and the same kernels as before.
    """
    evidence = bake_evidence(baked)
    newest = cloud_like.newest_kernel.version

    expect.provisioned(evidence)
    expect.no_gpu(evidence)
    expect.module_built_for(evidence, newest, version=_version(baked))
    assert [kernel.version for kernel in lab.cloud_image_kernels(baked)] == [
        kernel.version for kernel in cloud_like.kernels
    ]


@pytest.mark.nightly
def test_bake_command_writes_the_disk_as_a_standalone_file(
    entry: CloudImageRecipe, baked: CloudImage, tmp_path: Path
) -> None:
    """A cached bake is not repeated; the file can be used like any image of a user."""
    output = tmp_path / "our bake.qcow2"
    code = main(
        [
            *("image", "bake", f"--image={entry.name}", f"--images-dir={entry.folder}"),
            f"--output={output}",
        ]
    )

    assert code == 0
    handed_on = open_local(LocalImage.at(output), Algorithm.SHA256)
    assert handed_on.virtual_bytes == baked.virtual_bytes
    LocalRunner().run(
        ["qemu-img", "compare", "-f", "qcow2", "-F", "qcow2", str(output), str(baked.disk)],
        timeout_s=_COMPARE_S,
    ).check("Comparing the disks")


@pytest.mark.nightly
def test_seabios_boots_the_baked_image_and_the_driver_is_built_for_another_kernel(
    boot_node: BootNode, baked: CloudImage, cloud_like: Image, h100: GpuModel
) -> None:
    """Nothing is compiled on the kernel of the bake; the module is built on the other kernel."""
    newest, other = cloud_like.newest_kernel.version, cloud_like.other_kernel.version
    node = boot_node(
        NodeRequest(
            name="seabios",
            image=baked,
            gpus=[h100],
            config={"mcr_repository_base": "localhost:5000/"},
            before=[_SERVE_DRIVER],
        )
    )
    assert not _is_uefi(node.machine)
    fast = node.evidence()

    boot_always(node.guest, other)
    node.machine.reboot(node.machine.deadline(_REBOOT_KVM_S))
    assert node.guest.output_of("uname", "-r") == other
    # The agent is ready long before the units that a service waits for.
    node.machine.agent.wait_for_unit("multi-user.target", node.machine.deadline(_REBOOT_KVM_S))
    node.guest.output_of(*_SERVE_DRIVER)
    said = node.provision("boot").check("boot").stdout
    full = node.evidence()

    expect.cloud_init_clean(fast)
    expect.provisioned(fast)
    expect.kernel_running(fast, newest)
    expect.decided(fast, action="install-skip-build", reason="ok")
    expect.module_built_before_boot(fast, newest)
    expect.gpu_bound(fast, device="2330")
    expect.provisioned(full)
    expect.kernel_running(full, other)
    assert full.outcome is not None
    assert (full.outcome.action, full.outcome.reason) == ("install", "kernel")
    assert "AKS_GPU_PREBAKE event=decision action=install reason=kernel" in said
    expect.module_built_for(full, other, version=_version(baked))
    expect.gpu_bound(full, device="2330")
    assert "saved_entry=" in node.guest.output_of("grub-editenv", "list")


def test_kernels_are_extracted_from_the_oldest_to_the_newest(
    kernels: Sequence[CloudImageKernel], cloud_like: Image
) -> None:
    versions = [kernel.version for kernel in kernels]

    assert versions == [kernel.version for kernel in cloud_like.kernels]


@pytest.mark.nightly
def test_extracted_kernel_boots_with_the_command_line_of_the_boot_loader(
    clone: CloneState,
    boot_cloud_image: BootCloudImage,
    booted: SavedState,
    fetched: CloudImage,
    kernels: Sequence[CloudImageKernel],
) -> None:
    """Both boots have the same kernel and command line; on request, cloud-init configures ifupdown."""
    by_loader = clone(booted)
    ask_for_ifupdown = "cc:{system_info:{network:{renderers:[eni]}}}"

    boot = CloudImageBoot(kernel=kernels[-1], append=(ask_for_ifupdown,))
    direct = boot_cloud_image(fetched, boot, name="direct")
    result = direct.guest.wait_for_cloud_init_result(direct.deadline(_CLOUD_INIT_KVM_S))

    assert sorted(menu_of(by_loader.guest)) == sorted(kernel.version for kernel in kernels)
    for question in (("uname", "-r"), ("uname", "-v")):
        assert direct.guest.output_of(*question) == by_loader.guest.output_of(*question)
    command_line = by_loader.guest.output_of("cat", "/proc/cmdline")
    assert direct.guest.output_of("cat", "/proc/cmdline") == f"{command_line} {ask_for_ifupdown}"
    assert result.errors == ()
    assert "iface eth0 inet dhcp" in direct.guest.output_of(
        "cat", "/etc/network/interfaces.d/50-cloud-init"
    )
    assert not direct.guest.run("test", "-e", "/etc/netplan/50-cloud-init.yaml").ok
    assert "10.0.2.15" in direct.guest.output_of("ip", "-4", "address", "show", "dev", "eth0")
