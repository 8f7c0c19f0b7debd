"""The content of a `*_spec.sh` file: its groups, its cases and the shell code that runs the cases.

Each line of the shell code has the same line number as in the spec, so messages of the shell show
line numbers of the spec. This module runs no code; a caller passes a `RowEvaluator`, which runs
`Parameters:dynamic` blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


NOT_IMPLEMENTED = "Not yet implemented"
"""The reason of the verdict on an example without an evaluation and without an expectation."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """A group: a `Describe` or `Context` block, from its first line to its `End`."""

    name: str
    begin: int
    tags: tuple[str, ...] = ()
    skipped: bool = False
    focused: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pytest test: an example, or one row of a parametrised example.

    `number` is the case's position in the file; the harness sends this number to the shell to run
    the case. `row` is the number of the row, from 0, or None if the example has no parameters.
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
        """Whether the keyword of the example, or of one of its groups, begins with `x`."""
        return self.skipped or any(group.skipped for group in self.groups)

    @property
    def is_focused(self) -> bool:
        return self.focused or any(group.focused for group in self.groups)


@dataclass(frozen=True, kw_only=True)
class MockScript:
    """The text of a `Mock` block; `name` is None if the name contains expansions that only the shell can perform."""

    number: int
    name: str | None
    body: str


@dataclass(frozen=True, kw_only=True)
class SpecFile:
    """A translated spec.

    `texts` lists the bodies of the spec's blocks, and `script` runs each body by its index in
    `texts`.
    """

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
    """Runs the code of a `Parameters:dynamic` block; the code calls `%data` for each row."""

    def __call__(self, code: str, *, line: int) -> Sequence[tuple[str, ...]]:
        """Return the arguments of each call of `%data`."""
        ...
