"""Container images are reproducible, and have the layout that containerd and registries read."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from harness.image.formats.oci import (
    Entry,
    archive_of,
    container_image,
    entries_of,
    registry_files,
    split_reference,
    tar_of,
)

if TYPE_CHECKING:
    from pathlib import Path

REFERENCE = "mcr.microsoft.com/aks/aks-gpu-cuda-lts:580.126.09-20260801000000"
ENTRIES = [
    Entry(path="entrypoint.sh", content=b"#!/bin/sh\n", mode=0o755),
    Entry(path="bin", is_folder=True, mode=0o755),
    Entry(path="bin/sh", link="busybox"),
]


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        files = {info.name: opened.extractfile(info) for info in opened if info.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_archive_does_not_depend_on_the_order_of_entries() -> None:
    image = container_image(ENTRIES, entrypoint=["/entrypoint.sh"])
    again = container_image(ENTRIES[::-1], entrypoint=["/entrypoint.sh"])

    assert archive_of(image, reference=REFERENCE) == archive_of(again, reference=REFERENCE)


def test_index_of_an_image_archive_refers_to_its_manifest_and_the_manifest_to_its_blobs() -> None:
    files = members(
        archive_of(container_image(ENTRIES, entrypoint=["/entrypoint.sh"]), reference=REFERENCE)
    )

    def follow(descriptor: dict[str, object]) -> bytes:
        digest = str(descriptor["digest"]).removeprefix("sha256:")
        content = files[f"blobs/sha256/{digest}"]
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == REFERENCE
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "580.126.09-20260801000000"
    manifest = json.loads(follow(entry))
    config = json.loads(follow(manifest["config"]))
    (layer,) = manifest["layers"]
    # A further field would change the digest by which registries store the image.
    assert [set(each) for each in (manifest["config"], layer)] == [
        {"mediaType", "digest", "size"}
    ] * 2
    content = follow(layer)
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert config["config"]["Entrypoint"] == ["/entrypoint.sh"]
    assert members(content) == {"entrypoint.sh": b"#!/bin/sh\n"}


def test_files_of_a_layer_belong_to_root_and_keep_modes_and_links() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_of(ENTRIES))) as layer:
        attributes = {info.name: (info.uid, info.gid, info.mode, info.linkname) for info in layer}

    assert attributes == {
        "bin": (0, 0, 0o755, ""),
        "bin/sh": (0, 0, 0o777, "busybox"),
        "entrypoint.sh": (0, 0, 0o755, ""),
    }


def test_entries_of_a_folder_have_the_modes_and_links_that_git_stores(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir(mode=0o700)
    (tmp_path / "bin/tool").write_bytes(b"1")
    (tmp_path / "bin/tool").chmod(0o700)
    (tmp_path / "data").write_bytes(b"2")
    (tmp_path / "data").chmod(0o600)
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "sbin").symlink_to("bin")

    assert entries_of(tmp_path) == [
        Entry(path="bin", is_folder=True, mode=0o755),
        Entry(path="bin/tool", content=b"1", mode=0o755),
        Entry(path="data", content=b"2", mode=0o644),
        Entry(path="link", link="data"),
        Entry(path="sbin", link="bin"),
    ]


def test_manifest_in_the_registry_files_is_found_by_its_tag_and_by_its_digest() -> None:
    image = container_image(ENTRIES, entrypoint=["/entrypoint.sh"])
    files = registry_files(image, repository="aks/aks-gpu-cuda-lts", tag="1")

    root = "docker/registry/v2"
    there = f"{root}/repositories/aks/aks-gpu-cuda-lts"
    digest = files[f"{there}/_manifests/tags/1/current/link"].decode()
    hexed = digest.removeprefix("sha256:")
    assert files[f"{there}/_manifests/revisions/sha256/{hexed}/link"].decode() == digest
    assert files[f"{root}/blobs/sha256/{hexed[:2]}/{hexed}/data"] == image.manifest.content
    manifest = json.loads(image.manifest.content)
    for blob in (manifest["config"], *manifest["layers"]):
        hexed = blob["digest"].removeprefix("sha256:")
        assert files[f"{there}/_layers/sha256/{hexed}/link"].decode() == blob["digest"]
        content = files[f"{root}/blobs/sha256/{hexed[:2]}/{hexed}/data"]
        assert hashlib.sha256(content).hexdigest() == hexed


def test_reference_without_host_or_tag_is_refused() -> None:
    for reference in ("busybox", "host:5000/name", "name:tag"):
        with pytest.raises(ValueError, match="is not an image reference"):
            split_reference(reference)
