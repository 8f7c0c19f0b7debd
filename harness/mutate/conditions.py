"""Plants defects in lists (`a && b`), test commands (`[ … ]`), branches and loops."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.mutate.change import Change, instead, is_statement, test_around, without
from harness.mutate.operators import Operator
from harness.mutate.script import Script, ancestors, below, is_condition, statements
from harness.mutate.words import anchors, glob, unquoted_words

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def change_list(script: Script, node: Node) -> Iterator[Change]:
    left, sign, right = node.children[0], node.children[1], node.children[-1]
    counts = script.has_counting_status(node)
    is_only_said = script.is_message(right) or script.of(right) in {"true", ":"}
    if is_only_said and not counts:
        return
    if sign.type == "||":
        if not _ends_as_it_would(script, node, right):
            yield Change(Operator.FAILURE, left.end_byte, node.end_byte, "", left)
        if not is_only_said:
            yield instead(Operator.LIST, sign, "&&", left)
    elif sign.type == "&&":
        yield instead(Operator.LIST, sign, "||", left)
        if is_statement(node):
            yield instead(Operator.LIST, sign, ";", left)
        else:
            yield Change(Operator.CONDITION, left.end_byte, node.end_byte, "", left)
            if not _needs_a_number(script, left, right):
                yield Change(Operator.CONDITION, node.start_byte, right.start_byte, "", left)


def _ends_as_it_would(script: Script, node: Node, right: Node) -> bool:
    """Return whether `a || return` ends a function, so that `|| return` has no effect."""
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
    """Return whether a test command like `[ -n $n ]` guards a comparison that needs `$n` to be a number."""
    found = _NOT_EMPTY.match(script.of(left))
    number = re.match(r"""\[ "?(\$\{?\w+\}?)"? -(?:eq|ne|lt|le|gt|ge) """, script.of(right))
    return found is not None and number is not None and found["value"] == number[1]


def change_negation(script: Script, node: Node) -> Iterator[Change]:
    if not is_condition(node):
        yield instead(Operator.NEGATION, node, script.of(node.children[-1]))


def change_test(script: Script, node: Node) -> Iterator[Change]:
    inner = [*below(node, "binary_expression"), *below(node, "unary_expression")]
    changed = False
    for each in inner:
        sign = _sign_of(each)
        if sign is None or test_around(each) != node:
            continue
        word = script.of(sign)
        if word in _JOINED and each.type == "binary_expression":
            yield instead(Operator.LIST, sign, _JOINED[word], node)
        elif word == "!":
            changed = True
            yield instead(Operator.NEGATION, each, script.of(each.children[-1]).lstrip(), node)
        elif word in _COMPARISONS:
            changed = changed or word.strip("=!") == "" or word in {"-z", "-n", "-eq", "-ne"}
            yield instead(Operator.COMPARISON, sign, _COMPARISONS[word], node)
    yield from _fewer_tests(script, node, [sign for each in inner if (sign := _sign_of(each))])
    in_not = node.parent is not None and node.parent.type == "negated_command"
    if not changed and not is_condition(node) and not in_not:
        yield Change(Operator.NEGATION, node.start_byte, node.start_byte, "! ", node)
    for pattern in below(node, "regex"):
        yield from anchors(script, pattern, node)


def _fewer_tests(script: Script, node: Node, signs: list[Node]) -> Iterator[Change]:
    """Yield changes that each leave out one part of a `[[ … ]]` with `&&`, `||`, `-a` or `-o`.

    The parts of a test command are found by their positions, since the parser reads `a = b && c` as
    `a = (b && c)`.
    """
    joins = sorted(
        (sign.start_byte, sign.end_byte)
        for sign in signs
        if script.of(sign) in _JOINED and test_around(sign) == node
    )
    if not joins or "(" in re.sub(r"\$\(", "", script.of(node)):
        return
    begins = [node.children[0].end_byte + 1, *(end + 1 for _, end in joins)]
    ends = [*(start for start, _ in joins), node.children[-1].start_byte]
    yield Change(Operator.CONDITION, begins[0], begins[1], "", node)
    for (start, _), end in zip(joins, ends[1:], strict=True):
        yield Change(Operator.CONDITION, start, end, "", node)


def _sign_of(expression: Node) -> Node | None:
    sign = expression.child_by_field_name("operator")
    if sign is not None:
        return sign
    return next(
        (c for c in expression.children if c.type == "test_operator" or not c.is_named), None
    )


def change_arithmetic(script: Script, node: Node) -> Iterator[Change]:
    """Yield changes of operators in `((…))` and `$((…))`; `change_test` does the same for `[[ … ]]`."""
    if test_around(node) is not None:
        return
    sign = next((c for c in node.children if script.of(c) in _ARITHMETIC and not c.children), None)
    if sign is not None:
        statement = next((a for a in ancestors(node) if "statement" in a.type), node)
        yield instead(Operator.ARITHMETIC, sign, _ARITHMETIC[script.of(sign)], statement)


def change_if(_: Script, node: Node) -> Iterator[Change]:
    conditions = [child for child in node.children if child.is_named and is_condition(child)]
    if not conditions:
        return
    first, last = conditions[0], conditions[-1]
    for word in ("true", "false"):
        yield Change(Operator.CONDITION, first.start_byte, last.end_byte, word, first)


def change_while(script: Script, node: Node) -> Iterator[Change]:
    word = node.children[0]
    conditions = node.children_by_field_name("condition")
    if conditions:
        other = {"while": "until", "until": "while"}[script.of(word)]
        yield instead(Operator.LOOP, word, other, conditions[0])


def change_for(script: Script, node: Node) -> Iterator[Change]:
    words = node.children_by_field_name("value")
    if len(words) > 1:
        for word in words:
            yield without(script, Operator.LOOP, word, word).at(node)
    for word in words:
        yield from glob(script, word, node)
    yield from unquoted_words(script, words, node)


def change_case_item(script: Script, node: Node) -> Iterator[Change]:
    case = node.parent
    if case is None:
        return
    items = [child for child in case.children if child.type == "case_item"]
    does = any(not script.is_message(s) and script.of(s) != ":" for s in statements(node))
    if len(items) > 1 and (does or node != items[-1]):
        yield without(script, Operator.CASE, node, node).at(case)
    patterns = node.children_by_field_name("value")
    if len(patterns) > 1:
        for i, pattern in enumerate(patterns):
            start = patterns[i - 1].end_byte if i else pattern.start_byte
            end = pattern.end_byte if i else patterns[1].start_byte
            yield Change(Operator.CASE, start, end, "", case)
    for pattern in patterns:
        text = script.of(pattern)
        if "*" in text.strip("*") + (text if text != "*" else ""):
            for shorter in {text.removesuffix("*"), text.removeprefix("*")} - {text, ""}:
                yield instead(Operator.PATTERN, pattern, shorter, case)
