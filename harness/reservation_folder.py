"""Stores granted and waiting reservations of several processes as files in one folder.

Each reservation is a file, locked by `flock` for as long as the reservation lasts. The kernel
releases a reservation's lock when the holder dies, even by `kill -9`; the next process that reads
the folder removes the reservation's file. A lock on the folder itself serialises reading and adding
files. A reservation can outlive its process only if the process has forked a child that has not yet
executed another program.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import re
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from harness.errors import HarnessError, RequirementError
from harness.limits import SHARED_FILE
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for
from harness.shared_folder import (
    SharedFile,
    StrangeFileError,
    create_folders,
    is_private,
    names_in,
    open_folder,
    opened_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

_LOCK_INTERVAL_S = 0.002
#: The time limit for the folder's lock; unless the holder is suspended, the lock is held for about
#: a millisecond.
_LOCK_S = 10.0
_LONGEST_WHO = 80
_FILE_NAME = re.compile(r"[0-9]{9,15}-[0-9a-f]{8}")
_LAST_TICKET = 10**15 - 1


class Entry(Protocol):
    """The content of a reservation's file: a granted reservation, or a waiting request for a reservation."""

    @property
    def who(self) -> str: ...

    @property
    def process(self) -> int: ...

    @property
    def is_granted(self) -> bool: ...

    def to_json(self) -> str: ...


E = TypeVar("E", bound=Entry)


class Sharing(enum.Enum):
    """Who may use a folder of reservations."""

    USER = "user"
    """One user: the folder is private (0700)."""
    GROUP = "group"
    """A group of users who share the resource: the folder has mode 2770."""

    @property
    def folder_mode(self) -> int:
        return 0o700 if self is Sharing.USER else 0o2770

    @property
    def file_mode(self) -> int:
        """Return the mode of new files.

        Other users of a shared folder must be able to open and lock the files.
        """
        return 0o600 if self is Sharing.USER else 0o640


class ReservationFolder(Generic[E]):
    """The reservations in `folder`, which is created on first use.

    `parse` makes an entry from the text of a file; `parse` raises ValueError, KeyError or TypeError
    if the text is not an entry. `with_owner` sets an entry's owner to the owner of the file,
    whatever owner the file's text names. `owner` is the name that messages use for the owner of the
    folder.
    """

    def __init__(
        self,
        folder: Path,
        parse: Callable[[str], E],
        *,
        owner: str,
        sharing: Sharing = Sharing.USER,
        with_owner: Callable[[E, str], E] = lambda entry, _: entry,
    ) -> None:
        self.folder = folder
        self._parse = parse
        self._with_owner = with_owner
        self._owner = owner
        self._sharing = sharing

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenReservations[E]]:
        """Lock the folder during a `with` block, so that no other process reads or adds entries.

        Raises RequirementError if users who do not share the folder could change the folder.
        """

        def poll() -> Observation[int]:
            descriptor = self._open_folder()
            with contextlib.ExitStack() as closing:
                closing.callback(os.close, descriptor)
                if not _try_lock(descriptor, self.folder):
                    return Observation(None, "another process holds it")
                if os.fstat(descriptor).st_nlink == 0:
                    return Observation(None, "the folder was removed")
                closing.pop_all()
            return Observation(descriptor, "free")

        what = f"the lock on '{self.folder}'"
        try:
            descriptor = wait_for(what, poll, Deadline.after(_LOCK_S), interval_s=_LOCK_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} A suspended process may hold the lock; `fuser '{self.folder}'` prints its id."
            ) from error
        try:
            yield OpenReservations(
                folder=self.folder,
                descriptor=descriptor,
                parse=self._parse,
                with_owner=self._with_owner,
                file_mode=self._sharing.file_mode,
            )
        finally:
            # A child between fork and exec has a copy of the descriptor, and must not keep the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    @contextlib.contextmanager
    def enter(self, entry: E) -> Iterator[str]:
        """Add `entry` at the end of the queue, yield the entry's name, and remove the entry afterwards.

        Removing the entry does not need the folder's lock, so no other process has to wait.
        """
        with contextlib.ExitStack() as leaving:
            with self.open() as book:
                name, descriptor = book.add(entry)
                leaving.callback(os.close, descriptor)
                leaving.callback(self._remove, name)
            yield name

    def _remove(self, name: str) -> None:
        # The reservation ended when its lock was released, so another user may have replaced this
        # file.
        with contextlib.suppress(OSError):
            (self.folder / name).unlink()

    def _open_folder(self) -> int:
        """Open the folder, or create a missing folder; refuse a folder with a wrong owner or mode."""
        try:
            try:
                descriptor = open_folder(self.folder)
            except FileNotFoundError:
                self._create()
                descriptor = open_folder(self.folder)
        except OSError as error:
            is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
            why = "it is a link or no folder" if is_link else f"{error.strerror}"
            raise self._refusal(why) from error
        is_ours_alone = self._sharing is Sharing.USER
        refusal = self._private(descriptor) if is_ours_alone else self._shared(descriptor)
        if refusal is not None:
            os.close(descriptor)
            raise self._refusal(refusal)
        return descriptor

    def _create(self) -> None:
        if self._sharing is Sharing.GROUP:
            create_folders(self.folder.parent, 0o755)
            if os.geteuid() != 0 and self.folder.parent.stat().st_mode & stat.S_IWOTH:
                # If an ordinary user created the folder, other users could never use it.
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with contextlib.suppress(FileExistsError):
            create_folders(self.folder.parent, 0o700)
            self.folder.mkdir(mode=0o700)
            descriptor = open_folder(self.folder)
            try:
                # Change the mode by descriptor, and only of our own folder: the path may be a link by now.
                if is_private(os.fstat(descriptor)):
                    os.fchmod(descriptor, self._sharing.folder_mode)
            finally:
                os.close(descriptor)

    def _private(self, descriptor: int) -> str | None:
        state = os.fstat(descriptor)
        if is_private(state):
            return None
        if state.st_uid != os.geteuid():
            return f"it belongs to user {state.st_uid}"
        return f"its mode lets other users use it: {stat.S_IMODE(state.st_mode):o}"

    def _shared(self, descriptor: int) -> str | None:
        state = os.fstat(descriptor)
        mode = stat.S_IMODE(state.st_mode)
        if state.st_uid not in {0, os.geteuid()}:
            return f"it belongs to user {state.st_uid}"
        if mode & stat.S_IWOTH:
            return f"its mode lets everybody change it: {mode:o}"
        if mode & stat.S_IWGRP and not mode & stat.S_ISGID:
            return f"its mode {mode:o} lacks the setgid bit, so that new files would not belong to its group"
        if not os.access(".", os.R_OK | os.W_OK | os.X_OK, dir_fd=descriptor):
            return f"user {os.geteuid()} may not write there"
        return None

    def _refusal(self, why: str) -> RequirementError:
        if self._sharing is Sharing.USER:
            return RequirementError(
                f"The {self._owner}'s folder '{self.folder}' must be private to user {os.geteuid()}, "
                f"but {why}; remove it, or ask its owner to remove it."
            )
        return RequirementError(
            f"The {self._owner}'s folder '{self.folder}' must belong to root or to you, and be writable by "
            f"the group of its users, but {why}; as root, run `install -d -m 2770 -g GROUP "
            f"{self.folder}` with a GROUP that you are in, or name another folder."
        )


@dataclass(frozen=True, kw_only=True)
class OpenReservations(Generic[E]):
    """The reservations in a locked folder; `descriptor` is the folder's file descriptor."""

    folder: Path
    descriptor: int
    parse: Callable[[str], E]
    with_owner: Callable[[E, str], E]
    file_mode: int

    def entries(self) -> list[tuple[str, E]]:
        """Return names and entries of live holders, oldest first. Remove entries of dead holders.

        A file that the harness did not make reserves nothing and is not removed; `strange_files`
        reports such files. Raises HarnessError for a file that is locked but can't be parsed, since
        its reservation is unknown.
        """
        entries: list[tuple[str, E]] = []
        for name in self._names():
            with (
                contextlib.suppress(FileNotFoundError, StrangeFileError),
                self._opened(name) as file,
            ):
                if _try_lock(file.descriptor, self.folder):
                    os.unlink(name, dir_fd=self.descriptor)
                else:
                    entries.append((name, self._parsed(file)))
        return entries

    def strange_files(self) -> list[str]:
        """Return a sentence about each file that is named like a reservation, but is not a reservation."""
        found = (self._strangeness(name) for name in self._names())
        return [each for each in found if each is not None]

    def _strangeness(self, name: str) -> str | None:
        try:
            with self._opened(name):
                return None
        except FileNotFoundError:
            return None
        except StrangeFileError as error:
            return str(error)

    def add(self, entry: E) -> tuple[str, int]:
        """Create the file of `entry`; the reservation lasts until the returned descriptor is closed."""
        last = self._last_ticket()
        # The random suffix makes the name unique: a late removal of an older file with the same
        # number does not remove this file.
        name = f"{last + 1:09d}-{secrets.token_hex(4)}"
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = os.open(name, flags, self.file_mode, dir_fd=self.descriptor)
        except OSError as error:
            raise self._unwritten(entry, error) from error
        try:
            # The umask may have removed the permissions of the group that shares the folder.
            os.fchmod(file, self.file_mode)
            self._lock(file, name)
            self.write(name, entry)
        except BaseException:
            os.unlink(name, dir_fd=self.descriptor)
            os.close(file)
            raise
        return name, file

    def _lock(self, file: int, name: str) -> None:
        if not _try_lock(file, self.folder):
            raise HarnessError(
                f"Another process has locked the new reservation '{self.folder / name}'; try again."
            )

    def write(self, name: str, entry: E) -> None:
        """Write `entry` into the file `name`.

        `write` opens the file by name: the descriptor that `add` returned may be closed, and
        another file may have the same descriptor number. Raises FileNotFoundError if the
        reservation has ended.
        """
        content = entry.to_json().encode()
        SHARED_FILE.check_bytes(len(content), f"'{self.folder / name}'")
        with self._opened(name, os.O_WRONLY, is_ours=True) as file:
            try:
                # Write before truncating, so that a full disk leaves the previous content.
                os.pwrite(file.descriptor, content, 0)
                os.ftruncate(file.descriptor, len(content))
            except OSError as error:
                raise self._unwritten(entry, error) from error

    def _last_ticket(self) -> int:
        names = self._names()
        if names and ticket_of(names[-1]) >= _LAST_TICKET:
            # No queue is that long, so the file with the last number may be foreign. Count only the
            # reservations that a process holds.
            names = [name for name, _ in self.entries()]
        last = ticket_of(names[-1]) if names else 0
        if last >= _LAST_TICKET:
            raise HarnessError(
                f"The reservation '{self.folder / names[-1]}' has the last possible number, so "
                "no other reservation can be added; end the process that holds this reservation: "
                f"`fuser '{self.folder / names[-1]}'` prints its id."
            )
        return last

    def _names(self) -> list[str]:
        names = names_in(self.descriptor, self.folder)
        return sorted((name for name in names if _FILE_NAME.fullmatch(name)), key=ticket_of)

    def _opened(
        self, name: str, flags: int = os.O_RDONLY, *, is_ours: bool = False
    ) -> contextlib.AbstractContextManager[SharedFile]:
        return opened_file(self.descriptor, self.folder / name, flags=flags, is_ours=is_ours)

    def _parsed(self, file: SharedFile) -> E:
        try:
            return self.with_owner(self.parse(file.read().decode()), file.owner)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HarnessError(
                f"The reservation '{file.path}' can't be parsed ({error}), but a process holds it, maybe "
                "a process of another version of the harness; end that process: "
                f"`fuser '{file.path}'` prints its id. The file belongs to user {file.owner}."
            ) from error

    def _unwritten(self, entry: E, error: OSError) -> HarnessError:
        return HarnessError(
            f"The reservation of '{entry.who}' can't be written ({error.strerror}); free some space in "
            f"'{self.folder.parent}'."
        )


def _try_lock(descriptor: int, folder: Path) -> bool:
    """Try to lock a file in `folder` or the folder itself; return whether the attempt succeeded."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise RequirementError(
            f"Reservations in '{folder}' can't be locked ({error.strerror}), as on many network file "
            "systems; name a folder on a local disk."
        ) from error
    return True


def ticket_of(name: str) -> int:
    """Return the number of the entry `name`; an entry that arrived later has a higher number."""
    return int(name.partition("-")[0])


def ahead_of(name: str, entries: Sequence[tuple[str, E]]) -> list[E]:
    """Return the waiting entries that are served before `name`.

    First come, first served. However, a process that already holds a reservation is served before
    processes without a reservation, because the holder keeps its reservation during the wait.
    """
    holders = {entry.process for _, entry in entries if entry.is_granted}
    waiting = sorted(
        (
            (entry.process not in holders, ticket_of(each), each, entry)
            for each, entry in entries
            if not entry.is_granted
        ),
        key=lambda place: place[:3],
    )
    position = next(index for index, (_, _, each, _) in enumerate(waiting) if each == name)
    return [entry for *_, entry in waiting[:position]]


def one_line(who: str) -> str:
    """Return the name of a holder, shortened to one line of limited length."""
    return "".join(each if each.isprintable() else "?" for each in who)[:_LONGEST_WHO]
