"""Plans as data: steps, ordered by their dependencies, and their actions.

The command `boot` runs the same steps that the command `plan` prints. This module runs no steps;
`executor` runs them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .command import CommandResult
    from .exit_codes import ExitCode
    from .node_context import NodeContext


@dataclass(frozen=True, kw_only=True)
class Retry:
    """The number of attempts, the pause between them, and the time limit of each attempt, in seconds.

    If `max_timeout_s` is set, the time limit doubles after each attempt that times out, up to
    `max_timeout_s`. An attempt that takes `n * timeout_s` counts as `n` attempts, so that the
    doubled limits do not increase the total time.
    """

    attempts: int = 1
    pause_s: float = 0.0
    timeout_s: float
    max_timeout_s: float | None = None

    def describe(self) -> str:
        if self.attempts == 1:
            return f"limit {self.timeout_s:g} s"
        each = (
            f"{self.attempts} attempts, {self.pause_s:g} s apart, limit {self.timeout_s:g} s each"
        )
        if self.max_timeout_s is None:
            return each
        return f"{each}, doubled after a timeout, up to {self.max_timeout_s:g} s"


@dataclass(frozen=True, kw_only=True)
class PermanentFailure:
    """A failure that a retry cannot repair; `exit_code` is set if the failure has its own exit code."""

    message: str
    exit_code: ExitCode | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command that must succeed, unless it `is_optional`.

    `fallback_program` is run if the program is not found on PATH. `cleanup` are commands to run
    after a failed attempt. `judge` checks the result of each attempt, even of a successful attempt,
    and may return a failure that ends the attempts.
    """

    argv: tuple[str, ...]
    retry: Retry
    env: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False
    warning: str | None = None
    fallback_program: str | None = None
    cleanup: tuple[tuple[str, ...], ...] = ()
    judge: Callable[[NodeContext, CommandResult], PermanentFailure | None] | None = None

    def describe(self) -> tuple[str, ...]:
        assignments = [f"{key}={shlex.quote(value)}" for key, value in self.env]
        notes = self.retry.describe() + ("; failure ignored" if self.is_optional else "")
        return (f"{' '.join([*assignments, shlex.join(self.argv)])}  # {notes}",)


@dataclass(frozen=True, kw_only=True)
class Write:
    """Write a whole file."""

    path: str
    text: str
    mode: int = 0o644

    def describe(self) -> tuple[str, ...]:
        return (f"write {self.path}", *(f"  | {line}" for line in self.text.splitlines()))


@dataclass(frozen=True, kw_only=True)
class MakeDirectory:
    """Make a folder and its parents."""

    path: str

    def describe(self) -> tuple[str, ...]:
        return (shlex.join(("mkdir", "-p", self.path)),)


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Remove a file or a tree, if it exists."""

    path: str

    def describe(self) -> tuple[str, ...]:
        return (shlex.join(("rm", "-rf", self.path)),)


@dataclass(frozen=True, kw_only=True)
class When:
    """Actions that run only if the result of a command meets a condition.

    `condition` is the text after 'if' in the printed plan; `otherwise` is the detail to report if
    the condition is not met. A step counts as skipped if none of its actions runs.
    """

    query: tuple[str, ...]
    timeout_s: float
    condition: str
    otherwise: str
    is_met: Callable[[CommandResult], bool]
    then: tuple[Action, ...]

    def describe(self) -> tuple[str, ...]:
        inner = [f"  {line}" for action in self.then for line in action.describe()]
        query = f"{shlex.join(self.query)}  # limit {self.timeout_s:g} s"
        return (query, f"if {self.condition}:", *inner)


@dataclass(frozen=True, kw_only=True)
class Do:
    """Work that is more than a list of commands; the command `plan` prints its `description`.

    `function` does the work; it returns a detail for the step's report, or raises
    ProvisioningError.
    """

    description: tuple[str, ...]
    function: Callable[[NodeContext], str | None]

    def describe(self) -> tuple[str, ...]:
        return self.description


def log_line(line: str) -> Do:
    """Return the action that writes a line to the log."""

    def act(node: NodeContext) -> None:
        node.journal.line(line)

    return Do(description=(f"log {line}",), function=act)


Action = Run | Write | MakeDirectory | Remove | When | Do


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a plan.

    `needs` names steps that must run before this step if the plan contains these steps. A failure
    ends the run with `exit_code`; if `exit_code` is None, the failure is only reported.
    `only_after_failure_of` names a step for which this step is the fallback. `event` is the name of
    the step's event; `groups` are the names of events that span several steps, outermost first.
    """

    name: str
    actions: tuple[Action, ...]
    exit_code: ExitCode | None
    needs: tuple[str, ...] = ()
    only_after_failure_of: str | None = None
    event: str | None = None
    groups: tuple[str, ...] = ()

    @property
    def predecessors(self) -> tuple[str | None, ...]:
        """Return the steps that run before this step: `needs` and `only_after_failure_of`."""
        return (*self.needs, self.only_after_failure_of)

    @property
    def command(self) -> str:
        """Return the command that is named in this step's event."""
        for action in self.actions:
            if isinstance(action, Run):
                return shlex.join(action.argv)
        return self.name

    def describe(self) -> tuple[str, ...]:
        """Return the lines that `plan` prints for this step."""
        failure = "ignored" if self.exit_code is None else f"exit {int(self.exit_code)}"
        title = f"{self.name}  # failure: {failure}"
        if self.needs:
            title += f"; after {', '.join(self.needs)}"
        if self.only_after_failure_of is not None:
            title += f"; only after failure of {self.only_after_failure_of}"
        lines = (line for action in self.actions for line in action.describe())
        return (title, *(f"    {line}" for line in lines))


class PlanError(ValueError):
    """The steps cannot be ordered, so the code that made the steps has a defect."""


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they run."""

    steps: tuple[Step, ...] = ()

    @classmethod
    def order(cls, steps: list[Step]) -> Plan:
        """Order steps so that each step runs after the steps in its `needs`; otherwise keep their order.

        If `needs` names a step that is not in this node's plan, the name is ignored.

        Raises PlanError if two steps have the same name, or if steps need each other in a cycle.
        """
        names = [step.name for step in steps]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PlanError(f"Two steps have the name '{twice[0]}'.")
        waiting = list(steps)
        ordered: list[Step] = []
        while waiting:
            open_names = {step.name for step in waiting}
            ready = next((s for s in waiting if open_names.isdisjoint(s.predecessors)), None)
            if ready is None:
                raise PlanError(f"The steps {sorted(open_names)} need each other in a cycle.")
            waiting.remove(ready)
            ordered.append(ready)
        return cls(tuple(ordered))

    def describe(self) -> str:
        """Return the text that the command `plan` prints."""
        return "\n".join(line for step in self.steps for line in step.describe())
