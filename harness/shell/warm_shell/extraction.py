"""Extracts functions and shell options from a script that can't be sourced."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioning.command import Runner

_OPTIONS = re.compile(r"(?:set|shopt)\s+(?!--?\s|--?\Z)[-+][\w\s+-]*\Z")
_SHEBANG_OPTIONS = re.compile(
    r"#!\S*/(?:env[ \t]+-S[ \t]+)?(?:ba|da|a)?sh"
    r"((?:[ \t]+[-+](?=\w)[abefhkmptuvxBCEHPT]*(?:o[ \t]+[a-z]+)?)+)\s*$",
    re.MULTILINE,
)
#: Maps a function's opening bracket to the pattern of a line with its closing bracket. The closing
#: bracket begins the line, or only redirections, operators or a comment follow it. A closing brace
#: is a separate word.
_CLOSES = {
    "{": re.compile(r"^\s*\}|[\s;&)}]\}\s*(?:\d*[<>&|;#].*)?$"),
    "(": re.compile(r"^\s*\)|\)\s*(?:\d*[<>&|;#].*)?$"),
}
_OPENS = re.compile(r"(?:\s|#.*\n)*([{(])")
_PARSE_S = 30.0


def options_of(text: str) -> str:
    """Return the commands by which a script sets its shell options, as one line of shell.

    Commands in functions or under conditions are left out.
    """
    from harness.shell.commands_of import plain_commands  # noqa: PLC0415 - slow import of the parser

    found = [command for command in plain_commands(text) if _OPTIONS.match(command)]
    shebang = " ".join(shebang_options(text))
    return "; ".join([*([f"set {shebang}"] if shebang else []), *found])


def shebang_options(text: str) -> list[str]:
    """Return the shell options in a script's first line, as words."""
    found = _SHEBANG_OPTIONS.match(text)
    return found[1].split() if found else []


def extract_function(script: Path, name: str, runner: Runner | None = None) -> tuple[str, int]:
    """Return the definition of a function in the script, and the definition's line.

    If the script defines the function more than once, the last definition is used. Raises
    BadInputError if the script does not define the function.
    """
    from harness.shell.commands_of import definitions_of  # noqa: PLC0415 - slow import of the parser

    runner = runner or LocalRunner()
    source = script.read_text(errors="surrogateescape")
    for text, line in itertools.chain(
        definitions_of(source, name), _definitions_by_lines(source, name)
    ):
        # for a heredoc without its end, bash prints only a warning
        parsed = runner.run(["bash", "-O", "extglob", "-n"], timeout_s=_PARSE_S, stdin=f"{text}\n")
        if parsed.ok and not parsed.stderr:
            return text, line
    raise BadInputError(f"The script has no function '{name}'.", source=str(script))


def _definitions_by_lines(source: str, name: str) -> Iterator[tuple[str, int]]:
    """Yield parts of the script that may define the function, in case the parser can't read the definition."""
    lines = source.split("\n")
    begins = re.compile(
        rf"\s*(?:function\s+{re.escape(name)}\s*(?:\(\s*\))?|{re.escape(name)}\s*\(\s*\))"
        r"(?=\s*(?:[{(#]|$))"
    )
    for start in range(len(lines) - 1, -1, -1):
        found = begins.match(lines[start])
        opened = found and _OPENS.match("\n".join(lines[start:])[found.end() :])
        if opened:
            for end in _possible_ends(lines, start, _CLOSES[opened[1]]):
                yield "\n".join(lines[start:end]), start + 1


def _possible_ends(lines: list[str], start: int, closes: re.Pattern[str]) -> Iterator[int]:
    """Yield the possible ends of the definition in order, each as the end of a slice of `lines`."""
    yield start + 1
    for number in range(start + 1, len(lines)):
        if closes.search(lines[number]):
            yield number + 1
