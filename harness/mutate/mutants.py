"""Which defects can be planted in a script, each a change of a few bytes of it.

What the parse shows to be the same script is left out: messages, a last `return 0`, quotes around what
is always one word, `local` where no caller has a variable of that name.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from harness.mutate.operators import Operator
from harness.mutate.script import (
    BLOCKS,
    Script,
    ancestors,
    arguments,
    below,
    is_condition,
    redirects_of,
    statements,
)
from harness.shell.commands_of import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tree_sitter import Node

_COMPARISONS = {
    "=": "!=", "==": "!=", "!=": "=", "-eq": "-ne", "-ne": "-eq", "-lt": "-le", "-le": "-lt",
    "-gt": "-ge", "-ge": "-gt", "-z": "-n", "-n": "-z", "-nt": "-ot", "-ot": "-nt",
}  # fmt: skip
_ARITHMETIC = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
    "*": "/", "/": "*", "%": "*", "++": "--", "--": "++", "+=": "-=", "-=": "+=", "&&": "||", "||": "&&",
}  # fmt: skip
_JOINED = {"&&": "||", "||": "&&", "-a": "-o", "-o": "-a"}
_NOISE = frozenset(
    {"-q", "-qq", "--quiet", "--silent", "-v", "-vv", "--verbose", "-s", "-S", "-sS", "-nv", "--no-progress-meter", "--"}
)  # fmt: skip
_NOISE_LETTERS = frozenset("qsSvxy")
#: Commands whose one-letter options may be written as one word.
_CLUSTERED = frozenset(
    {
        "grep", "egrep", "fgrep", "zgrep", "curl", "rm", "cp", "mv", "tar", "ln", "chmod", "chown", "sort", "mount",
        "umount", "unzip", "gzip", "wget", "install", "cut", "xargs", "ls", "sed", "awk", "dpkg", "rpm", "lspci",
        "mkdir", "uname", "date", "head", "tail", "tr", "uniq", "apt-get", "apt", "yum", "dnf", "read", "mktemp",
    }
)  # fmt: skip
_ANY_ORDER = frozenset(
    {"rm", "mkdir", "touch", "rmdir", "apt-get", "apt", "yum", "dnf", "apt-mark", "systemctl", "unset", "export",
     "chown", "cat", "trap", "curl", "wget", "ls", "rpm", "zypper"}
)  # fmt: skip
#: Commands of which two in a row may depend on each other.
_ORDERED = frozenset(
    {"systemctl", "apt-get", "yum", "dnf", "zypper", "dpkg", "rpm", "modprobe", "rmmod", "mount", "umount", "dkms",
     "iptables", "ip", "mv", "cp", "sed"}
)  # fmt: skip
#: Commands whose arguments other operators change, or whose arguments are no behaviour of a node.
_OWN_ARGUMENTS = frozenset(
    {"[", "test", "return", "exit", "break", "continue", "set", "read", "source", ".", "command", "true", "false",
     ":", "shift", "type", "hash", "getopts", "local", "exec"}
)  # fmt: skip
_ENDING = frozenset({"return", "exit", "break", "continue"})
#: Steps that take a while: nobody puts `[` or `mkdir` into the background by mistake.
_SLOW = frozenset(
    {"apt-get", "apt", "yum", "dnf", "zypper", "dpkg", "rpm", "systemctl", "curl", "wget", "dkms", "modprobe",
     "docker", "ctr", "nerdctl", "crictl", "tar", "make", "mount", "nvidia-smi", "depmod", "update-initramfs"}
)  # fmt: skip
_WRAPPERS = frozenset({"sudo", "nohup", "nice", "ionice", "setsid", "time"})
_RETRY = re.compile(r"\w*(?:retry|retries|retrycmd|attempt|backoff)\w*$", re.IGNORECASE)
_GREP = frozenset({"grep", "egrep", "zgrep"})
_NUMBER = re.compile(
    r"(?P<before>(?:--?[A-Za-z][\w-]*=)?)(?P<number>\d{1,9}(?:\.\d+)?)(?P<after>[smhd]?)$"
)
_MODE = re.compile(r"0?[0-7]{3,4}$")
_MODE_ARGUMENTS = {"chmod": None, "install": "-m", "mkdir": "-m", "umask": None, "mknod": "-m"}
_FLIPPED = {
    "true": "false",
    "false": "true",
    "yes": "no",
    "no": "yes",
    "True": "False",
    "False": "True",
}
_ALWAYS_ONE_WORD = re.compile(r"""\$(?:[?#$!]|\{#)""")
_WORD = re.compile(r"[A-Za-z]{4,}")
_COMMON_WORDS = frozenset({"return", "null", "exit", "true", "event", "retry", "sudo"})
_UNIT_JOBS = frozenset({"start", "restart", "reload", "try-restart", "reload-or-restart"})


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A change of a script: the bytes from `start` to `end` become `new`.

    It takes effect where one of the commands that begin on `reached_by` runs.
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

    def diff(self, text: bytes, path: str, context: int = 2) -> str:
        """Return the change as a unified diff."""
        before, after = (
            each.decode(errors="replace").splitlines(keepends=True)
            for each in (text, self.apply(text))
        )
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}", n=context)
        )


def mutants_of(text: bytes, *, messages: bool = False) -> list[Mutant]:
    """Return the mutants of a bash script, in the order of its text.

    With `messages` the words of `echo`, log functions and the like are changed, too.
    """
    script = Script(text, messages=messages)
    was_wrong = _errors(script.root)
    found: dict[bytes, Mutant] = {}
    for node in script.nodes:
        for plant in _PLANTS.get(node.type, ()):
            for change in plant(script, node):
                whole = change.operator in {Operator.COMMAND, Operator.ORDER, Operator.BACKGROUND}
                if script.in_message(change.anchor, whole=whole):
                    continue
                mutant = change.mutant(script)
                key = hashlib.sha256(mutant.apply(text)).digest()
                if mutant.apply(text) == text or key in found:
                    continue
                if _errors(parse(mutant.apply(text))) <= was_wrong:
                    found[key] = mutant
    return sorted(found.values(), key=lambda each: (each.start, each.end, each.new))


def _errors(root: Node) -> int:
    if not root.has_error:
        return 0
    count = 0
    waiting = [root]
    while waiting:
        node = waiting.pop()
        count += node.is_error or node.is_missing
        waiting.extend(child for child in node.children if child.has_error or child.is_missing)
    return count


@dataclass(frozen=True)
class _Change:
    operator: Operator
    start: int
    end: int
    new: str
    anchor: Node

    def at(self, anchor: Node) -> _Change:
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


_Plant: TypeAlias = "Callable[[Script, Node], Iterator[_Change]]"


def _instead(operator: Operator, node: Node, new: str, anchor: Node | None = None) -> _Change:
    return _Change(operator, node.start_byte, node.end_byte, new, anchor or node)


def _without(script: Script, operator: Operator, first: Node, last: Node) -> _Change:
    """Leave out nodes, with the blanks before them."""
    start = first.start_byte
    while script.text[start - 1 : start] in {b" ", b"\t"}:
        start -= 1
    return _Change(operator, start, last.end_byte, "", first)


def _is_statement(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.type in BLOCKS and node in statements(parent)


# --- lists ---------------------------------------------------------------------------------


def _list(script: Script, node: Node) -> Iterator[_Change]:
    left, sign, right = node.children[0], node.children[1], node.children[-1]
    counts = script.has_counting_status(node)
    is_only_said = script.is_message(right) or script.of(right) in {"true", ":"}
    if is_only_said and not counts:
        return
    if sign.type == "||":
        if not _ends_as_it_would(script, node, right):
            yield _Change(Operator.FAILURE, left.end_byte, node.end_byte, "", left)
        if not is_only_said:
            yield _instead(Operator.LIST, sign, "&&", left)
    elif sign.type == "&&":
        yield _instead(Operator.LIST, sign, "||", left)
        if _is_statement(node):
            yield _instead(Operator.LIST, sign, ";", left)
        else:
            yield _Change(Operator.CONDITION, left.end_byte, node.end_byte, "", left)
            if not _needs_a_number(script, left, right):
                yield _Change(Operator.CONDITION, node.start_byte, right.start_byte, "", left)


def _ends_as_it_would(script: Script, node: Node, right: Node) -> bool:
    """Tell whether `a || return` ends a function, which would return the status of `a` anyway."""
    block = node.parent
    return (
        script.of(right) in {"return", "return $?"}
        and block is not None
        and block.parent is not None
        and block.parent.type == "function_definition"
        and statements(block)[-1] == node
    )


_NOT_EMPTY = re.compile(r"""\[\[? (?:-n|! -z) "?(?P<value>\$\w+|\$\{\w+\})"? \]\]?$""")


def _needs_a_number(script: Script, left: Node, right: Node) -> bool:
    """Tell whether a test that a value is not empty stands before one that fails for what is no number."""
    found = _NOT_EMPTY.match(script.of(left))
    number = re.match(r"""\[ "?(\$\{?\w+\}?)"? -(?:eq|ne|lt|le|gt|ge) """, script.of(right))
    return found is not None and number is not None and found["value"] == number[1]


def _negated(script: Script, node: Node) -> Iterator[_Change]:
    if not is_condition(node):
        yield _instead(Operator.NEGATION, node, script.of(node.children[-1]))


def _test(script: Script, node: Node) -> Iterator[_Change]:
    inner = [*below(node, "binary_expression"), *below(node, "unary_expression")]
    changed = False
    for each in inner:
        sign = _sign_of(each)
        if sign is None or _test_around(each) != node:
            continue
        word = script.of(sign)
        if word in _JOINED and each.type == "binary_expression":
            yield _instead(Operator.LIST, sign, _JOINED[word], node)
        elif word == "!":
            changed = True
            yield _instead(Operator.NEGATION, each, script.of(each.children[-1]).lstrip(), node)
        elif word in _COMPARISONS:
            changed = changed or word.strip("=!") == "" or word in {"-z", "-n", "-eq", "-ne"}
            yield _instead(Operator.COMPARISON, sign, _COMPARISONS[word], node)
    yield from _fewer_tests(script, node, [sign for each in inner if (sign := _sign_of(each))])
    in_not = node.parent is not None and node.parent.type == "negated_command"
    if not changed and not is_condition(node) and not in_not:
        yield _Change(Operator.NEGATION, node.start_byte, node.start_byte, "! ", node)
    for pattern in below(node, "regex"):
        yield from _anchors(script, pattern, node)


def _fewer_tests(script: Script, node: Node, signs: list[Node]) -> Iterator[_Change]:
    """Leave out each part of a test that `&&`, `||`, `-a` or `-o` joins.

    By their places: the tree takes `a = b && c` for `a = (b && c)`.
    """
    joins = sorted(
        (sign.start_byte, sign.end_byte)
        for sign in signs
        if script.of(sign) in _JOINED and _test_around(sign) == node
    )
    if not joins or "(" in re.sub(r"\$\(", "", script.of(node)):
        return
    begins = [node.children[0].end_byte + 1, *(end + 1 for _, end in joins)]
    ends = [*(start for start, _ in joins), node.children[-1].start_byte]
    yield _Change(Operator.CONDITION, begins[0], begins[1], "", node)
    for (start, _), end in zip(joins, ends[1:], strict=True):
        yield _Change(Operator.CONDITION, start, end, "", node)


def _sign_of(expression: Node) -> Node | None:
    sign = expression.child_by_field_name("operator")
    if sign is not None:
        return sign
    return next(
        (c for c in expression.children if c.type == "test_operator" or not c.is_named), None
    )


def _test_around(node: Node) -> Node | None:
    return next((a for a in ancestors(node) if a.type == "test_command"), None)


def _anchors(script: Script, pattern: Node, anchor: Node) -> Iterator[_Change]:
    """Take the `^` or the `$` off a pattern, or off the inside of its quotes."""
    text = script.of(pattern)
    quote = text[:1] if text[:1] in {"'", '"'} else ""
    inner = text[1:-1] if quote else text
    if inner.startswith("^"):
        yield _instead(Operator.PATTERN, pattern, f"{quote}{inner[1:]}{quote}", anchor)
    if inner.endswith("$") and not inner.endswith("\\$"):
        yield _instead(Operator.PATTERN, pattern, f"{quote}{inner[:-1]}{quote}", anchor)


def _arithmetic(script: Script, node: Node) -> Iterator[_Change]:
    """Change the operators of `((…))` and `$((…))`; those of tests are changed with the test."""
    if _test_around(node) is not None:
        return
    sign = next((c for c in node.children if script.of(c) in _ARITHMETIC and not c.children), None)
    if sign is not None:
        statement = next((a for a in ancestors(node) if "statement" in a.type), node)
        yield _instead(Operator.ARITHMETIC, sign, _ARITHMETIC[script.of(sign)], statement)


# --- branches and loops ----------------------------------------------------------------------


def _if(_: Script, node: Node) -> Iterator[_Change]:
    conditions = [child for child in node.children if child.is_named and is_condition(child)]
    if not conditions:
        return
    first, last = conditions[0], conditions[-1]
    for word in ("true", "false"):
        yield _Change(Operator.CONDITION, first.start_byte, last.end_byte, word, first)


def _while(script: Script, node: Node) -> Iterator[_Change]:
    word = node.children[0]
    conditions = node.children_by_field_name("condition")
    if conditions:
        other = {"while": "until", "until": "while"}[script.of(word)]
        yield _instead(Operator.LOOP, word, other, conditions[0])


def _for(script: Script, node: Node) -> Iterator[_Change]:
    words = node.children_by_field_name("value")
    if len(words) > 1:
        for word in words:
            yield _Change(Operator.LOOP, *_span_without(script, word), "", node)
    for word in words:
        yield from _glob(script, word, node)
    yield from _unquoted_words(script, words, node)


def _span_without(script: Script, node: Node) -> tuple[int, int]:
    change = _without(script, Operator.LOOP, node, node)
    return change.start, change.end


def _case_item(script: Script, node: Node) -> Iterator[_Change]:
    case = node.parent
    if case is None:
        return
    items = [child for child in case.children if child.type == "case_item"]
    does = any(not script.is_message(s) and script.of(s) != ":" for s in statements(node))
    if len(items) > 1 and (does or node != items[-1]):
        yield _without(script, Operator.CASE, node, node).at(case)
    patterns = node.children_by_field_name("value")
    if len(patterns) > 1:
        for i, pattern in enumerate(patterns):
            start = patterns[i - 1].end_byte if i else pattern.start_byte
            end = pattern.end_byte if i else patterns[1].start_byte
            yield _Change(Operator.CASE, start, end, "", case)
    for pattern in patterns:
        text = script.of(pattern)
        if "*" in text.strip("*") + (text if text != "*" else ""):
            for shorter in {text.removesuffix("*"), text.removeprefix("*")} - {text, ""}:
                yield _instead(Operator.PATTERN, pattern, shorter, case)


def _function(script: Script, node: Node) -> Iterator[_Change]:
    body = node.child_by_field_name("body")
    if (
        body is None
        or len(statements(body)) < 2
        or script.name_of(node) in script.message_functions
    ):
        return
    first = statements(body)[0]
    yield _Change(Operator.FUNCTION, first.start_byte, first.start_byte, "return 0; ", first)


def _subshell(script: Script, node: Node) -> Iterator[_Change]:
    if node.parent is not None and node.parent.type in {"function_definition", "pipeline"}:
        return
    names = {script.command_name(command) for command in below(node, "command")}
    changes = names & {"cd", "exit", "set", "umask", "source", "."} or any(
        below(node, "variable_assignment")
    )
    if changes:
        inner = script.of(node)[1:-1].strip().rstrip(";")
        yield _instead(Operator.SUBSHELL, node, f"{{ {inner}; }}")


# --- statements ------------------------------------------------------------------------------


def _statement(script: Script, node: Node) -> Iterator[_Change]:
    if not _is_statement(node) or script.is_message(node):
        return
    yield from _left_out(script, node)
    yield from _swapped(script, node)
    yield from _backgrounded(script, node)


def _left_out(script: Script, node: Node) -> Iterator[_Change]:
    name = _name_of(script, node)
    if name in {"true", ":", "local", "set"} or _is_last_success(script, node):
        return
    if node.type == "list" and script.is_message(node.children[-1]):
        return
    block = node.parent
    if block is not None and block.type == "command_substitution" and len(statements(block)) == 1:
        return  # as without the whole substitution
    new = ":"
    if script.text[node.end_byte - 1 : node.end_byte] == b"\n":
        new = ":\n"
    yield _instead(Operator.COMMAND, node, new)


def _name_of(script: Script, node: Node) -> str:
    if node.type == "command":
        return script.command_name(node)
    if node.type == "redirected_statement":
        body = node.child_by_field_name("body")
        return "" if body is None else _name_of(script, body)
    return ""


def _is_last_success(script: Script, node: Node) -> bool:
    """Tell whether `return` or `return 0` ends a function that would end there with 0 anyway."""
    if script.of(node) not in {"return", "return 0", "exit", "exit 0", "exit $?", "return $?"}:
        return False
    block = node.parent
    if block is None or block.parent is None:
        return False
    own = statements(block)
    is_last = own[-1] == node and (
        block.parent.type == "function_definition" or block.type == "program"
    )
    if not is_last:
        return False
    if script.of(node) not in {"return 0", "exit 0"}:
        return True
    before = own[-2] if len(own) > 1 else None
    return before is not None and (
        script.is_message(before) or before.type in {"variable_assignment", "declaration_command"}
    )


def _swapped(script: Script, node: Node) -> Iterator[_Change]:
    """Swap a command with the next one, where both do something whose order can matter."""
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
    if not (_is_step(script, node) and _is_step(script, after)):
        return
    if not _related(script, node, after):
        return
    names = _name_of(script, node), _name_of(script, after)
    if names[0] and names[0] == names[1] and names[0] not in _ORDERED | set(script.functions):
        return
    new = f"{script.of(after)}{between.decode()}{script.of(node)}"
    yield _Change(Operator.ORDER, node.start_byte, after.end_byte, new, node)


_ENABLING = re.compile(r"\bsystemctl (?:-q |--quiet )?(?:enable|disable)\b(?!.*--now)")
"""What takes effect when the machine starts, and does nothing now."""


def _related(script: Script, one: Node, other: Node) -> bool:
    """Tell whether two commands have a word in common: without one, their order hardly matters."""
    first, second = (set(_WORD.findall(script.of(each))) for each in (one, other))
    return bool(first & second - _COMMON_WORDS)


def _is_step(script: Script, node: Node) -> bool:
    if script.is_message(node) or node.type not in {
        "command", "redirected_statement", "pipeline", "list",
    }:  # fmt: skip
        return False
    names = {script.command_name(command) for command in below(node, "command")}
    first = _name_of(script, node)
    if node.type == "list":
        left = node.children[0]
        while left.type == "list":
            left = left.children[0]
        if left.type not in {"command", "redirected_statement", "pipeline"}:
            return False
        names -= _ENDING
    if not names or first in _OWN_ARGUMENTS | {"trap", "eval", "shift", "unset"}:
        return False
    if _ENABLING.search(script.of(node)):
        return False
    return not names & _ENDING


def _backgrounded(script: Script, node: Node) -> Iterator[_Change]:
    after = node.next_sibling
    if after is not None and after.type == "&":
        yield _without(script, Operator.BACKGROUND, after, after).at(node)
        return
    name = _name_of(script, node)
    is_slow = name in _SLOW or bool(_RETRY.match(name))
    ends_line = script.text[node.end_byte - 1 : node.end_byte] == b"\n"
    if node.type in {"command", "redirected_statement"} and is_slow and not ends_line:
        yield _Change(Operator.BACKGROUND, node.end_byte, node.end_byte, " &", node)


def _pipeline(script: Script, node: Node) -> Iterator[_Change]:
    stages = [child for child in node.named_children if child.type in STAGES]
    # Output that nobody but a person reads, with a status that nobody reads.
    is_shown = (
        not script.has_used_output(node)
        and script.function_of(node) not in script.values
        and _is_statement(node)
        and node.parent is not None
        and node != statements(node.parent)[-1]
    )
    for before, stage in itertools.pairwise(stages):
        if _name_of(script, stage) not in {"tee", "logger"} and not (
            is_shown and _name_of(script, stage) in _FILTERS
        ):
            yield _Change(Operator.PIPELINE, before.end_byte, stage.end_byte, "", node)


_FILTERS = frozenset({"grep", "sed", "awk", "head", "tail", "sort", "cut", "tr", "column", "nl"})
STAGES = frozenset(
    {"command", "redirected_statement", "subshell", "compound_statement", "while_statement", "for_statement",
     "if_statement", "test_command"}
)  # fmt: skip


# --- commands --------------------------------------------------------------------------------


def _command(script: Script, node: Node) -> Iterator[_Change]:
    name = script.command_name(node)
    words = arguments(node)
    for assignment in (c for c in node.children if c.type == "variable_assignment"):
        if not script.of(assignment).startswith("IFS"):
            yield _Change(
                Operator.ASSIGNMENT,
                assignment.start_byte,
                assignment.next_sibling.start_byte
                if assignment.next_sibling
                else assignment.end_byte,
                "",
                node,
            )
    if name == "set":
        yield from _shell_options(script, node, words)
    elif name in {"return", "exit"}:
        yield from _exit_code(script, node, words)
    elif name in {"break", "continue"}:
        other = {"break": "continue", "continue": "break"}[name]
        yield _Change(Operator.LOOP, node.start_byte, node.start_byte + len(name), other, node)
    elif name == "shift":
        yield from _numbers(script, node, name, words)
    if name in _OWN_ARGUMENTS or script.is_message(node):
        return
    yield from _fewer_arguments(script, name, words)
    yield from _other_order(script, node, name, words)
    yield from _numbers(script, node, name, words)
    yield from _clusters(script, node, name, words)
    yield from _unwrapped(script, node, name, words)
    yield from _unit_jobs(script, node, name, words)
    yield from _unquoted_words(script, words, node)
    for word in words:
        if name in _GREP and not script.of(word).startswith("-"):
            yield from _anchors(script, word, node)
            break
    for word in words:
        yield from _glob(script, word, node)


def _is_option(text: str) -> bool:
    return text.startswith("-") and text not in {"-", "--"}


def _fewer_arguments(script: Script, name: str, words: list[Node]) -> Iterator[_Change]:
    texts = [script.of(word) for word in words]
    is_wrapper = name in _WRAPPERS or name == "timeout" or bool(_RETRY.match(name))
    inner = _wrapped(script, words)
    for i, (word, text) in enumerate(zip(words, texts, strict=True)):
        if text in _NOISE or (text == "-e" and name in {"sed", *_GREP}):
            continue
        if text in _SHOWN_AS.get(name, ()) and _is_only_looked_for(script, word):
            continue
        if is_wrapper and i < inner:
            continue  # a number of tries that is left out makes the next word a number
        yield _without(script, Operator.ARGUMENT, word, word)
        has_value = i + 1 < len(words) and _is_option(text) and "=" not in text
        if has_value and not _is_option(texts[i + 1]) and texts[i + 1] not in _NOISE:
            yield _without(script, Operator.ARGUMENT, word, words[i + 1])


_SHOWN_AS = {
    "lspci": {"-n", "-nn", "-m", "-mm"}, "systemctl": {"--no-legend", "--plain", "--no-pager"}, "ls": {"-1", "-l"},
    "ss": {"-n"}, "ip": {"-o", "-br"}, "lsblk": {"-n", "-l"}, "netstat": {"-n"},
}  # fmt: skip
"""Options that say how something is printed, and not whether."""


def _is_only_looked_for(script: Script, word: Node) -> bool:
    """Tell whether what a command prints is only tested for being empty."""
    inside = next((a for a in ancestors(word) if a.type == "command_substitution"), None)
    test = None if inside is None else _test_around(inside)
    return test is not None and bool(re.match(r"""\[\[? (?:! )?-[nz] "?\$\(""", script.of(test)))


def _other_order(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[_Change]:
    if name in _ANY_ORDER or name in _WRAPPERS or name in {"printf", "echo"}:
        return
    inner = _wrapped(script, words) if _RETRY.match(name) or name == "timeout" else 0
    plain = [
        (i, word)
        for i, word in enumerate(words)
        if i >= inner
        and not _is_option(script.of(word))
        and (i == 0 or not _takes_value(script, words[i - 1]))
    ]
    for (i, one), (k, other) in itertools.pairwise(plain):
        first, second = script.of(one), script.of(other)
        if (
            first == second
            or k != i + 1
            or (i == 0 and re.fullmatch(r"[a-z][a-z-]+", first) and len(plain) > 2)
        ):
            continue
        between = script.text[one.end_byte : other.start_byte].decode(errors="surrogateescape")
        yield _Change(
            Operator.ARGUMENT_ORDER,
            one.start_byte,
            other.end_byte,
            f"{second}{between}{first}",
            node,
        )


def _takes_value(script: Script, word: Node) -> bool:
    return _is_option(script.of(word)) and "=" not in script.of(word)


def _numbers(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[_Change]:
    for i, word in enumerate(words):
        text = script.of(word)
        before = script.of(words[i - 1]) if i else ""
        if name in _MODE_ARGUMENTS and _MODE.match(text):
            option = _MODE_ARGUMENTS[name]
            if option is None or before == option:
                yield _instead(Operator.MODE, word, _other_mode(text), node)
                continue
        if name == "chmod" and i == 0 and "+" in text:
            yield _instead(Operator.MODE, word, text.replace("+", "-"), node)
            continue
        found = _NUMBER.match(text)
        if found is not None and word.type in {"number", "word"}:
            number = found["number"]
            new = str(float(number) + 1) if "." in number else str(int(number) + 1)
            yield _instead(Operator.NUMBER, word, f"{found['before']}{new}{found['after']}", node)


def _other_mode(text: str) -> str:
    """Return a mode by which others may write, or may not read where they may already write."""
    mode = int(text, 8)
    other = mode | 0o022 if mode | 0o022 != mode else mode & ~0o077
    return f"{other:0{len(text)}o}"


def _clusters(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[_Change]:
    base = name.rpartition("/")[2]
    if base not in _CLUSTERED:
        return
    for i, word in enumerate(words):
        text = script.of(word)
        dash = "-" if text.startswith("-") else ""
        if not (
            re.fullmatch(r"-[A-Za-z]{2,6}", text)
            or (base == "tar" and i == 0 and re.fullmatch(r"[a-z]{2,6}", text))
        ):
            continue
        letters = text.removeprefix("-")
        for k, letter in enumerate(letters):
            if (
                letter not in _NOISE_LETTERS
                or (letter in "xv" and base == "grep")
                or (letter == "x" and base == "tar")
            ):
                fewer = letters[:k] + letters[k + 1 :]
                yield _instead(Operator.OPTION, word, f"{dash}{fewer}", node)


def _wrapped(script: Script, words: list[Node]) -> int:
    """Return where in the words of `retry 5 2 COMMAND` the command begins."""
    for i, word in enumerate(words):
        text = script.of(word)
        is_number = bool(_NUMBER.match(text)) or word.type in {
            "simple_expansion",
            "string",
            "expansion",
        }
        if not is_number and not _is_option(text):
            return i
    return len(words)


def _unwrapped(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[_Change]:
    if not (name in _WRAPPERS or name == "timeout" or _RETRY.match(name)):
        return
    inner = _wrapped(script, words)
    command_name = node.child_by_field_name("name")
    if command_name is not None and inner < len(words):
        yield _Change(Operator.WRAPPER, command_name.start_byte, words[inner].start_byte, "", node)


def _unit_jobs(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[_Change]:
    """Let `systemctl start`, also behind a wrapper, return before the unit has started."""
    texts = [name, *(script.of(word) for word in words)]
    if "systemctl" not in texts or "--no-block" in texts:
        return
    for i in range(texts.index("systemctl"), len(words)):
        word = words[i]
        if script.of(word) in _UNIT_JOBS:
            yield _Change(Operator.UNIT, word.end_byte, word.end_byte, " --no-block", node)
            return


def _shell_options(script: Script, node: Node, words: list[Node]) -> Iterator[_Change]:
    kept_names = {"errexit", "nounset", "pipefail"}
    texts = [script.of(word) for word in words]
    if any(text.startswith("+") for text in texts) and not any(
        text.startswith("-") for text in texts
    ):
        if any(re.fullmatch(r"\+[eu]+", text) for text in texts) or kept_names & set(texts):
            yield _instead(Operator.SHELL_OPTION, node, ":")
        return
    for i, (word, text) in enumerate(zip(words, texts, strict=True)):
        if text in kept_names and i and texts[i - 1].endswith("o"):
            if texts[i - 1] == "-o":
                yield _fewer_options(script, node, words, i - 1, i)
            elif texts[i - 1].startswith("-"):  # `-euo pipefail`
                yield _Change(
                    Operator.SHELL_OPTION,
                    words[i - 1].start_byte,
                    word.end_byte,
                    texts[i - 1].removesuffix("o"),
                    node,
                )
        elif re.fullmatch(r"-[a-zA-Z]+", text):
            for letter in "eu":
                if letter in text:
                    fewer = text.replace(letter, "")
                    if fewer == "-":
                        yield _fewer_options(script, node, words, i, i)
                    else:
                        yield _instead(Operator.SHELL_OPTION, word, fewer, node)


def _fewer_options(
    script: Script, node: Node, words: list[Node], first: int, last: int
) -> _Change:
    if len(words) == last - first + 1:
        return _instead(Operator.SHELL_OPTION, node, ":")
    return _Change(Operator.SHELL_OPTION, *_span(script, words[first], words[last]), "", node)


def _span(script: Script, first: Node, last: Node) -> tuple[int, int]:
    change = _without(script, Operator.SHELL_OPTION, first, last)
    return change.start, change.end


def _exit_code(script: Script, node: Node, words: list[Node]) -> Iterator[_Change]:
    if _is_last_success(script, node) and not words:
        return
    if not words:
        new = "0" if _is_after_failure(node) else "1"
        yield _Change(Operator.EXIT_CODE, node.end_byte, node.end_byte, f" {new}", node)
        return
    text = script.of(words[0]).strip("\"'")
    if text == "0":
        yield _instead(Operator.EXIT_CODE, words[0], "1", node)
        return
    yield _instead(Operator.EXIT_CODE, words[0], "0", node)
    if text != "1" and not text.startswith("$?"):
        yield _instead(Operator.EXIT_CODE, words[0], "1", node)


def _is_after_failure(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type == "compound_statement":
        parent = parent.parent
    return parent is not None and parent.type == "list" and parent.children[1].type == "||"


def _declaration(script: Script, node: Node) -> Iterator[_Change]:
    word = node.children[0]
    kind = script.of(word)
    if kind == "export" and any(c.type == "variable_assignment" for c in node.children):
        yield _Change(Operator.EXPORT, node.start_byte, node.children[1].start_byte, "", node)
    elif kind == "export" and _is_statement(node):
        yield _instead(Operator.EXPORT, node, ":")
    elif kind == "local":
        function = script.function_of(node)
        for child in node.named_children:
            name = (
                child.child_by_field_name("name") if child.type == "variable_assignment" else child
            )
            if name is None or name.type not in {"variable_name", "word"}:
                continue
            if not function or not script.leaks(script.of(name), function):
                continue
            if len(node.named_children) == 1:
                if child.type == "variable_assignment":
                    yield _Change(Operator.LOCAL, node.start_byte, child.start_byte, "", node)
                else:
                    yield _instead(Operator.LOCAL, node, ":")
            elif child.type != "variable_assignment":
                yield _without(script, Operator.LOCAL, child, child)


# --- words -----------------------------------------------------------------------------------


def _unquoted_words(script: Script, words: list[Node], node: Node) -> Iterator[_Change]:
    for word in words:
        if word.type != "string" or script.of(word).count('"') != 2:
            continue
        text = script.of(word)[1:-1]
        if not any(
            c.type in {"simple_expansion", "expansion", "command_substitution"}
            for c in word.children
        ):
            continue
        if _ALWAYS_ONE_WORD.search(text) or _is_one_word(script, word):
            continue
        if re.search(r"[\s;&|<>()*?'`]", re.sub(r"\$\([^)]*\)|\$\{[^}]*\}", "", text)):
            continue  # the words around the expansion would change, too
        if _has_same_before(script, word, node):
            continue
        yield _instead(Operator.QUOTES, word, text, node)


def _is_one_word(script: Script, word: Node) -> bool:
    inside = [
        c
        for c in word.children
        if c.type in {"simple_expansion", "expansion", "command_substitution"}
    ]
    if any(c.type == "command_substitution" for c in inside):
        return True  # what a command prints for one argument hardly ever has blanks
    text = script.of(word)
    if "@" in text or "*" in text:
        names = [script.of(n) for c in inside for n in below(c, "variable_name")]
        return bool(names) and all(script.is_plain(name) for name in names)
    # A function's arguments and variables come from the script itself.
    names = [script.of(n) for c in inside for n in below(c, "variable_name")]
    return not any(
        script.is_given(name) and not script.is_plain(name) and not name.isdigit()
        for name in names
    )


def _has_same_before(script: Script, word: Node, node: Node) -> bool:
    """Tell whether the same quotes are earlier in the same function: one of them is enough."""
    text = script.of(word)
    if text in {'"$@"', '"${@}"'}:
        return False
    function = next((a for a in ancestors(node) if a.type == "function_definition"), script.root)
    begin = script.text.find(text.encode(errors="surrogateescape"), function.start_byte)
    return begin < word.start_byte


def _glob(script: Script, word: Node, node: Node) -> Iterator[_Change]:
    last = word.children[-1] if word.children else word
    if word.type in {"word", "concatenation"} and last.type == "word":
        tail = script.of(last)
        if "*" in tail:
            yield _instead(Operator.PATTERN, last, tail.replace("*", "", 1) or '""', node)


def _assignment(script: Script, node: Node) -> Iterator[_Change]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or (node.parent is not None and node.parent.type == "command"):
        return
    if script.is_idle(script.of(name)):
        return
    sign = next((c for c in node.children if c.type in {"=", "+="}), None)
    if sign is not None and sign.type == "+=":
        yield _instead(Operator.ASSIGNMENT, sign, "=", node)
    if value is None:
        if sign is not None and not _is_declared(node):
            yield _Change(Operator.ASSIGNMENT, sign.end_byte, sign.end_byte, "mutated", node)
        return
    text = script.of(value)
    bare = text.strip("\"'")
    if value.type == "array":
        yield from _fewer_elements(script, value, node)
    elif value.type == "number" or (value.type == "string" and bare.isdigit()):
        yield _instead(
            Operator.ASSIGNMENT, value, str(int(bare) + 1) if bare.isdigit() else "0", node
        )
    elif bare in _FLIPPED:
        yield _instead(Operator.ASSIGNMENT, value, _FLIPPED[bare], node)
    elif value.type in {
        "word",
        "raw_string",
        "string",
        "concatenation",
        "simple_expansion",
        "ansi_c_string",
    }:
        only = value.named_children
        changed_itself = {"command_substitution", "expansion"}
        if value.type == "string" and len(only) == 1 and only[0].type in changed_itself:
            return  # that is changed itself
        if bare:
            yield _instead(Operator.ASSIGNMENT, value, '""', node)
        else:
            yield _instead(Operator.ASSIGNMENT, value, "mutated", node)


def _is_declared(node: Node) -> bool:
    """Tell whether a declaration such as `local x=` only names a variable."""
    return node.parent is not None and node.parent.type == "declaration_command"


def _fewer_elements(script: Script, array: Node, node: Node) -> Iterator[_Change]:
    elements = array.named_children
    if len(elements) == 1:
        yield _instead(Operator.ASSIGNMENT, array, "()", node)
        return
    for element in elements:
        yield _Change(Operator.ASSIGNMENT, *_span(script, element, element), "", node)


def _expansion(script: Script, node: Node) -> Iterator[_Change]:
    """Change `${…}`: a default, a required value, what is cut off."""
    anchor = next(
        (a for a in ancestors(node) if a.type in {"command", "variable_assignment"}), node
    )
    sign = next(
        (c for c in node.children[1:-1] if not c.is_named and c.type not in {"!", "#", "["}), None
    )
    if sign is None or node.children[1] == sign:
        return
    name = script.text[node.children[0].end_byte : sign.start_byte].decode(errors="replace")
    word = script.text[sign.end_byte : node.children[-1].start_byte].decode(
        errors="surrogateescape"
    )
    kind = script.of(sign)
    if kind in {":-", "-", ":=", "="}:
        if word.strip("\"'"):
            end = node.children[-1].start_byte
            other = _FLIPPED.get(word.strip("\"'"), "")
            yield _Change(Operator.DEFAULT, sign.end_byte, end, other, anchor)
            if kind in {":-", "-"} and re.fullmatch(r"""[\w./:=@%+,-]+|"[^"]*"|'[^']*'""", word):
                yield _instead(Operator.DEFAULT, node, word, anchor)
        elif "nounset" in script.options:
            yield _Change(
                Operator.DEFAULT, sign.start_byte, node.children[-1].start_byte, "", anchor
            )
    elif kind in {":?", "?"}:
        yield _Change(
            Operator.DEFAULT, sign.start_byte, node.children[-1].start_byte, ":-", anchor
        )
    elif kind in {"#", "##", "%", "%%", "/", "//", "/#", "/%", "^", "^^", ",", ",,", ":"}:
        yield _instead(Operator.SUBSTITUTION, node, f"${{{name}}}", anchor)
        if kind in {"#", "##", "%", "%%"} and "*" in word:
            other = kind[0] if len(kind) == 2 else kind * 2
            yield _instead(Operator.PATTERN, sign, other, anchor)


def _substitution(script: Script, node: Node) -> Iterator[_Change]:
    parent = node.parent
    name = None if parent is None else parent.child_by_field_name("name")
    if name is not None and name.type == "variable_name" and script.is_idle(script.of(name)):
        return
    anchor = next(
        (
            a
            for a in ancestors(node)
            if a.type in {"command", "variable_assignment", "test_command"}
        ),
        node,
    )
    in_word = parent is not None and parent.type in {
        "string",
        "concatenation",
        "variable_assignment",
        "heredoc_body",
    }
    yield _instead(Operator.SUBSTITUTION, node, "" if in_word else '""', anchor)


def _redirect(script: Script, node: Node) -> Iterator[_Change]:
    statement = next((a for a in ancestors(node) if a.type == "redirected_statement"), None)
    if statement is None:
        return
    sign = next((c for c in node.children if c.type in {">", ">>", ">|", ">&", "&>", "&>>"}), None)
    if sign is None:
        return
    text = script.of(node).replace(" ", "")
    body = statement.child_by_field_name("body") or statement
    all_of = [script.of(each).replace(" ", "") for each in redirects_of(statement)]
    is_used = script.has_used_output(body)
    if text in {"2>&1", "1>&2", ">&2"}:
        is_noise = any(each in {">/dev/null", "1>/dev/null"} for each in all_of)
        if (text == "2>&1" and (is_used or len(all_of) > 1) and not is_noise) or (
            text != "2>&1" and script.function_of(node) in script.values
        ):
            yield _without(script, Operator.REDIRECTION, node, node)
        return
    if "/dev/null" in text:
        if is_used and not text.startswith("2"):
            yield _without(script, Operator.REDIRECTION, node, node)
        return
    if sign.type in {">", ">>"} and not text.startswith("2"):
        other = {">": ">>", ">>": ">"}[sign.type]
        yield _instead(Operator.REDIRECTION, sign, other, statement)


def _here_document(script: Script, node: Node) -> Iterator[_Change]:
    text = script.of(node)
    position = node.start_byte
    statement = next((a for a in ancestors(node) if a.type == "redirected_statement"), node)
    for line in text.splitlines(keepends=True):
        end = position + len(line.encode(errors="surrogateescape"))
        if line.strip() and not line.lstrip().startswith("#"):
            yield _Change(Operator.HERE_DOCUMENT, position, end, "", statement)
        position = end


_PLANTS: dict[str, tuple[_Plant, ...]] = {
    "list": (_list, _statement),
    "negated_command": (_negated, _statement),
    "test_command": (_test,),
    "binary_expression": (_arithmetic,),
    "postfix_expression": (_arithmetic,),
    "unary_expression": (),
    "if_statement": (_if,),
    "elif_clause": (_if,),
    "while_statement": (_while,),
    "for_statement": (_for,),
    "case_item": (_case_item,),
    "function_definition": (_function,),
    "subshell": (_subshell,),
    "command": (_command, _statement),
    "redirected_statement": (_statement,),
    "pipeline": (_pipeline, _statement),
    "unset_command": (_statement,),
    "declaration_command": (_declaration,),
    "variable_assignment": (_assignment,),
    "expansion": (_expansion,),
    "command_substitution": (_substitution,),
    "file_redirect": (_redirect,),
    "heredoc_body": (_here_document,),
}
