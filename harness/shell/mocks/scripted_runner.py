"""Scripted commands for Python code: a strict `Runner` that returns recorded results.

The runner is as strict as the mocked commands of shell code: it refuses any command other than the
next command of the script, and fails the test if an expected command did not run. The errors for a
refused command and for a missing command show a diff of the script and the commands that ran.
"""

from __future__ import annotations

import difflib
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult, require_argv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from harness.provisioning.command import Argv


class ScriptViolationError(BaseException):
    """The commands that ran differ from the script.

    This class does not derive from `Exception`, since code under test may catch every `Exception`
    of a command.
    """


@dataclass(frozen=True, kw_only=True)
class ScriptedCall:
    """One expected command and its result."""

    argv: tuple[str, ...]
    result: CommandResult
    timeout_s: float | None = None
    env: tuple[tuple[str, str], ...] | None = None
    stdin: str | None = None
    effect: Callable[[], None] | None = None

    def render(self) -> str:
        return _render(self.argv, self.timeout_s, self.env, self.stdin)


class ScriptedRunner:
    """A `Runner` that accepts only the scripted commands, in their order, each once.

    Use the runner as a context manager: at the end of the `with` block, all scripted commands must
    have run.
    """

    def __init__(self) -> None:
        self._script: list[ScriptedCall] = []
        self._ran: list[str] = []
        self._violation: ScriptViolationError | None = None

    def expect(
        self,
        command: str | Argv,
        *,
        stdout: str = "",
        stderr: str = "",
        exit_code: int = 0,
        is_timed_out: bool = False,
        times: int = 1,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        effect: Callable[[], None] | None = None,
    ) -> Self:
        """Add a command to the script; a string is split into words as a shell does.

        `timeout_s`, `env` and `stdin` are compared only if they are given. `effect` is called when
        the command runs, for example to advance a fake clock.
        """
        argv = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
        call = ScriptedCall(
            argv=argv,
            result=CommandResult(
                argv=argv,
                exit_code=124 if is_timed_out else exit_code,
                stdout=stdout,
                stderr=stderr,
                timed_out=is_timed_out,
            ),
            timeout_s=timeout_s,
            env=None if env is None else tuple(sorted(env.items())),
            stdin=stdin,
            effect=effect,
        )
        self._script += [call] * times
        return self

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Return the result of the script's next command; refuse any other command."""
        require_argv(argv)
        number = len(self._ran)
        expected = self._script[number] if number < len(self._script) else None
        # Compare and show only the parameters that the script gives.
        ran = _render(
            tuple(argv),
            timeout_s if expected is not None and expected.timeout_s is not None else None,
            tuple(sorted((env or {}).items()))
            if expected is not None and expected.env is not None
            else None,
            stdin if expected is not None and expected.stdin is not None else None,
        )
        self._ran.append(ran)
        if self._violation is not None:
            raise self._violation
        if expected is None or ran != expected.render():
            self._refuse(f"The command '{shlex.join(argv)}' is not what the script expects next.")
        assert expected is not None  # noqa: S101  # _refuse raises
        if expected.effect is not None:
            expected.effect()
        return expected.result

    def verify(self) -> None:
        """Check that every scripted command has run, and that no command was refused.

        Raises ScriptViolationError, even if the code under test caught the error of a refused
        command.
        """
        if self._violation is not None:
            raise self._violation
        missing = len(self._script) - len(self._ran)
        if missing:
            self._refuse(f"{missing} scripted command(s) never ran.")

    def transcript(self) -> str:
        """Return a unified diff of the script and the commands that ran, with all unchanged lines."""
        script = [call.render() for call in self._script]
        if self._ran == script:
            return "".join(f" {line}\n" for line in script)
        lines = difflib.unified_diff(
            script, self._ran, "script", "ran", lineterm="", n=max(len(script), len(self._ran))
        )
        return "".join(f"{line}\n" for line in lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # If the test itself failed, show that error, and not the commands that the test then did
        # not run.
        if error is None or self._violation is not None:
            self.verify()

    def _refuse(self, message: str) -> None:
        self._violation = ScriptViolationError(f"{message}\n{self.transcript()}")
        raise self._violation


def _render(
    argv: tuple[str, ...],
    timeout_s: float | None,
    env: tuple[tuple[str, str], ...] | None,
    stdin: str | None,
) -> str:
    parts = [f"{key}={shlex.quote(value)}" for key, value in env or ()]
    parts.append(shlex.join(argv))
    if stdin is not None:
        parts.append(f"<<< {shlex.quote(stdin)}")
    if timeout_s is not None:
        parts.append(f" # limit {timeout_s:g} s")
    return " ".join(parts)
