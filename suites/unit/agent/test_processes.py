"""How commands are started: environment, streams, signals, and the clean-up after a failed start.

A fake of posix_spawnp(3) keeps the descriptors that the process would have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.agent import processes
from harness.agent.processes import DEFAULT_PATH, Processes, base_environment
from suites.unit.agent.fakes import open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

PID = 5_000_000
"""Above every real process id, which Linux keeps below 4194304."""
PATH = "/usr/bin:/bin"
SIZE = (24, 80)


@dataclass
class Started:
    """A start of a program. `streams` are the descriptors 0, 1 and 2 of its process."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    searched: str
    to_reset: set[int]
    has_session: bool
    oom_score: str
    streams: dict[int, int]

    def ends(self) -> None:
        for fd in self.streams.values():
            os.close(fd)
        self.streams.clear()


@dataclass
class FakeKernel:
    """A fake of posix_spawnp(3): programs in `missing` do not exist. `refusal` is raised for the rest."""

    oom_file: Path
    missing: tuple[str, ...] = ()
    refusal: OSError | None = None
    started: list[Started] = field(default_factory=list)
    tables: list[Processes] = field(default_factory=list)
    status: int = 0
    asked: list[tuple[int, int]] = field(default_factory=list)

    def kill(self, pid: int, number: int) -> None:
        self.asked.append((pid, number))

    def wait(self, pid: int, options: int) -> tuple[int, int]:
        self.asked.append((pid, options))
        return pid, self.status

    def table(self) -> Processes:
        """Return the process table of a newly started agent."""
        self.tables.append(Processes())
        return self.tables[-1]

    def close(self) -> None:
        for start in self.started:
            start.ends()
        for table in self.tables:
            os.close(table._null)
            if table._oom_fd is not None:
                os.close(table._oom_fd)

    def spawn(
        self,
        program: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        file_actions: Sequence[tuple[Any, ...]],
        setsid: bool,
        setsigdef: Sequence[int],
    ) -> int:
        assert program == argv[0]
        score = self.oom_file.read_text() if self.oom_file.exists() else ""
        start = Started(
            argv, dict(environment), os.environ["PATH"], set(setsigdef), setsid, score, {}
        )
        self.started.append(start)
        if program in self.missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if self.refusal is not None:
            raise self.refusal
        for kind, *rest in file_actions:
            if kind == os.POSIX_SPAWN_OPEN:
                target, path, flags, mode = rest
                # Without O_NOCTTY, the terminal would become the controlling terminal of the test run.
                start.streams[target] = os.open(path, flags | os.O_NOCTTY, mode)
            else:
                source, target = rest
                start.streams[target] = os.dup(start.streams.get(source, source))
        return PID


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    kernel = FakeKernel(tmp_path / "oom_score_adj")
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.setattr(processes, "_OOM_SCORE", str(kernel.oom_file))
    monkeypatch.setattr("os.posix_spawnp", kernel.spawn)
    monkeypatch.setattr("os.killpg", kernel.kill)
    monkeypatch.setattr("os.waitpid", kernel.wait)
    monkeypatch.setattr("os.pidfd_open", lambda _pid: os.open("/dev/null", os.O_RDONLY))
    yield kernel
    kernel.close()


def run(
    table: Processes,
    argv: Sequence[str],
    env: dict[str, str] | None = None,
    *,
    stdin: bool = False,
) -> processes.Child:
    return table.spawn(list(argv), env, has_stdin=stdin)


def in_terminal(table: Processes, *argvs: Sequence[str], stdin: bool = False) -> processes.Child:
    return table.spawn_in_terminal([list(argv) for argv in argvs], None, SIZE, has_stdin=stdin)


STARTS: Sequence[tuple[Callable[..., processes.Child], bool]] = [
    (start, stdin) for start in (run, in_terminal) for stdin in (False, True)
]


def close(child: processes.Child) -> None:
    for fd in {child.pidfd, child.stdin, child.stdout, child.stderr} - {None}:
        assert fd is not None
        os.close(fd)


# Environment


def test_path_variable_of_a_command_applies_only_to_that_command(kernel: FakeKernel) -> None:
    table = kernel.table()
    for env in ({"PATH": "/opt/x"}, {"A": "1"}, None):
        close(run(table, ["tool"], env))

    assert [start.searched for start in kernel.started] == ["/opt/x", PATH, PATH]
    assert [start.environment["PATH"] for start in kernel.started] == ["/opt/x", PATH, PATH]


def test_search_path_is_restored_after_a_command_that_cannot_be_started(
    kernel: FakeKernel,
) -> None:
    table = kernel.table()
    kernel.missing = ("tool",)
    for start in (run, in_terminal):
        with pytest.raises(FileNotFoundError):
            table.spawn(["tool"], {"PATH": "/opt/x"}, has_stdin=False)
        with pytest.raises(FileNotFoundError):
            start(table, ["tool"])

    assert [start.searched for start in kernel.started] == ["/opt/x", PATH] * 2


def test_environment_variables_of_a_command_apply_only_to_that_command(kernel: FakeKernel) -> None:
    table = kernel.table()
    close(run(table, ["tool"], {"A": "1", "HOME": "/srv"}))
    close(run(table, ["tool"]))

    first, second = (start.environment for start in kernel.started)
    assert (first["A"], first["HOME"], first["PATH"]) == ("1", "/srv", PATH)
    assert second == base_environment(dict(os.environ))
    assert "A" not in os.environ


def test_agent_without_a_path_variable_searches_the_default_path(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PATH")
    close(run(kernel.table(), ["tool"]))

    assert kernel.started[0].searched == DEFAULT_PATH
    assert kernel.started[0].environment["PATH"] == DEFAULT_PATH


# Streams


def test_started_command_has_separate_stdin_and_stdout_and_stderr(kernel: FakeKernel) -> None:
    child = run(kernel.table(), ["tool", "-x"], stdin=True)
    (started,) = kernel.started
    assert child.stdin is not None

    os.write(child.stdin, b"in")
    os.write(started.streams[1], b"out")
    os.write(started.streams[2], b"err")

    assert started.argv == ["tool", "-x"]
    assert os.read(started.streams[0], 10) == b"in"
    assert os.read(child.stdout, 10) == b"out"
    assert os.read(child.stderr, 10) == b"err"
    assert (child.pid, os.get_blocking(child.stdin)) == (PID, False)
    close(child)


def test_agent_closes_its_copies_of_the_descriptors_that_a_command_uses(
    kernel: FakeKernel,
) -> None:
    """Otherwise the agent would not see the end of a stream."""
    table = kernel.table()
    before = open_files()
    for stdin in (False, True):
        child = run(table, ["tool"], stdin=stdin)
        started = kernel.started[-1]
        reader = os.dup(started.streams[0])
        started.ends()

        assert (os.read(child.stdout, 1), os.read(child.stderr, 1)) == (b"", b"")
        if child.stdin is not None:
            os.close(child.stdin)
            child.stdin = None
        assert os.read(reader, 1) == b""
        os.close(reader)
        close(child)
        assert open_files() == before


def test_command_without_input_reads_from_dev_null(kernel: FakeKernel) -> None:
    child = run(kernel.table(), ["tool"])

    assert child.stdin is None
    null = os.fstat(kernel.started[0].streams[0])
    assert null.st_rdev == Path("/dev/null").stat().st_rdev
    close(child)


def test_streams_of_a_command_are_not_inherited_by_other_commands(kernel: FakeKernel) -> None:
    for start, stdin in STARTS:
        child = start(kernel.table(), ["tool"], stdin=stdin)

        for fd in (child.stdin, child.stdout, child.stderr):
            assert fd is None or not os.get_inheritable(fd)
        close(child)
    assert len(kernel.started) == len(STARTS)


def test_failed_start_leaves_no_descriptor_open(kernel: FakeKernel) -> None:
    table = kernel.table()
    kernel.refusal = OSError(errno.ENOEXEC, "Exec format error")
    before = open_files()
    for start, stdin in STARTS:
        with pytest.raises(OSError, match="Exec format error"):
            start(table, ["tool"], stdin=stdin)

        assert open_files() == before


def test_process_for_which_no_pidfd_can_be_opened_is_killed_and_reaped(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("os.pidfd_open", refuse)
    table = kernel.table()
    before = open_files()
    for start in (run, in_terminal):
        kernel.asked.clear()
        with pytest.raises(OSError, match="Too many open files"):
            start(table, ["tool"], stdin=True)

        assert kernel.asked == [(PID, signal.SIGKILL), (PID, 0)]
        kernel.started[-1].ends()
        assert open_files() == before


# Signals and sessions


def test_command_runs_in_its_own_session_with_default_signal_handlers(kernel: FakeKernel) -> None:
    """Python ignores SIGPIPE. With SIGPIPE ignored, `yes | head` would never end."""
    table = kernel.table()
    close(run(table, ["tool"]))
    close(in_terminal(table, ["tool"]))

    plain, terminal = kernel.started
    assert (plain.has_session, terminal.has_session) == (True, True)
    assert plain.to_reset == {signal.SIGPIPE, signal.SIGXFSZ}
    assert terminal.to_reset - plain.to_reset == {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTSTP,
    }


def test_signal_to_an_ended_process_group_is_ignored(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError if pid == PID else PermissionError

    monkeypatch.setattr("os.killpg", kill)
    table = kernel.table()

    table.signal_group(PID, signal.SIGUSR1)
    with pytest.raises(PermissionError):
        table.signal_group(2, signal.SIGTERM)

    assert sent == [(PID, signal.SIGUSR1), (2, signal.SIGTERM)]
    assert kernel.started == []


def test_reap_returns_the_exit_code_or_the_negative_signal_number(kernel: FakeKernel) -> None:
    table = kernel.table()
    codes = {}
    for status in (0, 3 << 8, 255 << 8, 9):
        kernel.status = status
        codes[status] = table.reap(PID)

    assert codes == {0: 0, 3 << 8: 3, 255 << 8: 255, 9: -9}
    assert (kernel.asked, kernel.started) == ([(PID, 0)] * 4, [])


# The OOM killer


def test_agent_is_protected_from_the_oom_killer_but_its_commands_are_not(
    kernel: FakeKernel,
) -> None:
    kernel.oom_file.write_text("-1000\n")
    table = kernel.table()
    assert kernel.oom_file.read_text() == "-1000\n"

    for refusal in (None, OSError(errno.ENOEXEC, "Exec format error")):
        kernel.refusal = refusal
        with contextlib.suppress(OSError):
            close(run(table, ["tool"]))

        # A plain file keeps the rest of a longer text, which the kernel would not.
        assert kernel.started[-1].oom_score == "01000\n"
        assert kernel.oom_file.read_text() == "-1000\n"


def test_oom_score_of_an_unprotected_agent_is_not_changed(kernel: FakeKernel) -> None:
    for score in ("0\n", ""):
        kernel.oom_file.write_text(score)
        before = open_files()
        table = kernel.table()
        close(run(table, ["tool"]))

        assert kernel.started[-1].oom_score == score
        assert kernel.oom_file.read_text() == score
        assert len(open_files()) <= len(before) + 4, "The score was expected to be closed."


def test_agent_that_may_not_change_its_oom_score_still_starts_commands(
    kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    kernel.oom_file.write_text("-500\n")
    monkeypatch.setattr("os.pwrite", refuse)

    close(run(kernel.table(), ["tool"]))

    assert kernel.oom_file.read_text() == "-500\n"


# Terminals


def test_command_in_a_terminal_has_all_three_streams_on_one_80_by_24_terminal(
    kernel: FakeKernel,
) -> None:
    """The first terminal that a session leader opens becomes its controlling terminal."""
    child = in_terminal(kernel.table(), ["bash"], stdin=True)
    (started,) = kernel.started
    assert child.stdin is not None

    assert sorted(started.streams) == [0, 1, 2]
    names = {os.ttyname(fd) for fd in started.streams.values()}
    assert len(names) == 1
    assert os.get_terminal_size(started.streams[0]) == os.terminal_size((80, 24))
    flags = struct.unpack_from("I", fcntl.ioctl(started.streams[0], 0x5401, bytes(64)))[0]
    assert flags & 0o40000, "IUTF8 was expected."
    os.write(child.stdin, b"typed\n")
    assert os.read(started.streams[0], 100) == b"typed\n"
    assert child.stdout == child.stderr != child.stdin
    assert not os.get_blocking(child.stdout)
    os.set_blocking(child.stdout, True)
    os.write(started.streams[2], b"said")
    said = b""
    while len(said) < len(b"typed\r\nsaid"):
        said += os.read(child.stdout, 100)
    assert said == b"typed\r\nsaid"
    close(child)


def test_reading_a_terminal_fails_once_its_last_process_has_ended(kernel: FakeKernel) -> None:
    """The agent keeps no slave end open, so its read fails with EIO."""
    child = in_terminal(kernel.table(), ["bash"])
    assert child.stdin is None
    with pytest.raises(BlockingIOError):
        os.read(child.stdout, 1)

    kernel.started[0].ends()

    with pytest.raises(OSError, match="Input/output error"):
        os.read(child.stdout, 1)
    close(child)


def test_terminal_runs_the_fallback_program_only_if_the_first_program_is_missing(
    kernel: FakeKernel,
) -> None:
    denied = PermissionError(errno.EACCES, "Permission denied")
    rows: tuple[tuple[tuple[str, ...], OSError | None, list[str]], ...] = (
        ((), None, ["bash"]),
        (("bash",), None, ["bash", "sh"]),
        (("bash", "sh"), None, ["bash", "sh"]),
        ((), denied, ["bash"]),
    )
    for missing, refusal, tried in rows:
        kernel.missing, kernel.refusal = missing, refusal
        kernel.started.clear()
        if refusal is not None or "sh" in missing:
            with pytest.raises(type(refusal or FileNotFoundError())):
                in_terminal(kernel.table(), ["bash"], ["sh", "-i"])
        else:
            close(in_terminal(kernel.table(), ["bash"], ["sh", "-i"]))
            kernel.started[-1].ends()

        assert [start.argv[0] for start in kernel.started] == tried
