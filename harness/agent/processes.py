"""Starts, signals and reaps processes, at the lowest cost that Python allows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables that systemd and Python's start-up set for the agent. Commands must not inherit them.
_NOT_INHERITED = frozenset(
    {
        *("INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"),
        *("LC_CTYPE", "MAINPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID"),
        "WATCHDOG_USEC",
    }
)
_OOM_SCORE = "/proc/self/oom_score_adj"
#: Signals that Python ignores. Other programs expect the default actions of these signals.
_SIGNALS_TO_RESET = (signal.SIGPIPE, signal.SIGXFSZ)
#: Signals that a terminal sends. In a terminal, a command gets the default actions of these signals
#: too, even if the agent ignores the signals.
_SIGNALS_OF_TERMINAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP)
#: From asm-generic/ioctls.h and termbits.h. The module `termios` has these numbers too, but loads
#: slowly.
_TCGETS, _TCSETS, _TIOCSWINSZ = 0x5401, 0x5402, 0x5414
_IUTF8 = 0o40000
#: The first field of struct termios (c_iflag), and the length of the whole struct, with a reserve.
_INPUT_FLAGS = struct.Struct("I")
_TERMIOS_BYTES = 64


class Child:
    """A process that leads its own process group, and the agent's ends of the process's pipes.

    If the process runs in a terminal, `stdout` and `stderr` are the same descriptor: the terminal's
    master.
    """

    __slots__ = ("pid", "pidfd", "stderr", "stdin", "stdout")

    def __init__(self, pid: int, pidfd: int, stdin: int | None, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr


class Processes:
    """Starts, signals and reaps the processes of this guest."""

    def __init__(self) -> None:
        self._environment = base_environment(dict(os.environ))
        os.environ["PATH"] = self._environment["PATH"]
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._oom_fd, self._oom_score = _own_oom_score()

    def spawn(self, argv: list[str], env: dict[str, str] | None, *, has_stdin: bool) -> Child:
        """Start `argv`. A failed start leaves no descriptor open, and raises OSError."""
        opened: list[int] = []
        try:
            out, child_out = os.pipe()
            opened += (out, child_out)
            err, child_err = os.pipe()
            opened += (err, child_err)
            child_in, stdin = self._null, None
            if has_stdin:
                child_in, stdin = os.pipe()
                opened += (child_in, stdin)
                os.set_blocking(stdin, False)
            streams = (
                (os.POSIX_SPAWN_DUP2, child_in, 0),
                (os.POSIX_SPAWN_DUP2, child_out, 1),
                (os.POSIX_SPAWN_DUP2, child_err, 2),
            )
            pid = self._start(argv, env, streams, _SIGNALS_TO_RESET)
            pidfd = self._open_pidfd(pid)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        os.close(child_out)
        os.close(child_err)
        if has_stdin:
            os.close(child_in)
        return Child(pid, pidfd, stdin, out, err)

    def spawn_in_terminal(
        self,
        argvs: Sequence[list[str]],
        env: dict[str, str] | None,
        size: tuple[int, int],
        *,
        has_stdin: bool,
    ) -> Child:
        """Start the first of `argvs` whose program exists, in a new terminal.

        `size` is the terminal's rows and columns. The terminal has Linux's default modes, with
        UTF-8 input. Raises OSError if the start fails, and then leaves no descriptor open.
        """
        opened: list[int] = []
        try:
            master, slave = os.openpty()
            opened += (master, slave)
            os.set_blocking(master, False)
            _accept_utf8(master)
            set_terminal_size(master, size)
            # Stdin needs its own descriptor, since the loop watches a descriptor for one purpose only.
            stdin = os.dup(master) if has_stdin else None
            if stdin is not None:
                opened.append(stdin)
            # The child begins a session and then opens the terminal by its path: the first terminal that a
            # session's leader opens becomes the session's terminal.
            streams = (
                (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
                (os.POSIX_SPAWN_DUP2, 0, 1),
                (os.POSIX_SPAWN_DUP2, 0, 2),
            )
            to_reset = (*_SIGNALS_TO_RESET, *_SIGNALS_OF_TERMINAL)
            pid = self._start_first(argvs, env, streams, to_reset)
            pidfd = self._open_pidfd(pid)
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        os.close(slave)
        return Child(pid, pidfd, stdin, master, master)

    def _start_first(
        self,
        argvs: Sequence[list[str]],
        env: dict[str, str] | None,
        streams: Sequence[tuple[object, ...]],
        to_reset: Sequence[int],
    ) -> int:
        for argv in argvs[:-1]:
            with contextlib.suppress(FileNotFoundError):
                return self._start(argv, env, streams, to_reset)
        return self._start(argvs[-1], env, streams, to_reset)

    def _open_pidfd(self, pid: int) -> int:
        try:
            return os.pidfd_open(pid)
        except OSError:
            self.signal_group(pid, signal.SIGKILL)
            self.reap(pid)
            raise

    def _start(
        self,
        argv: list[str],
        env: dict[str, str] | None,
        streams: Sequence[tuple[object, ...]],
        to_reset: Sequence[int],
    ) -> int:
        environment = self._environment
        path = None
        if env:
            environment = {**environment, **env}
            path = env.get("PATH")
        if path is not None:
            # posix_spawnp searches the PATH of this process.
            os.environ["PATH"] = path
        if self._oom_fd is not None:
            # The agent is protected from the OOM killer. The commands must not inherit the protection.
            os.pwrite(self._oom_fd, b"0", 0)
        try:
            return os.posix_spawnp(
                argv[0],
                argv,
                environment,
                file_actions=streams,
                setsid=True,
                setsigdef=to_reset,
            )
        finally:
            if self._oom_fd is not None:
                os.pwrite(self._oom_fd, self._oom_score, 0)
            if path is not None:
                os.environ["PATH"] = self._environment["PATH"]

    def signal_group(self, pid: int, number: int) -> None:
        """Signal the group of process `pid`, or do nothing if the process has ended.

        Call this method only before `pid` is reaped, because the kernel may reuse a reaped PID.
        """
        if pid <= 1:
            # 0 is the group of the agent, 1 is the group of init.
            raise ValueError(f"There is no command with the process group {pid}.")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    def reap(self, pid: int) -> int:
        """Reap an ended process.

        Return the process's exit code, or the negated number of the signal that ended the process.
        """
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)


def set_terminal_size(fd: int, size: tuple[int, int]) -> None:
    """Set the rows and columns of the terminal `fd`.

    The kernel sends SIGWINCH to the terminal's foreground processes.
    """
    fcntl.ioctl(fd, _TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))


def _accept_utf8(fd: int) -> None:
    """Set the terminal's mode IUTF8, so that the erase key removes a whole UTF-8 character."""
    modes = bytearray(fcntl.ioctl(fd, _TCGETS, bytes(_TERMIOS_BYTES)))
    (flags,) = _INPUT_FLAGS.unpack_from(modes)
    _INPUT_FLAGS.pack_into(modes, 0, flags | _IUTF8)
    fcntl.ioctl(fd, _TCSETS, bytes(modes))


def base_environment(own: dict[str, str]) -> dict[str, str]:
    """Return the environment in which commands run, similar to the environment of a root login."""
    kept = {name: value for name, value in own.items() if name not in _NOT_INHERITED}
    root = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh"}
    return {"PATH": DEFAULT_PATH, **root, **kept}


def _own_oom_score() -> tuple[int | None, bytes]:
    """Return an open descriptor of the file with the agent's OOM score, and the score.

    The descriptor is None if child processes may keep the score that they inherit, or if the agent
    has no permission to restore the score.
    """
    try:
        fd = os.open(_OOM_SCORE, os.O_RDWR)
    except OSError:
        return None, b""
    score = os.pread(fd, 32, 0).strip()
    try:
        if score not in {b"0", b""}:
            # Check whether the agent has the permission to restore the score later.
            os.pwrite(fd, b"0", 0)
            os.pwrite(fd, score, 0)
            return fd, score
    except OSError:
        pass
    os.close(fd)
    return None, b""
