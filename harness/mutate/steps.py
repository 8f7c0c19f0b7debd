"""Plants defects in steps: a step is left out, swapped, backgrounded, or removed from a pipeline."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from harness.mutate.change import (
    ENDING,
    OWN_ARGUMENTS,
    RETRY,
    Change,
    instead,
    is_statement,
    name_of,
    without,
)
from harness.mutate.operators import Operator
from harness.mutate.script import Script, below, statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

#: Commands whose order may matter if one of them directly follows another.
_ORDERED = frozenset(
    {"systemctl", "apt-get", "yum", "dnf", "zypper", "dpkg", "rpm", "modprobe", "rmmod", "mount", "umount", "dkms",
     "iptables", "ip", "mv", "cp", "sed"}
)  # fmt: skip
#: Steps that take time: it is not a typical mistake to put `[` or `mkdir` into the background.
_SLOW = frozenset(
    {"apt-get", "apt", "yum", "dnf", "zypper", "dpkg", "rpm", "systemctl", "curl", "wget", "dkms", "modprobe",
     "docker", "ctr", "nerdctl", "crictl", "tar", "make", "mount", "nvidia-smi", "depmod", "update-initramfs"}
)  # fmt: skip
_WORD = re.compile(r"[A-Za-z]{4,}")
_COMMON_WORDS = frozenset({"return", "null", "exit", "true", "event", "retry", "sudo"})


def change_function(script: Script, node: Node) -> Iterator[Change]:
    body = node.child_by_field_name("body")
    if (
        body is None
        or len(statements(body)) < 2
        or script.name_of(node) in script.message_functions
    ):
        return
    first = statements(body)[0]
    yield Change(Operator.FUNCTION, first.start_byte, first.start_byte, "return 0; ", first)


def change_subshell(script: Script, node: Node) -> Iterator[Change]:
    if node.parent is not None and node.parent.type in {"function_definition", "pipeline"}:
        return
    names = {script.command_name(command) for command in below(node, "command")}
    changes = names & {"cd", "exit", "set", "umask", "source", "."} or any(
        below(node, "variable_assignment")
    )
    if changes:
        inner = script.of(node)[1:-1].strip().rstrip(";")
        yield instead(Operator.SUBSHELL, node, f"{{ {inner}; }}")


def change_check(script: Script, node: Node) -> Iterator[Change]:
    """Swap a check (an `if` that leaves the function, loop or script) with the command after the check."""
    if is_statement(node):
        yield from _swapped(script, node)


def change_sum(script: Script, node: Node) -> Iterator[Change]:
    """Leave out a statement `((…))`."""
    if script.of(node).startswith("((") and is_statement(node):
        yield from _left_out(script, node)


def change_statement(script: Script, node: Node) -> Iterator[Change]:
    if not is_statement(node) or script.is_message(node):
        return
    yield from _left_out(script, node)
    yield from _swapped(script, node)
    yield from _backgrounded(script, node)


def _left_out(script: Script, node: Node) -> Iterator[Change]:
    name = name_of(script, node)
    if name in {"true", ":", "local", "set"} or is_last_success(script, node):
        return
    if node.type == "list" and script.is_message(node.children[-1]):
        return
    block = node.parent
    if block is not None and block.type == "command_substitution" and len(statements(block)) == 1:
        return  # this change has the same effect as leaving out the whole substitution
    new = ":"
    if script.text[node.end_byte - 1 : node.end_byte] == b"\n":
        new = ":\n"
    yield instead(Operator.COMMAND, node, new)


def is_last_success(script: Script, node: Node) -> bool:
    """Return whether a statement such as `return 0` is redundant, since it ends a function or the script."""
    if script.of(node) not in {"return", "return 0", "exit", "exit 0", "exit $?", "return $?"}:
        return False
    block = node.parent
    if block is None or statements(block)[-1] != node:
        return False
    around = block.parent
    return around is None or around.type == "function_definition"


def _swapped(script: Script, node: Node) -> Iterator[Change]:
    """Swap a command with the next command if their order can matter."""
    block = node.parent
    if block is None:
        return
    own = statements(block)
    position = own.index(node)
    if position + 1 == len(own):
        return
    after = own[position + 1]
    between = script.text[node.end_byte : after.start_byte]
    if between.strip(b" \t\n;") or b"\n" not in between:
        return
    if not _is_step(script, after) or not (
        _is_check(script, node) or _is_step_before(script, node, after)
    ):
        return
    new = f"{script.of(after)}{between.decode()}{script.of(node)}"
    yield Change(Operator.ORDER, node.start_byte, after.end_byte, new, node)


_ENABLING = re.compile(r"\bsystemctl (?:-q |--quiet )?(?:enable|disable)\b(?!.*--now)")
"""Matches commands that take effect when the machine next starts, and do nothing now."""


def _related(script: Script, one: Node, other: Node) -> bool:
    """Return whether two commands have a word in common, since otherwise their order rarely matters."""
    first, second = (set(_WORD.findall(script.of(each))) for each in (one, other))
    return bool(first & second - _COMMON_WORDS)


def _is_step_before(script: Script, node: Node, after: Node) -> bool:
    if not _is_step(script, node) or not _related(script, node, after):
        return False
    names = name_of(script, node), name_of(script, after)
    return not names[0] or names[0] != names[1] or names[0] in _ORDERED | set(script.functions)


def _is_check(script: Script, node: Node) -> bool:
    """Return whether `node` is an `if` that has no `else`, and can leave the function, loop or script."""
    return (
        node.type == "if_statement"
        and not any(child.type in {"else_clause", "elif_clause"} for child in node.children)
        and any(script.command_name(command) in ENDING for command in below(node, "command"))
    )


def _is_step(script: Script, node: Node) -> bool:
    if script.is_message(node) or node.type not in {
        "command", "redirected_statement", "pipeline", "list",
    }:  # fmt: skip
        return False
    names = {script.command_name(command) for command in below(node, "command")}
    first = name_of(script, node)
    if node.type == "list":
        left = node.children[0]
        while left.type == "list":
            left = left.children[0]
        if left.type not in {"command", "redirected_statement", "pipeline"}:
            return False
        names -= ENDING
    if not names or first in OWN_ARGUMENTS | {"trap", "eval", "shift", "unset"}:
        return False
    if _ENABLING.search(script.of(node)):
        return False
    return not names & ENDING


def _backgrounded(script: Script, node: Node) -> Iterator[Change]:
    after = node.next_sibling
    if after is not None and after.type == "&":
        yield without(script, Operator.BACKGROUND, after, after).at(node)
        return
    name = name_of(script, node)
    is_slow = name in _SLOW or bool(RETRY.match(name))
    ends_line = script.text[node.end_byte - 1 : node.end_byte] == b"\n"
    if node.type in {"command", "redirected_statement"} and is_slow and not ends_line:
        yield Change(Operator.BACKGROUND, node.end_byte, node.end_byte, " &", node)


def change_pipeline(script: Script, node: Node) -> Iterator[Change]:
    stages = [child for child in node.named_children if child.type in STAGES]
    # Only people read the output of the pipeline, and nobody reads its exit status.
    is_shown = (
        not script.has_used_output(node)
        and script.function_of(node) not in script.values
        and is_statement(node)
        and node.parent is not None
        and node != statements(node.parent)[-1]
    )
    for before, stage in itertools.pairwise(stages):
        if name_of(script, stage) not in {"tee", "logger"} and not (
            is_shown and name_of(script, stage) in _FILTERS
        ):
            yield Change(Operator.PIPELINE, before.end_byte, stage.end_byte, "", node)


_FILTERS = frozenset({"grep", "sed", "awk", "head", "tail", "sort", "cut", "tr", "column", "nl"})
STAGES = frozenset(
    {"command", "redirected_statement", "subshell", "compound_statement", "while_statement", "for_statement",
     "if_statement", "test_command"}
)  # fmt: skip
