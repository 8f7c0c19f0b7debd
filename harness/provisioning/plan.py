"""Plans as data: steps in an order that respects their needs, made of actions.

What `boot` does and what `plan` prints come from the same steps, so neither can drift from the
other. Nothing here acts; `executor` does.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .command import CommandResult
    from .exit_codes import ExitCode
    from .node import Node


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often a command is tried, the pause between tries, the limit of each, in seconds."""

    attempts: int = 1
    pause_s: float = 0.0
    timeout_s: float

    def describe(self) -> str:
        if self.attempts == 1:
            return f"limit {self.timeout_s:g} s"
        return f"{self.attempts} tries, {self.pause_s:g} s apart, limit {self.timeout_s:g} s each"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a failed command must not be tried again, and the exit code where it has its own."""

    message: str
    exit_code: ExitCode | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """One command that has to succeed, unless it `is_optional`.

    `elsewhere` is the program to try where the first word is not found on PATH. `tidy` are
    commands that undo what a failed try may leave behind. `judge` looks at each try, good or
    bad, and may end the tries for good.
    """

    argv: tuple[str, ...]
    retry: Retry
    env: tuple[tuple[str, str], ...] = ()
    is_optional: bool = False
    warning: str | None = None
    elsewhere: str | None = None
    tidy: tuple[tuple[str, ...], ...] = ()
    judge: Callable[[Node, CommandResult], Verdict | None] | None = None

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
    """Make a folder and those above it."""

    path: str

    def describe(self) -> tuple[str, ...]:
        return (shlex.join(("mkdir", "-p", self.path)),)


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Remove a file or a tree; silent where nothing is there."""

    path: str

    def describe(self) -> tuple[str, ...]:
        return (shlex.join(("rm", "-rf", self.path)),)


@dataclass(frozen=True, kw_only=True)
class When:
    """Actions that are taken only where the node answers a question in a certain way.

    `condition` ends the words 'where …'; `otherwise` is the sentence for a node where it is not
    so. A step of which nothing is taken counts as skipped.
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
        return (query, f"where {self.condition}:", *inner)


@dataclass(frozen=True, kw_only=True)
class Do:
    """Work that is more than commands in a row; `words` say for the reader what it comes to.

    The function returns a detail for the report, or raises ProvisioningError.
    """

    words: tuple[str, ...]
    function: Callable[[Node], str | None]

    def describe(self) -> tuple[str, ...]:
        return self.words


def say(line: str) -> Do:
    """Return the action that leaves a line in the log."""

    def act(node: Node) -> None:
        node.journal.line(line)

    return Do(words=(f"log {line}",), function=act)


Action = Run | Write | MakeDirectory | Remove | When | Do


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of the work.

    `needs` are steps that come before this one where the plan has them. A failure ends the run
    with `exit_code`, or is only reported where that is None. `only_after_failure_of` makes the
    step a fallback. `event` names its event file; `groups` name the events that span it and its
    neighbours, outermost first.
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
        """Return the steps that come before this one, what it is a fallback of among them."""
        return (*self.needs, self.only_after_failure_of)

    @property
    def command(self) -> str:
        """Return the words by which events name this step's work."""
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
    """Steps that cannot be brought into an order: a defect of the code that made them."""


@dataclass(frozen=True)
class Plan:
    """Steps in the order in which they are taken."""

    steps: tuple[Step, ...] = field(default=())

    @classmethod
    def order(cls, steps: list[Step]) -> Plan:
        """Order steps so that each comes after its needs, else as they were given.

        A need that the plan does not have is no obstacle: whether a node takes that step was
        decided before.

        Raises PlanError for two steps of one name and for needs that go round in a circle.
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
                raise PlanError(f"The needs of {sorted(open_names)} go round in a circle.")
            waiting.remove(ready)
            ordered.append(ready)
        return cls(tuple(ordered))

    def describe(self) -> str:
        """Return what `plan` prints."""
        return "\n".join(line for step in self.steps for line in step.describe())
