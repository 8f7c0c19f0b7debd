"""Parses a shell script, and finds facts about its functions, variables and messages."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from harness.shell.commands_of import commands_of, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

BLOCKS = frozenset(
    {
        "program", "compound_statement", "do_group", "if_statement", "elif_clause", "else_clause",
        "case_item", "subshell", "command_substitution",
    }
)  # fmt: skip
STATEMENTS = frozenset(
    {
        "command", "redirected_statement", "pipeline", "list", "negated_command", "test_command",
        "declaration_command", "unset_command", "variable_assignment", "variable_assignments",
        "if_statement", "while_statement", "for_statement", "c_style_for_statement",
        "case_statement", "subshell", "compound_statement", "function_definition",
    }
)  # fmt: skip
_SUBSTITUTIONS = frozenset({"command_substitution", "process_substitution"})
_PRINTING = frozenset({"echo", "printf", "logger"})
_QUIET_PARTS = _PRINTING | {
    "tee", "date", "cat", "shift", "caller", "hostname", "basename", "true", ":", "return", "tput",
}  # fmt: skip
_MESSAGE_NAME = re.compile(
    r"_*(?:log|info|warn|warning|debug|trace|err|error|msg|message|say|notice|usage)(?:[_-]\w+(?:-\w+)*)?$|"
    r"\w*_(?:log|info|warn|debug)$"
)
_STDERR = re.compile(r"(?:1?>&2|1?>>?\s*/dev/(?:stderr|null|tty))$")
_PLAIN = re.compile(rb"""["']?[\w./:=@%+,{}-]+["']?$""")
_PLAIN_DEFAULT = re.compile(rb"""["']?\$\{\w+:?[-=]["']?[\w./:=@%+,-]+["']?\}["']?$""")


class Script:
    """A script and its parse tree; positions are byte offsets.

    With `messages`, a statement that only prints a message is treated like any other statement.
    """

    def __init__(self, text: bytes, *, messages: bool = False) -> None:
        self.text = text
        self._knows_messages = not messages
        self.root = parse(text)
        self.commands = commands_of(text.decode(errors="replace"))

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """All nodes that the parser understood, in the order of the text."""
        found: list[Node] = []
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node.is_error or node.is_missing:
                continue
            found.append(node)
            waiting.extend(reversed(_understood(node)))
        return found

    def of(self, node: Node) -> str:
        return self.text[node.start_byte : node.end_byte].decode(errors="surrogateescape")

    # --- functions -----------------------------------------------------------------------

    def function_of(self, node: Node) -> str:
        """Return the name of the function around `node`, or '' at the top level."""
        for above in ancestors(node):
            if above.type == "function_definition":
                return self.name_of(above)
        return ""

    def name_of(self, function: Node) -> str:
        name = function.child_by_field_name("name")
        return "" if name is None else self.of(name)

    @functools.cached_property
    def functions(self) -> dict[str, Node]:
        return {self.name_of(n): n for n in self.nodes if n.type == "function_definition"}

    @functools.cached_property
    def calls(self) -> dict[str, list[Node]]:
        """The calls of each of the script's functions, including calls through a wrapper."""
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            if node.type == "command":
                words = [self.of(word) for word in [*_names(node), *arguments(node)]]
                for word in words:
                    if word in self.functions:
                        found[word].append(node)
        return found

    @functools.cached_property
    def values(self) -> set[str]:
        """The functions whose output is used by `$(…)`, a pipe or a redirection to a file."""
        return {
            name
            for name, calls in self.calls.items()
            if any(self.has_used_output(call) for call in calls)
        }

    def has_used_output(self, command: Node) -> bool:
        for below, above in zip([command, *ancestors(command)], ancestors(command), strict=False):
            if above.type in _SUBSTITUTIONS:
                return True
            if above.type == "pipeline" and below != above.named_children[-1]:
                return True
            if above.type == "redirected_statement" and self._writes_file(above):
                return True
            if above.type == "function_definition":
                return False
        return False

    def _writes_file(self, redirected: Node) -> bool:
        return any(
            not _STDERR.search(self.of(each)) and self.of(each).lstrip("01&").startswith(">")
            for each in redirects_of(redirected)
        )

    # --- messages --------------------------------------------------------------------------

    @functools.cached_property
    def message_functions(self) -> set[str]:
        """The names of the script's functions that only print messages."""
        return {
            name
            for name, function in self.functions.items()
            if name not in self.values
            and (
                {self.command_name(n) for n in below(function, "command")} <= _QUIET_PARTS
                or _MESSAGE_NAME.match(name)
            )
            and any(
                self.command_name(n) in _PRINTING | {"cat"} for n in below(function, "command")
            )
            and not any(self.command_name(n) == "exit" for n in below(function, "command"))
        }

    def command_name(self, command: Node) -> str:
        return next((self.of(name) for name in _names(command)), "")

    def prints_message(self, command: Node) -> bool:
        """Return whether a command only prints a message for people."""
        if not self._knows_messages:
            return False
        name = self.command_name(command)
        is_own = name in self.message_functions or (
            name not in self.functions and bool(_MESSAGE_NAME.match(name))
        )
        if not (is_own or name in _PRINTING or name == "cat"):
            return False
        parent = command.parent
        to_stderr = (
            parent is not None
            and parent.type == "redirected_statement"
            and any(_STDERR.search(self.of(each)) for each in redirects_of(parent))
        )
        if to_stderr:
            return True
        if name == "cat" and not (
            parent is not None and any(c.type == "heredoc_redirect" for c in parent.children)
        ):
            return False
        if self.has_used_output(command):
            return False
        return is_own or self.function_of(command) not in self.values

    def is_message(self, node: Node) -> bool:
        """Return whether a statement only prints a message, with or without redirections."""
        if node.type == "command":
            return self.prints_message(node)
        if node.type == "redirected_statement":
            body = node.child_by_field_name("body")
            return body is not None and self.is_message(body)
        return False

    def in_message(self, node: Node, *, whole: bool = False) -> bool:
        """Return whether `node` is part of a message, or of a command that prints text and exits.

        `whole` says that a mutant changes the whole statement `node`: then a command that prints a
        text and exits does not count, since a mutant may remove the exit.
        """
        if not self._knows_messages:
            return False
        for above in [node, *ancestors(node)]:
            if above.type in STATEMENTS and self.is_message(above):
                return True
            if above.type == "command" and self._is_last_words(above):
                return not (whole and above == node)
            if above.type == "function_definition":
                return self.name_of(above) in self.message_functions
        return False

    def _is_last_words(self, command: Node) -> bool:
        """Return whether a command calls a function that prints and exits, like `die "no disk"`."""
        function = self.functions.get(self.command_name(command))
        if function is None:
            return False
        names = {self.command_name(n) for n in below(function, "command")}
        return "exit" in names and names <= _QUIET_PARTS | {"exit"} | self.message_functions

    # --- options and variables -------------------------------------------------------------

    @functools.cached_property
    def options(self) -> set[str]:
        """The options among `errexit`, `nounset` and `pipefail` that the script sets."""
        letters = {"e": "errexit", "u": "nounset"}
        found: set[str] = set()
        first = self.text.partition(b"\n")[0].decode(errors="replace").split()
        words = [first[1:]] if first and first[0].startswith("#!") else []
        words += [
            [self.of(a) for a in arguments(node)]
            for node in self.nodes
            if node.type == "command" and self.command_name(node) == "set"
        ]
        for each in words:
            for word in each:
                if word in {"errexit", "nounset", "pipefail"}:
                    found.add(word)
                elif re.fullmatch(r"-[a-zA-Z]+", word):
                    found |= {letters[letter] for letter in word if letter in letters}
        return found

    @functools.cached_property
    def assignments(self) -> dict[str, list[Node | None]]:
        """The values that the script assigns to each variable; None stands for an unknown value."""
        found: dict[str, list[Node | None]] = defaultdict(list)
        for node in self.nodes:
            if node.type == "variable_assignment":
                name = node.child_by_field_name("name")
                if name is not None:
                    found[self.of(name)].append(node.child_by_field_name("value"))
            elif node.type == "for_statement":
                name = node.child_by_field_name("variable")
                if name is not None:
                    found[self.of(name)].append(None)
            elif node.type == "command" and self.command_name(node) in {
                "read",
                "mapfile",
                "getopts",
            }:
                for word in arguments(node):
                    found[self.of(word)].append(None)
        return found

    def is_plain(self, variable: str) -> bool:
        """Return whether the value of a variable is always one word without a wildcard.

        If a variable has a default that is one word, a user's value is assumed to be one word too.
        """
        values = self.assignments.get(variable)
        return bool(values) and all(
            value is not None
            and all(
                each.type in {"number", "arithmetic_expansion"}
                or bool(_PLAIN.match(text) or _PLAIN_DEFAULT.match(text))
                for each in (value.named_children if value.type == "array" else [value])
                for text in [self.text[each.start_byte : each.end_byte]]
            )
            for value in values or ()
        )

    @functools.cached_property
    def _uses(self) -> dict[str, list[Node]]:
        """The positions at which the script uses each variable."""
        found: dict[str, list[Node]] = defaultdict(list)
        for node in self.nodes:
            if node.type == "variable_name":
                found[self.of(node)].append(node)
        return found

    def is_idle(self, variable: str) -> bool:
        """Return whether a variable is local to a function and its value is never used."""
        is_local = any(
            node.parent is not None
            and "declaration_command"
            in {node.parent.type, node.parent.parent and node.parent.parent.type}
            for node in self._uses[variable]
        )
        return is_local and not any(
            node.parent is None
            or node.parent.type not in {"variable_assignment", "declaration_command"}
            or node.parent.child_by_field_name("value") == node
            for node in self._uses[variable]
        )

    def is_given(self, variable: str) -> bool:
        """Return whether users of the script choose a variable's value, so that it can be any text."""
        values = self.assignments.get(variable)
        own = re.compile(rb'["\']?\$\{?' + variable.encode() + rb"\b")
        return values is None or any(
            value is not None and bool(own.match(self.text[value.start_byte : value.end_byte]))
            for value in values
        )

    def leaks(self, variable: str, function: str) -> bool:
        """Return whether `function` would set a caller's variable if `variable` were not `local`.

        The caller may be direct, indirect or the top level, and must use the variable after the
        call.
        """
        return any(
            self.function_of(use) == self.function_of(call)
            and (use.start_byte > call.end_byte or _is_in_loop(call))
            for call in self._calls_of(function)
            for use in self._uses[variable]
            if self.function_of(call) != function
        )

    def _calls_of(self, function: str) -> list[Node]:
        """Return the calls of a function, and the calls of its direct and indirect callers."""
        found: list[Node] = []
        seen = {function}
        waiting = [function]
        while waiting:
            for call in self.calls.get(waiting.pop(), ()):
                found.append(call)
                caller = self.function_of(call)
                if caller not in seen:
                    seen.add(caller)
                    waiting.append(caller)
        return found

    # --- places ------------------------------------------------------------------------------

    def lines_of(self, anchor: Node) -> frozenset[int]:
        """Return the numbers of the first lines of the commands whose execution shows that `anchor` ran."""
        line = anchor.start_point[0] + 1
        around = [c.first for c in self.commands if c.first <= line <= c.last]
        if not around:
            around = sorted(c.first for c in self.commands if c.first > line)[:1]
        return frozenset(around)

    def has_counting_status(self, statement: Node) -> bool:
        """Return whether `set -e` or a caller uses the exit code of a statement."""
        if "errexit" in self.options:
            return True
        node = statement
        for above in ancestors(statement):
            if above.type == "function_definition":
                return True
            if above.type == "program":
                return node == statements(above)[-1]
            if above.type in {"list", "negated_command", "pipeline"} or is_condition(node):
                return True
            if above.type in BLOCKS and node.type in STATEMENTS:
                own = statements(above)
                if node in own and node != own[-1]:
                    return False
            node = above
        return True


def _understood(node: Node) -> list[Node]:
    """Return the children of a node, except children on the same line as a parse error."""
    wrong = [child for child in node.children if child.is_error or child.is_missing]
    if wrong and node.type not in BLOCKS:
        return []
    lines = {line for each in wrong for line in (each.start_point[0], each.end_point[0])}
    return [
        child
        for child in node.children
        if not lines.intersection({child.start_point[0], child.end_point[0]})
    ]


def ancestors(node: Node) -> Iterator[Node]:
    above = node.parent
    while above is not None:
        yield above
        above = above.parent


def _is_in_loop(node: Node) -> bool:
    for above in ancestors(node):
        if above.type in {"while_statement", "for_statement", "c_style_for_statement"}:
            return True
        if above.type == "function_definition":
            return False
    return False


def below(node: Node, kind: str) -> Iterator[Node]:
    """Yield each node whose type is `kind` in the tree below `node`, including `node`."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.type == kind:
            yield each
        waiting.extend(reversed(each.children))


def _names(command: Node) -> list[Node]:
    name = command.child_by_field_name("name")
    return [] if name is None else [name]


def arguments(command: Node) -> list[Node]:
    """Return the words that follow the name of a command."""
    return list(command.children_by_field_name("argument"))


def redirects_of(redirected: Node) -> list[Node]:
    """Return the redirections of a statement to files, including the redirections after `<<EOF`."""
    return [
        each
        for child in redirected.children
        for each in (child.children if child.type == "heredoc_redirect" else [child])
        if each.type == "file_redirect"
    ]


def is_condition(node: Node) -> bool:
    """Return whether a node is the condition of `if`, `elif`, `while` or `until`."""
    parent = node.parent
    if parent is None or parent.type not in {"if_statement", "elif_clause", "while_statement"}:
        return False
    if parent.type == "elif_clause":
        then = next((c for c in parent.children if c.type == "then"), None)
        return then is not None and node.end_byte <= then.start_byte
    return node in parent.children_by_field_name("condition")


def statements(block: Node) -> list[Node]:
    """Return the statements of a block, without conditions."""
    return [
        child
        for child in block.named_children
        if child.type in STATEMENTS and not is_condition(child)
    ]
