"""The node as provisioning uses it: commands, time, files and the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .command import Argv, Runner
    from .journal import Journal
    from .node_files import NodeFiles
    from .wait import Clock, Deadline

ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class NodeContext:
    """The machine that is provisioned.

    `retries` is the deadline of the node's time budget: no retry starts after this deadline, and
    each attempt is limited to the remaining time. `runner` multiplies the time limits of commands by
    `time_limit_multiplier`.
    """

    runner: Runner
    clock: Clock
    files: NodeFiles
    journal: Journal
    retries: Deadline
    time_limit_multiplier: float = 1.0

    def limit_s(self, timeout_s: float) -> float:
        """Return `timeout_s`, or a lower time limit if the node's time budget ends earlier."""
        return min(timeout_s, self.retries.remaining_s() / self.time_limit_multiplier)

    def kernel(self) -> str:
        """Return the release of the running kernel, or an empty string if `uname` fails."""
        return self.answer("uname", "-r") or ""

    def answer(self, *argv: str) -> str | None:
        """Return the stripped output of a command, or None if the command fails."""
        result = self.runner.run(argv, timeout_s=ANSWER_TIMEOUT_S)
        return result.stdout.strip() if result.ok else None


class LimitedRunner:
    """A runner whose commands end before a deadline; after the deadline, no command is started.

    The time limit of each command is multiplied by `multiplier`.

    AKS limits the whole provisioning of a node (`timeout -k5s 15m`). The runner's deadline is
    earlier than this limit of AKS, which leaves time to write the outcome.
    """

    def __init__(self, runner: Runner, deadline: Deadline, *, multiplier: float = 1.0) -> None:
        self._runner = runner
        self.deadline = deadline
        self._multiplier = multiplier

    def run(
        self,
        argv: Argv,
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        if self.deadline.has_passed():
            return CommandResult(
                argv=tuple(argv),
                exit_code=124,
                stdout="",
                stderr="Not started: the time limit of the whole run has passed.",
                timed_out=True,
            )
        limit = self.deadline.cap(timeout_s * self._multiplier)
        return self._runner.run(argv, timeout_s=limit, stdin=stdin, env=env)
