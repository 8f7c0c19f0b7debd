"""Starts a shell that exchanges messages with the harness over separate descriptors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.limits import SHELL_OUTPUT
from harness.provisioning.command import CommandResult, end, has_ended, spawn
from harness.shell.protocol import CODE, Memory, RecordReader, make_pipes, send
from harness.shell.sandbox import TOO_MANY_PROCESSES, SandboxKind, check_entered
from harness.shell.shells import BASH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.command import Argv, ChildProcess
    from harness.shell.sandbox import Sandbox
    from harness.shell.shells import SpecShell

_PROCESS_LOOK_S = 0.25
#: Seconds between two checks of the files' sizes; the second number is for large files.
_OUTPUT_LOOK_S = 0.06
_GROWING_LOOK_S = 0.02
_SMALL_BYTES = 1 << 20
_CLOSING_S = 0.25
_LEAVING_S = 10.0
_FIRST_FD = 190
_FIRST_PASSED_FD = 300
_LAUNCHER = """\
unset BASH_ENV
number=190
for fd in $HX_FDS; do
  eval "exec $number<&$fd $fd<&-"
  number=$((number + 1))
done
unset HX_FDS
exec "$@"
"""
"""Bash code that moves descriptors to their numbers; POSIX shells can't redirect descriptors above 9."""


@dataclass(frozen=True, kw_only=True)
class ShellSetting:
    """The start parameters of a shell, which are the same for all shells of a run.

    `scratch` is the sandbox's own directory. Files below the directory `layer` replace the files
    with the same paths in the sandbox's root. `shared` is a directory whose files stay when the
    sandbox's root is replaced.
    """

    shell: SpecShell = BASH
    sandbox: Sandbox
    scratch: Path
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    traces: bool = False
    traces_by_trap: bool = False
    layer: Path | None = None
    shared: Path | None = None


@dataclass(frozen=True)
class OutputFiles:
    """The outputs of one evaluation.

    `stray_out` and `stray_err` are outputs of the example's other code.

    `records` contains the records that the shell's runtime wrote about the example.
    """

    out: Memory
    err: Memory
    stray_err: Memory
    stray_out: Memory
    records: Memory

    @property
    def fds(self) -> list[int]:
        return [self.out.fd, self.err.fd, self.stray_err.fd, self.stray_out.fd]

    def clear(self) -> None:
        """Empty all files before the next example.

        Only non-empty files are reset: in an empty file, the shell's write position is 0 already.
        """
        for memory in (self.out, self.err, self.stray_err, self.stray_out, self.records):
            if memory.size():
                memory.replace("")


@dataclass(frozen=True)
class ShellFiles:
    """The anonymous files through which the shell and the harness exchange text.

    The sandbox, and not the shell, writes `report`. There are two sets of outputs: while the
    harness reads one set of outputs, the shell writes to the other set.
    """

    script: Memory
    texts: Memory
    outputs: tuple[OutputFiles, OutputFiles]
    hook_err: Memory
    stdin: Memory
    target: Memory
    preserved: Memory
    clock: Memory
    sleeps: Memory
    trace: Memory
    own_out: Memory
    own_err: Memory
    report: Memory

    @classmethod
    def create(cls) -> ShellFiles:
        """Create all files; if a file can't be created, close the files created before."""
        with contextlib.ExitStack() as opened:

            def make(name: str) -> Memory:
                memory = Memory(name)
                opened.callback(memory.close)
                return memory

            first, second = (
                OutputFiles(*(make(name) for name in OutputFiles.__dataclass_fields__))
                for _ in range(2)
            )
            names = [name for name in cls.__dataclass_fields__ if name != "outputs"]
            files = cls(outputs=(first, second), **{name: make(name) for name in names})
            opened.pop_all()
        return files

    def memories(self) -> list[Memory]:
        """Return all files in shared memory, including the files of both sets of outputs."""
        found = [
            getattr(files, name)
            for files in (self, *self.outputs)
            for name in files.__dataclass_fields__
        ]
        return [memory for memory in found if isinstance(memory, Memory)]

    def close(self) -> None:
        for memory in self.memories():
            memory.close()


class _OutputWatch:
    """Kills a shell when the shell's anonymous files have grown beyond the limit on output.

    The anonymous files are in shared memory, and no limit of the kernel covers the size of shared
    memory. Background jobs of the code under test can write to the files at any time, even while
    the harness is not reading. So a thread checks the sizes of the files.
    """

    def __init__(self, process: ChildProcess, memories: Sequence[Memory]) -> None:
        self.is_reached = False
        self._process = process
        self._fds = [memory.fd for memory in memories]
        self._limit = SHELL_OUTPUT.bytes
        self._goes_on = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="shell-output", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        self._goes_on.set()

    def pause(self) -> None:
        """Stop checking until `resume`; call this only while no process can write to the files."""
        self._goes_on.clear()

    def stop(self) -> None:
        """End the thread. Call this method before you wait for the process or close a file."""
        self._is_over.set()
        self._goes_on.set()
        self._thread.join()

    def _look(self) -> None:
        size = 0
        # Each check takes the GIL twice, which delays the harness by tenths of a millisecond.
        while not self._is_over.wait(_OUTPUT_LOOK_S if size < _SMALL_BYTES else _GROWING_LOOK_S):
            size = sum(os.fstat(fd).st_size for fd in self._fds)
            if size > self._limit:
                self.is_reached = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                return
            self._goes_on.wait()


class ShellProcess:
    """One running shell and its pipes; `close` ends the shell and all processes of its sandbox."""

    def __init__(
        self,
        setting: ShellSetting,
        runtime: Path,
        files: ShellFiles,
        *,
        more_fds: Sequence[int] = (),
        more_memories: Sequence[Memory] = (),
        control: int | None = None,
    ) -> None:
        for memory in (
            files.own_out, files.own_err, files.preserved, files.clock, files.sleeps, files.report,
        ):  # fmt: skip
            memory.replace("")
        self.files = files
        self._clean_err_at = 0
        pipes = make_pipes(3)
        (record_read, record_write), (control_read, self._control), (idle_read, self._idle) = pipes
        given = [
            record_write, control_read, *files.outputs[0].fds, files.hook_err.fd, files.stdin.fd, files.target.fd,
            files.preserved.fd, files.clock.fd, idle_read, files.sleeps.fd,
            *more_fds, files.trace.fd,
        ]  # fmt: skip
        command = setting.shell.command
        runtime_variable = "BASH_ENV"
        if setting.shell.is_posix:
            command, runtime_variable = ("bash", "-c", _LAUNCHER, "bash", *command), "HX_RUNTIME"
        self.reader = RecordReader(record_read)
        numbers: list[int] = []
        control_fd: int | None = None
        report_fd: int | None = None
        try:
            numbers += _move_up(given)
            if setting.sandbox.kind is not SandboxKind.OFF:
                (report_fd,) = _move_up([files.report.fd])
            if control is not None:
                (control_fd,) = _move_up([control])
            env = {
                **setting.env,
                runtime_variable: str(runtime),
                "HX_FDS": " ".join(map(str, numbers)),
            }
            if setting.traces:
                env["HX_TRACE_FD"] = str(_FIRST_FD + len(numbers) - 1)
                if setting.traces_by_trap:
                    env["HX_TRACE_BY_TRAP"] = "1"
            self._process: ChildProcess = spawn(
                setting.sandbox.argv(
                    command,
                    cwd=setting.cwd,
                    scratch=setting.scratch,
                    layer=setting.layer,
                    shared=setting.shared,
                    control_fd=control_fd,
                    report_fd=report_fd,
                ),
                stdin=files.script.fd,
                stdout=files.own_out.fd,
                stderr=files.own_err.fd,
                pass_fds=[*numbers, *(fd for fd in (control_fd, report_fd) if fd is not None)],
                env=env,
                cwd=setting.cwd,
            )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            for fd in (record_write, control_read, idle_read, control_fd, report_fd, *numbers):
                if fd is not None:
                    os.close(fd)

        self._watch = _OutputWatch(self._process, [*files.memories(), *more_memories])
        self._watch.resume()

    def send(self, text: str) -> None:
        send(self._control, text)

    def take_complaint(self, until: int | None = None) -> str:
        """Return the stderr of the shell itself since the last call, up to byte `until`."""
        end = self.files.own_err.size() if until is None else until
        if end <= self._clean_err_at:
            return ""
        text = self.files.own_err.text(start=self._clean_err_at, end=end)
        self._clean_err_at = end
        return text.rstrip()

    def next_record(self, deadline: float) -> tuple[str, list[str]] | None:
        """Return the shell's next record; return None if the shell has ended.

        Raises ValueError for data that is not a record, and the errors of `wait_for_words`.
        """
        while True:
            record = self.reader.next_record()
            if record is not None or not self.wait_for_words(deadline):
                return record

    def wait_for_words(self, deadline: float) -> bool:
        """Read the shell's next message; return False if the shell has ended.

        Raises TimeoutError at the deadline (a time of the monotonic clock), and LimitError if the
        shell's output has reached the limit.
        """
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if self.reader.wait(min(left, _PROCESS_LOOK_S)):
                if self.reader.read():
                    return True
                self._expect_output_within_limit()
                return False
            self._expect_output_within_limit()
            if has_ended(self._process) and not self.reader.wait(0):
                return False

    def _expect_output_within_limit(self) -> None:
        if self._watch.is_reached:
            raise SHELL_OUTPUT.error(CODE)

    def begin(self) -> None:
        """Reset the output count when an evaluation or example begins; resume the size checks."""
        self.reader.received = 0
        self._watch.resume()

    def pause(self) -> None:
        """Pause the size checks until `begin`.

        Call this method only after the shell's other processes have ended.
        """
        self._watch.pause()

    def exit_code(self) -> int:
        """Return the exit code of a shell that has ended or is about to end.

        Raises HarnessError if the shell could not enter its sandbox.
        """
        self._watch.stop()
        code = end(self._process, grace_s=_LEAVING_S)
        check_entered(code, self.files.report.text())
        return code

    def had_too_many_processes(self, code: int) -> bool:
        """Return whether the sandbox ended the shell because of too many processes.

        `code` is the shell's exit code.
        """
        return code == TOO_MANY_PROCESSES and bool(self.files.report.size())

    def close(self) -> None:
        """End the shell. Let an idle shell exit by itself.

        When a process exits, the kernel adds the CPU time of the process to the times of the
        parent's children. If the kernel kills a process because its PID namespace ends, the CPU
        time of the process is lost.
        """
        self._watch.stop()
        os.close(self._control)
        self._control = -1
        end(self._process, grace_s=_CLOSING_S)
        self._close_pipes()

    def _close_pipes(self) -> None:
        self.reader.close()
        if self._control != -1:
            os.close(self._control)
        os.close(self._idle)


class ShellCommandRunner:
    """Runs shell code under test as a command, like `LocalRunner`, but limits the output."""

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run a command. Raises LimitError if the command writes more output than shell code may write."""
        started = time.monotonic()
        with contextlib.ExitStack() as opened:
            given, out, err = (Memory(name) for name in ("stdin", "stdout", "stderr"))
            for memory in (given, out, err):
                opened.callback(memory.close)
            given.replace(stdin or "")
            process = spawn(argv, stdin=given.fd, stdout=out.fd, stderr=err.fd, env=env)
            watch = _OutputWatch(process, [out, err])
            watch.resume()
            try:
                ending = os.pidfd_open(process.pid)
                opened.callback(os.close, ending)
                poll = select.poll()
                poll.register(ending, select.POLLIN)
                has_ended_itself = bool(poll.poll(timeout_s * 1000))
            finally:
                watch.stop()
                code = end(process)
            if watch.is_reached:
                raise SHELL_OUTPUT.error(CODE)
            return CommandResult(
                argv=tuple(argv),
                exit_code=code if has_ended_itself else 124,
                stdout=out.data().decode(errors="replace"),
                stderr=err.data().decode(errors="replace"),
                duration_s=time.monotonic() - started,
                timed_out=not has_ended_itself,
            )


def name_ending(exit_code: int) -> str:
    """Return words for the exit code of a process, or for the signal that ended the process."""
    if exit_code < 0:
        return f"killed by signal {name_signal(-exit_code)}"
    return f"exit code {exit_code}"


def name_signal(number: int) -> str:
    """Return a signal's number and name."""
    return f"{number} ({signal.strsignal(number) or 'unknown'})"


def _move_up(fds: Sequence[int]) -> list[int]:
    """Copy descriptors to numbers above 299, because the shell uses descriptors with numbers from 190 on."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_PASSED_FD))  # noqa: PERF401
    except OSError as error:
        for fd in made:
            os.close(fd)
        # the kernel reports EINVAL for a number above the limit on open files
        number = errno.EMFILE if error.errno == errno.EINVAL else error.errno or 0
        raise OSError(number, os.strerror(number)) from error
    return made
