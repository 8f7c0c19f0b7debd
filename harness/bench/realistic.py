"""The realistic suite: specs and code under test as in a project that provisions nodes.

The text lies beside this module, in `realistic_library.sh` and `realistic_examples.sh`: function
mocks, command mocks, jq, sed, awk and date, retries with sleeps, background jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = 30
#: How often a file repeats the examples, each time with another number in them.
PARTS = 3
EXAMPLES_IN_PART = 10
EXAMPLES = FILES * PARTS * EXAMPLES_IN_PART
_LARGE_LIBRARY_LINES = 2000

_LIBRARY = Path(__file__).with_name("realistic_library.sh")
_EXAMPLES = Path(__file__).with_name("realistic_examples.sh")


@dataclass(frozen=True, kw_only=True)
class ExternalCommand:
    """A program that the suite's own code runs, with arguments typical of it.

    `calls` is the number of calls in one part of a file. In the arguments, `json` and `text` are
    files and `folder` is a folder.
    """

    argv: tuple[str, ...]
    calls: int
    package: str = "coreutils"


#: All programs that the suite runs by itself, whatever runs the suite.
EXTERNAL_COMMANDS = (
    ExternalCommand(argv=("awk", "/^Exec/ { print $1 }", "text"), calls=1, package="mawk"),
    ExternalCommand(argv=("cat", "text"), calls=5),
    ExternalCommand(argv=("cut", "-d=", "-f2", "text"), calls=3),
    ExternalCommand(argv=("date", "-u", "+%Y-%m-%dT%H:%M"), calls=1),
    ExternalCommand(argv=("grep", "^Exec", "text"), calls=3, package="grep"),
    ExternalCommand(argv=("jq", "-r", ".gpus[].model", "json"), calls=5, package="jq"),
    ExternalCommand(argv=("mktemp", "-d", "-p", "folder"), calls=5),
    ExternalCommand(argv=("mv", "-n", "text", "json"), calls=1),
    ExternalCommand(argv=("rm", "-rf", "folder/none"), calls=5),
    ExternalCommand(argv=("sed", "-e", "s/=/ = /", "text"), calls=13, package="sed"),
    ExternalCommand(argv=("tr", "-d", "="), calls=3),
)


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
