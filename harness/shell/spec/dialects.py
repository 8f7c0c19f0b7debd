"""Generates the shell code that differs between bash and POSIX shells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from harness.shell.lexer import rest_after, split_words
from harness.shell.spec import directives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.shells import SpecShell


class Dialect(Protocol):
    """Generates the parts of a translated spec that depend on the kind of shell."""

    def text(self, number: int) -> str:
        """Return the command that runs the body of the group or example with the number `number`."""
        ...

    def outputs(self) -> str:
        """Return the redirections for an example: for its stdout, its stderr and the descriptor of its pipe."""
        ...

    def include(self, text: str) -> str:
        """Return the command for an `Include`; `text` is the whole line."""
        ...

    def mock(self, number: int, name: str, body: Sequence[str], *, is_file: bool) -> str:
        """Return the code that installs the mock of a `Mock` block; the code has as many lines as the block.

        If `is_file` is true, the mock must be a file and not a function, because code under test
        looks up the mock's path.
        """
        ...


#: As in shellspec, a `Mock` of a builtin affects only code that searches PATH, such as `env`.
_BUILTINS = frozenset(
    {
        ".", ":", "[", "alias", "bg", "bind", "break", "builtin", "caller", "cd", "command", "compgen",
        "complete", "compopt", "continue", "declare", "dirs", "disown", "echo", "enable", "eval",
        "exec", "exit", "export", "false", "fc", "fg", "getopts", "hash", "help", "history", "jobs",
        "kill", "let", "local", "logout", "mapfile", "popd", "printf", "pushd", "pwd", "read",
        "readarray", "readonly", "return", "set", "shift", "shopt", "source", "suspend", "test",
        "times", "trap", "true", "type", "typeset", "ulimit", "umask", "unalias", "unset", "wait",
    }
)  # fmt: skip


class _Bash:
    def text(self, number: int) -> str:
        return f'builtin eval "${{__hx_text[{number}]}}"'

    def outputs(self) -> str:
        return '2>&"$((194 + __hx_set))" >&"$((195 + __hx_set))" 215>/proc/self/fd/212'

    def include(self, text: str) -> str:
        return f"__SOURCED__={split_words(text)[1].raw} . {rest_after(text, 1)}"

    def mock(self, number: int, name: str, body: Sequence[str], *, is_file: bool) -> str:
        is_file = is_file or name in _BUILTINS
        needs = "file" if is_file else directives.mock_needs("\n".join(body))
        lines = [directives.inline_line(line) for line in body] if needs == "inline" else body
        setup = f"__hx_mock {number} {name} {needs}"
        return "\n".join([f"{setup}; __hx_mock_{number}() {{ :", *lines, "}"])


class _Posix:
    def text(self, number: int) -> str:
        return f'eval "$__hx_text_{number}"'

    def outputs(self) -> str:
        return (
            "2>>/proc/self/fd/$((194 + __hx_set)) >>/proc/self/fd/$((195 + __hx_set)) "
            "9>/proc/self/fd/$((212 + __hx_stale))"
        )

    def include(self, text: str) -> str:
        return f"__hx_include {rest_after(text, 1)}"

    def mock(self, number: int, name: str, body: Sequence[str], *, is_file: bool) -> str:
        del is_file  # in POSIX shells each mock is a file
        return "\n".join([f"__hx_mock {number} {name}", *("" for _ in body), ""])


def dialect_of(shell: SpecShell) -> Dialect:
    return _Posix() if shell.is_posix else _Bash()
