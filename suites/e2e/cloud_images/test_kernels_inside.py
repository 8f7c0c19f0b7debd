"""Kernels are extracted from disks with various layouts; nothing is booted."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.image import CloudImage
from harness.image.cloud.derived_images import DerivedStore
from harness.image.cloud.source import Algorithm, LocalImage
from harness.image.cloud.store import open_local
from harness.image.formats.gpt import EXTENDED_BOOT, LINUX
from harness.image.store import ImageStore
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from suites.e2e.cloud_images.maker import SECTOR, render_gpt

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping
    from pathlib import Path

    from harness.provisioning.command import Argv, CommandResult, Runner

OLD, NEW = "6.8.0-9-generic", "6.8.0-31-generic"
_MIB_SECTORS = (1 << 20) // SECTOR
_PARTITION_SECTORS = 8 * _MIB_SECTORS
_S = 60.0


def a_menu(folder: str) -> str:
    return "".join(
        f"menuentry 'Linux {version}' --id '{version}' {{\n"
        f"  linux {folder}/vmlinuz-{version} root=LABEL=cloudimg-rootfs ro console=ttyS0\n}}\n"
        for version in (NEW, OLD)
    )


def kernels_in(folder: str, *versions: str) -> dict[str, str]:
    return {
        f"{folder}{kind}-{version}": f"{kind} of {version}"
        for version in versions
        for kind in ("vmlinuz", "initrd.img")
    }


@dataclass(frozen=True)
class Maker:
    """Makes disks whose ext4 partitions contain these files."""

    folder: Path

    def disk(self, *partitions: tuple[uuid.UUID, Mapping[str, str]], table: bool = True) -> Path:
        count = len(partitions)
        total = (2 + count * 8) * _MIB_SECTORS
        front, back = render_gpt(
            {
                # Numbers as in Ubuntu: /boot has a higher number than the root, wherever it is on
                # the disk.
                1 + 15 * index: (str(kind), self._first(index), _PARTITION_SECTORS)
                for index, (kind, _) in enumerate(partitions)
            },
            total,
        )
        raw = self.folder / "whole.raw"
        with raw.open("wb") as target:
            target.truncate(total * SECTOR)
            if table:
                target.write(front)
                target.seek(total * SECTOR - len(back))
                target.write(back)
            for index, (_, files) in enumerate(partitions):
                target.seek(self._first(index) * SECTOR)
                target.write(self._file_system(files).read_bytes())
        # The comma would end the name in QEMU's options, and a shell would expand the rest.
        disk = self.folder / "our image, v1 $(x).qcow2"
        self._run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk))
        return disk

    @staticmethod
    def _first(index: int) -> int:
        return _MIB_SECTORS + index * _PARTITION_SECTORS

    def _file_system(self, files: Mapping[str, str]) -> Path:
        top = self.folder / "tree"
        raw = self.folder / "system.raw"
        raw.unlink(missing_ok=True)
        for name, text in files.items():
            (top / name).parent.mkdir(parents=True, exist_ok=True)
            (top / name).write_text(text)
        top.mkdir(exist_ok=True)
        self._run("mke2fs", "-q", "-t", "ext4", "-d", str(top), str(raw), "8M")
        self._run("rm", "-r", str(top))
        return raw

    @staticmethod
    def _run(*argv: str) -> None:
        # mke2fs is in a folder that is not on a user's PATH.
        LocalRunner().run(argv, timeout_s=_S, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}).check(
            "Making a disk"
        )


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


class Forgetful(LocalRunner):
    """A host whose debugfs copies no file; like the real debugfs, it still ends with exit code 0."""

    @override
    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        if argv[0] == "debugfs" and argv[2].startswith("dump"):
            argv = ["true"]
        return super().run(argv, timeout_s=timeout_s, stdin=stdin, env=env)


def taken(disk: Path, runner: Runner | None = None) -> dict[str, tuple[str, str, str]]:
    """Return the contents of a disk's extracted kernels and initrds, and each kernel's command line."""
    image = CloudImage(name="our", digest="sha256:1", disk=disk, virtual_bytes=1)
    store = DerivedStore(disk.parent / "store", runner=runner)
    kernels = store.kernels(image, deadline=Deadline.after(_S))
    store.close()
    return {
        kernel.version: (
            kernel.vmlinuz.read_text(),
            kernel.initrd.read_text(),
            " ".join(kernel.command_line),
        )
        for kernel in kernels
    }


def expected(folder: str) -> list[tuple[str, tuple[str, str, str]]]:
    return [
        (
            version,
            (
                f"vmlinuz of {version}",
                f"initrd.img of {version}",
                f"BOOT_IMAGE={folder}/vmlinuz-{version} root=LABEL=cloudimg-rootfs ro console=ttyS0",
            ),
        )
        for version in (OLD, NEW)
    ]


def test_kernels_of_the_root_partition_are_returned_from_the_oldest_to_the_newest(
    maker: Maker,
) -> None:
    """Debian's images, and Ubuntu's images up to 22.04, have this layout."""
    files = {"boot/grub/grub.cfg": a_menu("/boot"), **kernels_in("boot/", OLD, NEW)}

    assert list(taken(maker.disk((LINUX, files))).items()) == expected("/boot")


def test_kernels_of_a_separate_boot_partition_are_preferred_to_the_root_partition(
    maker: Maker,
) -> None:
    """Ubuntu's images from 24.04 on have this layout, with an empty /boot in the root partition."""
    files = {"grub/grub.cfg": a_menu(""), **kernels_in("", OLD, NEW)}

    disk = maker.disk((LINUX, {"etc/fstab": ""}), (EXTENDED_BOOT, files))

    assert list(taken(disk).items()) == expected("")


def test_raw_disk_is_read_and_gets_an_overlay_that_states_the_raw_format(
    maker: Maker, tmp_path: Path
) -> None:
    """QEMU must not detect the format: a guest could write a qcow2 header to its raw disk."""
    files = {"boot/grub/grub.cfg": a_menu("/boot"), **kernels_in("boot/", OLD, NEW)}
    maker.disk((LINUX, files))
    raw, overlay = maker.folder / "whole.raw", tmp_path / "overlay.qcow2"

    image = open_local(LocalImage.at(raw), Algorithm.SHA256)
    ImageStore(tmp_path / "images").create_overlay(image.disk, overlay)
    info = LocalRunner().run(["qemu-img", "info", "--output=json", str(overlay)], timeout_s=_S)

    assert list(taken(raw).items()) == expected("/boot")
    assert image.virtual_bytes == raw.stat().st_size
    assert json.loads(info.stdout)["backing-filename-format"] == "raw"
    assert json.loads(info.stdout)["virtual-size"] == image.virtual_bytes


def test_kernel_whose_files_are_missing_is_skipped(maker: Maker) -> None:
    files = {"boot/grub/grub.cfg": a_menu("/boot"), **kernels_in("boot/", NEW)}

    assert list(taken(maker.disk((LINUX, files)))) == [NEW]


def test_second_call_returns_the_extracted_kernels_without_reading_the_disk(maker: Maker) -> None:
    files = {"boot/grub/grub.cfg": a_menu("/boot"), **kernels_in("boot/", OLD, NEW)}
    disk = maker.disk((LINUX, files))
    first = taken(disk)
    disk.unlink()

    assert taken(disk) == first


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"etc/fstab": ""}, r"has no ext4 partition with GRUB's menu .* searched partitions: 1\."),
        ({"boot/grub/grub.cfg": a_menu("/boot")}, "has no kernel whose file and initrd exist"),
        ({"boot/grub/grub.cfg": ""}, "it has no entry"),
    ],
    ids=["no-menu", "no-kernel", "no-entry"],
)
def test_error_for_a_disk_without_kernels_says_what_is_missing(
    maker: Maker, files: Mapping[str, str], sentence: str
) -> None:
    disk = maker.disk((LINUX, files))

    with pytest.raises(HarnessError, match=sentence):
        taken(disk)


def test_disk_without_a_partition_table_is_detected(maker: Maker) -> None:
    disk = maker.disk((LINUX, {"boot/grub/grub.cfg": a_menu("/boot")}), table=False)

    with pytest.raises(
        HarnessError, match="It has no GUID partition table; boot the image by firmware"
    ):
        taken(disk)


def test_incomplete_extracted_file_is_refused(
    maker: Maker,
) -> None:
    files = {"boot/grub/grub.cfg": a_menu("/boot"), **kernels_in("boot/", OLD, NEW)}
    disk = maker.disk((LINUX, files))

    with pytest.raises(HarnessError, match=r"grub\.cfg' of the image .* but 0 were extracted"):
        taken(disk, runner=Forgetful())
