"""Extracts files from a disk image without mounting it, so that root is not needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.host_programs import find_program, search_path
from harness.image.formats.gpt import TABLE_BYTES, boot_candidates, read_table
from harness.image.formats.qcow2 import is_qcow2
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.image.formats.gpt import Partition
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

_TOOLS = {"qemu-img": "qemu-utils", "debugfs": "e2fsprogs"}
#: A line about a regular file in the output of debugfs: /inode/mode/owner/group/name/size/.
_FILE = re.compile(r"^/\d+/10[0-7]{4}/\d+/\d+/([^/]+)/(\d+)/$", re.MULTILINE)
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+~_-]*")


@dataclass(frozen=True, kw_only=True)
class Extractor:
    """Reads a qcow2 or raw disk by qemu-img, and ext4 file systems on the disk by debugfs.

    Extracted files are written to `work`. Raises RequirementError if the host lacks one of the two
    programs.
    """

    disk: Path
    work: Path
    deadline: Deadline
    runner: Runner = field(default_factory=LocalRunner)

    def __post_init__(self) -> None:
        for tool, package in _TOOLS.items():
            if find_program(tool) is None:
                raise RequirementError(
                    f"Extracting kernels from an image needs '{tool}', which this host lacks; "
                    f"install it with 'apt-get install --no-install-recommends {package}'."
                )

    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions that may have kernels, the most likely first."""
        front = self.work / "front.raw"
        self._slice(0, TABLE_BYTES, front)
        try:
            return boot_candidates(read_table(front.read_bytes()))
        except ValueError as error:
            raise HarnessError(
                f"The partitions of the image '{self.disk}' can't be read. {error}; boot the "
                "image by firmware, or give it a GUID partition table."
            ) from error

    def partition(self, partition: Partition) -> FileSystem:
        """Copy a partition from the disk into a file. Holes stay holes."""
        raw = self.work / f"partition-{partition.number}.raw"
        self._slice(partition.offset, partition.size, raw)
        return FileSystem(raw=raw, extractor=self)

    def _slice(self, offset: int, size: int, to: Path) -> None:
        name = str(self.disk).replace(",", ",,")
        driver = "qcow2" if is_qcow2(self.disk) else "raw"
        self.run(
            "qemu-img",
            "convert",
            "--image-opts",
            *("-O", "raw"),
            f"driver=raw,offset={offset},size={size},"
            f"file.driver={driver},file.file.driver=file,file.file.filename={name}",
            str(to),
        )

    def run(self, *argv: str) -> str:
        result = self.runner.run(
            argv,
            timeout_s=max(1.0, self.deadline.remaining_s()),
            env={"PATH": search_path()},
        )
        if not result.ok:
            raise HarnessError(f"The image '{self.disk}' could not be read.\n{result.render()}")
        return result.stdout


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """An ext4 file system, copied to the file `raw`."""

    raw: Path
    extractor: Extractor

    def files(self, folder: str) -> Mapping[str, int]:
        """Return the size in bytes of each regular file in a folder. A missing folder has no files.

        Names with special characters are left out, since names become part of debugfs requests.
        """
        listed = self._ask(f"ls -p {folder}")
        return {name: int(size) for name, size in _FILE.findall(listed) if _PLAIN.fullmatch(name)}

    def take(self, folder: str, name: str, to: Path) -> None:
        """Copy the file `name` in `folder`; raises HarnessError if the copy is incomplete."""
        size = self.files(folder)[name]
        # The copy has a fixed name, since debugfs restricts the characters of paths.
        copy = self.extractor.work / "taken"
        copy.unlink(missing_ok=True)
        self._ask(f'dump {folder}/{name} "{copy}"')
        copied = copy.stat().st_size if copy.exists() else 0
        if copied != size:
            raise HarnessError(
                f"The file '{folder}/{name}' of the image '{self.extractor.disk}' has {size} "
                f"bytes, but {copied} were extracted; its file system is damaged, or newer than this "
                "host's e2fsprogs."
            )
        copy.replace(to)

    def _ask(self, request: str) -> str:
        """Run a debugfs request. debugfs exits with 0 even if the request fails."""
        return self.extractor.run("debugfs", "-R", request, str(self.raw))


def find_boot(extractor: Extractor, partitions: Sequence[Partition]) -> tuple[FileSystem, str]:
    """Return the file system that has GRUB's menu, and the folder of kernels in that file system.

    Raises HarnessError if no partition has GRUB's menu.
    """
    for partition in partitions:
        system = extractor.partition(partition)
        # A separate boot partition is mounted at /boot, so its root has the folder `grub`.
        for folder in ("/boot", "/"):
            if "grub.cfg" in system.files(f"{folder.rstrip('/')}/grub"):
                return system, folder.rstrip("/")
        system.raw.unlink()
    looked = ", ".join(str(each.number) for each in partitions) or "none of a type known here"
    raise HarnessError(
        f"The image '{extractor.disk}' has no ext4 partition with GRUB's menu ('grub/grub.cfg', at "
        f"the top or below '/boot'); searched partitions: {looked}. Boot it by firmware."
    )
