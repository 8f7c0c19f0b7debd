"""Reads the guest's files, writes files atomically, and waits until files exist."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque

from .frames import DATA, MAX_PAYLOAD, OUTPUT_WINDOW
from .jobs import Job
from .loop import READABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .jobs import Answers

#: How many chunks of a file are sent per round of the loop, so that other requests make progress.
_CHUNKS_A_ROUND = 4
#: How many ranges the kernel is asked to read ahead.
_ANNOUNCED = 256
#: Seconds between two checks, since inotify(7) reports neither mounts nor files in /proc and /sys.
_LOOK_AGAIN_S = 0.5
# linux/inotify.h: ATTRIB | MOVED_TO | CREATE | DELETE_SELF | MOVE_SELF, ONLYDIR
_WATCHED = 0x4 | 0x80 | 0x100 | 0x400 | 0x800 | 0x1000000


class _Read(Job):
    """Sends an open file in chunks, no faster than the host consumes chunks, then the number of bytes."""

    def __init__(self, answers: Answers, request: int) -> None:
        super().__init__(answers, request)
        self._window = OUTPUT_WINDOW
        self._size = 0
        self._fd = -1
        self._is_paused = False

    def _next_chunk(self) -> bytes:
        """Return the next chunk, which fits into one frame, or b"" at the end of the data."""
        raise NotImplementedError

    def _pump(self) -> None:
        if self._fd < 0:
            return
        for _ in range(_CHUNKS_A_ROUND):
            if self._window <= 0 or not self.answers.port.has_room:
                self._is_paused = True
                return
            try:
                chunk = self._next_chunk()
            except OSError as error:
                self.fail(error)
                return
            if not chunk:
                self.finish({"size": self._size})
                return
            self._size += len(chunk)
            self._window -= len(chunk)
            self.output(DATA, chunk)
        self.answers.loop.call_soon(self._pump)

    def credit(self, count: int) -> None:
        self._window += count
        self.resume()

    def resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._pump()

    def drop(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class FileRead(_Read):
    """Sends a regular file, then its size, or `{"size": null}` if there is no such file."""

    def __init__(self, answers: Answers, request: int, path: str) -> None:
        super().__init__(answers, request)
        try:
            # Opening a FIFO without a writer must not block the agent.
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            self.finish({"size": None})
            return
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.drop()
            raise OSError(f"'{path}' is not a regular file")
        self._pump()

    def _next_chunk(self) -> bytes:
        return os.read(self._fd, MAX_PAYLOAD)


class RangesRead(_Read):
    """Sends the requested ranges of a file or of a block device, in the order of the request.

    A range is an offset and a length.
    """

    def __init__(
        self, answers: Answers, request: int, path: str, ranges: list[tuple[int, int]]
    ) -> None:
        super().__init__(answers, request)
        self._path = path
        self._left = deque(ranges)
        self._not_announced = deque(ranges)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._pump()

    def _next_chunk(self) -> bytes:
        self._announce()
        parts = []
        room = MAX_PAYLOAD
        while self._left and room:
            at, length = self._left.popleft()
            part = os.pread(self._fd, min(length, room), at)
            if not part:
                raise OSError(f"'{self._path}' is too short: it ends before byte {at + length}")
            parts.append(part)
            room -= len(part)
            if len(part) < length:
                self._left.appendleft((at + len(part), length - len(part)))
        return b"".join(parts)

    def _announce(self) -> None:
        """Make the kernel read ahead, because many small reads are slow on an emulated disk."""
        while self._not_announced and len(self._left) - len(self._not_announced) < _ANNOUNCED:
            at, length = self._not_announced.popleft()
            os.posix_fadvise(self._fd, at, length, os.POSIX_FADV_WILLNEED)


class FileWrite(Job):
    """Writes received content to a temporary file, and renames that file when the content is complete."""

    def __init__(self, answers: Answers, request: int, path: str, mode: int) -> None:
        super().__init__(answers, request)
        self._path = path
        self._mode = mode
        self._fd = -1
        folder, name = os.path.split(path)
        os.makedirs(folder or ".", exist_ok=True)
        # A file name has at most 255 bytes.
        short = os.fsdecode(os.fsencode(name)[:200])
        self._beside = os.path.join(folder, f".{short}.harness-{os.getpid()}-{request}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._beside)
        self._fd = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def feed(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self.give_credit(len(chunk))

    def feed_end(self) -> None:
        os.fchmod(self._fd, self._mode)
        os.rename(self._beside, self._path)
        self._beside = ""
        self.finish({})

    def drop(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            if self._beside:
                with contextlib.suppress(OSError):
                    os.unlink(self._beside)


class FileWait(Job):
    """Waits until a path exists, by inotify(7) on the nearest existing folder above that path."""

    def __init__(self, answers: Answers, request: int, path: str) -> None:
        super().__init__(answers, request)
        self._path = path
        self._inotify: Inotify | None = None
        self._timer = 0
        self._is_over = False
        if self._finish_if_there():
            return
        # Without inotify, only the periodic checks remain.
        with contextlib.suppress(OSError):
            self._inotify = Inotify()
            answers.loop.add(self._inotify.fd, READABLE, self._on_event)
        self._look()
        self._look_again()

    def _finish_if_there(self) -> bool:
        if not self._is_over and os.path.exists(self._path):
            self._is_over = True
            self.finish({})
        return self._is_over

    def _look(self) -> None:
        for _ in range(64):
            if self._finish_if_there() or self._inotify is None:
                return
            # Check again after the watch is set: the path may have been created in between.
            if not self._inotify.watch(nearest_folder(self._path)):
                return

    def _on_event(self, _events: int) -> None:
        if self._inotify is not None:
            self._inotify.drain()
            self._look()

    def _look_again(self) -> None:
        if not self._finish_if_there():
            self._timer = self.answers.loop.call_later(_LOOK_AGAIN_S, self._look_again)
            self._look()

    def drop(self) -> None:
        self._is_over = True
        self.answers.loop.cancel_timer(self._timer)
        if self._inotify is not None:
            self.answers.loop.remove(self._inotify.fd)
            self._inotify.close()
            self._inotify = None


def nearest_folder(path: str) -> str:
    """Return the nearest folder above `path` that exists."""
    folder = os.path.dirname(path)
    while folder not in {"", "/"} and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder or "/"


class Inotify:
    """Watches one folder at a time by inotify(7), for which the standard library has no binding."""

    def __init__(self) -> None:
        # The import is slow, and rarely needed.
        import ctypes  # noqa: PLC0415

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._watch = -1

    def watch(self, folder: str) -> bool:
        """Watch only `folder` from now on. Return False if `folder` was watched already."""
        watch: int = self._libc.inotify_add_watch(self.fd, os.fsencode(folder), _WATCHED)
        if watch < 0:
            # The folder was removed, so another folder is now the nearest.
            return True
        if watch == self._watch:
            return False
        if self._watch >= 0:
            self._libc.inotify_rm_watch(self.fd, self._watch)
        self._watch = watch
        return True

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, MAX_PAYLOAD)

    def close(self) -> None:
        os.close(self.fd)
