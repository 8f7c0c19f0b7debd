"""Starts, signals and reaps processes, at the lowest cost that Python allows."""

from __future__ import annotations

import contextlib
import os
import signal

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Variables of systemd for this service, and of Python's start, that commands must not get.
_NOT_INHERITED = frozenset(
    {
        *("INVOCATION_ID", "JOURNAL_STREAM", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID"),
        *("LC_CTYPE", "MAINPID", "NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "WATCHDOG_PID"),
        "WATCHDOG_USEC",
    }
)
_OOM_SCORE = "/proc/self/oom_score_adj"
#: Signals that Python ignores; programs expect the default.
_SIGNALS_TO_RESET = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """A process that leads its own group, and the agent's ends of its pipes."""

    __slots__ = ("pid", "pidfd", "stderr", "stdin", "stdout")

    def __init__(self, pid: int, pidfd: int, stdin: int | None, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr


class Processes:
    """The processes of this guest."""

    def __init__(self) -> None:
        self._environment = base_environment(dict(os.environ))
        os.environ["PATH"] = self._environment["PATH"]
        self._null = os.open("/dev/null", os.O_RDONLY)
        self._oom_fd, self._oom_score = _own_oom_score()

    def spawn(self, argv: list[str], env: dict[str, str] | None, *, has_stdin: bool) -> Child:
        """Start `argv`; raises OSError if it cannot be started, and then leaves nothing open."""
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
            pid = self._start(argv, env, child_in, child_out, child_err)
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                self.signal_group(pid, signal.SIGKILL)
                self.reap(pid)
                raise
        except BaseException:
            for fd in opened:
                os.close(fd)
            raise
        os.close(child_out)
        os.close(child_err)
        if has_stdin:
            os.close(child_in)
        return Child(pid, pidfd, stdin, out, err)

    def _start(
        self, argv: list[str], env: dict[str, str] | None, stdin: int, stdout: int, stderr: int
    ) -> int:
        environment = self._environment
        path = None
        if env:
            environment = {**environment, **env}
            path = env.get("PATH")
        if path is not None:
            # posix_spawnp searches the PATH of the calling process.
            os.environ["PATH"] = path
        if self._oom_fd is not None:
            # The agent is protected from the OOM killer; the commands must not be.
            os.pwrite(self._oom_fd, b"0", 0)
        try:
            return os.posix_spawnp(
                argv[0],
                argv,
                environment,
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, stdin, 0),
                    (os.POSIX_SPAWN_DUP2, stdout, 1),
                    (os.POSIX_SPAWN_DUP2, stderr, 2),
                ),
                setsid=True,
                setsigdef=_SIGNALS_TO_RESET,
            )
        finally:
            if self._oom_fd is not None:
                os.pwrite(self._oom_fd, self._oom_score, 0)
            if path is not None:
                os.environ["PATH"] = self._environment["PATH"]

    def signal_group(self, pid: int, number: int) -> None:
        """Signal the group of process `pid`; it is not an error if the process has ended.

        Call it only before `pid` is reaped, because then the pid may be reused.
        """
        if pid <= 1:
            # 0 is the group of the agent, 1 that of init.
            raise ValueError(f"There is no command with the process group {pid}.")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number)

    def reap(self, pid: int) -> int:
        """Return the exit status of an ended process, or the negative signal."""
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)


def base_environment(own: dict[str, str]) -> dict[str, str]:
    """Return the environment of commands: similar to that of a login of root."""
    kept = {name: value for name, value in own.items() if name not in _NOT_INHERITED}
    root = {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/sh"}
    return {"PATH": DEFAULT_PATH, **root, **kept}


def _own_oom_score() -> tuple[int | None, bytes]:
    """Open the agent's OOM score, if it has one that its children must not inherit."""
    try:
        fd = os.open(_OOM_SCORE, os.O_RDWR)
    except OSError:
        return None, b""
    score = os.pread(fd, 32, 0).strip()
    try:
        if score not in {b"0", b""}:
            # Check now whether the score may be restored.
            os.pwrite(fd, b"0", 0)
            os.pwrite(fd, score, 0)
            return fd, score
    except OSError:
        pass
    os.close(fd)
    return None, b""
