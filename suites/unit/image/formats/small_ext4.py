"""Makes a small ext4 file system with one group, block by block."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 1024
_INODE = 256
_IN_GROUP = 32
_TABLE = 4
_FIRST_DATA = _TABLE + _IN_GROUP * _INODE // BLOCK


@dataclass
class SmallExt4:
    """The blocks of a file system to which a test adds inodes and folders."""

    content: bytearray = field(default_factory=lambda: bytearray(256 * BLOCK))
    next_block: int = _FIRST_DATA

    def __post_init__(self) -> None:
        # The superblock is at byte 1024, for every size of the blocks.
        for at, form, value in (
            (0, "<I", _IN_GROUP),
            (20, "<II", (1, 0)),
            (40, "<I", _IN_GROUP),
            (56, "<H", 0xEF53),
            (88, "<H", _INODE),
            (96, "<II", (0x2 | 0x40 | 0x80, 0x400)),
            (104, "16s", bytes(range(16))),
            (254, "<H", 64),
            (264, "<I", 1_700_000_000),
        ):
            values = value if isinstance(value, tuple) else (value,)
            struct.pack_into(form, self.content, BLOCK + at, *values)
        struct.pack_into("<I", self.content, 2 * BLOCK + 8, _TABLE)

    def superblock(self, at: int, form: str, *values: int) -> None:
        struct.pack_into(form, self.content, BLOCK + at, *values)

    def unused_inodes(self, count: int) -> None:
        struct.pack_into("<H", self.content, 2 * BLOCK + 28, count)

    def block(self, content: bytes) -> int:
        number = self.next_block
        self.next_block += 1
        self.content[number * BLOCK : number * BLOCK + len(content)] = content
        return number

    def inode(
        self,
        number: int,
        mode: int,
        *,
        uid: int = 0,
        gid: int = 0,
        size: int = 0,
        flags: int = 0x80000,
        mapped: bytes = b"",
        links: int = 1,
        ctime_ns: int = 0,
        mtime_ns: int = 0,
        xattr_block: int = 0,
        xattrs: bytes = b"",
    ) -> None:
        raw = bytearray(_INODE)
        struct.pack_into("<HHI", raw, 0, mode, uid & 0xFFFF, size & 0xFFFFFFFF)
        struct.pack_into("<HH", raw, 24, gid & 0xFFFF, links)
        struct.pack_into("<I", raw, 32, flags)
        raw[40 : 40 + len(mapped)] = mapped
        struct.pack_into("<II", raw, 104, xattr_block, size >> 32)
        struct.pack_into("<HH", raw, 120, uid >> 16, gid >> 16)
        struct.pack_into("<H", raw, 128, 32)
        for at, extra_at, time_ns in ((12, 132, ctime_ns), (16, 136, mtime_ns)):
            seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
            struct.pack_into("<I", raw, at, seconds & 0xFFFFFFFF)
            struct.pack_into("<I", raw, extra_at, nanoseconds << 2 | seconds >> 32)
        if xattrs:
            struct.pack_into("<I", raw, 160, 0xEA020000)
            raw[164 : 164 + len(xattrs)] = xattrs
        at = _TABLE * BLOCK + (number - 1) * _INODE
        self.content[at : at + _INODE] = raw

    def folder(self, number: int, entries: dict[str, int]) -> None:
        """Add a folder whose entries are in one block."""
        self.inode(number, 0o40755, mapped=extents(self.block(folder_block(entries))))

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [bytes(self.content[at : at + length]) for at, length in ranges]


def folder_block(entries: dict[str, int]) -> bytes:
    """Return a block with a folder's entries; the last entry takes the rest of the block."""
    raw = b""
    named = {".": 2, "..": 2, **entries}
    for index, (name, inode) in enumerate(named.items()):
        encoded = name.encode(errors="surrogateescape")
        length = 8 + (len(encoded) + 3 & ~3)
        if index == len(named) - 1:
            length = BLOCK - len(raw)
        head = struct.pack("<IHBB", inode, length, len(encoded), 0)
        raw += (head + encoded).ljust(length, b"\0")
    return raw


def extents(*blocks: int, depth: int = 0, length: int = 1) -> bytes:
    """Return a node of an extent tree."""
    raw = struct.pack("<HHHHI", 0xF30A, len(blocks), 4, depth, 0)
    for index, block in enumerate(blocks):
        if depth:
            raw += struct.pack("<IIHH", index, block, 0, 0)
        else:
            raw += struct.pack("<IHHI", index, length, 0, block)
    return raw


def xattr(index: int, name: bytes, value: bytes, *, at: int, value_inode: int = 0) -> bytes:
    """Return an extended attribute whose value is `at` bytes after the first entry."""
    entry = struct.pack("<BBHIII", len(name), index, at, value_inode, len(value), 0) + name
    return entry.ljust(at, b"\0") + value
