"""Which saved machines are resumed, and which are refused.

A machine is refused if it has another QEMU or firmware, or refers to files of this host.
"""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.gpu import GpuModel
from harness.lab import resumed_machine
from harness.lab.machine_bundle import read_bundle
from harness.machine import uefi_firmware
from harness.machine.description.spec import Accelerator, DirectKernel, Firmware, Flash
from harness.machine.uefi_firmware import UefiFirmware
from harness.settings import Settings
from suites.unit.image.formats.small_qcow2 import qcow2_on
from suites.unit.lab.bundle_folder import BASE, a_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_FEATURES_AT = 72
_EXTERNAL_DATA = 1 << 2


def a_saved_machine(folder: Path) -> Path:
    """Return the folder of a saved machine whose disk has no backing file."""
    saved = a_bundle(folder / "checkpoint", has_seed=True)
    qcow2_on(saved / "disk.qcow2", "")
    return saved


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return a_saved_machine(tmp_path)


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cache the base image of the saved machine, set QEMU's versions, and return the image's disk."""
    versions = {"qemu-system-x86_64": "7.2.22", "other-qemu": "10.1.2"}
    monkeypatch.setattr(resumed_machine, "qemu_version", versions.__getitem__)
    folder = tmp_path / "cache/images/debian-12-0123"
    folder.mkdir(parents=True)
    manifest = {"files": {"disk.qcow2": {"sha256": BASE.digest}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return qcow2_on(folder / "disk.qcow2", "")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache=tmp_path / "cache")


@pytest.fixture
def firmware(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UefiFirmware:
    """Return the UEFI firmware of this host."""
    found = UefiFirmware(code=tmp_path / "code.fd", variables=tmp_path / "variables.fd")
    monkeypatch.setattr(uefi_firmware, "find_uefi_firmware", lambda: found)
    return found


def _link_of_the_disk(saved: Path) -> None:
    (saved / "disk.qcow2").rename(saved.parent / "secret")
    (saved / "disk.qcow2").symlink_to(saved.parent / "secret")


def _names_a_data_file(saved: Path) -> None:
    disk = saved / "disk.qcow2"
    content = bytearray(disk.read_bytes())
    struct.pack_into(">Q", content, _FEATURES_AT, _EXTERNAL_DATA)
    disk.write_bytes(content)


@pytest.mark.usefixtures("base")
def test_resuming_a_bundle_with_links_or_missing_files_or_an_unsafe_disk_is_refused(
    tmp_path: Path, settings: Settings
) -> None:
    rows: list[tuple[Callable[[Path], object], str]] = [
        (_link_of_the_disk, "/disk.qcow2: .* plain files only"),
        (
            lambda saved: (saved / "agent.pyz").symlink_to("/etc/shadow"),
            "/agent.pyz: .* plain files only",
        ),
        (lambda saved: (saved / "seed.iso").mkdir(), "/seed.iso: .* plain files only"),
        (
            lambda saved: qcow2_on(saved / "disk.qcow2", "/etc/hostname"),
            "/disk.qcow2: .* has a backing file",
        ),
        (_names_a_data_file, "has an external data file"),
        (
            lambda saved: (saved / "disk.qcow2").write_bytes(bytes(510) + b"\x55\xaa"),
            "is not a qcow2 image",
        ),
        (lambda saved: (saved / "disk.qcow2").unlink(), "/disk.qcow2: .* is missing"),
    ]
    for number, (damage, words) in enumerate(rows):
        folder = tmp_path / str(number)
        saved = a_saved_machine(folder)
        damage(saved)

        with pytest.raises(BadInputError, match=words):
            resumed_machine.resumed_machine(read_bundle(saved), settings)


@pytest.mark.usefixtures("base")
def test_machine_that_another_qemu_version_saved_is_refused(
    saved: Path, settings: Settings
) -> None:
    other = replace(settings, qemu="other-qemu")

    with pytest.raises(
        HarnessError, match=r"saved by QEMU 7\.2\.22, but 'other-qemu' is 10\.1\.2"
    ):
        resumed_machine.resumed_machine(read_bundle(saved), other)


@pytest.mark.usefixtures("base")
def test_bundle_with_a_firmware_path_other_than_the_host_firmware_is_refused(
    tmp_path: Path, settings: Settings, firmware: UefiFirmware
) -> None:
    """With another firmware file, a bundle could map any file of this host into the guest."""
    for number, code in enumerate((str(firmware.code), "/etc/shadow")):
        folder = a_bundle(tmp_path / str(number), kernel={"flash": code})
        qcow2_on(folder / "disk.qcow2", "")
    described = resumed_machine.resumed_machine(read_bundle(tmp_path / "0"), settings, tmp_path)

    flash = Flash(code=firmware.code, variables=tmp_path / "variables.fd")
    assert described.spec.kernel == Firmware(flash=flash)
    with pytest.raises(HarnessError, match=f"firmware '/etc/shadow', .* has '{firmware.code}'"):
        resumed_machine.resumed_machine(read_bundle(tmp_path / "1"), settings, tmp_path)


@pytest.mark.usefixtures("base")
def test_machine_without_flash_is_resumed_on_a_host_without_uefi_firmware(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[dict[str, object]] = [{"version": "6.1.0-56", "may_reboot": False}, {}]
    for number, kernel in enumerate(rows):
        folder = tmp_path / str(number)
        monkeypatch.delattr(uefi_firmware, "find_uefi_firmware", raising=False)
        folder = a_bundle(folder / "checkpoint", kernel=kernel)
        qcow2_on(folder / "disk.qcow2", "")

        assert resumed_machine.resumed_machine(
            read_bundle(folder), settings, folder
        ).is_continued, kernel


def test_resumed_machine_has_the_settings_and_files_of_the_saved_machine(
    saved: Path, base: Path, settings: Settings, tmp_path: Path
) -> None:
    bundle, own = read_bundle(saved), tmp_path / "own"

    described = resumed_machine.resumed_machine(bundle, settings, own, kept_until=5.0)

    spec = described.spec
    assert (spec.name, spec.memory_mib, spec.root_ports) == ("node", 1536, 4)
    assert (spec.accelerator, spec.is_restored) == (Accelerator.TCG, True)
    assert (spec.memory_file, spec.qemu) == (None, settings.qemu)
    assert (spec.disk, spec.seed) == (own / "disk.qcow2", saved / "seed.iso")
    assert isinstance(spec.kernel, DirectKernel)
    assert spec.kernel.vmlinuz == saved / "kernel-header"
    assert described.source.disk == base
    assert [gpu.name for gpu in described.gpus if isinstance(gpu, GpuModel)] == ["h100-sxm5-80gb"]
    assert (described.kept_until, described.bundle) == (5.0, bundle)
    for store in (settings.cloud_image_store, settings.derived_store):
        base.parent.parent.rename(store)
        base = store / base.relative_to(base.parent.parent)
        assert resumed_machine.resumed_machine(bundle, settings, own).source.disk == base
