"""What was looked for on a node: the file `requested.json` of an evidence folder.

Without it a file that nobody gathered could not be told from one that does not exist.
"""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.provisioning.command import Argv

_NAME = "requested.json"
SCHEMA = 1


def write_request(
    folder: Path, *, commands: Mapping[str, Argv], files: Sequence[str], paths: Sequence[str]
) -> None:
    """Write down in an evidence folder what is looked for."""
    document = {
        "schema": SCHEMA,
        "commands": {name: list(argv) for name, argv in commands.items()},
        "files": list(files),
        "paths": list(paths),
    }
    (folder / _NAME).write_text(json.dumps(document, indent=2) + "\n")


def was_file_requested(folder: Path, path: str) -> bool:
    """Return whether the file `path` of the guest was looked for.

    Evidence that earlier versions gathered does not say, and counts as complete. Raises HarnessError
    where the file has another form.
    """
    file = folder / _NAME
    if not file.is_file():
        return True
    try:
        document = json.loads(file.read_text())
        patterns = [str(pattern) for pattern in document["files"]]
        schema = document["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise HarnessError(f"'{file}' has an unknown form ({error!r}).") from error
    if schema != SCHEMA:
        raise HarnessError(
            f"'{file}' has the schema {schema!r}, but this version of the harness reads {SCHEMA}; "
            "read it with the version that gathered it, or a newer one."
        )
    return any(_expression(pattern).fullmatch(path) for pattern in patterns)


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Return a pattern of a POSIX shell with `*` and `?` as a regular expression."""
    parts: list[str] = []
    for part in re.split(r"([*?])", pattern):
        wildcard = {"*": "[^/]*", "?": "[^/]"}.get(part)
        # At the start of a name it matches no dot.
        is_first = bool(parts) and parts[-1].endswith("/")
        parts.append(re.escape(part) if wildcard is None else f"{'(?![.])' * is_first}{wildcard}")
    return re.compile("".join(parts))
