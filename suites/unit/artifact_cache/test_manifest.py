"""What a folder is checked against: its files, and the disk that it lies on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import DISK, DamagedError, FileFact, ParentPin, manifest
from harness.artifact_cache.manifest import ManifestFormat, facts_of

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("key", "disk", "is_sound"),
    [("k", b"disk", True), ("k", b"disc", False), ("other", b"disk", True)],
    ids=["same", "made again under its key", "same disk of another key"],
)
def test_folder_needs_the_disk_on_which_it_was_made(
    tmp_path: Path, key: str, disk: bytes, *, is_sound: bool
) -> None:
    """Blocks decide: an overlay does not know the key."""
    parent = a_folder(tmp_path / "parent")
    pin = ParentPin(folder="parent", key="k", disk_sha256=FORMAT.read(parent).files[DISK].sha256)
    a_folder(parent, key=key, disk=disk)

    if is_sound:
        FORMAT.check_pin(tmp_path / "child", parent, pin)
    else:
        with pytest.raises(DamagedError, match=r"needs a disk that '.*parent' no longer has"):
            FORMAT.check_pin(tmp_path / "child", parent, pin)
