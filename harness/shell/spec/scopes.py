"""Collects the statements of a spec's groups and examples, in order, for `harness migrate`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.shell.lexer import Word


class Kind(Enum):
    """The kind of a statement in a spec."""

    SHELL = "shell"
    PYTHON = "python"
    SOURCE = "source"
    EVALUATION = "evaluation"
    EXPECTATION = "expectation"
    ASSERTION = "assertion"


@dataclass(frozen=True)
class Statement:
    """A statement: shell code, Python code, or a line of shellspec's language."""

    kind: Kind
    text: str


@dataclass(kw_only=True)
class Scope:
    """A group or example that is being read; the file itself is the outermost group.

    `by_hand` lists the lines without a translation, each with the reason. If `by_hand` is not
    empty, the tests of all examples in this scope call `pytest.fail`.
    """

    name: str = ""
    number: str = ""
    is_example: bool = False
    marks: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    hooks: dict[str, list[str]] = field(default_factory=dict)
    rows: list[tuple[Word, ...]] = field(default_factory=list)
    rows_comment: str = ""
    sets_options: bool = False
    stdin: tuple[str, str] | None = None
    aliases: dict[str, Word] = field(default_factory=dict)
    by_hand: list[tuple[str, str]] = field(default_factory=list)
    children: int = 0

    def add(self, kind: Kind, text: str) -> None:
        """Add a statement; successive lines of shell are joined into one statement."""
        last = self.statements[-1] if self.statements else None
        if kind is Kind.SHELL and last is not None and last.kind is Kind.SHELL:
            self.statements[-1] = Statement(kind, f"{last.text}\n{text}")
        else:
            self.statements.append(Statement(kind, text))

    def give_up(self, line: str, why: str) -> None:
        """Add a line that has to be translated by hand."""
        if (line, why) not in self.by_hand:
            self.by_hand.append((line, why))

    def has(self, *kinds: Kind) -> bool:
        """Return whether the scope has a statement of one of these kinds."""
        return any(statement.kind in kinds for statement in self.statements)
