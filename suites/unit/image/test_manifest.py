"""Which published images are refused."""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import ParentPin
from harness.artifact_cache.manifest import facts_of
from harness.image import ImageDamagedError
from harness.image.manifest import IMAGE_FORMAT, Manifest

if TYPE_CHECKING:
    from pathlib import Path

DISK = b"QFI\xfb the rest of a disk"
KERNEL_FILES = ("kernels/6.1/vmlinuz", "kernels/6.1/initrd.img")


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Return the manifest of the image published in `tmp_path`."""
    (tmp_path / "kernels/6.1").mkdir(parents=True)
    (tmp_path / "disk.qcow2").write_bytes(DISK)
    for name in KERNEL_FILES:
        (tmp_path / name).write_bytes(b"kernel")
    published = Manifest(
        name="node",
        key="k" * 64,
        builder="builder-1",
        built="2026-08-21T12:00:00+00:00",
        kernels=("6.1",),
        packages={"systemd": "252.1"},
        driver=None,
        files=facts_of(tmp_path, ["disk.qcow2", *KERNEL_FILES]),
    )
    IMAGE_FORMAT.write(tmp_path, published)
    return published


def test_written_manifest_is_read_back_unchanged(tmp_path: Path, manifest: Manifest) -> None:
    assert IMAGE_FORMAT.read(tmp_path) == manifest


@pytest.mark.usefixtures("manifest")
def test_malformed_or_missing_manifest_is_refused(tmp_path: Path) -> None:
    for content in ('{"schema": 1, "name": "node"', '{"schema": 2}'):
        (tmp_path / "manifest.json").write_text(content)

        with pytest.raises(ImageDamagedError, match="is malformed"):
            IMAGE_FORMAT.read(tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(ImageDamagedError, match="has no readable manifest"):
        IMAGE_FORMAT.read(tmp_path)


@pytest.mark.parametrize("kernel", ["6.2", "../../../other", "/boot"])
def test_kernel_whose_files_the_manifest_does_not_list_is_refused(
    tmp_path: Path, manifest: Manifest, kernel: str
) -> None:
    """A manifest from a shared store could name a kernel outside of the image's folder."""
    IMAGE_FORMAT.write(tmp_path, replace(manifest, kernels=(kernel, "6.1")))

    with pytest.raises(ImageDamagedError, match=f"'files' lacks 'kernels/{kernel}/vmlinuz'"):
        IMAGE_FORMAT.read(tmp_path)


def test_derived_image_manifest_must_list_files_of_new_kernels_but_not_of_inherited_kernels(
    tmp_path: Path, manifest: Manifest
) -> None:
    derived = replace(
        manifest, kernels=("6.0", "6.1"), parent=ParentPin(folder="p", key="k", disk_sha256="0")
    )
    IMAGE_FORMAT.write(tmp_path, derived)
    assert IMAGE_FORMAT.read(tmp_path) == derived
    files = {name: fact for name, fact in derived.files.items() if "initrd" not in name}
    IMAGE_FORMAT.write(tmp_path, replace(derived, files=files))

    with pytest.raises(ImageDamagedError, match=r"'files' lacks 'kernels/6\.1/initrd\.img'"):
        IMAGE_FORMAT.read(tmp_path)


def test_image_with_a_missing_kernel_file_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "kernels/6.1/vmlinuz").unlink()

    with pytest.raises(ImageDamagedError, match="vmlinuz' is missing"):
        IMAGE_FORMAT.check_structure(tmp_path, manifest)


def test_image_with_an_invalid_verified_json_file_is_not_treated_as_verified(
    tmp_path: Path, manifest: Manifest
) -> None:
    for stamp in ("", "{}"):
        (tmp_path / "verified.json").write_text(stamp)

        assert not IMAGE_FORMAT.is_verified_since_boot(tmp_path, manifest)


def test_image_is_verified_again_if_the_disk_was_full_at_the_first_verification(
    tmp_path: Path, manifest: Manifest
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            IMAGE_FORMAT.check(tmp_path, manifest.key)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert {path.name for path in tmp_path.iterdir()} - before <= {"verified.json"}
    assert not IMAGE_FORMAT.is_verified_since_boot(tmp_path, manifest)
    IMAGE_FORMAT.check(tmp_path, manifest.key)
    assert IMAGE_FORMAT.is_verified_since_boot(tmp_path, manifest)
