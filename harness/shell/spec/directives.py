"""Translates the `%` lines of a spec, and decides how a `Mock` block may run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.shell.lexer import quote, quote_on_a_line

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS = {
    "puts": "__hx_puts", "-": "__hx_puts", "putsn": "__hx_putsn", "=": "__hx_putsn",
    "printf": "__hx_printf", "sleep": "__hx_sleep", "preserve": "__hx_preserve",
    "logger": "__hx_logger",
}  # fmt: skip
_DIRECTIVE = re.compile(
    r"(?P<head>[ \t]*(?:[A-Za-z_][\w-]*[ \t]*\(\)[ \t]*\{[ \t]*)?)"
    r"%(?P<name>const|text|puts|putsn|printf|sleep|preserve|logger|-|=|)"
    r"(?::(?P<mode>raw|expand))?(?P<rest>(?:[ \t|]|\\\n|$).*)",
    re.DOTALL,
)
_CONSTANT = re.compile(r"[ \t]*([A-Z_][A-Z0-9_]*):[ \t]*(.*)", re.DOTALL)
_NEEDS_OWN_PROCESS = re.compile(
    r"\$0|\$\$|\$\{0|BASH|PPID|\beval\b|\$\{!|\bdeclare\b|\btypeset\b|\bcompgen\b|\bsource\b"
    r"|(^|[\s;])\.[ \t]|\benv\b|\bprintenv\b|\breturn\b|\btrap\b|\bset\b|\bexec\b|\btype\b"
    r"|\bcommand\b|\bshift\b.*\bsh\b|\bFUNCNAME\b|\bcaller\b"
    # a variable that is used as a command may contain the name of a function of the spec
    r"""|(?:^|[\n;&|({!]|\b(?:if|then|elif|else|while|until|do)\b)[ \t]*["']?\$(?!\()"""
)
_POSITIONAL = r"\$(?:[1-9@*#]|\{[1-9@*#]\})"
_INLINE_LINE = re.compile(
    r"[ \t]*(?:#.*|:|true|exit(?: \d+)?|(?:echo|__hx_puts|__hx_putsn)"
    rf"""(?: (?:[\w./:=,+%@-]+|'[^']*'|"(?:[^"$`\\]|{_POSITIONAL})*"|\$[1-9]))*)?[ \t]*\Z"""
)
_COMMAND_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHELL_WORDS = frozenset(
    [
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "for",
        "in",
        "do",
        "done",
        "while",
        "until",
        "case",
        "esac",
        "function",
        "select",
        "time",
        "echo",
        "printf",
        "exit",
        "local",
        "export",
        "unset",
        "read",
        "test",
        "true",
        "false",
        "shift",
        "break",
        "continue",
        "cat",
    ]
)


@dataclass(frozen=True)
class Directive:
    """A `%` line; `head` is the beginning of a function (`name() {`) before the `%`."""

    head: str
    name: str
    mode: str
    rest: str


def match(line: str) -> Directive | None:
    """Return the directive in `line`, or None if `line` has no directive."""
    found = _DIRECTIVE.match(line)
    if found is None:
        return None
    name = found["name"] or "const"
    if found["mode"] and name != "text":
        return None
    if not found["name"] and not _CONSTANT.match(found["rest"]):
        return None
    return Directive(found["head"], name, found["mode"] or "raw", found["rest"])


def constant(directive: Directive) -> str | None:
    """Return the assignment that replaces a `%const` line."""
    found = _CONSTANT.match(directive.rest)
    return None if found is None else f"{found[1]}={found[2]}"


def render(directive: Directive) -> str:
    """Return the command for a directive without a text block."""
    return f"{directive.head}{_COMMANDS[directive.name]}{directive.rest}"


def render_text(directive: Directive, lines: Sequence[str]) -> str:
    """Return the command that prints `lines`."""
    command = text_command(lines, expand=directive.mode == "expand")
    return f"{directive.head}{command}{directive.rest}"


def text_command(lines: Sequence[str], *, expand: bool) -> str:
    """Return a command, on one line, that prints each of `lines` with a line break."""
    text = "".join(f"{line}\n" for line in lines)
    quoted = quote_on_a_line(text)
    return f'__hx_expand {quoted} "$@"' if expand else f"__hx_puts {quoted}"


def inline_line(line: str) -> str:
    """Return a line of an inline mock in the form for a function.

    `exit` becomes `return`, and `echo` becomes `builtin echo`.
    """
    return re.sub(r"^(\s*)echo\b", r"\1builtin echo", re.sub(r"^(\s*)exit\b", r"\1return", line))


def mock_needs(body: str) -> str:
    """Return how a mock with this body may run, as arguments of the shell function `__hx_mock`.

    `inline`: the mock only prints its arguments or fixed text and exits, so the mock runs as a
    shell function. `process`: the mock inspects its own process, so the mock needs a new process.
    `fork`, followed by all names in the body: any other mock runs in a subshell, which first
    removes the functions and variables that a child process would not see.
    """
    if all(_INLINE_LINE.match(line) for line in body.split("\n")):
        return "inline"
    if _NEEDS_OWN_PROCESS.search(body):
        return "process"
    found = {*_COMMAND_NAME.findall(body), *_VARIABLE_NAME.findall(body)} - _SHELL_WORDS
    names = sorted(name for name in found if not name.startswith("__hx_"))
    return " ".join(["fork", *(quote(name) for name in names)])
