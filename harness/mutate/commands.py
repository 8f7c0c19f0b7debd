"""Plants defects in a single command: in its arguments, numbers, options and exit codes."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from harness.mutate.change import (
    OWN_ARGUMENTS,
    RETRY,
    Change,
    instead,
    is_statement,
    test_around,
    without,
)
from harness.mutate.operators import Operator
from harness.mutate.option_values import is_known, is_option, option_values
from harness.mutate.script import Script, ancestors, arguments
from harness.mutate.steps import is_last_success
from harness.mutate.words import anchors, glob, unquoted_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

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
_WRAPPERS = frozenset({"sudo", "nohup", "nice", "ionice", "setsid", "time"})
_GREP = frozenset({"grep", "egrep", "zgrep"})
_NUMBER = re.compile(
    r"(?P<before>(?:--?[A-Za-z][\w-]*=|-[A-Za-z])?)(?P<number>\d{1,9}(?:\.\d+)?)(?P<after>[smhd]?)$"
)
_FIELD = re.compile(r"\$(?P<number>[1-9]\d?)\b")
_AWK = frozenset({"awk", "gawk", "mawk"})
_MODE = re.compile(r"0?[0-7]{3,4}$")
_MODE_ARGUMENTS = {"chmod": None, "install": "-m", "mkdir": "-m", "umask": None, "mknod": "-m"}
_UNIT_JOBS = frozenset({"start", "restart", "reload", "try-restart", "reload-or-restart"})


def change_command(script: Script, node: Node) -> Iterator[Change]:
    name = script.command_name(node)
    words = arguments(node)
    for assignment in (c for c in node.children if c.type == "variable_assignment"):
        if not script.of(assignment).startswith("IFS"):
            yield Change(
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
        yield Change(Operator.LOOP, node.start_byte, node.start_byte + len(name), other, node)
    elif name == "shift":
        yield from _numbers(script, node, name, words)
    if name in OWN_ARGUMENTS or script.is_message(node):
        return
    program, own = _called(script, name, words)
    yield from _fewer_arguments(script, program, own)
    yield from _other_order(script, node, program, own)
    yield from _numbers(script, node, name, words[: len(words) - len(own)])
    yield from _numbers(script, node, program, own)
    yield from _clusters(script, node, program, own)
    yield from _unwrapped(script, node, name, words)
    yield from _unit_jobs(script, node, name, words)
    yield from _fields(script, node, program, own)
    called = node.child_by_field_name("name")
    yield from unquoted_words(script, [*([] if called is None else called.children), *words], node)
    for word in own:
        if program in _GREP and not script.of(word).startswith("-"):
            yield from anchors(script, word, node)
            break
    for word in words:
        yield from glob(script, word, node)


def _is_wrapper(name: str) -> bool:
    return name in _WRAPPERS or name == "timeout" or bool(RETRY.match(name))


def _called(script: Script, name: str, words: list[Node]) -> tuple[str, list[Node]]:
    """Return the program that a command calls, itself or by a wrapper, and the program's arguments."""
    if not _is_wrapper(name):
        return name.rpartition("/")[2], words
    inner = _wrapped(script, words)
    called = script.of(words[inner]) if inner < len(words) else name
    return called.rpartition("/")[2], words[inner + 1 :]


def _fewer_arguments(script: Script, program: str, words: list[Node]) -> Iterator[Change]:
    """Yield changes that each leave out one argument, or one option together with its value."""
    texts = [script.of(word) for word in words]
    values = option_values(program, texts)
    for i, (word, text) in enumerate(zip(words, texts, strict=True)):
        if i + 1 in values:
            stays = values[i + 1]
            if stays:  # keep the other letters of `-fsSo FILE`
                start = word.start_byte + stays
                yield Change(Operator.ARGUMENT, start, words[i + 1].end_byte, "", word)
            else:
                yield without(script, Operator.ARGUMENT, word, words[i + 1])
            continue
        if i in values or text in _NOISE or (text == "-e" and program in {"sed", *_GREP}):
            continue
        if text in _SHOWN_AS.get(program, ()) and _is_only_looked_for(script, word):
            continue
        yield without(script, Operator.ARGUMENT, word, word)
        if i + 1 == len(words) or not _may_have_value(text) or is_known(program):
            continue
        if not is_option(texts[i + 1]) and texts[i + 1] not in _NOISE:
            yield without(script, Operator.ARGUMENT, word, words[i + 1])


_SHOWN_AS = {
    "lspci": {"-n", "-nn", "-m", "-mm"}, "systemctl": {"--no-legend", "--plain", "--no-pager"}, "ls": {"-1", "-l"},
    "ss": {"-n"}, "ip": {"-o", "-br"}, "lsblk": {"-n", "-l"}, "netstat": {"-n"},
}  # fmt: skip
"""Options that change how a program prints, but not whether it prints."""


def _is_only_looked_for(script: Script, word: Node) -> bool:
    """Return whether the script only tests whether the output of a command is empty."""
    inside = next((a for a in ancestors(word) if a.type == "command_substitution"), None)
    test = None if inside is None else test_around(inside)
    return test is not None and bool(re.match(r"""\[\[? (?:! )?-[nz] "?\$\(""", script.of(test)))


def _other_order(script: Script, node: Node, program: str, words: list[Node]) -> Iterator[Change]:
    if program in _ANY_ORDER or program in {"printf", "echo"}:
        return
    plain = [
        (i, word)
        for i, word in enumerate(words)
        if not is_option(script.of(word))
        and (i == 0 or not _may_have_value(script.of(words[i - 1])))
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
        yield Change(
            Operator.ARGUMENT_ORDER,
            one.start_byte,
            other.end_byte,
            f"{second}{between}{first}",
            node,
        )


def _may_have_value(text: str) -> bool:
    return is_option(text) and "=" not in text


def _numbers(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[Change]:
    for i, word in enumerate(words):
        text = script.of(word)
        before = script.of(words[i - 1]) if i else ""
        if name in _MODE_ARGUMENTS and _MODE.match(text):
            option = _MODE_ARGUMENTS[name]
            if option is None or before == option:
                yield instead(Operator.MODE, word, _other_mode(text), node)
                continue
        if name == "chmod" and i == 0 and "+" in text:
            yield instead(Operator.MODE, word, text.replace("+", "-"), node)
            continue
        found = _NUMBER.match(text)
        if found is not None and word.type in {"number", "word"}:
            number = found["number"]
            new = str(float(number) + 1) if "." in number else str(int(number) + 1)
            yield instead(Operator.NUMBER, word, f"{found['before']}{new}{found['after']}", node)


def _fields(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[Change]:
    """Yield changes that each increase one field number of an awk program by one."""
    for word in words:
        if name in _AWK and word.type == "raw_string":
            text = script.of(word)
            for found in _FIELD.finditer(text):
                start = word.start_byte + len(
                    text[: found.start("number")].encode(errors="surrogateescape")
                )
                end = start + len(found["number"])
                new = str(int(found["number"]) + 1)
                yield Change(Operator.NUMBER, start, end, new, node)


def _other_mode(text: str) -> str:
    """Return a mode that lets others write or, if others can write already, denies others access."""
    mode = int(text, 8)
    other = mode | 0o022 if mode | 0o022 != mode else mode & ~0o077
    return f"{other:0{len(text)}o}"


def _clusters(script: Script, node: Node, program: str, words: list[Node]) -> Iterator[Change]:
    if program not in _CLUSTERED:
        return
    values = option_values(program, [script.of(word) for word in words])
    for i, word in enumerate(words):
        text = script.of(word)
        dash = "-" if text.startswith("-") else ""
        if not (
            re.fullmatch(r"-[A-Za-z]{2,6}", text)
            or (program == "tar" and i == 0 and re.fullmatch(r"[a-z]{2,6}", text))
        ):
            continue
        letters = text.removeprefix("-")
        for k, letter in enumerate(letters[:-1] if values.get(i + 1) else letters):
            if (
                letter not in _NOISE_LETTERS
                or (letter in "xv" and program == "grep")
                or (letter == "x" and program == "tar")
            ):
                fewer = letters[:k] + letters[k + 1 :]
                yield instead(Operator.OPTION, word, f"{dash}{fewer}", node)


def _wrapped(script: Script, words: list[Node]) -> int:
    """Return the index of the command in the words of a wrapper such as `retry 5 2 COMMAND`."""
    for i, word in enumerate(words):
        text = script.of(word)
        is_number = bool(_NUMBER.match(text)) or word.type in {
            "simple_expansion",
            "string",
            "expansion",
        }
        if not is_number and not is_option(text):
            return i
    return len(words)


def _unwrapped(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[Change]:
    if not _is_wrapper(name):
        return
    inner = _wrapped(script, words)
    command_name = node.child_by_field_name("name")
    if command_name is not None and inner < len(words):
        yield Change(Operator.WRAPPER, command_name.start_byte, words[inner].start_byte, "", node)


def _unit_jobs(script: Script, node: Node, name: str, words: list[Node]) -> Iterator[Change]:
    """Yield changes in which `systemctl start` returns before the unit has started."""
    texts = [name, *(script.of(word) for word in words)]
    if "systemctl" not in texts or "--no-block" in texts:
        return
    for i in range(texts.index("systemctl"), len(words)):
        word = words[i]
        if script.of(word) in _UNIT_JOBS:
            yield Change(Operator.UNIT, word.end_byte, word.end_byte, " --no-block", node)
            return


def _shell_options(script: Script, node: Node, words: list[Node]) -> Iterator[Change]:
    kept_names = {"errexit", "nounset", "pipefail"}
    texts = [script.of(word) for word in words]
    if any(text.startswith("+") for text in texts) and not any(
        text.startswith("-") for text in texts
    ):
        if any(re.fullmatch(r"\+[eu]+", text) for text in texts) or kept_names & set(texts):
            yield instead(Operator.SHELL_OPTION, node, ":")
        return
    for i, (word, text) in enumerate(zip(words, texts, strict=True)):
        if text in kept_names and i and texts[i - 1].endswith("o"):
            if texts[i - 1] == "-o":
                yield _fewer_options(script, node, words, i - 1, i)
            elif texts[i - 1].startswith("-"):  # `-euo pipefail`
                yield Change(
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
                        yield instead(Operator.SHELL_OPTION, word, fewer, node)


def _fewer_options(script: Script, node: Node, words: list[Node], first: int, last: int) -> Change:
    if len(words) == last - first + 1:
        return instead(Operator.SHELL_OPTION, node, ":")
    return without(script, Operator.SHELL_OPTION, words[first], words[last]).at(node)


def _exit_code(script: Script, node: Node, words: list[Node]) -> Iterator[Change]:
    if is_last_success(script, node) and not words:
        return
    if not words:
        new = "0" if _is_after_failure(node) else "1"
        yield Change(Operator.EXIT_CODE, node.end_byte, node.end_byte, f" {new}", node)
        return
    text = script.of(words[0]).strip("\"'")
    if text == "0":
        yield instead(Operator.EXIT_CODE, words[0], "1", node)
        return
    yield instead(Operator.EXIT_CODE, words[0], "0", node)
    if text != "1" and not text.startswith("$?"):
        yield instead(Operator.EXIT_CODE, words[0], "1", node)


def _is_after_failure(node: Node) -> bool:
    parent = node.parent
    while parent is not None and parent.type == "compound_statement":
        parent = parent.parent
    return parent is not None and parent.type == "list" and parent.children[1].type == "||"


def change_declaration(script: Script, node: Node) -> Iterator[Change]:
    word = node.children[0]
    kind = script.of(word)
    if kind == "export" and any(c.type == "variable_assignment" for c in node.children):
        yield Change(Operator.EXPORT, node.start_byte, node.children[1].start_byte, "", node)
    elif kind == "export" and is_statement(node):
        yield instead(Operator.EXPORT, node, ":")
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
                    yield Change(Operator.LOCAL, node.start_byte, child.start_byte, "", node)
                else:
                    yield instead(Operator.LOCAL, node, ":")
            elif child.type != "variable_assignment":
                yield without(script, Operator.LOCAL, child, child)
