"""The content of a `*_spec.sh` file: its groups, its cases and the shell code that runs them.

The code keeps every line where it stood, so that a message of the shell cites the line of the
spec. Nothing is run here, except that `Parameters:dynamic` needs an evaluator handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


NOT_IMPLEMENTED = "Not yet implemented"
"""The reason of examples that do not evaluate and expect anything yet."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A `Describe`, from its line to its `End`."""

    name: str
    begin: int
    tags: tuple[str, ...] = ()
    skipped: bool = False
    focused: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One example, or one row of a parametrised one: a test of pytest.

    `number` is its place in the order of the file, which is sent to the running shell. `row`
    counts from 0; it is None if the example has no parameters.
    """

    number: int
    name: str
    groups: tuple[Group, ...]
    begin: int
    end: int
    tags: tuple[str, ...] = ()
    row: int | None = None
    todo: bool = False
    skipped: bool = False
    focused: bool = False

    @property
    def full_name(self) -> str:
        return " ".join([*(group.name for group in self.groups), self.name])

    @property
    def all_tags(self) -> frozenset[str]:
        tags = set(self.tags)
        for group in self.groups:
            tags.update(group.tags)
        return frozenset(tags)

    @property
    def is_skipped(self) -> bool:
        """Whether it is skipped by an `x` before it or before one of its groups."""
        return self.skipped or any(group.skipped for group in self.groups)

    @property
    def is_focused(self) -> bool:
        return self.focused or any(group.focused for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class MockScript:
    """The text of a `Mock` block, to be put on PATH as `name` (None: known at run time only)."""

    number: int
    name: str | None
    body: str


@dataclass(frozen=True, kw_only=True)
class SpecFile:
    """A translated spec: `script` runs the bodies of its blocks, `texts`, by their number."""

    path: str
    cases: tuple[Case, ...]
    script: str
    texts: tuple[str, ...]
    mocks: tuple[MockScript, ...]
    lines: tuple[str, ...]
    preserves: bool

    def line(self, number: int) -> str:
        """Return a line of the spec, joined with the earlier lines that it continues."""
        if not 1 <= number <= len(self.lines):
            return ""
        first = number
        while first > 1 and self.lines[first - 2].endswith("\\"):
            first -= 1
        return " ".join(part.rstrip("\\").strip() for part in self.lines[first - 1 : number])


class RowEvaluator(Protocol):
    """Runs the code of a `Parameters:dynamic` block, which calls `%data` once a row."""

    def __call__(self, code: str, *, line: int) -> Sequence[tuple[str, ...]]:
        """Return the arguments of each `%data`."""
        ...
