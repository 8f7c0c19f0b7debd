"""Names and attributes of a file system, read from its blocks."""

from __future__ import annotations

import contextlib
import stat
import struct
import tracemalloc
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.image.formats import ext4
from harness.image.formats.ext4 import Ext4Error, read_file_system
from harness.limits import LimitError
from suites.unit.image.formats.small_ext4 import SmallExt4, extents, folder_block, xattr

if TYPE_CHECKING:
    from collections.abc import Sequence

CTIME_NS, MTIME_NS = 1_795_364_816_123_456_789, 6_000_000_000_987_654_321


@pytest.fixture
def disk() -> SmallExt4:
    disk = SmallExt4()
    disk.folder(2, {"file": 12, "etc": 13})
    disk.inode(
        12,
        0o104755,
        uid=70_000,
        gid=200_000,
        size=6 << 30,
        ctime_ns=CTIME_NS,
        mtime_ns=MTIME_NS,
    )
    disk.folder(13, {"inner": 14})
    disk.inode(14, 0o100600)
    return disk


def test_every_path_is_read_with_its_attributes(disk: SmallExt4) -> None:
    system = read_file_system(disk.read)

    assert set(system.inodes) == {"/", "/file", "/etc", "/etc/inner"}
    file = system.inodes["/file"]
    assert (file.mode, file.uid, file.gid) == (0o104755, 70_000, 200_000)
    assert (file.ctime_ns, file.mtime_ns) == (CTIME_NS, MTIME_NS)
    assert (file.size, file.number) == (6 << 30, 12)
    assert (system.uuid, system.made_at_s) == (bytes(range(16)).hex(), 1_700_000_000)


def test_times_after_2038_and_before_1970_are_read(disk: SmallExt4) -> None:
    disk.inode(12, 0o100644, ctime_ns=5_000_000_000 * 1_000_000_000 + 7)
    disk.inode(14, 0o100644, ctime_ns=0)

    inodes = read_file_system(disk.read).inodes

    assert inodes["/file"].ctime_ns == 5_000_000_000_000_000_007
    assert inodes["/etc/inner"].ctime_ns == 0


def test_paths_hidden_by_a_mount_are_left_out(disk: SmallExt4) -> None:
    assert set(read_file_system(disk.read, {"/etc"}).inodes) == {"/", "/file", "/etc"}


def test_hard_link_with_an_undecodable_name_has_the_inode_of_its_file(disk: SmallExt4) -> None:
    disk.folder(13, {"\udcff": 12})

    inodes = read_file_system(disk.read).inodes

    assert inodes["/etc/\udcff"] == inodes["/file"]


def test_folder_of_many_blocks_is_read_through_its_index(disk: SmallExt4) -> None:
    """The folder's first block is an index, which looks like a block without names."""
    index = disk.block(folder_block({}))
    leaves = [disk.block(folder_block({f"f{number}": 12})) for number in range(3)]
    node = disk.block(extents(index, *leaves))
    disk.inode(13, 0o40755, mapped=extents(node, depth=1))

    assert set(read_file_system(disk.read).inodes) > {"/etc/f0", "/etc/f1", "/etc/f2"}


def test_file_name_that_was_removed_is_not_read(disk: SmallExt4) -> None:
    """If the first name in a block is removed, the name stays, and only its inode number is deleted."""
    removed = struct.pack("<IHBB4s", 0, 12, 4, 0, b"gone")
    block = disk.block(removed + struct.pack("<IHBB4s", 12, 1012, 4, 0, b"here"))
    disk.inode(13, 0o40755, mapped=extents(block))

    assert set(read_file_system(disk.read).inodes) == {"/", "/file", "/etc", "/etc/here"}


def test_block_group_without_inodes_is_not_read(disk: SmallExt4) -> None:
    """The second group's descriptor only says that no inode of the group is used."""
    disk.superblock(0, "<I", 64)
    struct.pack_into("<IIIHHHH", disk.content, 2 * 1024 + 64, 0, 0, 200, 0, 0, 0, 1)
    disk.content[200 * 1024 : 208 * 1024] = b"\xff" * 8 * 1024

    assert "/etc/inner" in read_file_system(disk.read).inodes


def test_inodes_after_a_block_group_without_inodes_keep_their_numbers(disk: SmallExt4) -> None:
    """The last group has fewer inodes than the other groups."""
    disk.superblock(0, "<I", 95)
    for group, table, flags in ((1, 240, 1), (2, 200, 0)):
        place = 2 * 1024 + 64 * group
        struct.pack_into("<IIIHHHH", disk.content, place, 0, 0, table, 0, 0, 0, flags)
    disk.inode(20, 0o100640)
    at = 4 * 1024 + 19 * 256
    disk.content[200 * 1024 : 200 * 1024 + 256] = disk.content[at : at + 256]
    disk.inode(20, 0)
    disk.folder(13, {"third": 65})

    found = read_file_system(disk.read).inodes["/etc/third"]

    assert (found.number, found.mode) == (65, 0o100640)


def test_inode_table_beyond_the_first_four_billion_blocks_is_read(disk: SmallExt4) -> None:
    struct.pack_into("<I", disk.content, 2 * 1024 + 40, 1)

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return disk.read([(at % (1024 << 32), length) for at, length in ranges])

    assert "/etc/inner" in read_file_system(read).inodes
    with pytest.raises(Ext4Error):
        read_file_system(disk.read)


def test_targets_of_short_and_long_symbolic_links_are_read(disk: SmallExt4) -> None:
    disk.folder(13, {"short": 14, "long": 15})
    disk.inode(14, 0o120777, flags=0, size=5, mapped=b"/file")
    target = "/far" * 25
    disk.inode(15, 0o120777, size=100, mapped=extents(disk.block(target.encode() + b"junk")))

    assert read_file_system(disk.read).targets == {"/etc/short": "/file", "/etc/long": target}

    disk.inode(14, 0o120777, flags=0, size=59, mapped=target[:59].encode())
    disk.inode(15, 0o120777, size=60, mapped=extents(disk.block(target.encode())))

    targets = {"/etc/short": target[:59], "/etc/long": target[:60]}
    assert read_file_system(disk.read).targets == targets


def test_major_and_minor_numbers_of_a_device_are_read(disk: SmallExt4) -> None:
    for mapped, device in (
        (struct.pack("<II", 10 << 8 | 200, 0), (10, 200)),
        (struct.pack("<II", 0, 0xFF | 300 << 8 | 0xABC << 20), (300, 0xABCFF)),
    ):
        disk.inode(12, 0o20600, flags=0, mapped=mapped)

        inode = read_file_system(disk.read).inodes["/file"]

        assert stat.S_ISCHR(inode.mode)
        assert inode.device == device


def test_extended_attributes_are_read_inside_and_outside_of_inodes(disk: SmallExt4) -> None:
    outside = struct.pack("<I28x", 0xEA020000) + xattr(1, b"note", b"long", at=64)
    # In a separate block, the offset is relative to the beginning of the block.
    block = disk.block(outside[:32] + xattr(1, b"note", b"long", at=64 - 32))
    disk.content[block * 1024 + 34 : block * 1024 + 36] = struct.pack("<H", 64)
    disk.inode(12, 0o100755, xattr_block=block, xattrs=xattr(6, b"capability", b"\1\0\0\2", at=40))

    assert read_file_system(disk.read).inodes["/file"].xattrs == {
        "security.capability": b"\1\0\0\2",
        "user.note": b"long",
    }


def test_each_of_several_extended_attributes_is_read(disk: SmallExt4) -> None:
    """The size of an entry is a multiple of four bytes, and a name may have any length."""
    entries = b"".join(
        struct.pack("<BBHIII", len(name), 1, at, 0, 1, 0) + name.ljust(4, b"\0")
        for name, at in ((b"ab", 60), (b"c", 61))
    )
    disk.inode(12, 0o100755, xattrs=entries.ljust(60, b"\0") + b"xy")

    found = read_file_system(disk.read).inodes["/file"].xattrs

    assert found == {"user.ab": b"x", "user.c": b"y"}


def test_inodes_that_were_never_used_are_not_read(disk: SmallExt4) -> None:
    disk.unused_inodes(32 - 14)
    asked: list[tuple[int, int]] = []

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        asked.extend(ranges)
        return disk.read(ranges)

    assert "/etc/inner" in read_file_system(read).inodes
    assert (4 * 1024, 14 * 256) in asked


def test_neighbouring_blocks_are_read_in_one_request(disk: SmallExt4) -> None:
    asked: list[tuple[int, int]] = []

    def read(ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        asked.extend(ranges)
        return disk.read(ranges)

    read_file_system(read)

    assert asked[-1] == (12 * 1024, 2 * 1024)


def test_unwritten_extent_of_a_directory_has_no_file_names(disk: SmallExt4) -> None:
    block = disk.block(folder_block({"ghost": 12}))
    disk.inode(13, 0o40755, mapped=extents(block, length=32769))

    assert "/etc/ghost" not in read_file_system(disk.read).inodes


def test_content_without_an_ext4_superblock_is_refused(disk: SmallExt4) -> None:
    disk.superblock(56, "<H", 0)
    with pytest.raises(Ext4Error, match="no superblock"):
        read_file_system(disk.read)


def test_unknown_feature_is_refused(disk: SmallExt4) -> None:
    """Encrypted names are an example of an unknown feature."""
    disk.superblock(96, "<I", 0x102C2)
    with pytest.raises(Ext4Error, match=r"harness cannot read \(0x10000\)"):
        read_file_system(disk.read)


def test_name_that_refers_to_an_unused_inode_is_refused(disk: SmallExt4) -> None:
    """A file may be deleted between the read of the inodes and the read of the names."""
    disk.inode(14, 0o100600, links=0)
    with pytest.raises(Ext4Error, match="refers to a missing part"):
        read_file_system(disk.read)


def test_folder_without_extents_is_refused(disk: SmallExt4) -> None:
    disk.inode(13, 0o40755, flags=0)
    with pytest.raises(Ext4Error, match="as in ext3"):
        read_file_system(disk.read)


def test_damaged_inodes_and_folder_blocks_and_extended_attributes_are_refused(
    disk: SmallExt4,
) -> None:
    disk.inode(13, 0o40755, mapped=bytes(60))
    with pytest.raises(Ext4Error, match="not mapped by extents"):
        read_file_system(disk.read)
    disk.inode(13, 0o40755, mapped=extents(disk.block(bytes(1024))))
    with pytest.raises(Ext4Error, match="no length"):
        read_file_system(disk.read)
    disk.folder(13, {})
    disk.inode(12, 0o100644, xattr_block=disk.block(b"other"))
    with pytest.raises(Ext4Error, match="extended attributes has an unknown format"):
        read_file_system(disk.read)
    disk.inode(12, 0o100644, xattrs=xattr(1, b"n", b"v", at=40, value_inode=9))
    with pytest.raises(Ext4Error, match="inode of its own"):
        read_file_system(disk.read)


def test_superblock_with_an_invalid_field_is_refused(disk: SmallExt4) -> None:
    sound = bytes(disk.content)
    for at, form, value in (
        (24, "<I", 0xFFFFFFFF),
        (40, "<I", 0),
        (40, "<I", 0xFFFFFFFF),
        (88, "<H", 0),
        (88, "<H", 2048),
        (254, "<H", 1),
        (0, "<I", 0xFFFFFFFF),
    ):
        disk.content[:] = sound
        disk.superblock(at, form, value)

        with pytest.raises(Ext4Error):
            pytest.fail(f"{value} at {at} was accepted: {read_file_system(disk.read)}")


def test_folder_that_contains_itself_is_refused(disk: SmallExt4) -> None:
    disk.folder(2, {"a": 12})
    disk.folder(12, {"b": 13})
    disk.folder(13, {"c": 12})

    with pytest.raises(Ext4Error, match="its folders are nested without end, at '/a/b/c'"):
        read_file_system(disk.read)


def test_extent_tree_that_contains_itself_is_refused(disk: SmallExt4) -> None:
    place = disk.next_block
    node = struct.pack("<HHHHI", 0xF30A, 1, 4, 1, 0) + struct.pack("<IIHH", 0, place, 0, 0)
    assert disk.block(node) == place
    disk.inode(2, 0o40755, mapped=node)

    with pytest.raises(Ext4Error, match="more levels than ext4 allows"):
        read_file_system(disk.read)


def test_folder_with_too_many_blocks_is_refused_before_the_blocks_are_listed(
    disk: SmallExt4, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.inode(2, 0o40755, mapped=extents(disk.block(extents(*[7] * 80, length=32768)), depth=1))
    tracemalloc.start()
    try:
        with pytest.raises(Ext4Error, match="more blocks than the folders of any"):
            read_file_system(disk.read)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()

    monkeypatch.setattr(ext4, "_MOST_BLOCKS", 100)
    place = disk.block(extents(*[7] * 80, depth=1))
    disk.inode(2, 0o40755, mapped=extents(place, place, depth=2))
    with pytest.raises(Ext4Error, match="more blocks than the folders of any"):
        read_file_system(disk.read)


def test_extended_attributes_that_overlap_are_refused(disk: SmallExt4) -> None:
    one = struct.pack("<BBHIII", 1, 1, 40, 0, 200, 0) + b"n\0\0\0"
    disk.inode(12, 0o100644, xattrs=one + one)

    with pytest.raises(Ext4Error, match="more bytes than their block"):
        read_file_system(disk.read)


def test_file_system_with_more_files_than_the_limit_is_refused(
    disk: SmallExt4, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_FILE_SYSTEM_ENTRIES", "3")
    disk.folder(2, {"a": 15, "b": 15, "c": 15, "d": 15})
    disk.inode(15, 0o100644)

    with pytest.raises(LimitError, match="'file-system-entries'"):
        read_file_system(disk.read)


@given(changes=st.lists(st.tuples(st.integers(1024, 14 << 10), st.integers(0, 255)), max_size=8))
def test_file_system_with_randomly_changed_bytes_is_read_or_refused(
    changes: list[tuple[int, int]],
) -> None:
    disk = SmallExt4()
    disk.folder(2, {"usr": 12, "etc": 14})
    disk.folder(12, {"old": 15})
    disk.folder(14, {})
    disk.inode(15, 0o100755)
    for at, byte in changes:
        disk.content[at] = byte

    with contextlib.suppress(Ext4Error, HarnessError):
        read_file_system(disk.read)
