"""Finds the processes that have the device files of GPUs open."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.gpu.passthrough import is_address
from harness.shared_folder import user_name
from harness.visible_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_WATCHED = re.compile(r"/dev/(?:nvidia[0-9]+|dri/(?:card|renderD)[0-9]+|uio[0-9]+|vfio/.+)")
_NVIDIA = "/dev/nvidia"
_NVIDIA_MINOR = re.compile(r"^Device Minor:\s*([0-9]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class DeviceUsers:
    """Phrases about the processes that have device files open, by the path of the device file.

    `files_of` lists the device files of each function, by the function's address. `is_complete` is
    false if the open files of some processes could not be listed, since an ordinary user can't list
    the open files of other users.
    """

    processes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    files_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_complete: bool = True

    def of_file(self, path: str) -> tuple[str, ...]:
        return self.processes.get(path, ())

    def of_function(self, address: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return the open device files of a function, each with the processes that have it open."""
        return [
            (file, self.processes[file])
            for file in self.files_of.get(address, ())
            if file in self.processes
        ]

    def has_nvidia_file(self, address: str) -> bool:
        """Return whether a function has a known device file of NVIDIA's driver."""
        return any(file.startswith(_NVIDIA) for file in self.files_of.get(address, ()))

    def unassigned_nvidia_files(self) -> list[tuple[str, tuple[str, ...]]]:
        """Return the open files of NVIDIA's driver that belong to no known function."""
        known = {file for files in self.files_of.values() for file in files}
        return [
            (file, processes)
            for file, processes in self.processes.items()
            if file.startswith(_NVIDIA) and file not in known
        ]


class VfioFile(enum.Enum):
    """The result of opening a VFIO group's file; only one process at a time can open the file."""

    FREE = "free"
    BUSY = "busy"
    FORBIDDEN = "forbidden"
    ABSENT = "absent"


def vfio_file(group: int) -> str:
    """Return the path of a VFIO group's file."""
    return f"/dev/vfio/{group}"


def probe_vfio_file(root: Path, group: int) -> VfioFile:
    """Open the file of a VFIO group and close it.

    The result is right even if this user can't list other users' open files. Call this function
    only while no other run may open the group; otherwise, the QEMU of the other run could find the
    file busy.
    """
    path = root / vfio_file(group).lstrip("/")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except FileNotFoundError:
        return VfioFile.ABSENT
    except OSError as error:
        return VfioFile.BUSY if error.errno == errno.EBUSY else VfioFile.FORBIDDEN
    return VfioFile.FREE


def find_device_users(root: Path) -> DeviceUsers:
    """List the open device files of all processes of the host below `root`."""
    processes: dict[str, list[str]] = {}
    # Process 1 always exists, so it is missing only if the mount option 'hidepid' hides the
    # processes of other users.
    is_complete = (root / "proc/1").exists()
    for process in _processes(root):
        try:
            files = set(_open_files(root, process))
        except PermissionError:
            is_complete = False
            continue
        for file in files:
            processes.setdefault(file, []).append(_described(process))
    return DeviceUsers(
        processes={file: tuple(found) for file, found in sorted(processes.items())},
        files_of=_files_by_function(root),
        is_complete=is_complete,
    )


def _processes(root: Path) -> list[Path]:
    try:
        found = [each for each in (root / "proc").iterdir() if each.name.isdecimal()]
    except OSError:
        return []
    return sorted(found, key=lambda each: int(each.name))


def _open_files(root: Path, process: Path) -> Iterator[str]:
    """Yield the GPU device files that a process has open.

    Raises PermissionError if this user may not list the open files of the process.
    """
    try:
        descriptors = list((process / "fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for descriptor in descriptors:
        # The process may close the file, or end, at any time.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            file = str(descriptor.readlink())
            if _WATCHED.fullmatch(file) and _may_be_same(descriptor, root / file.lstrip("/")):
                yield file


def _may_be_same(descriptor: Path, device: Path) -> bool:
    """Return whether an open file may be the device, by device numbers, since paths may differ."""
    opened, own = _device_number(descriptor), _device_number(device)
    return opened is None or own is None or opened == own


def _device_number(path: Path) -> int | None:
    """Return a device's number, 0 if the file is no device, or None if it can't be examined."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_rdev if stat.S_ISCHR(state.st_mode) else 0


def _described(process: Path) -> str:
    try:
        # A process may give itself any name.
        name = visible_line((process / "comm").read_text(errors="backslashreplace"))
        user = process.stat().st_uid
    except OSError:
        return f"process {process.name}"
    return f"process {process.name} ('{name}' of user {user_name(user)})"


def _files_by_function(root: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for folder, pattern, place in (
        ("sys/class/drm", "card*", "/dev/dri"),
        ("sys/class/drm", "renderD*", "/dev/dri"),
        ("sys/class/uio", "uio*", "/dev"),
        ("sys/class/vfio-dev", "vfio*", "/dev/vfio/devices"),
    ):
        for device in sorted((root / folder).glob(pattern)):
            parts = (device / "device").resolve().parts
            address = next((part for part in reversed(parts) if is_address(part)), None)
            if address is not None:
                found.setdefault(address, []).append(f"{place}/{device.name}")
    for information in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            minor = _NVIDIA_MINOR.search(information.read_text(errors="replace"))
        except OSError:
            continue
        if minor is not None:
            file = f"/dev/nvidia{minor[1]}"
            found.setdefault(information.parent.name.lower(), []).append(file)
    return {address: tuple(files) for address, files in found.items()}
