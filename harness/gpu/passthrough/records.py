"""The pool's records, which outlive a process: functions' earlier drivers, and quarantined GPUs.

Each record is a file in the pool's folder. A file is written under another name and then renamed,
so that no process reads an incomplete file. Only the holder of a GPU's lease changes the GPU's
records. But every user of the folder can put files there, so a record is parsed strictly. Another
user's record is used only if sysfs confirms it, and only for changes that the other user could make
without root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu.passthrough import ADDRESS_PATTERN, VFIO_DRIVER, BoundDriver, is_address
from harness.gpu.passthrough.strict_json import Value
from harness.shared_folder import (
    SharedFile,
    StrangeFileError,
    names_in,
    open_folder,
    opened_file,
    user_name,
)
from harness.visible_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from harness.gpu.passthrough import HostFunction

_DRIVERS = "drivers"
_QUARANTINE = "quarantine"
_NAME = re.compile(rf"({_DRIVERS}|{_QUARANTINE})-({ADDRESS_PATTERN})\.json")
#: Any user in the folder's group can read a record, and can replace it by another file.
_FILE_MODE = 0o640
_LONGEST_REASON = 4096


class RecordError(HarnessError):
    """A record can't be used: it is malformed, or sysfs contradicts it."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """The user who wrote a record, as the owner and the group of the record's file show."""

    user: int
    group: int
    name: str
    is_trusted: bool
    """Whether only root and this user could have written the record."""

    def may_write(self, path: Path) -> bool:
        """Return whether this user may write a file of sysfs."""
        state = path.stat()
        if state.st_uid == self.user:
            return bool(state.st_mode & stat.S_IWUSR)
        if state.st_gid == self.group:
            return bool(state.st_mode & stat.S_IWGRP)
        return bool(state.st_mode & stat.S_IWOTH)


@dataclass(frozen=True, kw_only=True)
class RecordedDrivers:
    """The drivers that the functions of the GPU at `address` had before the GPU was taken."""

    address: str
    path: Path
    functions: Mapping[str, BoundDriver]
    writer: Writer

    def require_fit(self, found: Mapping[str, HostFunction | None]) -> None:
        """Raise RecordError if the functions on the bus contradict the record.

        `found` lists the functions on the bus by address. Another user's record is used only for
        functions that a run has taken.
        """
        gpu = found.get(self.address)
        if self.address not in self.functions:
            raise self.refusal(f"it does not list {self.address} itself")
        if gpu is None and not self.writer.is_trusted:
            raise self.refusal(f"{self.address} is not on the PCI bus")
        if gpu is not None and not gpu.is_gpu:
            raise self.refusal(f"{gpu} is not a GPU")
        for address, before in self.functions.items():
            each = found.get(address)
            if each is None and not self.writer.is_trusted:
                raise self.refusal(f"{address} is not on the PCI bus")
            if each is None or gpu is None:
                # The function's card has left the bus, and will be quarantined.
                continue
            is_of_group = gpu.group is not None and each.group == gpu.group and not each.is_bridge
            if address != self.address and not is_of_group:
                raise self.refusal(f"{each} is not in the IOMMU group of {self.address}")
            is_taken = each.driver in {None, VFIO_DRIVER, before.driver}
            if not is_taken and not self.writer.is_trusted:
                raise self.refusal(
                    f"{each} is not bound to {VFIO_DRIVER}, so no run has leased this function"
                )
            if before.override not in {None, VFIO_DRIVER} and not self.writer.is_trusted:
                raise self.refusal(f"it states driver_override '{before.override}' for {address}")

    def refusal(self, why: str) -> RecordError:
        return RecordError(
            f"The record '{self.path}' of user {self.writer.name} is not used ({why}); look at the "
            f"drivers of {self.address} with `lspci -k`, bind the right driver, and remove the "
            "file."
        )


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """The reason why a GPU may not be leased until a person releases the GPU.

    `user` is the owner of the record. `is_trusted` is true if only root and this user could have
    written the record.
    """

    reason: str
    since: str
    user: str
    is_trusted: bool = True


class DeviceRecords:
    """The records of GPUs in `folder`, by the GPU's address.

    `boot_id` is the kernel's boot id; drivers that were recorded before the last boot are ignored.
    """

    def __init__(self, folder: Path, *, boot_id: str) -> None:
        self.folder = folder
        self._boot_id = boot_id

    def own(self, address: str, functions: Iterable[HostFunction]) -> RecordedDrivers:
        """Return a record of the present drivers of `functions`, which are taken with the GPU.

        Raises RecordError if a driver has a name that a record may not contain.
        """
        drivers = {
            each.address: {"driver": each.driver, "override": each.driver_override}
            for each in functions
        }
        try:
            checked = _bound_drivers(Value(drivers))
        except ValueError as error:
            raise RecordError(
                f"The drivers of {address} can't be recorded ({error}), so this GPU is not taken."
            ) from error
        writer = Writer(
            user=os.geteuid(), group=os.getegid(), name=user_name(os.geteuid()), is_trusted=True
        )
        path = self._path(_DRIVERS, address)
        return RecordedDrivers(address=address, path=path, functions=checked, writer=writer)

    def save_drivers(self, address: str, functions: Iterable[HostFunction]) -> None:
        """Write a record of the present drivers of `functions`, which are taken with the GPU."""
        drivers = {
            name: {"driver": each.driver, "override": each.override}
            for name, each in self.own(address, functions).functions.items()
        }
        self._write(_DRIVERS, address, {"boot_id": self._boot_id, "functions": drivers})

    def drivers(self, address: str) -> RecordedDrivers | None:
        """Return the recorded drivers by function, or None if the GPU is not taken.

        Raises RecordError if the record's file was not made by the harness, or can't be parsed.
        """
        with self._opened(_DRIVERS, address) as file:
            if file is None:
                return None
            with self._parsing(address, file):
                content = Value.parse(file.read())
                boot_id = content["boot_id"].line()
                functions = _bound_drivers(content["functions"])
            if boot_id != self._boot_id:
                return None
            writer = Writer(
                user=file.state.st_uid,
                group=file.state.st_gid,
                name=file.owner,
                is_trusted=file.is_trusted,
            )
            return RecordedDrivers(
                address=address, path=file.path, functions=functions, writer=writer
            )

    def forget_drivers(self, address: str) -> None:
        self._remove(_DRIVERS, address)

    def taken(self) -> list[str]:
        """Return the GPUs with a record of drivers from this boot, or with an unreadable record."""
        return [each for each in self._addresses(_DRIVERS) if self._is_current(each)]

    def _is_current(self, address: str) -> bool:
        try:
            return self.drivers(address) is not None
        except RecordError:
            return True

    def save_quarantine(self, address: str, quarantine: Quarantine) -> None:
        reason = quarantine.reason[:_LONGEST_REASON]
        content = {"reason": reason, "since": quarantine.since, "user": quarantine.user}
        self._write(_QUARANTINE, address, content)

    def quarantine(self, address: str) -> Quarantine | None:
        """Return the quarantine of a GPU, with its reason, or None if the GPU is not quarantined.

        Raises RecordError if the file was not made by the harness, or can't be parsed.
        """
        with self._opened(_QUARANTINE, address) as file:
            if file is None:
                return None
            with self._parsing(address, file):
                content = Value.parse(file.read())
                return Quarantine(
                    reason=visible_line(content["reason"].text()),
                    since=content["since"].line(),
                    user=file.owner,
                    is_trusted=file.is_trusted,
                )

    def quarantined(self) -> list[str]:
        return self._addresses(_QUARANTINE)

    def end_quarantine(self, address: str) -> None:
        self._remove(_QUARANTINE, address)

    def strange_files(self) -> list[str]:
        """Return a sentence about each file that is named like a record but has no address."""
        return [
            f"'{self.folder / name}' is not a record of the harness: its name has no PCI address. "
            "Remove the file."
            for name in self._names()
            if name.startswith((f"{_DRIVERS}-", f"{_QUARANTINE}-")) and not _NAME.fullmatch(name)
        ]

    def _addresses(self, kind: str) -> list[str]:
        found = (_NAME.fullmatch(name) for name in self._names())
        return [each[2] for each in found if each is not None and each[1] == kind]

    def _names(self) -> list[str]:
        with self._opened_folder() as folder:
            return [] if folder is None else sorted(names_in(folder, self.folder))

    @contextlib.contextmanager
    def _opened_folder(self) -> Iterator[int | None]:
        """Open the folder; yield None if there is no folder."""
        try:
            folder = open_folder(self.folder)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            raise HarnessError(
                f"The GPU pool's folder '{self.folder}' can't be read ({error.strerror}); make it a "
                "folder (not a link) that you have access to."
            ) from error
        try:
            yield folder
        finally:
            os.close(folder)

    def _path(self, kind: str, address: str) -> Path:
        if not is_address(address):
            raise RecordError(f"'{address}' is not a PCI address, so there are no records of it.")
        return self.folder / f"{kind}-{address}.json"

    @contextlib.contextmanager
    def _opened(self, kind: str, address: str) -> Iterator[SharedFile | None]:
        """Open a record; yield None if there is no record."""
        path = self._path(kind, address)
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(self._opened_folder())
            file = None
            if folder is not None:
                try:
                    file = opened.enter_context(opened_file(folder, path))
                except FileNotFoundError:
                    pass
                except StrangeFileError as error:
                    raise RecordError(str(error)) from error
            yield file

    @contextlib.contextmanager
    def _parsing(self, address: str, file: SharedFile) -> Iterator[None]:
        try:
            yield
        except (StrangeFileError, ValueError) as error:
            raise RecordError(
                f"The record '{file.path}' can't be read ({error}); look at the drivers of "
                f"{address} with `lspci -k`, bind the right driver, and remove the file. The "
                f"file belongs to user {file.owner}."
            ) from error

    def _write(self, kind: str, address: str, content: Mapping[str, object]) -> None:
        path = self._path(kind, address)
        beside = f".{path.name}.{secrets.token_hex(4)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._opened_folder() as folder:
            if folder is None:
                raise HarnessError(
                    f"The GPU pool's folder '{self.folder}' was removed while this process used it; do "
                    "not remove this folder while a process uses GPUs."
                )
            try:
                file = os.open(beside, flags, _FILE_MODE, dir_fd=folder)
                with os.fdopen(file, "w") as stream:
                    os.fchmod(file, _FILE_MODE)
                    stream.write(json.dumps(content))
                    stream.flush()
                    os.fsync(file)
                os.rename(beside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.unlink(beside, dir_fd=folder)
                raise HarnessError(
                    f"The record '{path}' can't be written ({error.strerror}); free some space in "
                    f"'{self.folder}', remove whatever else has the name of this file, or ask the "
                    "folder's owner for access."
                ) from error

    def _remove(self, kind: str, address: str) -> None:
        with self._opened(kind, address) as file:
            if file is None:
                return
            try:
                file.path.unlink(missing_ok=True)
            except OSError as error:
                raise RecordError(
                    f"The record '{file.path}' can't be removed ({error.strerror}); remove the file yourself."
                ) from error


def _bound_drivers(functions: Value) -> Mapping[str, BoundDriver]:
    """Return the drivers by function; raises ValueError."""
    return {
        address: BoundDriver(driver=each["driver"].driver(), override=each["override"].driver())
        for address, each in functions.by_address().items()
    }
