"""Kernels are extracted from a disk image by programs of the host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.image.formats import extraction
from harness.image.formats.extraction import Extractor, FileSystem, find_boot
from harness.image.formats.gpt import LINUX, Partition
from harness.provisioning.command import CommandResult
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.provisioning.command import Argv

GRUB = "/5/100600/0/0/grub.cfg/120/\n"
LISTING = (
    "/2/040755/0/0/.//\n"
    "/11/100644/0/0/vmlinuz-6.1/8/\n"
    "/12/120777/0/0/vmlinuz/11/\n"
    "/13/100644/0/0/a b/9/\n"
    "/14/100600/0/0/$(x)/9/\n"
    "/15/100600/0/0/initrd.img-6.1/3/\n"
)


class Programs:
    """Replaces qemu-img, which only creates its target, and debugfs, which lists and copies files."""

    def __init__(self, listings: Mapping[str, str], dumped: bytes | None = b"12345678") -> None:
        self.listings = listings
        self.dumped = dumped
        self.ran: list[tuple[str, ...]] = []

    def run(
        self, argv: Argv, *, timeout_s: float, stdin: str | None = None, env: object = None
    ) -> CommandResult:
        assert (stdin, timeout_s >= 1.0, env is not None) == (None, True, True)
        self.ran.append(tuple(argv))
        said = ""
        if argv[0] == "qemu-img":
            Path(argv[-1]).touch()
        else:
            word, *rest = argv[2].split(" ", 2)
            if word == "ls":
                said = self.listings.get(f"{argv[3].rpartition('-')[2]} {rest[-1]}", "")
            elif self.dumped is not None:
                Path(rest[-1].strip('"')).write_bytes(self.dumped)
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=said, stderr="")


@pytest.fixture
def extractor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Extractor:
    monkeypatch.setattr(extraction, "find_program", lambda name: f"/usr/bin/{name}")
    disk = tmp_path / "a,b.img"
    disk.write_bytes(b"raw")
    (tmp_path / "work").mkdir()
    runner = Programs({"2.raw /grub": GRUB, "1.raw /boot": LISTING})
    deadline = Deadline.after(60, FakeClock())
    return Extractor(disk=disk, work=tmp_path / "work", deadline=deadline, runner=runner)


def a_partition(number: int) -> Partition:
    return Partition(number=number, kind=LINUX, offset=512 * number, size=1024)


def a_file_system(extractor: Extractor) -> FileSystem:
    return FileSystem(raw=extractor.work / "partition-1.raw", extractor=extractor)


def test_partition_is_read_at_its_offset_from_raw_and_qcow2_disks(
    extractor: Extractor,
) -> None:
    extractor.partition(a_partition(3))
    extractor.disk.write_bytes(b"QFI\xfb")
    extractor.partition(a_partition(3))

    assert isinstance(extractor.runner, Programs)
    raw, qcow2 = (argv[5] for argv in extractor.runner.ran)
    assert raw == (
        "driver=raw,offset=1536,size=1024,file.driver=raw,file.file.driver=file,"
        f"file.file.filename={extractor.disk.parent}/a,,b.img"
    )
    assert "file.driver=qcow2," in qcow2


def test_only_regular_files_with_plain_names_are_listed(extractor: Extractor) -> None:
    system = a_file_system(extractor)

    assert system.files("/boot") == {"vmlinuz-6.1": 8, "initrd.img-6.1": 3}
    assert system.files("/absent") == {}


def test_incomplete_copy_of_a_file_is_refused_and_removed(
    extractor: Extractor, tmp_path: Path
) -> None:
    system = a_file_system(extractor)

    system.take("/boot", "vmlinuz-6.1", tmp_path / "kernel")
    with pytest.raises(HarnessError, match="has 3 bytes, but 8 were extracted"):
        system.take("/boot", "initrd.img-6.1", tmp_path / "initrd")

    # The file that the failed copy left has the size of this file.
    assert isinstance(extractor.runner, Programs)
    extractor.runner.dumped = None
    with pytest.raises(HarnessError, match="has 8 bytes, but 0 were extracted"):
        system.take("/boot", "vmlinuz-6.1", tmp_path / "initrd")

    assert (tmp_path / "kernel").read_bytes() == b"12345678"
    assert not (tmp_path / "initrd").exists()


def test_only_the_extracted_partition_with_the_boot_menu_is_kept(
    extractor: Extractor,
) -> None:
    system, folder = find_boot(extractor, [a_partition(1), a_partition(2), a_partition(3)])

    assert (system.raw.name, folder) == ("partition-2.raw", "")
    assert [path.name for path in extractor.work.iterdir()] == ["partition-2.raw"]


def test_error_for_an_image_without_a_boot_menu_shows_the_searched_partitions(
    extractor: Extractor,
) -> None:
    with pytest.raises(HarnessError, match=r"searched partitions: 1, 3\. Boot it by firmware"):
        find_boot(extractor, [a_partition(1), a_partition(3)])
    with pytest.raises(HarnessError, match="searched partitions: none of a type known here"):
        find_boot(extractor, [])


def test_disk_without_a_guid_partition_table_is_refused(extractor: Extractor) -> None:
    with pytest.raises(
        HarnessError, match="It has no GUID partition table; boot the image by firmware"
    ):
        extractor.partitions()


def test_error_for_a_missing_program_mentions_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing, package in (("qemu-img", "qemu-utils"), ("debugfs", "e2fsprogs")):
        monkeypatch.setattr(
            extraction,
            "find_program",
            lambda name, missing=missing: None if name == missing else name,
        )

        with pytest.raises(RequirementError, match=f"'{missing}'.* {package}'"):
            Extractor(disk=tmp_path, work=tmp_path, deadline=Deadline.after(1, FakeClock()))
