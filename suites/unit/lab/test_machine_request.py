"""How a requested machine becomes a spec and the files that the spec names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.cloudinit import UserData, render_seed
from harness.lab.machine_request import (
    SEED,
    Platform,
    create_files,
    finish_spec,
    slot_aperture_mib,
)
from harness.machine.checkpoint.store import Checkpoint
from harness.machine.description.spec import Accelerator, DirectKernel, HostPort, MemoryFile
from suites.unit.lab.builders import a_machine_request, a_platform, an_image

if TYPE_CHECKING:
    from harness.cloudinit import SeedFiles
    from harness.image.store import ImageStore

FOLDER = Path("/runs/node-1")


def a_checkpoint(folder: Path = Path("/checkpoints/node")) -> Checkpoint:
    return Checkpoint(
        name="node",
        key="0" * 64,
        folder=folder,
        parent=None,
        facts={},
        ram=folder / "ram",
        state=folder / "state",
        disk=folder / "disk.qcow2",
    )


def a_seed(instance_id: str) -> SeedFiles:
    return render_seed(UserData(hostname="node"), instance_id=instance_id)


class FakeImages:
    """Records the overlays that are created."""

    def __init__(self) -> None:
        self.overlays: list[tuple[Path, Path, int | None]] = []

    def create_overlay(self, backing: Path, at: Path, *, size_gib: int | None = None) -> None:
        self.overlays.append((backing, at, size_gib))


@pytest.fixture
def images() -> FakeImages:
    return FakeImages()


def as_store(images: FakeImages) -> ImageStore:
    return cast("ImageStore", images)


def test_machine_that_boots_has_its_seed_and_disk_in_its_folder() -> None:
    spec = finish_spec(a_machine_request(seed=a_seed), a_platform(), FOLDER)

    assert (spec.disk, spec.seed) == (FOLDER / "disk.qcow2", FOLDER / SEED)
    assert (spec.memory_file, spec.is_restored) == (None, False)


def test_clone_maps_the_checkpoints_memory_privately_and_starts_without_a_seed() -> None:
    request = a_machine_request(seed=a_seed, checkpoint=a_checkpoint())

    spec = finish_spec(request, a_platform(), FOLDER)

    assert spec.memory_file == MemoryFile(path=a_checkpoint().ram, is_private=True)
    assert (spec.is_restored, spec.seed) == (True, None)


def test_ports_of_the_host_reach_the_spec() -> None:
    port = HostPort(host_port=41000, guest_port=443)

    spec = finish_spec(a_machine_request(host_ports=[port]), a_platform(), FOLDER)

    assert spec.host_ports == (port,)


def test_memory_file_that_is_requested_replaces_the_checkpoints() -> None:
    memory = MemoryFile(path=Path("/checkpoints/new/ram"), is_private=False)
    request = a_machine_request(memory_file=memory, checkpoint=a_checkpoint())

    assert finish_spec(request, a_platform(), FOLDER).memory_file == memory


def test_disk_that_is_requested_replaces_the_overlay(tmp_path: Path, images: FakeImages) -> None:
    request = a_machine_request(disk=Path("/bake/disk.qcow2"))

    create_files(request, tmp_path, as_store(images))

    assert finish_spec(request, a_platform(), tmp_path).disk == Path("/bake/disk.qcow2")
    assert images.overlays == []


@pytest.mark.parametrize(("apertures_gib", "expected"), [(256, 64 << 10), (0, 0)])
def test_root_ports_reserve_address_space_only_where_the_platform_has_apertures(
    apertures_gib: int, expected: int
) -> None:
    platform = Platform(
        accelerator=Accelerator.TCG, qemu="qemu", apertures_mib=apertures_gib << 10
    )

    spec = finish_spec(a_machine_request(slots=4), platform, FOLDER)

    assert (spec.root_ports, spec.root_port_aperture_mib) == (4, expected)


def test_emulated_guest_is_told_how_fast_its_time_stamp_counter_counts() -> None:
    """On a busy host it would measure another frequency, and its clock would run as fast as it likes."""
    told = replace(a_platform(), tsc_khz=2_596_000)

    spec = finish_spec(a_machine_request(), told, FOLDER)

    assert spec.extra_append == ("tsc_early_khz=2596000",)
    assert finish_spec(a_machine_request(), a_platform(), FOLDER).extra_append == ()


@pytest.mark.parametrize(("slots", "share"), [(1, 256), (4, 64), (5, 32), (8, 32)])
def test_aperture_is_a_power_of_two_that_all_slots_can_have(slots: int, share: int) -> None:
    assert slot_aperture_mib(256 << 10, slots) == share << 10


def test_overlay_of_a_booting_machine_lies_on_its_image(
    tmp_path: Path, images: FakeImages
) -> None:
    create_files(a_machine_request(), tmp_path, as_store(images))

    assert images.overlays == [(an_image().disk, tmp_path / "disk.qcow2", None)]


def test_clone_has_an_overlay_on_the_checkpoint_and_the_header_of_its_kernel(
    tmp_path: Path, images: FakeImages
) -> None:
    vmlinuz = tmp_path / "vmlinuz"
    vmlinuz.write_bytes(b"header" + bytes(1 << 20))
    image = an_image()
    kernels = tuple(replace(kernel, vmlinuz=vmlinuz) for kernel in image.kernels)
    request = a_machine_request(checkpoint=a_checkpoint())
    source = replace(request.source, kernel_image=kernels[0])  # type: ignore[type-var]
    folder = tmp_path / "clone"
    folder.mkdir()

    create_files(replace(request, source=source), folder, as_store(images))

    kernel = finish_spec(replace(request, source=source), a_platform(), folder).kernel
    assert isinstance(kernel, DirectKernel)
    assert kernel.vmlinuz.read_bytes() == vmlinuz.read_bytes()[: 64 << 10]
    assert images.overlays == [(a_checkpoint().disk, folder / "disk.qcow2", None)]


def test_instance_id_of_the_seed_is_the_folders_name(tmp_path: Path, images: FakeImages) -> None:
    asked: list[str] = []

    def seed(instance_id: str) -> SeedFiles:
        asked.append(instance_id)
        return a_seed(instance_id)

    create_files(a_machine_request(seed=seed), tmp_path, as_store(images))

    assert asked == [f"node-{tmp_path.name}"]
    assert (tmp_path / SEED).is_file()
