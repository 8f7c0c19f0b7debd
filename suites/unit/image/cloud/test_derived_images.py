"""Images derived from cloud images are made once, and made again if they are damaged."""

from __future__ import annotations

import datetime as dt
import hashlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.image import CloudImage, DriverImage, FirmwareType, ImageDamagedError
from harness.image.cloud import derived_images
from harness.image.cloud.derived_images import DERIVED_FORMAT, DerivedManifest, DerivedStore
from harness.provisioning.wait import Deadline
from suites.unit.image.cloud_image_folder import DIGEST, IMAGE, OTHER_IMAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRIVER = DriverImage(repository="mcr.example.org/gpu", version="580.1", sha="2026")
SOON = 60.0


class Baker:
    """Writes a disk to the given path, and counts its calls."""

    def __init__(self, content: bytes = OTHER_IMAGE) -> None:
        self.count = 0
        self._content = content

    def __call__(self, disk: Path) -> None:
        self.count += 1
        disk.write_bytes(self._content)


@pytest.fixture
def image(tmp_path: Path) -> CloudImage:
    disk = tmp_path / "cloud.qcow2"
    disk.write_bytes(IMAGE)
    return CloudImage(
        name="noble",
        digest=f"sha256:{DIGEST}",
        disk=disk,
        virtual_bytes=3 << 20,
        driver=DRIVER,
        firmware=FirmwareType.UEFI,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DerivedStore]:
    store = DerivedStore(tmp_path / "derived")
    yield store
    store.close()


def bake(
    store: DerivedStore, image: CloudImage, baker: Baker, *, payload: str = "1"
) -> CloudImage:
    return store.bake(image, {"payload": payload}, baker, deadline=Deadline.after(SOON))


def test_baked_image_is_a_cloud_image_with_the_digest_of_the_baked_disk(
    store: DerivedStore, image: CloudImage
) -> None:
    baked = bake(store, image, Baker())

    assert baked.disk.read_bytes() == OTHER_IMAGE
    assert baked == CloudImage(
        name="noble",
        digest=f"sha256:{hashlib.sha256(OTHER_IMAGE).hexdigest()}",
        disk=baked.disk,
        virtual_bytes=3 << 20,
        driver=DRIVER,
        firmware=FirmwareType.UEFI,
    )


def test_bake_is_made_once_for_each_payload_and_each_image(
    store: DerivedStore, image: CloudImage, tmp_path: Path
) -> None:
    baker = Baker()

    first = bake(store, image, baker)
    assert bake(store, image, baker) == first
    assert bake(DerivedStore(tmp_path / "derived"), image, baker) == first
    assert baker.count == 1

    bake(store, image, baker, payload="2")
    bake(store, bake(store, image, baker), baker)
    assert baker.count == 3


def test_kernels_are_extracted_once(
    store: DerivedStore, image: CloudImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def extract(_: object, into: Path) -> dict[str, tuple[str, ...]]:
        made.append("6.8.0-31-generic")
        (into / made[-1]).mkdir()
        for name in ("vmlinuz", "initrd.img"):
            (into / made[-1] / name).write_text(name)
        return {made[-1]: ("ro",)}

    monkeypatch.setattr(derived_images, "extract_kernels", extract)

    for _ in range(2):
        (kernel,) = store.kernels(image, deadline=Deadline.after(SOON))
        assert (kernel.vmlinuz.read_text(), kernel.command_line) == ("vmlinuz", ("ro",))
    assert len(made) == 1


def test_extracted_kernel_whose_files_the_manifest_does_not_list_is_refused(
    tmp_path: Path,
) -> None:
    manifest = DerivedManifest(
        name="x", key="k", made_of="d", made="2026-08-21", kernels={"../other": ("ro",)}, files={}
    )
    DERIVED_FORMAT.write(tmp_path, manifest)

    with pytest.raises(ImageDamagedError, match=r"'files' lacks '\.\./other/vmlinuz'"):
        DERIVED_FORMAT.read(tmp_path)


def test_cloud_image_is_baked_again_by_another_version_of_the_harness(
    store: DerivedStore, image: CloudImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    baker = Baker()
    first = bake(store, image, baker)

    monkeypatch.setattr(derived_images, "VERSION", "another")
    second = bake(store, image, baker)

    assert baker.count == 2
    assert first.disk != second.disk


def test_bake_that_was_damaged_is_made_again(store: DerivedStore, image: CloudImage) -> None:
    baker = Baker()
    disk = bake(store, image, baker).disk
    disk.write_bytes(OTHER_IMAGE[:-1] + b"?")

    assert bake(store, image, baker).disk.read_bytes() == OTHER_IMAGE
    assert baker.count == 2


def test_bake_that_is_not_a_qcow2_disk_is_refused(store: DerivedStore, image: CloudImage) -> None:
    with pytest.raises(HarnessError, match="is not a qcow2 file"):
        bake(store, image, Baker(b"raw"))


def test_bake_that_fails_publishes_no_image(store: DerivedStore, image: CloudImage) -> None:
    def fail(disk: Path) -> None:
        disk.write_bytes(IMAGE)
        raise HarnessError("The bake ended with 1.")

    with pytest.raises(HarnessError, match="ended with 1"):
        store.bake(image, {}, fail, deadline=Deadline.after(SOON))

    assert store.cache.ls() == []


def test_derived_images_are_listed_and_verified_and_removed_like_other_images(
    store: DerivedStore, image: CloudImage
) -> None:
    bake(store, image, Baker())
    store.close()

    (listed,) = store.cache.verify()
    (removal,) = store.cache.collect_unused(
        dt.timedelta(0), at=dt.datetime.now(tz=dt.timezone.utc)
    )

    assert (listed.name, listed.damage) == ("noble", None)
    assert removal.path == listed.folder
    assert not listed.folder.exists()


@pytest.mark.parametrize("boot", ["/boot", ""], ids=["root partition", "boot partition"])
def test_kernels_are_extracted_with_their_initrds_from_the_folder_of_the_boot_menu(
    tmp_path: Path, boot: str
) -> None:
    """The newest kernel has no initrd yet, so only the image's boot loader can boot this kernel."""
    menu = "".join(
        f"menuentry 'x' --id '{version}' {{\n linux {boot}/vmlinuz-{version} of={version}\n}}\n"
        for version in ("6.3", "6.2", "6.1")
    )
    names = [f"{name}-{version}" for name in ("vmlinuz", "initrd.img") for version in (6.1, 6.2)]
    files = {f"{boot}/grub": {"grub.cfg": menu}, boot: dict(zip(names, names, strict=True))}
    files[boot]["vmlinuz-6.3"] = "vmlinuz-6.3"

    def take(folder: str, name: str, to: Path) -> None:
        to.write_text(files[folder][name])

    def files_of(folder: str) -> dict[str, str]:
        return files.get(folder.rstrip("/"), {})

    system = SimpleNamespace(files=files_of, take=take)
    disk: Any = SimpleNamespace(
        disk=tmp_path / "disk", work=tmp_path, partitions=lambda: [1], partition=lambda _: system
    )
    into = tmp_path / "into"
    into.mkdir()

    lines = derived_images.extract_kernels(disk, into)

    assert {version: words[1:] for version, words in lines.items()} == {
        version: (f"of={version}",) for version in ("6.2", "6.1")
    }
    assert {path.relative_to(into).as_posix(): path.read_text() for path in into.rglob("*/*")} == {
        f"{version}/{name}": f"{name}-{version}"
        for version in ("6.1", "6.2")
        for name in ("vmlinuz", "initrd.img")
    }
