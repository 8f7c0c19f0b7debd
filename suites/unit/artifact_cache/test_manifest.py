"""An artifact's folder is checked against its manifest and its base disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.artifact_cache import (
    DISK,
    MANIFEST,
    STAMP,
    DamagedError,
    FileFact,
    ParentPin,
    manifest,
)
from harness.artifact_cache.manifest import ManifestFormat, facts_of


@dataclass(frozen=True, kw_only=True)
class _Manifest:
    name: str
    key: str
    files: dict[str, FileFact]
    parent: ParentPin | None = None
    created: str = "2026-01-01"


FORMAT = ManifestFormat(noun="thing", manifest=_Manifest, damaged=DamagedError)


def a_folder(folder: Path, *, key: str = "k", disk: bytes = b"disk", **more: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in {DISK: disk, **more}.items():
        (folder / name).write_bytes(content)
    files = facts_of(folder, [DISK, *more])
    FORMAT.write(folder, _Manifest(name="x", key=key, files=files))
    return folder


@pytest.mark.parametrize("name", [DISK, "ram"])
def test_file_that_changes_while_it_is_verified_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = a_folder(tmp_path / "x", ram=b"ram")
    true_fact_of = manifest.fact_of

    def read_then_change(path: Path) -> FileFact:
        fact = true_fact_of(path)
        if path.name == name:
            content = path.read_bytes()
            path.write_bytes(content[:-1] + b"!")
            # Times of a file system may not differ between two writes within a tick.
            os.utime(path, ns=(1, 1))
        return fact

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "fact_of", read_then_change)
        FORMAT.check(folder, "k")

    with pytest.raises(DamagedError, match=f"{name}' has the digest"):
        FORMAT.check(folder, "k")


@pytest.mark.parametrize("field", ["st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "boot"])
def test_verification_is_outdated_after_a_reboot_or_a_change_of_inode_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Unlike the mtime, the ctime of a file cannot be set back."""
    folder = a_folder(tmp_path / "x")
    found = FORMAT.check(folder, "k")
    assert FORMAT.is_verified_since_boot(folder, found)
    state = Path.stat

    def changed(path: Path) -> object:
        facts = state(path)
        fields = {name: getattr(facts, name) for name in dir(facts) if name.startswith("st_")}
        fields[field] = fields.get(field, 0) + 1
        return SimpleNamespace(**fields)

    if field == "boot":
        (tmp_path / "boot").write_text("another\n")
        monkeypatch.setattr(manifest, "BOOT_ID", tmp_path / "boot")
    else:
        monkeypatch.setattr(Path, "stat", changed)

    assert not FORMAT.is_verified_since_boot(folder, found)


def test_manifest_and_stamp_of_a_folder_are_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = a_folder(tmp_path / "x")
        FORMAT.check(folder, "k")
    finally:
        os.umask(before)

    assert [(folder / name).stat().st_mode & 0o777 for name in (MANIFEST, STAMP)] == [0o600] * 2
    assert sorted(path.name for path in folder.iterdir()) == sorted([DISK, MANIFEST, STAMP])


@pytest.mark.parametrize(
    ("key", "disk", "is_sound"),
    [("k", b"disk", True), ("k", b"disc", False), ("other", b"disk", True)],
    ids=["same", "made again under its key", "same disk of another key"],
)
def test_folder_is_refused_if_its_base_disk_has_changed(
    tmp_path: Path, key: str, disk: bytes, *, is_sound: bool
) -> None:
    """An overlay depends on the blocks of its base disk, and not on the key of the base."""
    parent = a_folder(tmp_path / "parent")
    pin = ParentPin(folder="parent", key="k", disk_sha256=FORMAT.read(parent).files[DISK].sha256)
    a_folder(parent, key=key, disk=disk)

    if is_sound:
        FORMAT.check_pin(tmp_path / "child", parent, pin)
    else:
        with pytest.raises(DamagedError, match=r"is based on an earlier disk of '.*parent'; "):
            FORMAT.check_pin(tmp_path / "child", parent, pin)


def test_manifest_without_a_disk_is_refused(tmp_path: Path) -> None:
    parent = a_folder(tmp_path / "parent")
    pin = ParentPin(folder="parent", key="k", disk_sha256="0")
    FORMAT.write(parent, _Manifest(name="x", key="k", files={}))

    with pytest.raises(DamagedError, match=rf"{MANIFEST}' is malformed: 'files' .*'{DISK}'"):
        FORMAT.check_pin(tmp_path / "child", parent, pin)


@pytest.mark.parametrize(
    "disk", [b"dis", b"disk!", b"disc"], ids=["shorter", "longer", "another letter"]
)
def test_damaged_folder_is_reported_at_each_check(tmp_path: Path, disk: bytes) -> None:
    folder = a_folder(tmp_path / "x")
    published = FORMAT.read(folder)
    (folder / DISK).write_bytes(disk)

    if len(disk) != published.files[DISK].size:
        with pytest.raises(DamagedError, match="bytes, but its manifest states"):
            FORMAT.check_structure(folder, published)
    for _ in range(2):
        with pytest.raises(DamagedError, match="but its manifest states"):
            FORMAT.check(folder, "k")


def test_folder_with_another_key_of_the_same_prefix_is_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "x", key="0123456789abcdef" + "0")

    with pytest.raises(DamagedError, match="has the key"):
        FORMAT.check(folder, "0123456789abcdef" + "1")
