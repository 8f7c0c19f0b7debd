"""Defines mutants, which are changes of a script, and functions that help to find mutants."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from harness.mutate.script import BLOCKS, Script, ancestors, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node

    from harness.mutate.operators import Operator

#: Commands whose arguments the general operators do not change: special operators change these
#: arguments, or the arguments do not affect the machine.
OWN_ARGUMENTS = frozenset(
    {"[", "test", "return", "exit", "break", "continue", "set", "read", "source", ".", "command", "true", "false",
     ":", "shift", "type", "hash", "getopts", "local", "exec"}
)  # fmt: skip
ENDING = frozenset({"return", "exit", "break", "continue"})
RETRY = re.compile(r"\w*(?:retry|retries|retrycmd|attempt|backoff)\w*$", re.IGNORECASE)
FLIPPED = {
    "true": "false",
    "false": "true",
    "yes": "no",
    "no": "yes",
    "True": "False",
    "False": "True",
}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of a script: `new` replaces the bytes from `start` to `end`.

    The mutant takes effect if a command runs that begins on one of the lines `reached_by`.
    """

    operator: Operator
    start: int
    end: int
    new: bytes
    line: int
    last_line: int
    column: int
    function: str
    reached_by: frozenset[int]

    def apply(self, text: bytes) -> bytes:
        return text[: self.start] + self.new + text[self.end :]

    def diff(self, text: bytes, path: str) -> str:
        """Return the change as a unified diff, with two lines of context."""
        before, after = (
            each.decode(errors="replace").splitlines(keepends=True)
            for each in (text, self.apply(text))
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=2)
        )


@dataclass(frozen=True)
class Change:
    operator: Operator
    start: int
    end: int
    new: str
    anchor: Node

    def at(self, anchor: Node) -> Change:
        return replace(self, anchor=anchor)

    def mutant(self, script: Script) -> Mutant:
        text = script.text
        line = text.count(b"\n", 0, self.start) + 1
        return Mutant(
            operator=self.operator,
            start=self.start,
            end=self.end,
            new=self.new.encode(errors="surrogateescape"),
            line=line,
            last_line=line + text.count(b"\n", self.start, max(self.start, self.end - 1)),
            column=self.start - (text.rfind(b"\n", 0, self.start) + 1) + 1,
            function=script.function_of(self.anchor),
            reached_by=script.lines_of(self.anchor),
        )


Plant: TypeAlias = "Callable[[Script, Node], Iterator[Change]]"


def instead(operator: Operator, node: Node, new: str, anchor: Node | None = None) -> Change:
    return Change(operator, node.start_byte, node.end_byte, new, anchor or node)


def without(script: Script, operator: Operator, first: Node, last: Node) -> Change:
    """Return a change that removes the text from `first` to `last`, and the blanks before `first`."""
    start = first.start_byte
    while script.text[start - 1 : start] in {b" ", b"\t"}:
        start -= 1
    return Change(operator, start, last.end_byte, "", first)


def is_statement(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.type in BLOCKS and node in statements(parent)


def test_around(node: Node) -> Node | None:
    return next((a for a in ancestors(node) if a.type == "test_command"), None)


def name_of(script: Script, node: Node) -> str:
    if node.type == "command":
        return script.command_name(node)
    if node.type == "redirected_statement":
        body = node.child_by_field_name("body")
        return "" if body is None else name_of(script, body)
    return ""
