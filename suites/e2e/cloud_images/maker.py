"""Makes an image like a distribution's, with partitions, and with boot loaders for BIOS and UEFI."""

from __future__ import annotations

import hashlib
import struct
import uuid
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from harness.artifact_cache import DISK
from harness.image.build.builder import MmdebstrapBuilder
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.image.build.builder import BuiltDisk
    from harness.image.catalogue import Recipe
    from harness.progress import ProgressListener
    from harness.provisioning.wait import Deadline

SECTOR = 512
_MIB = 1 << 20
_ENTRIES = 128
_ENTRY_BYTES = 128
_TABLE_SECTORS = _ENTRIES * _ENTRY_BYTES // SECTOR
_COMMAND_S = 300.0

#: Types of partitions (UEFI specification, 5.3.3; systemd's Discoverable Partitions).
_LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
_BIOS_BOOT = "21686148-6449-6E6F-744E-656564454649"
_ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
#: Numbers as in Debian and Ubuntu: the root is first by number and last on the disk, so it can
#: grow.
_BIOS_BOOT_AT, _BIOS_BOOT_SECTORS = 2048, 2048
_ESP_AT, _ESP_SECTORS = 4096, 32768
_ROOT_AT = 36864


class CloudLikeImageBuilder:
    """Builds the root file system of a recipe, and puts it on a partitioned disk."""

    def __init__(self) -> None:
        self._rooted = MmdebstrapBuilder()

    @property
    def version(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        return f"{self._rooted.version}-stock-{digest[:16]}"

    def build(
        self,
        recipe: Recipe,
        *,
        into: Path,
        work: Path,
        log: Path,
        listener: ProgressListener,
        deadline: Deadline,
    ) -> BuiltDisk:
        built = self._rooted.build(
            recipe, into=into, work=work, log=log, listener=listener, deadline=deadline
        )
        partition(into / DISK, work)
        return built

    def clean(self, work: Path) -> None:
        self._rooted.clean(work)


def partition(disk: Path, work: Path) -> None:
    """Replace a qcow2 of a bare root file system by a partitioned qcow2 with this file system."""
    root, raw = work / "root.raw", work / "partitioned.raw"
    _run("qemu-img", "convert", "-f", "qcow2", "-O", "raw", str(disk), str(root))
    loader = {}
    for name in ("boot.img", "core.img", "esp.img"):
        _run("debugfs", "-R", f"dump /boot/loader/{name} {work / name}", str(root))
        loader[name] = (work / name).read_bytes()
    sectors = root.stat().st_size // SECTOR
    total = _ROOT_AT + sectors + 2048
    front, back = render_gpt(
        {
            1: (_LINUX, _ROOT_AT, sectors),
            14: (_BIOS_BOOT, _BIOS_BOOT_AT, _BIOS_BOOT_SECTORS),
            15: (_ESP, _ESP_AT, _ESP_SECTORS),
        },
        total,
    )
    with raw.open("wb") as target:
        target.truncate(total * SECTOR)
        target.write(boot_sector(loader["boot.img"]) + front[440:])
        for at, content in (
            (_BIOS_BOOT_AT, boot_core(loader["core.img"])),
            (_ESP_AT, loader["esp.img"]),
            (total - len(back) // SECTOR, back),
        ):
            target.seek(at * SECTOR)
            target.write(content)
    _run(
        *("dd", f"if={root}", f"of={raw}", f"bs={_MIB}", "conv=notrunc,sparse"),
        f"seek={_ROOT_AT * SECTOR // _MIB}",
    )
    root.unlink()
    _run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(disk))
    raw.unlink()


def boot_sector(image: bytes) -> bytes:
    """Return GRUB's boot code with the sector number of GRUB's core (grub-core/boot/i386/pc/boot.S)."""
    code = bytearray(image[:440])
    struct.pack_into("<Q", code, 0x5C, _BIOS_BOOT_AT)
    # Without this jump, the code believes the drive number of the firmware, even a wrong one.
    code[0x66:0x68] = b"\x90\x90"
    return bytes(code)


def boot_core(image: bytes) -> bytes:
    """Return GRUB's core, whose first sector has the position of the other sectors (diskboot.S)."""
    core = bytearray(image)
    struct.pack_into("<Q", core, SECTOR - 12, _BIOS_BOOT_AT + 1)
    return bytes(core)


def render_gpt(partitions: Mapping[int, tuple[str, int, int]], total: int) -> tuple[bytes, bytes]:
    """Return the sectors of a partition table: for the beginning and for the end of a disk.

    `partitions` maps a partition's number to the type, the first sector and the length in sectors.
    """
    entries = bytearray(_ENTRIES * _ENTRY_BYTES)
    for number, (kind, first, count) in partitions.items():
        struct.pack_into(
            "<16s16sQQ",
            entries,
            (number - 1) * _ENTRY_BYTES,
            uuid.UUID(kind).bytes_le,
            uuid.uuid5(uuid.NAMESPACE_OID, f"partition {number}").bytes_le,
            first,
            first + count - 1,
        )
    last = total - 1
    protective = bytearray(SECTOR)
    struct.pack_into("<BxHB3sII", protective, 446, 0, 2, 0xEE, b"\xff\xff\xff", 1, last)
    protective[510:] = b"\x55\xaa"
    front = bytes(protective) + _header(1, last, 2, entries) + bytes(entries)
    return front, bytes(entries) + _header(last, 1, last - _TABLE_SECTORS, entries)


def _header(here: int, other: int, table_at: int, entries: bytes | bytearray) -> bytes:
    last = max(here, other)

    def packed(checksum: int) -> bytes:
        return struct.pack(
            "<8sIIIIQQQQ16sQIII",
            b"EFI PART",
            0x10000,
            92,
            checksum,
            0,
            here,
            other,
            2 + _TABLE_SECTORS,
            last - _TABLE_SECTORS - 1,
            uuid.uuid5(uuid.NAMESPACE_OID, "disk").bytes_le,
            table_at,
            _ENTRIES,
            _ENTRY_BYTES,
            zlib.crc32(entries),
        )

    return packed(zlib.crc32(packed(0))).ljust(SECTOR, b"\0")


def _run(*argv: str) -> None:
    # debugfs is in /usr/sbin, which is not on a user's PATH on Debian.
    LocalRunner().run(
        ["env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *argv], timeout_s=_COMMAND_S
    ).check(f"Making the disk with {argv[0]}")
