"""The files of a host's reservations: who holds which capacity, and who waits.

There is one file per reservation, locked by `flock` for as long as the reservation lasts: the kernel
releases the lock when its holder dies, also after `kill -9`, and the next process that reads the
folder removes the file. A lock on the folder itself serialises reading and adding. A reservation
outlives its process only through a forked child that has not executed another program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The same for every run of a user: TMPDIR and XDG_RUNTIME_DIR differ between a login and a job.
_SHARED = Path("/tmp")  # noqa: S108 - the folder below it is refused unless it is ours alone
_LOCK_INTERVAL_S = 0.002
#: The lock is held for about a millisecond; longer only by a process that was stopped meanwhile.
_LOCK_S = 10.0
_FILE_NAME = re.compile(r"[0-9]{9,}-[0-9a-f]{8}")


def host_folder() -> Path:
    """Return the folder of this user's reservations; the first reservation creates it."""
    return _SHARED / f"gpu-node-harness-{os.geteuid()}"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a machine needs of the host, QEMU's own use included."""

    memory_mib: int
    cpus: int
    ports: int = 0

    def __post_init__(self) -> None:
        if min(self.memory_mib, self.cpus, self.ports) < 0:
            raise ValueError(f"A demand can't be negative: {self}")

    @override
    def __str__(self) -> str:
        cpus = f"{self.cpus} vCPU{'' if self.cpus == 1 else 's'}"
        ports = f" and {self.ports} port{'' if self.ports == 1 else 's'}"
        return f"{self.memory_mib} MiB on {cpus}{ports if self.ports else ''}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A reservation, or a demand that waits for one (`is_granted` is false)."""

    who: str
    process: int
    demand: Demand
    is_granted: bool = False
    ports: tuple[int, ...] = ()
    #: The process that uses the memory, where it is known.
    user: int | None = None

    @override
    def __str__(self) -> str:
        return f"'{self.who}' of process {self.process} ({self.demand})"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Raise ValueError, KeyError or TypeError where `text` is no entry."""
        fields = json.loads(text)
        user = fields["user"]
        return cls(
            who=str(fields["who"]),
            process=int(fields["process"]),
            demand=Demand(**{key: int(value) for key, value in fields["demand"].items()}),
            is_granted=bool(fields["is_granted"]),
            ports=tuple(int(port) for port in fields["ports"]),
            user=None if user is None else int(user),
        )


class ReservationFile:
    """The reservations in `folder`, which is created on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenReservations]:
        """Lock the folder: no other process reads or adds meanwhile.

        Raises RequirementError where the folder is not this user's alone.
        """

        def poll() -> Observation[int]:
            descriptor = _open_private(self.folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return Observation(None, "another process holds it")
            if os.fstat(descriptor).st_nlink == 0:
                os.close(descriptor)
                return Observation(None, "it was removed")
            return Observation(descriptor, "free")

        what = f"the lock on '{self.folder}'"
        try:
            descriptor = wait_for(what, poll, Deadline.after(_LOCK_S), interval_s=_LOCK_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} A process that was stopped may hold it; `fuser '{self.folder}'` names it."
            ) from error
        try:
            yield OpenReservations(self.folder, descriptor)
        finally:
            # A child between fork and exec has the descriptor too, and must not keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @contextlib.contextmanager
    def enter(self, entry: Entry) -> Iterator[str]:
        """Add `entry` at the end, yield its name, and remove it afterwards.

        Removing it does not need the lock, so that no other process has to wait.
        """
        with contextlib.ExitStack() as leaving:
            with self.open() as book:
                name, descriptor = book.add(entry)
                leaving.callback(os.close, descriptor)
                leaving.callback((self.folder / name).unlink, missing_ok=True)
            yield name


@dataclass(frozen=True)
class OpenReservations:
    """The reservations while the folder is locked; `descriptor` is that of the folder."""

    folder: Path
    descriptor: int

    def entries(self) -> list[tuple[str, Entry]]:
        """Return the live entries by name, oldest first, and remove those whose holder is dead.

        Raises HarnessError at a file that is locked but can't be parsed: what it reserves is unknown.
        """
        entries: list[tuple[str, Entry]] = []
        for name in self._names():
            try:
                file = self._open(name, os.O_RDONLY)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name, dir_fd=self.descriptor)
            except FileNotFoundError:
                pass
            except BlockingIOError:
                entries.append((name, self._parse(name, os.pread(file, 65536, 0))))
            finally:
                os.close(file)
        return entries

    def add(self, entry: Entry) -> tuple[str, int]:
        """Create the file of `entry`; it is reserved until the returned descriptor is closed."""
        last = max((ticket_of(name) for name in self._names()), default=0)
        # The random suffix keeps a late removal from hitting a successor of the same number.
        name = f"{last + 1:09d}-{secrets.token_hex(4)}"
        try:
            file = self._open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            raise self._unwritten(entry, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.write(name, entry)
        except BaseException:
            os.unlink(name, dir_fd=self.descriptor)
            os.close(file)
            raise
        return name, file

    def write(self, name: str, entry: Entry) -> None:
        """Write into the file `name`.

        By name: a descriptor may have been closed meanwhile, and its number reused.
        Raises FileNotFoundError where the reservation has ended.
        """
        content = entry.to_json().encode()
        file = self._open(name, os.O_WRONLY)
        try:
            # In this order, a full disk leaves the previous content.
            os.pwrite(file, content, 0)
            os.ftruncate(file, len(content))
        except OSError as error:
            raise self._unwritten(entry, error) from error
        finally:
            os.close(file)

    def _names(self) -> list[str]:
        names = os.listdir(self.descriptor)  # noqa: PTH208 - pathlib knows no descriptors
        return sorted((name for name in names if _FILE_NAME.fullmatch(name)), key=ticket_of)

    def _open(self, name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.descriptor)

    def _parse(self, name: str, content: bytes) -> Entry:
        try:
            return Entry.from_json(content.decode())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            path = self.folder / name
            raise HarnessError(
                f"The reservation '{path}' can't be parsed ({error}), but a process holds it, maybe of "
                f"another version; end that process: `fuser '{path}'` names it."
            ) from error

    def _unwritten(self, entry: Entry, error: OSError) -> HarnessError:
        return HarnessError(
            f"The reservation of '{entry.who}' can't be written ({error.strerror}); free some space in "
            f"'{self.folder.parent}'."
        )


def ticket_of(name: str) -> int:
    """Return the position of the entry `name` in the order of arrival."""
    return int(name.partition("-")[0])


def _open_private(folder: Path) -> int:
    """Open `folder`, created if missing; refuse one that is not private to this user."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        why = "it is a link or no folder" if is_link else f"{error.strerror}"
        raise _refusal(folder, why) from error
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid():
        os.close(descriptor)
        raise _refusal(folder, f"it belongs to user {state.st_uid}")
    if stat.S_IMODE(state.st_mode) & 0o077:
        os.close(descriptor)
        raise _refusal(folder, f"its mode lets others use it: {stat.S_IMODE(state.st_mode):o}")
    return descriptor


def _refusal(folder: Path, why: str) -> RequirementError:
    return RequirementError(
        f"The broker's folder '{folder}' must be private to user {os.geteuid()}, but {why}; "
        "remove it, or ask its owner to."
    )
