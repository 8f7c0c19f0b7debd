"""Takes functions out of a script that can't be sourced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioning.command import Runner

_PARSE_S = 30.0


def extract_function(script: Path, name: str, runner: Runner | None = None) -> str:
    """Return the definition of a function as the script has it; the last of several.

    Raises BadInputError where the script has no such function.
    """
    runner = runner or LocalRunner()
    lines = script.read_text().splitlines()
    begins = re.compile(
        rf"(\s*)(?:function\s+{re.escape(name)}\s*(?:\(\s*\))?|{re.escape(name)}\s*\(\s*\))"
        r"\s*(?:[{(#]|$)"
    )
    for start in range(len(lines) - 1, -1, -1):
        found = begins.match(lines[start])
        if found is None:
            continue
        for end in _possible_ends(lines, start, found[1]):
            text = "\n".join(lines[start:end])
            # a heredoc that was cut is a warning only
            parsed = runner.run(["bash", "-n"], timeout_s=_PARSE_S, stdin=f"{text}\n")
            if parsed.ok and not parsed.stderr:
                return text
    raise BadInputError(f"There is no function '{name}' in it.", source=str(script))


def _possible_ends(lines: list[str], start: int, indent: str) -> Iterator[int]:
    """Yield the numbers of lines before which the definition may end, likely ones first."""
    yield start + 1
    closing = re.compile(r"\s*[})]")
    ends = [n + 1 for n in range(start + 1, len(lines)) if closing.match(lines[n])]
    yield from (n for n in ends if lines[n - 1].startswith((f"{indent}}}", f"{indent})")))
    yield from (n for n in ends if not lines[n - 1].startswith((f"{indent}}}", f"{indent})")))
