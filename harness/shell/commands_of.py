"""Parses a bash script to find its commands, and finds which of the commands ran.

The line numbers in bash's trace (`set -x`) are not exact. For a command that spans several lines,
the trace may show any line of the command. Bash counts the lines of code in `$(...)`, `eval` and
traps from the end of the outer command. So the first line of a command counts as covered if the
trace shows any line of the command. Code in `$(...)` or `eval` counts as a part of the command that
contains the `$(...)` or `eval`.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tree_sitter import Node

    from harness.shell.coverage import Place

_COMMANDS = {
    "command",
    "declaration_command",
    "test_command",
    "unset_command",
    "variable_assignment",
    "variable_assignments",
}
_HEADED = {"c_style_for_statement": "do_group", "for_statement": "do_group"}
_NO_COMMANDS = {"file_redirect", "heredoc_body", "herestring_redirect", "process_substitution"}


@dataclass(frozen=True)
class Command:
    """A command that bash traces: the first line, the last line, and the containing function.

    `scope` is the number of the containing function among the script's functions, from 1; for code
    outside of functions, `scope` is 0.
    """

    first: int
    last: int
    scope: int


@functools.cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parse(text: bytes) -> Node:
    """Return the root of the parse tree of a bash script."""
    return _parser().parse(text).root_node


def plain_commands(text: str) -> list[str]:
    """Return, in order, a script's simple commands outside of functions, conditions and loops."""
    nodes = parse(text.encode(errors="surrogateescape")).children
    return [
        (node.text or b"").decode(errors="surrogateescape")
        for node in nodes
        if node.type == "command"
    ]


def definitions_of(text: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield the definitions of the function `name` in a bash script, last first, with their lines.

    Definitions in which the parser finds errors are left out.
    """
    waiting = [parse(text.encode(errors="surrogateescape"))]
    while waiting:
        node = waiting.pop()
        named = node.child_by_field_name("name")
        if node.type == "function_definition" and named is not None and not node.has_error:
            found, found_name = (
                (part.text or b"").decode(errors="surrogateescape") for part in (node, named)
            )
            if found_name == name:
                yield found, node.start_point[0] + 1
        waiting.extend(node.children)


def commands_of(text: str) -> list[Command]:
    """Return the commands of a bash script, in their order, without the commands inside `$(...)`.

    The first line of a `for` or `case` counts as a command too, since bash traces that line.
    """
    found: list[Command] = []
    scopes = 0
    waiting: list[tuple[Node, int]] = [(parse(text.encode()), 0)]
    while waiting:
        node, scope = waiting.pop()
        if node.type == "function_definition":
            scopes += 1
            scope = scopes
        if node.type in _COMMANDS or _is_arithmetic(node):
            found.append(Command(node.start_point[0] + 1, _last_line(node), scope))
            continue
        inside = [child for child in node.children if child.type not in _NO_COMMANDS]
        if node.type in _HEADED or node.type == "case_statement":
            inside = list(_bodies(node))
            head_end = inside[0].start_point[0] + 1 if inside else _last_line(node)
            if node.type == "case_statement":
                head_end = next(
                    child.start_point[0] + 1 for child in node.children if child.type == "in"
                )
            found.append(Command(node.start_point[0] + 1, head_end, scope))
        elif node.type == "case_item":
            closing = next(i for i, child in enumerate(node.children) if child.type == ")")
            inside = node.children[closing + 1 :]
        waiting.extend((child, scope) for child in reversed(inside))
    return found


def _is_arithmetic(node: Node) -> bool:
    return node.type == "compound_statement" and node.children[0].type == "(("


def _bodies(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type in {"case_item", "do_group", "compound_statement"}:
            yield child


def _last_line(node: Node) -> int:
    row, column = node.end_point
    return row + (0 if column == 0 else 1)


def code_lines(text: str) -> set[int]:
    """Return the line numbers on which the commands of a bash script begin."""
    return {command.first for command in commands_of(text)}


def executed_lines(text: str, places: Iterable[Place]) -> set[int]:
    """Return the first line of each command that ran; `places` are the positions that bash's trace shows."""
    commands = commands_of(text)
    by_line: dict[int, list[Command]] = defaultdict(list)
    for command in commands:
        for line in range(command.first, command.last + 1):
            by_line[line].append(command)
    found: dict[int, dict[Command, set[tuple[int, int]]]] = defaultdict(dict)
    for place in places:
        for command in by_line[place.line]:
            calls = found[command.scope].setdefault(command, set())
            calls.add((place.depth, place.level))
    executed: set[int] = set()
    for scope, seen in found.items():
        first = next(command for command in commands if command.scope == scope)
        direct = _direct_calls(first, seen)
        executed |= {command.first for command, calls in seen.items() if calls & direct}
    return executed


def _direct_calls(
    first: Command, seen: dict[Command, set[tuple[int, int]]]
) -> set[tuple[int, int]]:
    """Return the pairs (depth, level) at which a function's own commands ran.

    Each call runs the function's first command, so the level of the first command is the level of
    the call. Higher levels belong to `$(...)` or `eval`, where bash's line numbers are not
    reliable. If the function's first command spans several lines or is not in the trace, the result
    contains the lowest level in the trace for each depth instead.
    """
    if first in seen and first.first == first.last:
        return seen[first]
    lowest: dict[int, int] = {}
    for depth, level in set().union(*seen.values()):
        lowest[depth] = min(level, lowest.get(depth, level))
    return set(lowest.items())
