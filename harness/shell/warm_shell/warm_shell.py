"""A shell that has sourced the code under test and forks for each evaluation."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ExpectationError, HarnessError
from harness.shell.clock import clock_environment, read_sleeps, write_clock_commands
from harness.shell.lexer import quote
from harness.shell.mocks.commands import Answer, UnmockedCommandError
from harness.shell.mocks.registry import COMMAND_NOT_FOUND, MockRegistry
from harness.shell.mocks.scripts import MOCKED_COMMAND, mock_script, write_mock_scripts
from harness.shell.process import ShellFiles, ShellProcess, ShellSetting, name_ending
from harness.shell.protocol import Memory
from harness.shell.sandbox import SandboxKind
from harness.shell.sandbox.root_control import RootControl
from harness.shell.sandbox.root_files import RootFiles
from harness.shell.variables import parse_declarations
from harness.shell.warm_shell.evaluation import (
    Evaluation,
    ShellTimeoutError,
    excerpt,
    render_streams,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.shell.sandbox import Sandbox

RUNTIME = Path(__file__).with_name("runtime.sh")
_STARTING_S = 30.0
_CLEARING_S = 10.0
_STDIN = ".stdin"
"""The file with an evaluation's stdin, in the directory of the mocks' scripts."""
_SYNTAX_ERROR = re.compile(
    r"^.*/proc/self/fd/(198|210): line (\d+): (syntax error.*|unexpected EOF.*)$", re.MULTILINE
)
_SYNTAX_ERROR_OF_SCRIPT = re.compile(
    r"^(?!.*: eval: line).+: line \d+: (?:syntax error|unexpected EOF).*$", re.MULTILINE
)
_END_OF_CODE = r"""
{
  __hx_status=$? __hx_ended=$-
  builtin trap -- - RETURN
  builtin trap -- "${__hx_traced:--}" DEBUG
  builtin set +x
} >/dev/null 2>&1
"""
"""Ends the traps on DEBUG and RETURN and the `set -x` of the code before commands of the harness run.

The empty first line is for code that ends in a backslash.
"""
_SPOKE = "The code under test wrote to a descriptor of the harness, 190 or above."
_GIVEN_TO = {"198": "define", "210": "evaluate"}


@dataclass(frozen=True, kw_only=True)
class ShellStart:
    """The start parameters that warm shells of a pool share.

    `path` is the value of PATH without the directory of the mocks. The files below `layer` replace
    the files with the same paths in the shell's root directory.
    """

    cwd: Path
    sandbox: Sandbox
    path: str
    layer: Path | None = None
    traces: bool = False
    traces_by_trap: bool = False


class WarmShell:
    """A bash process that has sourced the code under test.

    `code` is the code that the shell runs at its start: one string for each script.

    If `mocks` is given, `code` runs with these mocks, and only one test uses the shell.
    """

    def __init__(
        self,
        *,
        code: Sequence[str],
        start: ShellStart,
        scratch: Path,
        virtual: bool,
        mocks: MockRegistry | None,
    ) -> None:
        self.serves_one_test = mocks is not None
        self.code = tuple(code)
        self.start = start
        self.sandbox = start.sandbox
        self.virtual = virtual
        self.scratch = scratch
        self.mocked = scratch.resolve() / "mocked"
        self.mocked.mkdir(exist_ok=True)
        self.case = 0
        self.trace = ""
        self._control: RootControl | None = None
        # closes everything that this object opened, the process first
        with contextlib.ExitStack() as opened:
            self._opened = opened
            self._open_files()
            self.process = self._start(MockRegistry() if mocks is None else mocks)
            self._opened.callback(self._keep_trace)
            self._opened.callback(self.process.close)
            # before Linux 6.6 an ordinary user's root is on a disk, so no other test can use the
            # shell
            self._is_renewable = self._renew()
            self._clean = self._usage()
            self._opened = opened.pop_all()

    def _open_files(self) -> None:
        self._mocked_fd = os.open(self.mocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._opened.callback(os.close, self._mocked_fd)
        self._files = ShellFiles.create()
        self._opened.callback(self._files.close)
        self._reply_out, self._reply_err, self._caller_env, self._caller_stdin, self._code = (
            self._memory(name)
            for name in ("reply-out", "reply-err", "caller-env", "caller-stdin", "code")
        )
        self._token_read, self._token = self._pipe()
        os.set_blocking(self._token_read, True)
        self._replies_read, self._replies = self._pipe()
        os.write(self._token, b"x")
        self._extra = [
            self._token_read, self._token, self._replies_read, self._reply_out.fd,
            self._reply_err.fd, self._caller_env.fd, self._caller_stdin.fd, self._code.fd,
        ]  # fmt: skip

    def _memory(self, name: str) -> Memory:
        memory = Memory(name)
        self._opened.callback(memory.close)
        return memory

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        for fd in ends:
            self._opened.callback(os.close, fd)
        return ends

    def _start(self, mocks: MockRegistry) -> ShellProcess:
        env = {
            "HX_MOCKED_COMMAND": str(MOCKED_COMMAND),
            "HX_MOCKED": str(self.mocked),
        }
        path = self.start.path
        if self.sandbox.kind is SandboxKind.THROWAWAY:
            env["HX_THROWAWAY"] = "1"
        if self.virtual:
            clock = write_clock_commands(self.scratch / "clock")
            env.update(clock_environment(clock, path))
            path = env.pop("PATH")
        # PATH is not set here: the program that starts the shell needs commands that the shell may
        # not run
        env["HX_PATH"] = f"{self.mocked}:{path}"
        self._files.script.replace("\n".join([*self.code, "__hx_serve", ""]))
        setting = ShellSetting(
            sandbox=self.sandbox,
            scratch=self.scratch,
            cwd=self.start.cwd,
            env=env,
            traces=self.start.traces,
            traces_by_trap=self.start.traces_by_trap,
            layer=self.start.layer,
            shared=self.mocked,
        )
        write_mock_scripts(self.mocked, [name for name in mocks.commands if "/" not in name])
        control = None
        if self.sandbox.kind is SandboxKind.THROWAWAY:
            self._control = RootControl()
            self._opened.callback(self._control.close)
            control = self._control.other_end.fileno()
        try:
            process = ShellProcess(
                setting, RUNTIME, self._files, more_fds=self._extra, control=control,
                more_memories=[
                    self._reply_out, self._reply_err, self._caller_env, self._caller_stdin, self._code
                ],
            )  # fmt: skip
        finally:
            if self._control is not None:
                self._control.close_other_end()
        try:
            self._wait_until_sourced(process, mocks)
        except BaseException:
            process.close()
            raise
        return process

    def _wait_until_sourced(self, process: ShellProcess, mocks: MockRegistry) -> None:
        deadline = time.monotonic() + _STARTING_S
        while True:
            try:
                record = _next_record(process, deadline)
            except TimeoutError:
                raise HarnessError(
                    f"Sourcing took longer than {_STARTING_S:g} s; the shell was ended.\n"
                    f"{self._sourced(process)}"
                ) from None
            if record is None:
                code = process.exit_code()
                raise HarnessError(
                    f"Sourcing ended the shell with exit code {code}.\n{self._sourced(process)}"
                )
            name, fields = record
            if name == "ready":
                break
            self._answer(name, fields, mocks)
        if mocks.violations:
            violations = "\n".join(mocks.violations)
            mocks.violations.clear()
            raise UnmockedCommandError(
                f"While the code under test was sourced:\n{violations}\n"
                "To use a mock during sourcing, call 'mock' before 'source', and pass "
                "'mocked=True' to 'source'. To allow a command during sourcing, call 'allow' "
                f"before any code is evaluated.\n{self._sourced(process)}"
            )
        # bash goes on after a script that it can't parse
        found = _SYNTAX_ERROR_OF_SCRIPT.search(process.take_complaint())
        if found is not None:
            raise HarnessError(f"A script that was sourced has a syntax error: {found[0]}")

    def _sourced(self, process: ShellProcess) -> str:
        lines = "\n".join(line.partition("\n")[0] for line in self.code)
        return f"sourced: {lines or '-'}\nstderr: {excerpt(process.take_complaint()) or '-'}"

    @property
    def root(self) -> Path:
        """Return the path on the host of the code's root directory."""
        if self._control is None:
            return Path("/")
        root = Path(f"/proc/{self._control.first_process}/root")
        try:
            has_ended = root.samefile("/")
        except OSError:  # the PID belongs to no process any more
            has_ended = True
        if has_ended:
            raise HarnessError("The throw-away root has ended; its files are gone.")
        return root

    def write_mocks(self, names: Iterable[str]) -> None:
        """Write the scripts that child processes run in place of the mocked commands `names`."""
        files, folder = self._mock_folder()
        there = set(files.names(folder))
        for name in names:
            if name not in there:
                files.write(folder / name, os.fsencode(mock_script(name)), 0o755)

    def _mock_folder(self) -> tuple[RootFiles, Path]:
        """Return the object that writes the scripts of mocks, and the directory of these scripts.

        Without a throw-away root, the directory is on the host, where code under test could replace
        the directory by a link; the scripts are therefore written relative to an open descriptor of
        the directory.
        """
        if self._control is None:
            return RootFiles(Path(f"/proc/self/fd/{self._mocked_fd}")), Path("/")
        return RootFiles(self.root), self.mocked

    def fake(self, path: Path) -> None:
        """Make a directory or file of `/sys` or `/proc` writable, until the next test."""
        if self._control is not None:
            self._clean = None  # `_usage` does not show this change
            self._control.fake(path)

    def _usage(self) -> object:
        """Return numbers that change when a process writes a file in the throw-away root."""
        found = [os.statvfs(self.root / name) for name in ("", "dev")]
        return [(usage.f_ffree, usage.f_bfree) for usage in found]

    def _renew(self) -> bool:
        """Replace the throw-away root by a root without the changes that were made after sourcing.

        Return False on failure.
        """
        if self._control is None:
            return True
        try:
            self._control.renew()
        except HarnessError:
            return False
        self._clean = self._usage()
        return True

    def clear(self) -> bool:
        """End the processes that evaluations left running; return whether the next test may use the shell."""
        self.case += 1
        self.process.send("clear\n")
        deadline = time.monotonic() + _CLEARING_S
        while True:
            try:
                record = self.process.next_record(deadline)
            except (TimeoutError, ValueError):
                return False
            if record is None:
                return False
            if record[0] == "cleared":
                break
            if self._control is None and record[0] != "group":
                self._reply(Answer(exit_code=COMMAND_NOT_FOUND))
        files, folder = self._mock_folder()
        for name in files.names(folder):
            files.remove(folder / name)
        if self._control is None:
            return True
        self.process.pause()
        # a process that was killed during a request has taken the token and not read the reply
        for fd in (self._token_read, self._replies_read):
            _drain(fd)
        os.write(self._token, b"x")
        return self._clean == self._usage() or (self._is_renewable and self._renew())

    def evaluate(
        self,
        prelude: str,
        code: str,
        stdin: str,
        mocks: MockRegistry,
        timeout_s: float,
        *,
        errexit: bool = False,
    ) -> Evaluation:
        """Run `prelude`, then `code`, in a fork of the shell; `mocks` answers the calls of mocked commands."""
        files = self._files
        outputs = files.outputs[0]
        for memory in (
            outputs.out, outputs.err, outputs.stray_out, outputs.stray_err,
            files.preserved, files.clock, files.sleeps,
        ):  # fmt: skip
            memory.replace("")
        # code may resolve the path of /dev/stdin, so stdin is a file with a path
        stdin_file = "/dev/null"
        if stdin:
            root_files, folder = self._mock_folder()
            root_files.write(folder / _STDIN, stdin.encode(errors="surrogateescape"), 0o644)
            stdin_file = str(self.mocked / _STDIN)
        files.target.replace(
            f"export HX_CASE={self.case}\n{prelude}\n__hx_stdin={quote(stdin_file)} __hx_prepared=1\n"
        )
        # the option is on the code's first line, so that the line numbers do not change
        option = "builtin set -e; " if errexit else ""
        self._code.replace(f'{option}"${{__hx_trace[@]}}"; {code}\n{_END_OF_CODE}')
        self.process.begin()
        self.process.send("go\n")
        return self._converse(mocks, timeout_s)

    def _converse(self, mocks: MockRegistry, timeout_s: float) -> Evaluation:
        files = self._files
        outputs = files.outputs[0]
        deadline = time.monotonic() + timeout_s
        is_prepared = True
        is_to_group = False
        while True:
            try:
                record = _next_record(self.process, deadline)
            except TimeoutError:
                raise ShellTimeoutError(
                    f"The shell code ran longer than {timeout_s:g} s; it was ended.\n"
                    f"{render_streams(outputs.out.text(), outputs.err.text())}"
                ) from None
            if record is None:
                raise ExpectationError(
                    "The code under test ended the parent shell of this test's evaluations "
                    f"({name_ending(self.process.exit_code())}).\n"
                    f"{render_streams(outputs.out.text(), outputs.err.text())}"
                )
            name, fields = record
            if name == "unprepared":
                is_prepared = False
            elif name == "group":
                is_to_group = True
            elif name == "end":
                break
            else:
                self._answer(name, fields, mocks)
        stderr = outputs.err.text() + outputs.stray_err.text()
        self.trace += files.trace.text()
        files.trace.replace("")
        _check_parsed(stderr, is_prepared=is_prepared)
        try:
            status, received = int(fields[0]), fields[1]
            is_ended_by_it = received and status == 128 + signal.Signals[f"SIG{received}"]
        except (ValueError, IndexError, KeyError):
            raise HarnessError(_SPOKE) from None
        if received and not is_to_group and not is_ended_by_it:
            raise ExpectationError(
                f"The code under test sent the signal {received} to the parent shell of this test's "
                "evaluations; '$$' is the PID of the parent shell. To signal the evaluation's own "
                "shell, use '$BASHPID', or write 'kill' without a path and without 'command' or "
                "'builtin' before it.\n"
                f"{render_streams(outputs.out.text(), stderr)}"
            )
        return Evaluation(
            status=status,
            stdout=outputs.out.text(),
            stderr=stderr,
            variables=parse_declarations(files.preserved.text()),
            sleeps=tuple(read_sleeps(files.sleeps.text())),
        )

    def _answer(self, kind: str, fields: Sequence[str], mocks: MockRegistry) -> None:
        if len(fields) < 3:
            raise HarnessError(_SPOKE)
        case, cwd, name, *arguments = fields
        if case and case != str(self.case):  # a process of an earlier test asks
            self._reply(Answer(exit_code=COMMAND_NOT_FOUND))
            return
        stdin = self._caller_stdin.text() if mocks.reads_stdin(name) else None
        exported = self._caller_env.text()
        if kind == "missing" and not mocks.answers_missing(name):
            self._reply(mocks.deny(name, arguments))
        else:
            self._reply(mocks.answer(name, tuple(arguments), cwd, stdin, exported))

    def _reply(self, answer: Answer) -> None:
        self._reply_out.replace(answer.stdout)
        self._reply_err.replace(answer.stderr)
        takes_ms = round(answer.takes_s * 1000)
        reply = f"{answer.exit_code} {takes_ms} {int(answer.calls_through)}\n"
        os.write(self._replies, reply.encode())

    def close(self) -> None:
        self._opened.close()

    def _keep_trace(self) -> None:
        self.trace += self._files.trace.text()


def _next_record(process: ShellProcess, deadline: float) -> tuple[str, list[str]] | None:
    """Return the shell's next record, or None if the shell has ended.

    Raises TimeoutError at the deadline, and HarnessError for data that is not a record.
    """
    try:
        return process.next_record(deadline)
    except ValueError:
        raise HarnessError(_SPOKE) from None


def _drain(fd: int) -> None:
    os.set_blocking(fd, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass
    os.set_blocking(fd, True)


def _check_parsed(stderr: str, *, is_prepared: bool) -> None:
    """Raise HarnessError if the code given to `define` or `evaluate` could not run."""
    found = _SYNTAX_ERROR.search(stderr)
    if found is not None:
        raise HarnessError(
            f"The code given to '{_GIVEN_TO[found[1]]}' has a syntax error in line {found[2]}: "
            f"{found[3]}\nstderr: {excerpt(stderr)}"
        )
    if not is_prepared:
        raise HarnessError(
            "The code given to 'define' ended the shell before the code under test ran.\n"
            f"stderr: {excerpt(stderr) or '-'}"
        )
