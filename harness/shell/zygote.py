"""The warm shell: sources what is under test once, and forks for each evaluation."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ExpectationError, HarnessError
from harness.shell.clock import Sleep, clock_environment, read_sleeps, write_clock_commands
from harness.shell.doubles import (
    DENIED_COMMANDS,
    Answer,
    Call,
    MockedCommand,
    UnmockedCommandError,
    assert_calls,
)
from harness.shell.process import ShellFiles, ShellProcess, ShellSetting
from harness.shell.sandbox import SandboxKind
from harness.shell.variables import Variable, parse_declarations
from harness.shell.wire import Memory
from harness.shell.words import quote

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.shell.sandbox import Sandbox

RUNTIME = Path(__file__).with_name("zygote_runtime.sh")
_STARTING_S = 30.0
_REFUSED = 127


class ShellTimeoutError(ExpectationError):
    """Code under test ran longer than the test allows."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What an evaluation left behind. `sleeps` is empty in real time."""

    status: int
    stdout: str
    stderr: str
    variables: Mapping[str, Variable] = field(repr=False)
    sleeps: tuple[Sleep, ...] = ()

    def variable(self, name: str) -> str | None:
        """Return a variable's text; None where it is unset."""
        found = self.variables.get(name)
        return None if found is None else found.value

    def array(self, name: str) -> list[str]:
        """Return an indexed array's elements in order; empty where it is unset."""
        found = self.variables.get(name)
        return list((found.elements or {}).values()) if found else []

    def mapping(self, name: str) -> dict[str, str]:
        """Return an associative array; empty where it is unset."""
        found = self.variables.get(name)
        return dict(found.elements or {}) if found else {}

    def check(self) -> Evaluation:
        """Return this evaluation, or fail with its streams where its status is not 0."""
        if self.status:
            raise ExpectationError(
                f"The shell code ended with status {self.status}.\n"
                f"stdout: {self.stdout.rstrip() or '-'}\nstderr: {self.stderr.rstrip() or '-'}"
            )
        return self


class Zygote:
    """A warm shell. Between tests it is used again as long as no file was touched."""

    def __init__(
        self, *, sources: Sequence[Path], cwd: Path, scratch: Path, sandbox: Sandbox, virtual: bool
    ) -> None:
        self.sources = tuple(sources)
        self.sandbox = sandbox
        self.virtual = virtual
        self.cwd = cwd
        self.scratch = scratch
        self._files = ShellFiles.create()
        self._reply_out, self._reply_err = Memory("reply-out"), Memory("reply-err")
        self._caller_env, self._caller_stdin = Memory("caller-env"), Memory("caller-stdin")
        token_read, self._token = os.pipe()
        self._replies_read, self._replies = os.pipe()
        os.write(self._token, b"x")
        self._extra = [
            token_read, self._token, self._replies_read, self._reply_out.fd, self._reply_err.fd,
            self._caller_env.fd, self._caller_stdin.fd,
        ]  # fmt: skip
        try:
            self.process = self._start()
        except BaseException:
            self._close_files()
            raise
        self._clean = self._usage()

    def _start(self) -> ShellProcess:
        shims = self.scratch / "denied"
        write_shims(shims, DENIED_COMMANDS)
        path = f"{shims}:{os.environ.get('PATH', os.defpath)}"
        env = {
            "HX_LIBRARY": str(RUNTIME.parent),
            "HX_DENIED": " ".join(DENIED_COMMANDS),
            "PATH": path,
        }
        if self.virtual:
            env.update(clock_environment(write_clock_commands(self.scratch / "clock"), path))
        lines = [f"__SOURCED__={quote(str(s))} . {quote(str(s))}" for s in self.sources]
        self._files.script.replace("\n".join([*lines, "__hx_serve", ""]))
        setting = ShellSetting(
            sandbox=self.sandbox,
            scratch=self.scratch,
            cwd=self.cwd,
            env=env,
        )
        process = ShellProcess(setting, RUNTIME, self._files, more_fds=self._extra)
        try:
            self._wait_until_sourced(process)
        except BaseException:
            process.close()
            raise
        return process

    def _wait_until_sourced(self, process: ShellProcess) -> None:
        names = ", ".join(str(source) for source in self.sources)
        deadline = time.monotonic() + _STARTING_S
        while True:
            record = process.reader.next_record()
            if record is not None and record[0] == "ready":
                return
            if record is not None:
                self._refuse(record[1])
                continue
            try:
                if process.wait_for_words(deadline):
                    continue
            except TimeoutError:
                raise HarnessError(
                    f"Sourcing {names} took longer than {_STARTING_S:g} s; it was ended. "
                    f"stderr: {process.take_complaint() or '-'}"
                ) from None
            code, said = process.exit_code(), process.take_complaint()
            raise HarnessError(
                f"Sourcing {names} ended the shell with exit code {code}. stderr: {said or '-'}"
            )

    def _refuse(self, fields: Sequence[str]) -> None:
        self._reply(Answer(stderr=f"{fields[1]}: not mocked\n", exit_code=_REFUSED))

    @property
    def root(self) -> Path:
        """Return where the files that the code sees can be read from outside."""
        if self.sandbox.kind is not SandboxKind.THROWAWAY:
            return Path("/")
        return Path(f"/proc/{self.process.pid}/root")

    def _usage(self) -> tuple[int, int] | None:
        try:
            usage = os.statvfs(self.root)
        except OSError:
            return None
        return usage.f_ffree, usage.f_bfree

    def is_clean(self) -> bool:
        """Tell whether nothing was written in the throw-away root."""
        if self.sandbox.kind is not SandboxKind.THROWAWAY:
            return True
        return self._clean is not None and self._usage() == self._clean

    def evaluate(self, code: str, stdin: str, talk: Conversation, timeout_s: float) -> Evaluation:
        """Run `code` in a fork; answer its mocked commands as `talk` says."""
        files = self._files
        outputs = files.outputs[0]
        for memory in (outputs.out, outputs.err, files.preserved, files.clock, files.sleeps):
            memory.replace("")
        files.stdin.replace(stdin)
        files.target.replace(code)
        self.process.send("go\n")
        deadline = time.monotonic() + timeout_s
        status: int | None = None
        while True:
            record = self.process.reader.next_record()
            if record is None:
                try:
                    if self.process.wait_for_words(deadline):
                        continue
                except TimeoutError:
                    raise ShellTimeoutError(
                        f"The shell code ran longer than {timeout_s:g} s; it was ended.\n"
                        f"stdout: {outputs.out.text()[-2000:]}\nstderr: {outputs.err.text()[-2000:]}"
                    ) from None
                raise ExpectationError(
                    f"The shell ended under the code (exit code {self.process.exit_code()})."
                )
            name, fields = record
            if name == "when":
                status = int(fields[0])
            elif name == "mock":
                self._answer(fields, talk)
            elif name == "end":
                return Evaluation(
                    status=int(fields[0]) if status is None else status,
                    stdout=outputs.out.text(),
                    stderr=outputs.err.text() + outputs.stray_err.text(),
                    variables=parse_declarations(files.preserved.text()),
                    sleeps=tuple(read_sleeps(files.sleeps.text())),
                )

    def _answer(self, fields: Sequence[str], talk: Conversation) -> None:
        cwd, name, *arguments = fields
        exported = self._caller_env.text()
        stdin = self._caller_stdin.text() if talk.reads_stdin(name) else None
        self._reply(talk.answer(name, tuple(arguments), cwd, stdin, exported))

    def _reply(self, answer: Answer) -> None:
        self._reply_out.replace(answer.stdout)
        self._reply_err.replace(answer.stderr)
        os.write(self._replies, f"{answer.exit_code}\n".encode())

    def close(self) -> None:
        self.process.close()
        self._close_files()

    def _close_files(self) -> None:
        self._files.close()
        for fd in self._extra:
            os.close(fd)
        os.close(self._replies)


class Conversation:
    """The mocked commands of one test, and all calls of them in order."""

    def __init__(self) -> None:
        self.commands: dict[str, MockedCommand] = {}
        self.calls: list[Call] = []
        self.complaints: list[str] = []

    def reads_stdin(self, name: str) -> bool:
        return name in self.commands and self.commands[name].reads_stdin

    def answer(
        self, name: str, arguments: tuple[str, ...], cwd: str, stdin: str | None, exported: str
    ) -> Answer:
        def env() -> Mapping[str, str]:
            found = parse_declarations(exported)
            return {key: item.value for key, item in found.items() if item.value is not None}

        call = Call(
            name=name, arguments=arguments, cwd=cwd, stdin=stdin, order=len(self.calls),
            exported=env,
        )  # fmt: skip
        command = self.commands.get(name)
        if command is None:
            self.complaints.append(
                f"'{call}' was run, but '{name}' is not mocked; it would have acted on the host."
            )
            return Answer(stderr=f"{name}: not mocked\n", exit_code=_REFUSED)
        self.calls.append(call)
        answer = command.answer(call)
        if isinstance(answer, str):
            self.complaints.append(answer)
            return Answer(stderr=f"{name}: unforeseen call\n", exit_code=_REFUSED)
        return answer


class Shell:
    """What a test in Python sees of shell code: its functions, its mocks, what it left.

    `root` is the file system as the code sees it; read from it what the code wrote.
    """

    def __init__(self, zygotes: ZygotePool, *, virtual: bool, timeout_s: float) -> None:
        self._zygotes = zygotes
        self._sources: list[Path] = []
        self._zygote: Zygote | None = None
        self._talk = Conversation()
        self._environment: dict[str, str] = {}
        self._prelude: list[str] = []
        self.virtual = virtual
        self.timeout_s = timeout_s

    def source(self, *paths: Path | str) -> None:
        """Source scripts into the warm shell; tests with the same ones share it.

        A relative path is one from pytest's root directory. Raises HarnessError where there is
        no such file.
        """
        for path in paths:
            found = self._zygotes.cwd / path
            if not found.is_file():
                raise HarnessError(f"There is no script '{found}' to source.")
            self._sources.append(found)

    def setenv(self, **variables: str) -> None:
        """Export variables to all that this test evaluates."""
        self._environment.update(variables)

    def define(self, code: str) -> None:
        """Run shell code before each evaluation of this test: functions, variables, set-up."""
        self._prelude.append(code)

    def mock(self, name: str, *, reads_stdin: bool = False) -> MockedCommand:
        """Put a command of the test in place of `name`, for functions and child processes.

        With no rules it succeeds silently. An absolute path is replaced in the throw-away root.
        """
        command = MockedCommand(name, self._talk.calls, reads_stdin=reads_stdin)
        self._talk.commands[name] = command
        return command

    def call(self, function: str, *arguments: str, stdin: str = "", **env: str) -> Evaluation:
        """Call a function or command in a fork of the warm shell, its options as sourced."""
        return self.evaluate(" ".join(quote(word) for word in (function, *arguments)), stdin, env)

    def run_script(
        self, path: Path | str, *arguments: str, interpreter: str = "bash", stdin: str = "",
        **env: str,
    ) -> Evaluation:  # fmt: skip
        """Run a script in a process of its own, in bash, dash or busybox's ash.

        Its mocks are those that child processes see.
        """
        words = [*interpreter.split(), str(Path(path).absolute()), *arguments]
        return self.evaluate(" ".join(quote(word) for word in words), stdin, env)

    def evaluate(
        self, code: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> Evaluation:
        """Evaluate a line of shell code.

        Raises UnmockedCommandError where it ran a command that the test did not foresee.
        """
        zygote = self.zygote
        self._talk.complaints.clear()
        script = self._script(zygote, code, {**self._environment, **(env or {})})
        try:
            result = zygote.evaluate(script, stdin, self._talk, self.timeout_s)
        except ExpectationError:
            self._zygotes.discard(zygote)
            self._zygote = None
            raise
        if self._talk.complaints:
            raise UnmockedCommandError("\n".join(self._talk.complaints))
        return result

    @property
    def zygote(self) -> Zygote:
        if self._zygote is None:
            self._zygote = self._zygotes.borrow(tuple(self._sources), virtual=self.virtual)
        return self._zygote

    @property
    def root(self) -> Path:
        return self.zygote.root

    @property
    def calls(self) -> list[Call]:
        return list(self._talk.calls)

    def assert_calls(self, *expected: str) -> None:
        """Fail unless exactly these commands ran in this order, each written as a shell line."""
        assert_calls(self._talk.calls, expected)

    def finish(self) -> None:
        """Give the warm shell back; fail where the test foresaw what did not happen."""
        if self._zygote is not None:
            self._zygotes.give_back(self._zygote)
            self._zygote = None
        unused = [rule for mock in self._talk.commands.values() for rule in mock.unused_rules()]
        if unused:
            lines = "\n".join(f"  {rule}" for rule in unused)
            raise ExpectationError(f"The test foresees calls that did not happen:\n{lines}")

    def _script(self, zygote: Zygote, code: str, env: Mapping[str, str]) -> str:
        names = list(self._talk.commands)
        plain = [name for name in names if "/" not in name]
        folder = zygote.scratch / "mocked"
        write_shims(folder, plain)
        reads = " ".join(name for name in names if self._talk.reads_stdin(name))
        lines = [f"export {name}={quote(value)}" for name, value in env.items()]
        lines.append(f"export PATH={quote(str(folder))}:$PATH HX_READS_STDIN={quote(reads)}")
        for name in names:
            lines.append(f'{name}() {{ __hx_answer {quote(name)} "$@"; }}')
            if "/" in name and zygote.sandbox.kind is SandboxKind.THROWAWAY:
                shim = zygote.scratch / "absolute"
                write_shims(shim, [name])
                stored = quote(str(shim / name.replace("/", "%")))
                lines.append(
                    f"builtin command -p mkdir -p {quote(str(Path(name).parent))}; "
                    f"builtin command -p rm -f {quote(name)}; "
                    f"builtin command -p cp {stored} {quote(name)}"
                )
        lines.extend(self._prelude)
        lines.append(
            f"{code} >|/proc/self/fd/192 2>|/proc/self/fd/193 </proc/self/fd/197\nbuiltin exit"
        )
        return "\n".join(lines) + "\n"


class ZygotePool:
    """Warm shells kept between tests, one for each set of sources."""

    def __init__(self, *, cwd: Path, scratch: Path, sandbox: Sandbox) -> None:
        self.cwd = cwd
        self.scratch = scratch
        self.sandbox = sandbox
        self._idle: dict[tuple[tuple[Path, ...], bool], Zygote] = {}
        self._count = 0

    def borrow(self, sources: tuple[Path, ...], *, virtual: bool) -> Zygote:
        """Return a shell that has sourced `sources`, warm if one is idle."""
        found = self._idle.pop((sources, virtual), None)
        if found is not None:
            return found
        self._count += 1
        scratch = self.scratch / str(self._count)
        scratch.mkdir(mode=0o700)
        return Zygote(
            sources=sources, cwd=self.cwd, scratch=scratch, sandbox=self.sandbox, virtual=virtual
        )

    def give_back(self, zygote: Zygote) -> None:
        """Keep the shell for the next test, unless files were written in it."""
        key = (zygote.sources, zygote.virtual)
        if key in self._idle or not zygote.is_clean():
            zygote.close()
        else:
            self._idle[key] = zygote

    def discard(self, zygote: Zygote) -> None:
        zygote.close()

    def close(self) -> None:
        for zygote in self._idle.values():
            zygote.close()
        self._idle.clear()


def write_shims(folder: Path, names: Sequence[str]) -> None:
    """Write commands that ask the harness what to answer; `/` in a name becomes `%`."""
    folder.mkdir(parents=True, exist_ok=True)
    library = RUNTIME.with_name("double.sh")
    for name in names:
        path = folder / name.replace("/", "%")
        if not path.exists():
            path.write_text(f'#!/usr/bin/env bash\n. {library}\n__hx_answer {quote(name)} "$@"\n')
            path.chmod(0o755)
