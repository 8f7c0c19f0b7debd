"""Passes data between the harness and its shells, through anonymous files and pipes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import select
from collections import deque
from typing import TYPE_CHECKING

from harness.limits import SHELL_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 16
_UNCHECKED_BYTES = 1 << 20
_MOST_FIELDS = 1 << 20
CODE = "the shell code under test"
"""The name of the code under test in messages about too much output."""


def make_pipes(count: int) -> list[tuple[int, int]]:
    """Return the reading and writing ends of new pipes. If a pipe can't be created, leave no pipe open."""
    made: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            made.append(os.pipe())  # noqa: PERF401 - on an error, the earlier pipes are closed
    except OSError:
        for fd in itertools.chain(*made):
            os.close(fd)
        raise
    return made


class Memory:
    """An anonymous file (memfd) that passes data in one direction between this process and a child.

    The child opens the memfd again through `/proc/self/fd`, so parent and child have separate
    positions in the file.

    All writes to the memfd append (O_APPEND). The shell processes of one shellspec example share
    the position of an inherited descriptor. If processes share a position, the kernel serialises
    their writes to a regular file (FMODE_ATOMIC_POS), but not their writes to a memfd. Without
    O_APPEND one process could overwrite what another process has just written.
    """

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(name)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_APPEND)

    def size(self) -> int:
        """Return the size of the file.

        The call moves the shared position to the end of the file, where all writes append.
        """
        return os.lseek(self.fd, 0, os.SEEK_END)

    def data(self, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the content from byte `start` up to byte `end`, by default up to the end of the file.

        Raises LimitError if the file has more output than shell code may write.
        """
        size = (self.size() if end is None else end) - start
        if size <= 0:
            return b""
        if size > _UNCHECKED_BYTES:
            SHELL_OUTPUT.check_bytes(size, CODE)
        data = os.pread(self.fd, size, start)
        while len(data) < size:
            part = os.pread(self.fd, size - len(data), start + len(data))
            if not part:
                break
            data += part
        return data

    def text(self, *, start: int = 0, end: int | None = None) -> str:
        """Return the same content as `data`, but as text without NUL bytes."""
        data = self.data(start=start, end=end)
        return data.replace(b"\0", b"").decode(errors="surrogateescape")

    def replace(self, text: str) -> None:
        """Replace the content of the file by `text`, and set the position to the beginning of the file."""
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)
        data = text.encode(errors="surrogateescape")
        at = 0
        while at < len(data):
            at += os.pwrite(self.fd, data[at:], at)

    def close(self) -> None:
        os.close(self.fd)


def records_in(data: bytes) -> Iterator[tuple[str, list[str]]]:
    """Split a complete text into records; a record is a name, a count N, and N fields.

    Text between a record `called` and the next record `when` is skipped, because a trap of the
    called function has written this text. Raises ValueError if the text does not consist of
    records.
    """
    if data.count(b"\0") > _MOST_FIELDS:
        raise ValueError("no record has so many fields")
    fields = data.decode(errors="surrogateescape").split("\0")
    at = 0
    while at < len(fields) - 1:
        first = at + 2
        at = first + int(fields[at + 1])
        if not first <= at < len(fields):
            raise ValueError("the last record is incomplete")
        yield fields[first - 2], fields[first:at]
        while fields[first - 2] == "called" and at < len(fields) - 1 and fields[at] != "when":
            at += 1


class RecordReader:
    """Splits a stream of NUL-terminated fields into records: a name, a count N, and N fields."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.received = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._fields: deque[bytes] = deque()
        self._tail: list[bytes] = []

    def next_record(self) -> tuple[str, list[str]] | None:
        """Return the next record, or None if no complete record has been read."""
        fields = self._fields
        if len(fields) < 2:
            return None
        count = int(fields[1])
        if len(fields) < count + 2:
            return None
        name = fields.popleft().decode()
        fields.popleft()
        return name, [fields.popleft().decode(errors="surrogateescape") for _ in range(count)]

    def wait(self, seconds: float) -> bool:
        """Return whether there is data to read; wait for at most `seconds`."""
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def read(self) -> bool:
        """Read the available data; return False at the end of the stream.

        Raises LimitError if the byte count `received`, which a caller resets to 0, exceeds the
        limit on output of shell code. Raises ValueError for a record with too many fields.
        """
        data = os.read(self.fd, _CHUNK)
        if not data:
            return False
        self.received += len(data)
        if self.received > _UNCHECKED_BYTES:
            SHELL_OUTPUT.check_bytes(self.received, CODE)
        if len(self._fields) > _MOST_FIELDS:
            raise ValueError("no record has so many fields")
        parts = data.split(b"\0")
        if len(parts) == 1:
            self._tail.append(data)
            return True
        parts[0] = b"".join([*self._tail, parts[0]])
        self._tail = [parts.pop()]
        self._fields.extend(parts)
        return True

    def close(self) -> None:
        os.close(self.fd)


def send(fd: int, text: str) -> None:
    """Write the whole `text` to the pipe `fd`.

    Ignore the error of a closed pipe, because the next read from the shell shows that the shell
    ended.
    """
    data = memoryview(text.encode(errors="surrogateescape"))
    with contextlib.suppress(BrokenPipeError):
        while data:
            data = data[os.write(fd, data) :]
