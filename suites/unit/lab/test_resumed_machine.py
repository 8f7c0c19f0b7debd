"""Saved machines that are resumed, and those that are not.

The others are of another QEMU or firmware, or name files of this host.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.gpu import GpuModel
from harness.lab import resumed_machine
from harness.lab.machine_bundle import read_bundle
from harness.lab.resumed_machine import (
    require_firmware_of,
    require_own_files,
    require_qemu_of,
)
from harness.machine import uefi_firmware
from harness.machine.description.spec import Accelerator, DirectKernel
from harness.machine.uefi_firmware import UefiFirmware
from harness.settings import Settings
from suites.unit.image.formats.small_qcow2 import qcow2_on
from suites.unit.lab.bundle_folder import BASE, a_bundle

if TYPE_CHECKING:
    from pathlib import Path

AGAIN = "It was not resumed; get the bundle again from the host that made it."
_FEATURES_AT = 72
_EXTERNAL_DATA = 1 << 2


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the folder of a saved machine with a disk that stands alone."""
    folder = a_bundle(tmp_path / "checkpoint")
    qcow2_on(folder / "disk.qcow2", "")
    return folder


def _refusal(saved: Path) -> str:
    """Return why the files of a saved machine are refused."""
    with pytest.raises(BadInputError) as refused:
        require_own_files(read_bundle(saved))
    return str(refused.value)


def test_machine_with_plain_files_and_a_disk_of_its_own_is_resumed(saved: Path) -> None:
    require_own_files(read_bundle(saved))


@pytest.mark.parametrize("name", ["disk.qcow2", "agent.pyz"])
def test_link_to_a_file_of_this_host_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    secret = qcow2_on(tmp_path / "secret", "")
    (saved / name).unlink(missing_ok=True)
    (saved / name).symlink_to(secret)

    assert _refusal(saved) == (
        f"{saved / name}: A saved machine has plain files only, but this is a link, a folder or a "
        f"device. {AGAIN}"
    )


def test_folder_in_a_saved_machine_is_refused(saved: Path) -> None:
    (saved / "seed.iso").mkdir()

    with pytest.raises(
        BadInputError, match=r"^.*/seed\.iso: A saved machine has plain files only"
    ):
        require_own_files(read_bundle(saved))


def test_disk_that_names_a_backing_file_is_refused(saved: Path) -> None:
    qcow2_on(saved / "disk.qcow2", "/etc/hostname")

    assert _refusal(saved) == (
        f"{saved / 'disk.qcow2'}: The disk of the saved machine has a backing file, so it is only a "
        f"part of an image. {AGAIN}"
    )


def test_disk_that_names_a_data_file_is_refused(saved: Path) -> None:
    disk = saved / "disk.qcow2"
    content = bytearray(disk.read_bytes())
    struct.pack_into(">Q", content, _FEATURES_AT, _EXTERNAL_DATA)
    disk.write_bytes(content)

    assert "has an external data file" in _refusal(saved)


def test_raw_disk_is_refused(saved: Path) -> None:
    (saved / "disk.qcow2").write_bytes(bytes(510) + b"\x55\xaa")

    assert "The disk of the saved machine is not a qcow2 image" in _refusal(saved)


def test_missing_disk_is_named(saved: Path) -> None:
    (saved / "disk.qcow2").unlink()

    assert _refusal(saved) == (
        f"{saved / 'disk.qcow2'}: The disk of the saved machine is missing; get the bundle again from "
        "the host that made it."
    )


def test_machine_of_another_qemu_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"my-qemu": "7.2.22", "other-qemu": "10.1.2"}
    monkeypatch.setattr(resumed_machine, "qemu_version", versions.__getitem__)
    bundle = read_bundle(saved)
    require_qemu_of(bundle, "my-qemu")

    with pytest.raises(HarnessError) as refused:
        require_qemu_of(bundle, "other-qemu")

    assert str(refused.value) == (
        "The machine was saved by QEMU 7.2.22, but 'other-qemu' is 10.1.2; name one of that version "
        "by --qemu."
    )


@pytest.fixture
def firmware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UefiFirmware:
    """Return the UEFI firmware of this host."""
    found = UefiFirmware(code=tmp_path / "code.fd", variables=tmp_path / "variables.fd")
    monkeypatch.setattr(uefi_firmware, "find_uefi_firmware", lambda: found)
    return found


def test_machine_with_the_firmware_of_this_host_is_resumed(
    tmp_path: Path, firmware: UefiFirmware
) -> None:
    folder = a_bundle(tmp_path / "checkpoint", kernel={"flash": str(firmware.code)})

    require_firmware_of(read_bundle(folder))


def test_firmware_that_is_any_other_file_of_this_host_is_refused(
    tmp_path: Path, firmware: UefiFirmware
) -> None:
    bundle = read_bundle(a_bundle(tmp_path / "checkpoint", kernel={"flash": "/etc/shadow"}))

    with pytest.raises(HarnessError) as refused:
        require_firmware_of(bundle)

    assert str(refused.value) == (
        "The machine was saved with the UEFI firmware '/etc/shadow', but this host has "
        f"'{firmware.code}'; install the package and version of that host."
    )


@pytest.mark.parametrize("kernel", [{"version": "6.1.0-56", "may_reboot": False}, {}])
def test_machine_without_flash_needs_no_firmware_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: dict[str, object]
) -> None:
    monkeypatch.delattr(uefi_firmware, "find_uefi_firmware")

    require_firmware_of(read_bundle(a_bundle(tmp_path / "checkpoint", kernel=kernel)))


# -- the description ---------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the disk of the machines' base image in the cache, of which QEMU's version is right."""
    monkeypatch.setattr(resumed_machine, "qemu_version", lambda _: "7.2.22")
    folder = tmp_path / "cache/images/debian-12-0123"
    folder.mkdir(parents=True)
    manifest = {"files": {"disk.qcow2": {"sha256": BASE.digest}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return qcow2_on(folder / "disk.qcow2", "")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache=tmp_path / "cache")


def test_resumed_machine_is_the_saved_machine(
    base: Path, settings: Settings, tmp_path: Path
) -> None:
    folder = a_bundle(tmp_path / "checkpoint", has_seed=True)
    qcow2_on(folder / "disk.qcow2", "")
    bundle, own = read_bundle(folder), tmp_path / "own"

    described = resumed_machine.resumed_machine(bundle, settings, own, kept_until=5.0)

    spec = described.spec
    assert (spec.name, spec.memory_mib, spec.root_ports) == ("node", 1536, 4)
    assert (spec.accelerator, spec.is_restored) == (Accelerator.TCG, True)
    assert (spec.memory_file, spec.qemu) == (None, settings.qemu)
    assert (spec.disk, spec.seed) == (own / "disk.qcow2", folder / "seed.iso")
    assert isinstance(spec.kernel, DirectKernel)
    assert spec.kernel.vmlinuz == folder / "kernel-header"
    assert described.source.disk == base
    assert [gpu.name for gpu in described.gpus if isinstance(gpu, GpuModel)] == ["h100-sxm5-80gb"]
    assert (described.kept_until, described.bundle) == (5.0, bundle)
    for store in (settings.cloud_image_store, settings.derived_store):
        base.parent.parent.rename(store)
        base = store / base.relative_to(base.parent.parent)
        assert resumed_machine.resumed_machine(bundle, settings, own).source.disk == base


@pytest.mark.usefixtures("base")
def test_named_base_image_replaces_the_one_in_the_cache(
    saved: Path, tmp_path: Path, settings: Settings
) -> None:
    described = resumed_machine.resumed_machine(
        read_bundle(saved), settings, tmp_path, base=tmp_path / "other.qcow2"
    )

    assert described.source.disk == tmp_path / "other.qcow2"


@pytest.mark.usefixtures("base")
def test_machine_with_a_link_is_not_described(saved: Path, settings: Settings) -> None:
    (saved / "seed.iso").symlink_to("/etc/shadow")

    with pytest.raises(BadInputError, match="plain files only"):
        resumed_machine.resumed_machine(read_bundle(saved), settings, saved)


@pytest.mark.usefixtures("base")
def test_machine_of_another_qemu_is_not_described(
    saved: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumed_machine, "qemu_version", lambda _: "10.1.2")

    with pytest.raises(HarnessError, match=r"was saved by QEMU 7\.2\.22"):
        resumed_machine.resumed_machine(read_bundle(saved), settings, saved)


@pytest.mark.usefixtures("base", "firmware")
def test_machine_of_another_firmware_is_not_described(tmp_path: Path, settings: Settings) -> None:
    folder = a_bundle(tmp_path / "c", kernel={"flash": "/etc/shadow"})
    qcow2_on(folder / "disk.qcow2", "")

    with pytest.raises(HarnessError, match="saved with the UEFI firmware '/etc/shadow'"):
        resumed_machine.resumed_machine(read_bundle(folder), settings, folder)
