"""A cloud image of a thousand bytes, its signed list, and a catalogue with this image."""

from __future__ import annotations

import hashlib
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from harness.image.catalogue import read_recipe
from harness.image.cloud.source import CloudImageRecipe

if TYPE_CHECKING:
    from collections.abc import Mapping

SIGNATURES = Path(__file__).parents[3] / "fixtures/data/signatures"
FILE = "tiny.qcow2"


def a_qcow2(
    *,
    fill: bytes = b".",
    version: int = 3,
    backing_at: int = 0,
    features: int = 0,
    method: int = 0,
    virtual_bytes: int = 3 << 20,
    tables: int = 0,
) -> bytes:
    """Return a thousand bytes that begin with the header of a qcow2 disk of 3 MiB."""
    header = struct.pack(
        ">4sIQIIQIIQ", b"QFI\xfb", version, backing_at, 0, 16, virtual_bytes, method, tables, 0
    )
    header = header.ljust(72, b"\0") + struct.pack(">Q", features)
    return header.ljust(1000, fill)


IMAGE = a_qcow2()
DIGEST = hashlib.sha256(IMAGE).hexdigest()
OTHER_IMAGE = a_qcow2(fill=b"!")
LIST = f"{DIGEST} *{FILE}\n{hashlib.sha256(b'').hexdigest()} *empty.qcow2\n"

PUBLISHER = "C41599FFB28FBC7F9E3A8E6A7E124A3E38A5627A"
STRANGER = "E91881E12316EFE53C0791A0C47C68586B511E4B"

ENTRY = """\
schema: 1
kind: url
description: A tiny image
folder: {folder}
file: tiny.qcow2
sums:
  file: SHA256SUMS
  algorithm: sha256
signature:
  file: SHA256SUMS.gpg
  key: keys/publisher.asc
  fingerprint: C41599FFB28FBC7F9E3A8E6A7E124A3E38A5627A
"""


def write_cloud_image_recipe(
    catalogue: Path, *, folder: str, more: str = "", entry: str = ENTRY
) -> Path:
    """Write a catalogue with one cloud image and its signing key; return the recipe's file."""
    (catalogue / "keys").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(SIGNATURES / "publisher.asc", catalogue / "keys/publisher.asc")
    file = catalogue / "tiny.yaml"
    file.write_text(entry.format(folder=folder) + more)
    return file


def a_cloud_image_recipe(
    catalogue: Path, *, folder: str, more: str = "", entry: str = ENTRY
) -> CloudImageRecipe:
    """Write a catalogue with one cloud image, and return the image's recipe."""
    recipe = read_recipe(
        write_cloud_image_recipe(catalogue, folder=folder, more=more, entry=entry)
    )
    assert isinstance(recipe, CloudImageRecipe)
    return recipe


def published_files(*, signer: str = "publisher") -> dict[str, bytes]:
    """Return the content of each file that a server publishes, by file name."""
    return {
        FILE: IMAGE,
        "SHA256SUMS": LIST.encode(),
        "SHA256SUMS.gpg": (SIGNATURES / f"SHA256SUMS.{signer}.asc").read_bytes(),
    }


def names_below(folder: Path) -> Mapping[str, bytes]:
    """Return the content of each file in a hidden folder of a store, by file name."""
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
