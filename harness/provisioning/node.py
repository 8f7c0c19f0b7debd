"""What provisioning acts through: commands, time, files and the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .command import Runner
    from .journal import Journal
    from .root import Root
    from .wait import Clock, Deadline

ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Node:
    """The machine that is provisioned.

    `retries` is the end of the node's time budget: past it nothing is tried again, and each try
    is cut to what is left of it.
    """

    runner: Runner
    clock: Clock
    root: Root
    journal: Journal
    retries: Deadline

    def kernel(self) -> str:
        """Return the running kernel's release; empty where the node does not say."""
        return self.answer("uname", "-r") or ""

    def answer(self, *argv: str) -> str | None:
        """Return what a question's command prints, stripped; None where it fails."""
        result = self.runner.run(argv, timeout_s=ANSWER_TIMEOUT_S)
        return result.stdout.strip() if result.ok else None


class LimitedRunner:
    """A runner whose commands all end before a deadline, the last ones unstarted.

    The whole of a node's provisioning has a limit (`timeout -k5s 15m` in AKS). Keeping it here
    rather than being killed leaves time to write the outcome.
    """

    def __init__(self, runner: Runner, deadline: Deadline) -> None:
        self._runner = runner
        self.deadline = deadline

    def run(
        self,
        argv: Sequence[str],
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
        limit = self.deadline.cap(timeout_s)
        return self._runner.run(argv, timeout_s=limit, stdin=stdin, env=env)
