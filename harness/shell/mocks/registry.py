"""The mocked commands of one test, and all their calls in order."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.limits import SHELL_OUTPUT
from harness.shell.mocks.commands import Answer, Call, MockedCommand
from harness.shell.variables import parse_declarations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND_NOT_FOUND = 127


class MockRegistry:
    """The mocks and calls of one test; `violations` describes the calls that the test did not expect."""

    def __init__(self) -> None:
        self.commands: dict[str, MockedCommand] = {}
        self.calls: list[Call] = []
        self.violations: list[str] = []
        self.hidden: set[str] = set()
        self.replaced: list[MockedCommand] = []
        self._received = 0
        self._exported = ""

    def add(self, command: MockedCommand) -> None:
        """Add a mock; the new mock replaces an earlier mock with the same name."""
        earlier = self.commands.get(command.name)
        if earlier is not None:
            self.replaced.append(earlier)
        self.commands[command.name] = command

    def take_unused_rules(self) -> list[str]:
        """Return the rules that no call has used, or whose answers were not all used.

        Each mock is checked only once: after this call of `take_unused_rules`, the mock's rules may
        stay unused.
        """
        unused = [rule for mock in self.commands.values() for rule in mock.unused_rules()]
        unused += [
            f"{rule} (before a second mock of '{mock.name}' replaced this one)"
            for mock in self.replaced
            for rule in mock.unused_rules()
        ]
        for mock in (*self.commands.values(), *self.replaced):
            mock.optional = True
        return unused

    def reads_stdin(self, name: str) -> bool:
        command = self.find(name)
        return command is not None and command.reads_stdin

    def find(self, name: str) -> MockedCommand | None:
        """Return the mock of `name`. For a path without a mock, return the mock of the path's last part."""
        return self.commands.get(name) or self.commands.get(PurePosixPath(name).name)

    def answers_missing(self, name: str) -> bool:
        """Return whether a mock answers calls of the command `name`, which bash did not find."""
        command = self.find(name)
        return command is not None and not command.is_spy()

    def answer(
        self, name: str, arguments: tuple[str, ...], cwd: str, stdin: str | None, exported: str
    ) -> Answer:
        """Return the answer to a call; record the call, or the reason why the call is unexpected.

        Raises LimitError if the data of all calls exceeds the limit on output of shell code.
        """
        if exported == self._exported:
            exported = self._exported  # calls often export the same variables, so keep one copy
        else:
            self._exported = exported
            self._received += len(exported)
        self._received += len(stdin or "") + sum(map(len, arguments))
        SHELL_OUTPUT.check_bytes(self._received, f"the calls of the mocked command '{name}'")

        def env() -> Mapping[str, str]:
            found = parse_declarations(exported)
            return {key: item.value for key, item in found.items() if item.value is not None}

        command = self.find(name)
        if command is None:
            return self.deny(name, arguments)
        call = Call(
            name=command.name, arguments=arguments, cwd=cwd, stdin=stdin, order=len(self.calls),
            exported=env,
        )  # fmt: skip
        self.calls.append(call)
        answer = command.answer(call)
        if isinstance(answer, str):
            self.violations.append(answer)
            return Answer(stderr=f"{name}: unexpected call\n", exit_code=COMMAND_NOT_FOUND)
        return answer

    def deny(self, name: str, arguments: Sequence[str]) -> Answer:
        """Record a call of a command that is neither mocked nor allowed; return the answer."""
        short = PurePosixPath(name).name
        if short in self.hidden:
            return Answer(stderr=f"{name}: command not found\n", exit_code=COMMAND_NOT_FOUND)
        line = shlex.join([short, *arguments])
        self.violations.append(
            f"'{line}' was run, but '{short}' is not mocked. Mock '{short}', or allow the real "
            f"command with 'allow'."
        )
        return Answer(stderr=f"{short}: not mocked\n", exit_code=COMMAND_NOT_FOUND)
