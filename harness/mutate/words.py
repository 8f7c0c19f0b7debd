"""Plants defects in quotes, patterns, assignments, expansions and redirections."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from harness.mutate.change import FLIPPED, Change, instead, without
from harness.mutate.operators import Operator
from harness.mutate.script import Script, ancestors, below, redirects_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

_WHOLE = re.compile(r"[0-9]{1,18}")
_ALWAYS_ONE_WORD = re.compile(r"""\$(?:[?#$!]|\{#)""")


def anchors(script: Script, pattern: Node, anchor: Node) -> Iterator[Change]:
    """Yield changes that remove the `^` or the `$` of a pattern, which may be quoted."""
    text = script.of(pattern)
    quote = text[:1] if text[:1] in {"'", '"'} else ""
    inner = text[1:-1] if quote else text
    if inner.startswith("^"):
        yield instead(Operator.PATTERN, pattern, f"{quote}{inner[1:]}{quote}", anchor)
    if inner.endswith("$") and not inner.endswith("\\$"):
        yield instead(Operator.PATTERN, pattern, f"{quote}{inner[:-1]}{quote}", anchor)


def unquoted_words(script: Script, words: list[Node], node: Node) -> Iterator[Change]:
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
        yield instead(Operator.QUOTES, word, text, node)


def _is_one_word(script: Script, word: Node) -> bool:
    inside = [
        c
        for c in word.children
        if c.type in {"simple_expansion", "expansion", "command_substitution"}
    ]
    if any(c.type == "command_substitution" for c in inside):
        return True  # the output of a command for one argument hardly ever contains blanks
    names = [script.of(n) for c in inside for n in below(c, "variable_name")]
    text = script.of(word)
    if "@" in text or "*" in text:
        return bool(names) and all(script.is_plain(name) for name in names)
    # The script itself sets a function's arguments and variables.
    return not any(
        script.is_given(name) and not script.is_plain(name) and not name.isdigit()
        for name in names
    )


def _has_same_before(script: Script, word: Node, node: Node) -> bool:
    """Return whether the same quoted word occurs earlier in the function, so that a mutant exists already."""
    text = script.of(word)
    if text in {'"$@"', '"${@}"'}:
        return False
    function = next((a for a in ancestors(node) if a.type == "function_definition"), script.root)
    begin = script.text.find(text.encode(errors="surrogateescape"), function.start_byte)
    return begin < word.start_byte


def glob(script: Script, word: Node, node: Node) -> Iterator[Change]:
    last = word.children[-1] if word.children else word
    if word.type in {"word", "concatenation"} and last.type == "word":
        tail = script.of(last)
        if "*" in tail:
            yield instead(Operator.PATTERN, last, tail.replace("*", "", 1) or '""', node)


def change_assignment(script: Script, node: Node) -> Iterator[Change]:
    name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name is None or (node.parent is not None and node.parent.type == "command"):
        return
    if script.is_idle(script.of(name)):
        return
    sign = next((c for c in node.children if c.type in {"=", "+="}), None)
    if sign is not None and sign.type == "+=":
        yield instead(Operator.ASSIGNMENT, sign, "=", node)
    if value is None:
        if sign is not None and not _is_declared(node):
            yield Change(Operator.ASSIGNMENT, sign.end_byte, sign.end_byte, "mutated", node)
        return
    text = script.of(value)
    bare = text.strip("\"'")
    if value.type == "array":
        yield from _fewer_elements(script, value, node)
    elif value.type == "number" or (value.type == "string" and _WHOLE.fullmatch(bare)):
        yield instead(
            Operator.ASSIGNMENT, value, str(int(bare) + 1) if _WHOLE.fullmatch(bare) else "0", node
        )
    elif bare in FLIPPED:
        yield instead(Operator.ASSIGNMENT, value, FLIPPED[bare], node)
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
            return  # other mutants change the substitution or expansion
        if bare:
            yield instead(Operator.ASSIGNMENT, value, '""', node)
        else:
            yield instead(Operator.ASSIGNMENT, value, "mutated", node)


def _is_declared(node: Node) -> bool:
    """Return whether `node` is in a declaration such as `local x=`, which only declares a variable."""
    return node.parent is not None and node.parent.type == "declaration_command"


def _fewer_elements(script: Script, array: Node, node: Node) -> Iterator[Change]:
    elements = array.named_children
    if len(elements) == 1:
        yield instead(Operator.ASSIGNMENT, array, "()", node)
        return
    for element in elements:
        yield without(script, Operator.ASSIGNMENT, element, element).at(node)


def change_expansion(script: Script, node: Node) -> Iterator[Change]:
    """Yield changes of `${…}`: of its default, its required value, or its removed prefix or suffix."""
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
            bare = word.strip("\"'")
            other = str(int(bare) + 1) if _WHOLE.fullmatch(bare) else FLIPPED.get(bare, "")
            yield Change(Operator.DEFAULT, sign.end_byte, end, other, anchor)
            if kind in {":-", "-"} and re.fullmatch(r"""[\w./:=@%+,-]+|"[^"]*"|'[^']*'""", word):
                yield instead(Operator.DEFAULT, node, word, anchor)
        elif "nounset" in script.options:
            yield Change(
                Operator.DEFAULT, sign.start_byte, node.children[-1].start_byte, "", anchor
            )
    elif kind in {":?", "?"}:
        yield Change(Operator.DEFAULT, sign.start_byte, node.children[-1].start_byte, ":-", anchor)
    elif kind in {"#", "##", "%", "%%", "/", "//", "/#", "/%", "^", "^^", ",", ",,", ":"}:
        yield instead(Operator.SUBSTITUTION, node, f"${{{name}}}", anchor)
        if kind in {"#", "##", "%", "%%"} and "*" in word:
            other = kind[0] if len(kind) == 2 else kind * 2
            yield instead(Operator.PATTERN, sign, other, anchor)


def change_substitution(script: Script, node: Node) -> Iterator[Change]:
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
    yield instead(Operator.SUBSTITUTION, node, "" if in_word else '""', anchor)


def change_redirect(script: Script, node: Node) -> Iterator[Change]:
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
            yield without(script, Operator.REDIRECTION, node, node)
        return
    if "/dev/null" in text:
        if is_used and not text.startswith("2"):
            yield without(script, Operator.REDIRECTION, node, node)
        return
    if sign.type in {">", ">>"} and not text.startswith("2"):
        other = {">": ">>", ">>": ">"}[sign.type]
        yield instead(Operator.REDIRECTION, sign, other, statement)


def change_redirect_order(script: Script, statement: Node) -> Iterator[Change]:
    """Swap `2>&1` and an adjacent redirection of stdout, so that stderr gets another target."""
    body = statement.child_by_field_name("body")
    is_used = script.has_used_output(body or statement)
    for one, other in itertools.pairwise(redirects_of(statement)):
        texts = [script.of(each).replace(" ", "") for each in (one, other)]
        if "2>&1" not in texts or texts[0] == texts[1]:
            continue
        target = texts[1 - texts.index("2>&1")]
        if not re.match(r"1?>", target) or ("/dev/null" in target and not is_used):
            continue
        new = f"{script.of(other)} {script.of(one)}"
        yield Change(Operator.REDIRECTION, one.start_byte, other.end_byte, new, statement)


def change_here_document(script: Script, node: Node) -> Iterator[Change]:
    text = script.of(node)
    position = node.start_byte
    statement = next((a for a in ancestors(node) if a.type == "redirected_statement"), node)
    for line in text.splitlines(keepends=True):
        end = position + len(line.encode(errors="surrogateescape"))
        if line.strip() and not line.lstrip().startswith("#"):
            yield Change(Operator.HERE_DOCUMENT, position, end, "", statement)
        position = end
