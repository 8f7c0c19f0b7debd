"""Writes container images (OCI) reproducibly: as an archive, and as a registry's storage.

This file also runs by itself inside the root file system of an image that is being built
(`python3 oci.py --help`), so it uses only the standard library of Python 3.10.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CREATED = "2026-08-01T00:00:00Z"
"""The creation time in every image; the real time would change the digest."""

MTIME = 1785542400
"""CREATED in the format of a tar archive."""

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
"""Uncompressed: zlib's output depends on zlib's version, and an emulated node unpacks slowly."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A file, link or folder of a layer; `path` is relative, `link` the target of a symlink."""

    path: str
    content: bytes = b""
    link: str | None = None
    is_folder: bool = False
    mode: int = 0o644

    def header(self) -> tarfile.TarInfo:
        info = tarfile.TarInfo(self.path)
        info.mtime = MTIME
        info.mode = self.mode
        info.size = len(self.content)
        if self.link is not None:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, self.link, 0o777
        elif self.is_folder:
            info.type = tarfile.DIRTYPE
        return info


@dataclass(frozen=True, kw_only=True)
class Blob:
    """Bytes with their media type, named by their digest."""

    media_type: str
    content: bytes

    @property
    def hex_digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def descriptor(self, annotations: Mapping[str, str] | None = None) -> dict[str, object]:
        """Return the descriptor by which other blobs refer to this blob."""
        told: dict[str, object] = {
            "mediaType": self.media_type,
            "digest": f"sha256:{self.hex_digest}",
            "size": len(self.content),
        }
        return {**told, "annotations": dict(annotations)} if annotations else told


@dataclass(frozen=True, kw_only=True)
class ContainerImage:
    """An image of one layer for linux/amd64."""

    manifest: Blob
    config: Blob
    layer: Blob

    @property
    def blobs(self) -> tuple[Blob, Blob, Blob]:
        return (self.manifest, self.config, self.layer)


def tar_of(entries: Iterable[Entry]) -> bytes:
    """Return a tar archive that depends only on the entries, not on their order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in sorted(entries, key=lambda one: one.path):
            archive.addfile(entry.header(), io.BytesIO(entry.content))
    return buffer.getvalue()


def container_image(
    entries: Iterable[Entry],
    *,
    entrypoint: Sequence[str],
    environment: Sequence[str] = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",),
) -> ContainerImage:
    """Make an image whose single layer holds `entries`."""
    layer = Blob(media_type=LAYER_TYPE, content=tar_of(entries))
    config = _json_blob(
        CONFIG_TYPE,
        {
            "architecture": "amd64",
            "config": {"Entrypoint": list(entrypoint), "Env": list(environment)},
            "created": CREATED,
            "history": [{"created": CREATED, "created_by": "gpu-node-harness"}],
            "os": "linux",
            "rootfs": {"diff_ids": [f"sha256:{layer.hex_digest}"], "type": "layers"},
        },
    )
    manifest = _json_blob(
        MANIFEST_TYPE,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config.descriptor(),
            "layers": [layer.descriptor()],
        },
    )
    return ContainerImage(manifest=manifest, config=config, layer=layer)


def archive_of(image: ContainerImage, *, reference: str) -> bytes:
    """Return the image as an OCI archive; `ctr images import` names it `reference`.

    containerd takes the name from the annotation `io.containerd.image.name` of the index.
    """
    _repository, tag = split_reference(reference)
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            image.manifest.descriptor(
                {
                    "io.containerd.image.name": reference,
                    "org.opencontainers.image.ref.name": tag,
                }
            )
        ],
    }
    layout = [
        Entry(path="oci-layout", content=_json({"imageLayoutVersion": "1.0.0"})),
        Entry(path="index.json", content=_json(index)),
    ]
    blobs = [
        Entry(path=f"blobs/sha256/{blob.hex_digest}", content=blob.content) for blob in image.blobs
    ]
    return tar_of([*layout, *blobs])


def registry_files(image: ContainerImage, *, repository: str, tag: str) -> dict[str, bytes]:
    """Return the files from which a `docker-registry` serves the image, by path in its storage.

    The layout is version 2 of the registry's file-system storage driver
    (distribution/registry/storage/paths.go).
    """
    root = "docker/registry/v2"
    there = f"{root}/repositories/{repository}"
    manifest = image.manifest.hex_digest
    link = f"sha256:{manifest}".encode()
    files = {
        f"{there}/_manifests/revisions/sha256/{manifest}/link": link,
        f"{there}/_manifests/tags/{tag}/current/link": link,
        f"{there}/_manifests/tags/{tag}/index/sha256/{manifest}/link": link,
    }
    for blob in image.blobs:
        digest = blob.hex_digest
        files[f"{root}/blobs/sha256/{digest[:2]}/{digest}/data"] = blob.content
    for blob in (image.config, image.layer):
        digest = blob.hex_digest
        files[f"{there}/_layers/sha256/{digest}/link"] = f"sha256:{digest}".encode()
    return files


def split_reference(reference: str) -> tuple[str, str]:
    """Split 'host/name:tag' into 'host/name' and 'tag'."""
    repository, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag or "/" not in repository:
        raise ValueError(f"'{reference}' is not an image reference of the form 'host/name:tag'.")
    return repository, tag


def entries_of(folder: Path) -> list[Entry]:
    """Read a folder as a layer's entries: owned by root, with the attributes that git records."""
    return [entry_of(path, str(path.relative_to(folder))) for path in sorted(folder.rglob("*"))]


def entry_of(path: Path, name: str) -> Entry:
    """Read one file, link or folder as the entry called `name`."""
    if path.is_symlink():
        return Entry(path=name, link=str(path.readlink()))
    if path.is_dir():
        return Entry(path=name, is_folder=True, mode=0o755)
    mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
    return Entry(path=name, content=path.read_bytes(), mode=mode)


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _json_blob(media_type: str, value: Mapping[str, object]) -> Blob:
    return Blob(media_type=media_type, content=_json(value))


def main() -> None:
    """Make an image from a folder, inside the root file system that is being built."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--root", type=Path, required=True, help="the folder that becomes the layer"
    )
    parser.add_argument("--entrypoint", required=True, help="program that a container starts")
    parser.add_argument("--reference", required=True, help="name of the image: host/name:tag")
    parser.add_argument("--archive", type=Path, required=True, help="OCI archive to write")
    parser.add_argument("--registry", type=Path, help="storage of a docker-registry to add to")
    options = parser.parse_args()
    image = container_image(entries_of(options.root), entrypoint=[options.entrypoint])
    options.archive.parent.mkdir(parents=True, exist_ok=True)
    options.archive.write_bytes(archive_of(image, reference=options.reference))
    if options.registry is not None:
        repository, tag = split_reference(options.reference)
        _host, _, name = repository.partition("/")
        for path, content in registry_files(image, repository=name, tag=tag).items():
            at = options.registry / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(content)


if __name__ == "__main__":
    main()
