"""The base image of a saved machine's disk, and the parent images of the base image."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.lab.base_images import describe_base, find_base
from suites.unit.lab.bundle_folder import BASE

if TYPE_CHECKING:
    from pathlib import Path


def an_image(store: Path, digest: str, *, below: str = "", pinned: str | None = None) -> Path:
    """Make an image whose disk has the backing file `below`; its manifest pins the parent's digest."""
    folder = store / f"image-{digest[:4]}"
    folder.mkdir(parents=True)
    manifest: dict[str, object] = {"files": {"disk.qcow2": {"size": 1, "sha256": digest}}}
    if pinned is not None:
        manifest["parent"] = {"folder": "image", "disk_sha256": pinned}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    name = below.encode()
    header = struct.pack(">4sIQIIQ", b"QFI\xfb", 3, 104 if name else 0, len(name), 16, 1 << 30)
    (folder / "disk.qcow2").write_bytes(header.ljust(104, b"\0") + name)
    return folder / "disk.qcow2"


def test_base_image_is_found_by_its_digest(tmp_path: Path) -> None:
    first, second = tmp_path / "images", tmp_path / "stock"
    an_image(first, "34" * 32)
    disk = an_image(second, BASE.digest)

    assert find_base(BASE, [first, second]) == disk


def test_base_image_with_a_damaged_manifest_is_skipped(tmp_path: Path) -> None:
    for number, content in enumerate(("{", "[]", "{}", None)):
        folder = tmp_path / str(number)
        disk = an_image(folder / "images", BASE.digest)
        damaged = folder / "images/damaged/manifest.json"
        damaged.parent.mkdir()
        if content is None:
            damaged.symlink_to("absent")
        else:
            damaged.write_text(content)

        assert find_base(BASE, [folder / "images"]) == disk, content
        assert find_base(BASE, [damaged.parents[1], folder / "none"]) == disk, content


def test_cloud_image_is_found_by_the_digest_of_its_publisher(tmp_path: Path) -> None:
    disk = an_image(tmp_path / "images", "34" * 32)
    manifest = disk.with_name("manifest.json")
    fields = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**fields, "digest": "sha256:1234"}))

    assert find_base(replace(BASE, digest="sha256:1234"), [tmp_path / "images"]) == disk


def test_error_for_missing_images_has_a_copy_command_for_each_image(tmp_path: Path) -> None:
    stores = images, derived = tmp_path / "images", tmp_path / "derived"
    an_image(images, "34" * 32)
    (images / "damaged").mkdir()
    (images / "damaged/manifest.json").write_text("[]")
    base = replace(
        BASE,
        name="debian 12; id",
        # `str(None)`: the manifest of a built image has no `digest`, which must not match this text.
        digest="None",
        folder="/there/derived/baked-0123",
        parents=("/there/images/built-0123", "/there/images/image-3434", "/elsewhere/odd-0123"),
    )

    with pytest.raises(HarnessError) as caught:
        find_base(base, stores)

    assert "image 'debian 12; id' with the digest None" in str(caught.value)
    assert "`harness image fetch --image 'debian 12; id'`" in str(caught.value)
    assert re.findall(r"`rsync -a HOST:(\S+) (\S+)/`", str(caught.value)) == [
        ("/there/derived/baked-0123", str(derived)),
        ("/there/images/built-0123", str(images)),
        ("/elsewhere/odd-0123", str(images)),
    ]


def test_bundle_lists_the_folder_and_parent_images_of_its_base_image(tmp_path: Path) -> None:
    an_image(tmp_path / "images", "34" * 32)
    an_image(tmp_path / "images", "56" * 32, below="../image-3434/disk.qcow2")
    disk = an_image(tmp_path / "derived", BASE.digest, below="../../images/image-5656/disk.qcow2")

    base = describe_base("debian-12", BASE.digest, disk)

    images = tmp_path / "images"
    assert base.folder == str(tmp_path / "derived/image-1212")
    assert base.parents == (str(images / "image-5656"), str(images / "image-3434"))


def test_disk_that_is_its_own_backing_file_is_refused(tmp_path: Path) -> None:
    disk = an_image(tmp_path, "12" * 32, below="../image-3434/disk.qcow2")
    an_image(tmp_path, "34" * 32, below="../image-1212/disk.qcow2")

    with pytest.raises(
        HarnessError, match=f"The chain of backing files of the disk '{disk}' leads back to"
    ):
        describe_base("a", "12", disk)


def test_base_image_with_a_parent_image_is_found(tmp_path: Path) -> None:
    an_image(tmp_path, "34" * 32)
    below = "../image-3434/disk.qcow2"
    disk = an_image(tmp_path, BASE.digest, below=below, pinned="34" * 32)

    assert find_base(BASE, [tmp_path]) == disk


def test_base_image_whose_parent_is_missing_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "image-1212"
    an_image(tmp_path, BASE.digest, below="../image-3434/disk.qcow2")
    for parents, there in (
        (["/other/image-3434"], "/other/image-3434"),
        ([], "/there/images/image-3434"),
    ):
        with pytest.raises(
            HarnessError,
            match=rf"'{folder}'.*needs the folder '{tmp_path / 'image-3434'}'.*`rsync -a HOST:{there} {tmp_path}/`",
        ):
            find_base(replace(BASE, parents=tuple(parents)), [tmp_path])


def test_base_image_whose_parent_or_grandparent_was_rebuilt_is_refused(tmp_path: Path) -> None:
    for number, (pinned, other) in enumerate((("35", "3434"), ("34", "5656"))):
        folder = tmp_path / str(number)
        an_image(folder, "56" * 32)
        an_image(folder, "34" * 32, below="../image-5656/disk.qcow2", pinned="57" * 32)
        an_image(folder, BASE.digest, below="../image-3434/disk.qcow2", pinned=pinned * 32)
        digest = {"3434": "35", "5656": "57"}[other] * 32

        with pytest.raises(
            HarnessError,
            match=f"from an image with the digest {digest}, but '{folder}/image-{other}' has another "
            "build.* set XDG_CACHE_HOME to an empty folder",
        ):
            find_base(BASE, [folder])


def test_parent_with_a_damaged_manifest_is_accepted_if_no_digest_is_pinned(tmp_path: Path) -> None:
    for number, content in enumerate(("{", "{}", '{"parent": null}', None)):
        folder = tmp_path / str(number)
        an_image(folder, "56" * 32)
        parent = an_image(folder, "34" * 32, below="../image-5656/disk.qcow2")
        disk = an_image(folder, BASE.digest, below="../image-3434/disk.qcow2")
        parent.with_name("manifest.json").unlink()
        if content is not None:
            parent.with_name("manifest.json").write_text(content)

        assert find_base(BASE, [folder]) == disk, content


def test_base_image_whose_parent_has_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    an_image(tmp_path, "34" * 32).with_name("manifest.json").write_text("{")
    an_image(tmp_path, BASE.digest, below="../image-3434/disk.qcow2", pinned="34" * 32)

    with pytest.raises(HarnessError, match="has another build of that image, or has no readable"):
        find_base(BASE, [tmp_path])


def test_image_folder_from_a_bundle_is_quoted_in_the_copy_command(tmp_path: Path) -> None:
    """A bundle may come from an untrusted person."""
    with pytest.raises(HarnessError) as caught:
        find_base(replace(BASE, folder="/x; reboot"), [tmp_path])

    assert f"`rsync -a 'HOST:/x; reboot' {tmp_path}/`" in str(caught.value)
