"""The description of a machine, and the files to which the description refers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cloudinit import UserData, render_seed
from harness.lab.cloud_images import CloudImageBoot, CloudImageSource
from harness.lab.description import SEED, Platform, create_files, slot_aperture_mib
from harness.machine.description.spec import Accelerator, DirectKernel, HostPort, MemoryFile
from suites.unit.lab.builders import (
    a_booting_source,
    a_cloud_image,
    a_cloud_kernel,
    a_description,
    a_platform,
    an_image,
)
from suites.unit.lab.stage import a_checkpoint

FOLDER = Path("/runs/node-1")


A_SEED = render_seed(UserData(hostname="node"), instance_id="node-1")


class FakeImages:
    """Records the overlays that are created."""

    def __init__(self) -> None:
        self.overlays: list[tuple[Path, Path, int | None]] = []

    def create_overlay(self, backing: Path, at: Path, *, size_gib: int | None = None) -> None:
        self.overlays.append((backing, at, size_gib))


@pytest.fixture
def images() -> Any:
    return FakeImages()


def test_machine_that_boots_has_its_seed_and_disk_in_its_folder_and_the_requested_ports() -> None:
    port = HostPort(host_port=41000, guest_port=443)

    spec = a_description(FOLDER, seed=A_SEED, host_ports=[port]).spec

    assert (spec.disk, spec.seed) == (FOLDER / "disk.qcow2", FOLDER / SEED)
    assert (spec.memory_file, spec.is_restored) == (None, False)
    assert spec.host_ports == (port,)


def test_clone_maps_the_checkpoints_memory_privately_and_starts_without_a_seed() -> None:
    spec = a_description(FOLDER, seed=A_SEED, checkpoint=a_checkpoint()).spec

    assert spec.memory_file == MemoryFile(path=a_checkpoint().ram, is_private=True)
    assert (spec.is_restored, spec.seed) == (True, None)
    own = MemoryFile(path=Path("/checkpoints/new/ram"), is_private=False)
    requested = a_description(FOLDER, memory_file=own, checkpoint=a_checkpoint())
    assert requested.spec.memory_file == own


def test_requested_disk_replaces_the_overlay(tmp_path: Path, images: Any) -> None:
    described = a_description(tmp_path, disk=Path("/bake/disk.qcow2"))

    create_files(described, images)

    assert described.spec.disk == Path("/bake/disk.qcow2")
    assert images.overlays == []


def test_root_ports_reserve_address_space_only_if_the_platform_has_apertures() -> None:
    for apertures_gib, expected in ((256, 64 << 10), (0, 0)):
        platform = Platform(
            accelerator=Accelerator.TCG, qemu="qemu", apertures_mib=apertures_gib << 10
        )

        spec = a_description(FOLDER, platform=platform, slots=4).spec

        assert (spec.root_ports, spec.root_port_aperture_mib) == (4, expected), apertures_gib


def test_kernel_of_a_built_image_gets_the_clock_and_interrupt_arguments_of_the_platform() -> None:
    """On a busy host, a guest would measure a wrong rate, and its clock would be wrong.

    A guest without interrupts polls on the tick of IRQ 0, which the local APIC timer would replace.
    """
    told = replace(a_platform(), tsc_khz=2_596_000)
    polling = replace(a_platform(), lacks_gpu_interrupts=True)
    added = {
        platform: a_description(FOLDER, platform=platform).spec.extra_append
        for platform in (told, polling, a_platform())
    }
    assert list(added.values()) == [("tsc_early_khz=2596000",), ("irqpoll", "nolapic_timer"), ()]

    source = replace(a_booting_source(), kernel_image=a_cloud_kernel())
    described = a_description(FOLDER, platform=told, source=source)
    assert described.spec.kernel_command_line == "root=LABEL=cloudimg-rootfs ro"


def test_root_port_aperture_is_the_largest_power_of_two_that_fits_for_all_slots() -> None:
    shares_gib = {1: 256, 4: 64, 5: 32, 8: 32}

    assert {slots: slot_aperture_mib(256 << 10, slots) >> 10 for slots in shares_gib} == shares_gib


def test_only_the_overlay_of_a_booting_cloud_image_is_enlarged(
    tmp_path: Path, images: Any
) -> None:
    cloud = CloudImageSource(image=a_cloud_image(), boot=CloudImageBoot(disk_gib=20))

    create_files(a_description(tmp_path), images)
    assert not (tmp_path / SEED).exists()
    create_files(a_description(tmp_path, seed=A_SEED), images)
    assert (tmp_path / SEED).is_file()
    create_files(a_description(tmp_path, source=cloud), images)
    create_files(a_description(tmp_path, source=cloud, checkpoint=a_checkpoint()), images)

    disk = tmp_path / "disk.qcow2"
    assert images.overlays == [
        (an_image().disk, disk, None),
        (an_image().disk, disk, None),
        (a_cloud_image().disk, disk, 20),
        (a_checkpoint().disk, disk, None),
    ]


def test_clone_has_an_overlay_on_the_checkpoint_and_a_kernel_file_with_only_the_header(
    tmp_path: Path, images: Any
) -> None:
    vmlinuz = tmp_path / "vmlinuz"
    vmlinuz.write_bytes(b"header" + bytes(1 << 20))
    kernel = replace(an_image().newest_kernel, vmlinuz=vmlinuz)
    folder = tmp_path / "clone"
    folder.mkdir()
    described = a_description(
        folder,
        checkpoint=a_checkpoint(),
        source=replace(a_booting_source(), kernel_image=kernel),
    )

    create_files(described, images)

    header = described.spec.kernel
    assert isinstance(header, DirectKernel)
    assert header.vmlinuz.read_bytes() == vmlinuz.read_bytes()[: 64 << 10]
    assert images.overlays == [(a_checkpoint().disk, folder / "disk.qcow2", None)]
