"""Writes the realistic suite: specs and code under test as in a project that provisions nodes.

`realistic_library.sh` and `realistic_examples.sh`, beside this module, contain the code under test
and the examples. The examples use function mocks, command mocks, jq, sed, awk and date, retries
with sleeps, and background jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = 30
#: How many times a file repeats the examples, each time with another number in their text.
PARTS = 3
EXAMPLES_IN_PART = 10
EXAMPLES = FILES * PARTS * EXAMPLES_IN_PART
_LARGE_LIBRARY_LINES = 2000

_LIBRARY = Path(__file__).with_name("realistic_library.sh")
_EXAMPLES = Path(__file__).with_name("realistic_examples.sh")


#: All programs that the suite itself runs, under any runner, with their Debian packages.
EXTERNAL_COMMANDS = {
    "awk": "mawk",
    "cat": "coreutils",
    "cut": "coreutils",
    "date": "coreutils",
    "grep": "grep",
    "jq": "jq",
    "mktemp": "coreutils",
    "mv": "coreutils",
    "rm": "coreutils",
    "sed": "sed",
    "tr": "coreutils",
}


def write_suite(folder: Path) -> None:
    """Write the suite as a project into `folder`."""
    (folder / ".shellspec").touch()
    for name, text in _suite_files().items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def _suite_files() -> Mapping[str, str]:
    examples = _EXAMPLES.read_text()
    files = {
        "lib/node.sh": _LIBRARY.read_text(),
        "lib/large.sh": render_library(_LARGE_LIBRARY_LINES),
    }
    for number in range(1, FILES + 1):
        parts = "".join(
            examples.replace("@FILE@", str(number)).replace("@PART@", str(part))
            for part in range(1, PARTS + 1)
        )
        files[f"spec/node{number:02}_spec.sh"] = (
            f"Include lib/large.sh\nInclude lib/node.sh\n\n{parts}"
        )
    return files


def render_library(lines: int) -> str:
    """Return a script of about `lines` lines that only defines functions."""
    lines_each = 10
    return "".join(
        f"library_{number}() {{\n"
        + "".join(f'  local v{line}="$1"\n' for line in range(lines_each - 2))
        + "}\n"
        for number in range(lines // lines_each)
    )
