"""Reads the names and attributes of all files in an ext4 file system, but not the contents.

In an emulated guest, a stat of every file takes some ten seconds, but sending the blocks that
describe the files takes half a second. The constants are from Documentation/filesystems/ext4 in the
kernel's source.
"""

from __future__ import annotations

import itertools
import stat
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from harness.limits import FILE_SYSTEM_ENTRIES, PATH_LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    #: A function that returns the bytes of each range, given as offset and length.
    ReadRanges = Callable[[Sequence[tuple[int, int]]], Sequence[bytes]]

_SUPERBLOCK = (1024, 1024)
_MAGIC = 0xEF53
#: The features that this module handles, or that need no handling: filetype, recover, extents,
#: 64bit, flex_bg, ea_inode, csum_seed, largedir.
_UNDERSTOOD = 0x2 | 0x4 | 0x40 | 0x80 | 0x200 | 0x400 | 0x2000 | 0x4000
#: With the feature uninit_bg or metadata_csum, each group has a count of the inodes that were never
#: used.
_HAS_UNUSED_COUNT = 0x10 | 0x400
_GROUP_WITHOUT_INODES = 0x1
_ROOT = 2
_HAS_EXTENTS = 0x80000
_EXTENTS_MAGIC = 0xF30A
_XATTR_MAGIC = 0xEA020000
#: The largest length of a written extent; a larger value marks an allocated but unwritten extent.
_LONGEST_WRITTEN = 32768
_INLINE_TARGET = 60
_LARGEST_BLOCK_LOG = 6
_SMALLEST_INODE = 128
_SMALLEST_DESCRIPTOR = 32
_DEEPEST_TREE = 6
#: Folders and long links may have at most this many blocks, which is 4 GiB.
_MOST_BLOCKS = 1 << 20
_NO_XATTRS: Mapping[str, bytes] = {}
_XATTR_PREFIXES = {
    1: "user.",
    2: "system.posix_acl_access",
    3: "system.posix_acl_default",
    4: "trusted.",
    6: "security.",
    7: "system.",
}
_INODE = struct.Struct("<HHIiiiIHHIII60sIIII")
_INODE_HIGH = struct.Struct("<HHHH")
_INODE_EXTRA = struct.Struct("<HHII")


class Ext4Error(Exception):
    """The blocks are not a readable ext4 file system, or the blocks changed during the read."""


class Inode(NamedTuple):
    """The attributes of a file. `blocks` is the field i_block, which maps or contains the content."""

    number: int
    mode: int
    uid: int
    gid: int
    size: int
    links: int
    flags: int
    mtime_ns: int
    ctime_ns: int
    blocks: bytes
    xattr_block: int
    xattrs: Mapping[str, bytes]

    @property
    def device(self) -> tuple[int, int]:
        """Return the major and minor number of a device node."""
        old, new = struct.unpack_from("<II", self.blocks)
        if old:
            return old >> 8 & 0xFF, old & 0xFF
        return new >> 8 & 0xFFF, new & 0xFF | new >> 12 & 0xFFF00


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """The names and attributes of all files. `targets` lists the target of each symbolic link."""

    uuid: str
    made_at_s: int
    inodes: Mapping[str, Inode]
    targets: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Geometry:
    uuid: str
    made_at_s: int
    block: int
    groups: int
    inodes_in_group: int
    inode: int
    descriptor: int
    descriptors_at: int
    has_unused_count: bool


def read_file_system(read: ReadRanges, hidden: Collection[str] = ()) -> FileSystem:
    """Read a file system. Leave out everything below the absolute paths in `hidden`.

    Raises Ext4Error if the file system can't be read.
    """
    try:
        geometry = _parse_superblock(read([_SUPERBLOCK])[0])
        inodes = _read_inodes(read, geometry)
        blocks = _read_mapped_blocks(read, geometry.block, inodes)
        xattrs = {
            block: _parse_xattr_block(blocks.raw[block])
            for block in {each.xattr_block for each in inodes.values() if each.xattr_block}
        }
        inodes = {
            number: each
            if not each.xattr_block
            else each._replace(xattrs={**each.xattrs, **xattrs[each.xattr_block]})
            for number, each in inodes.items()
        }
        names = dict(_walk(inodes, blocks, hidden))
    except (struct.error, LookupError, ValueError, ArithmeticError) as error:
        raise Ext4Error(f"it refers to a missing part ({error!r})") from error
    return FileSystem(
        uuid=geometry.uuid,
        made_at_s=geometry.made_at_s,
        inodes=names,
        targets={
            path: _target(inode, blocks)
            for path, inode in names.items()
            if stat.S_ISLNK(inode.mode)
        },
    )


def _parse_superblock(content: bytes) -> _Geometry:
    (inodes,) = struct.unpack_from("<I", content)
    first_block, block_log = struct.unpack_from("<II", content, 20)
    (inodes_in_group,) = struct.unpack_from("<I", content, 40)
    (magic,) = struct.unpack_from("<H", content, 56)
    if magic != _MAGIC:
        raise Ext4Error("it has no superblock of ext4")
    (inode,) = struct.unpack_from("<H", content, 88)
    (incompatible, read_only_compatible) = struct.unpack_from("<II", content, 96)
    if strange := incompatible & ~_UNDERSTOOD:
        raise Ext4Error(f"it has ext4 features that the harness cannot read ({strange:#x})")
    (descriptor,) = struct.unpack_from("<H", content, 254)
    (made_at_s,) = struct.unpack_from("<I", content, 264)
    block = 1024 << min(block_log, _LARGEST_BLOCK_LOG)
    descriptor = descriptor if incompatible & 0x80 else _SMALLEST_DESCRIPTOR
    if (
        block_log > _LARGEST_BLOCK_LOG
        or not _SMALLEST_INODE <= inode <= block
        or not _SMALLEST_DESCRIPTOR <= descriptor <= block
        or not 0 < inodes_in_group <= 8 * block
    ):
        raise Ext4Error("its superblock has sizes that no ext4 has")
    return _Geometry(
        uuid=content[104:120].hex(),
        made_at_s=made_at_s,
        block=block,
        groups=-(-inodes // inodes_in_group),
        inodes_in_group=inodes_in_group,
        inode=inode,
        descriptor=descriptor,
        descriptors_at=(first_block + 1) * block,
        has_unused_count=bool(read_only_compatible & _HAS_UNUSED_COUNT),
    )


def _read_inodes(read: ReadRanges, geometry: _Geometry) -> dict[int, Inode]:
    size = geometry.descriptor
    (descriptors,) = read([(geometry.descriptors_at, geometry.groups * size)])
    firsts, ranges = [], []
    for group in range(geometry.groups):
        at = group * size
        (table,) = struct.unpack_from("<I", descriptors, at + 8)
        (flags,) = struct.unpack_from("<H", descriptors, at + 18)
        (unused,) = struct.unpack_from("<H", descriptors, at + 28)
        if size >= 64:
            (high,) = struct.unpack_from("<I", descriptors, at + 40)
            (unused_high,) = struct.unpack_from("<H", descriptors, at + 50)
            table |= high << 32
            unused |= unused_high << 16
        used = geometry.inodes_in_group
        if geometry.has_unused_count:
            used = 0 if flags & _GROUP_WITHOUT_INODES else used - unused
        if used < 0:
            raise Ext4Error("a group has more unused inodes than inodes")
        if used:
            firsts.append(group * geometry.inodes_in_group + 1)
            ranges.append((table * geometry.block, used * geometry.inode))
    inodes = {}
    for first, table_content in zip(firsts, read(ranges), strict=True):
        for index in range(len(table_content) // geometry.inode):
            at = index * geometry.inode
            # An inode is in use if its mode and its link count are not 0.
            if (
                table_content[at : at + 2] != b"\0\0"
                and table_content[at + 26 : at + 28] != b"\0\0"
            ):
                inodes[first + index] = _parse_inode(
                    first + index, table_content[at : at + geometry.inode]
                )
    return inodes


def _parse_inode(number: int, content: bytes) -> Inode:
    fields = _INODE.unpack_from(content)
    mode, uid, size, _, ctime, mtime, _, gid, links, _, flags, _, blocks = fields[:13]
    _, xattr_block, size_high, _ = fields[13:]
    _, xattr_high, uid_high, gid_high = _INODE_HIGH.unpack_from(content, 116)
    ctime_extra = mtime_extra = 0
    xattrs = _NO_XATTRS
    if len(content) > 128:
        extra, _, ctime_extra, mtime_extra = _INODE_EXTRA.unpack_from(content, 128)
        start = 128 + extra + 4
        if (
            start < len(content)
            and int.from_bytes(content[start - 4 : start], "little") == _XATTR_MAGIC
        ):
            xattrs = _parse_xattrs(content, start, start)
    return Inode(
        number=number,
        mode=mode,
        uid=uid | uid_high << 16,
        gid=gid | gid_high << 16,
        size=size | (0 if stat.S_ISDIR(mode) else size_high << 32),
        links=links,
        flags=flags,
        mtime_ns=_time_ns(mtime, mtime_extra),
        ctime_ns=_time_ns(ctime, ctime_extra),
        blocks=blocks,
        xattr_block=xattr_block | xattr_high << 32,
        xattrs=xattrs,
    )


def _time_ns(seconds: int, extra: int) -> int:
    return (seconds + ((extra & 3) << 32)) * 1_000_000_000 + (extra >> 2)


def _parse_xattr_block(content: bytes) -> dict[str, bytes]:
    if int.from_bytes(content[:4], "little") != _XATTR_MAGIC:
        raise Ext4Error("a block of extended attributes has an unknown format")
    return _parse_xattrs(content, 32, 0)


def _parse_xattrs(content: bytes, at: int, values_at: int) -> dict[str, bytes]:
    found = {}
    left = len(content)
    while content[at : at + 4].strip(b"\0"):
        length, index, offset, value_inode, size = struct.unpack_from("<BBHII", content, at)
        left -= size
        if left < 0:
            raise Ext4Error("extended attributes have more bytes than their block")
        if value_inode:
            raise Ext4Error("an extended attribute has an inode of its own")
        name = _XATTR_PREFIXES.get(index, f"{index}.") + _decode(
            content[at + 16 : at + 16 + length]
        )
        found[name] = content[values_at + offset : values_at + offset + size]
        at += 16 + (length + 3 & ~3)
    return found


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """The contents of blocks by block number, and the block numbers of each inode, in order."""

    raw: Mapping[int, bytes]
    of_inode: Mapping[int, Sequence[int]]

    def content(self, inode: Inode) -> Iterator[bytes]:
        return (self.raw[number] for number in self.of_inode[inode.number])


def _read_mapped_blocks(read: ReadRanges, block: int, inodes: Mapping[int, Inode]) -> _Blocks:
    """Read the blocks of folders, of long symbolic links and of extended attributes."""
    raw: dict[int, bytes] = {}
    of_inode: dict[int, list[int]] = {}
    nodes: list[tuple[int, bytes]] = []
    mapped = 0
    for inode in inodes.values():
        is_link = stat.S_ISLNK(inode.mode) and inode.size >= _INLINE_TARGET
        if not is_link and not stat.S_ISDIR(inode.mode):
            continue
        if not inode.flags & _HAS_EXTENTS:
            raise Ext4Error("a folder has no extents, as in ext3")
        of_inode[inode.number] = []
        nodes.append((inode.number, inode.blocks))
    wanted = {inode.xattr_block for inode in inodes.values() if inode.xattr_block}
    for _ in range(_DEEPEST_TREE):
        indexes: list[tuple[int, int]] = []
        for number, node in nodes:
            leaves, below = _parse_extents(node)
            mapped += sum(map(len, leaves)) + len(below)
            if mapped > _MOST_BLOCKS:
                raise Ext4Error(
                    "its folders have more blocks than the folders of any real file system"
                )
            of_inode[number] += itertools.chain(*leaves)
            wanted.update(*leaves)
            indexes += [(number, each) for each in below]
        raw.update(_read_blocks(read, block, {each for _, each in indexes}))
        nodes = [(number, raw[each]) for number, each in indexes]
    if nodes:
        raise Ext4Error("the extents of a file have more levels than ext4 allows")
    raw.update(_read_blocks(read, block, wanted))
    return _Blocks(raw=raw, of_inode=of_inode)


def _parse_extents(node: bytes) -> tuple[list[range], list[int]]:
    """Return the blocks that a node of an extent tree maps, and the numbers of the nodes below it."""
    magic, entries, _, depth = struct.unpack_from("<HHHH", node)
    if magic != _EXTENTS_MAGIC:
        raise Ext4Error("a file is not mapped by extents")
    leaves: list[range] = []
    below: list[int] = []
    for at in range(12, 12 + 12 * entries, 12):
        if depth:
            _, low, high = struct.unpack_from("<IIH", node, at)
            below.append(low | high << 32)
        else:
            _, length, high, low = struct.unpack_from("<IHHI", node, at)
            if length <= _LONGEST_WRITTEN:
                first = low | high << 32
                leaves.append(range(first, first + length))
    return leaves, below


def _read_blocks(read: ReadRanges, block: int, numbers: Iterable[int]) -> dict[int, bytes]:
    """Read blocks. Neighbouring blocks are read as one range."""
    ordered = sorted(numbers)
    runs: list[list[int]] = []
    for _, run in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        runs.append([number for _, number in run])
    if not runs:
        return {}
    contents = read([(run[0] * block, len(run) * block) for run in runs])
    return {
        number: content[index * block : (index + 1) * block]
        for run, content in zip(runs, contents, strict=True)
        for index, number in enumerate(run)
    }


def _walk(
    inodes: Mapping[int, Inode], blocks: _Blocks, hidden: Collection[str]
) -> Iterator[tuple[str, Inode]]:
    yield "/", inodes[_ROOT]
    folders = [("", inodes[_ROOT])]
    entered = {_ROOT}
    count = 0
    while folders:
        above, folder = folders.pop()
        for block in blocks.content(folder):
            for name, number in _parse_folder(block):
                path = f"{above}/{name}"
                inode = inodes[number]
                count += 1
                FILE_SYSTEM_ENTRIES.check(count, "ext4")
                yield path, inode
                if stat.S_ISDIR(inode.mode) and path not in hidden:
                    # A folder has one parent. Without this check, a cycle of folders would be read
                    # for ever.
                    if number in entered or path.count("/") > PATH_LEVELS.value:
                        raise Ext4Error(f"its folders are nested without end, at '{path[:200]}'")
                    entered.add(number)
                    folders.append((path, inode))


def _parse_folder(block: bytes) -> Iterator[tuple[str, int]]:
    """Yield the entries in a folder's block. Skip the entries without an inode, such as an index."""
    at = 0
    while at + 8 <= len(block):
        number, length, name_length = struct.unpack_from("<IHB", block, at)
        if length < 8:
            raise Ext4Error("an entry of a folder has no length")
        name = block[at + 8 : at + 8 + name_length]
        if number and name not in {b".", b".."}:
            yield _decode(name), number
        at += length


def _target(inode: Inode, blocks: _Blocks) -> str:
    if inode.size < _INLINE_TARGET:
        return _decode(inode.blocks[: inode.size])
    return _decode(b"".join(blocks.content(inode))[: inode.size])


def _decode(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
