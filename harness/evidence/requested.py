"""The record `requested.json` of the files, paths and commands that were requested from a node.

Without this record, a file that was not requested would look like a file that does not exist.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.foreign_files import read_plain
from harness.foreign_json import parse_json
from harness.limits import JSON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    from harness.provisioning.command import Argv

    Kind = Literal["files", "paths"]

REQUESTED_NAME = "requested.json"
SCHEMA = 1


def write_request(
    folder: Path, *, commands: Mapping[str, Argv], files: Sequence[str], paths: Sequence[str]
) -> None:
    """Record in an evidence folder what is requested from the node."""
    document = {
        "schema": SCHEMA,
        "commands": {name: list(argv) for name, argv in commands.items()},
        "files": list(files),
        "paths": list(paths),
    }
    (folder / REQUESTED_NAME).write_text(json.dumps(document, indent=2) + "\n")


def unrequested(folder: Path, kind: Kind, wanted: Sequence[str]) -> list[str]:
    """Return the patterns (`*`, `?`) in `wanted` that may match paths that were not requested.

    `kind` selects the texts of files, or the paths and their attributes. Evidence from earlier
    versions of the harness has no `requested.json`, and is treated as complete. Raises HarnessError
    if `requested.json` has an unknown form.
    """
    file = folder / REQUESTED_NAME
    if not file.is_file():
        return []
    try:
        document = parse_json(read_plain(file, limit=JSON))
        patterns = [str(each) for each in document[kind]]
        schema = document["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HarnessError(f"'{file}' has an unknown format ({error!r}).") from error
    if schema != SCHEMA:
        raise HarnessError(
            f"'{file}' has the schema {schema!r}, but this version of the harness reads {SCHEMA}; "
            "read the evidence with the version that gathered it, or with a newer version."
        )
    # A sample has two characters for each '*'. So a requested '?', which stands for one character,
    # does not match a '*'.
    samples = {pattern: pattern.replace("*", "**") for pattern in wanted}
    return [
        pattern
        for pattern, sample in samples.items()
        if not any(is_match(sample, each) for each in patterns)
    ]


def is_match(path: str, pattern: str) -> bool:
    """Return whether a path matches a pattern of a POSIX shell with `*` and `?`."""
    names, patterns = path.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(_is_name_match, names, patterns))


def _is_name_match(name: str, pattern: str) -> bool:
    # A wildcard at the start of a name does not match a dot.
    is_hidden = name.startswith(".") and pattern.startswith(("*", "?"))
    return not is_hidden and _expression(pattern).match(name) is not None


@functools.cache
def _expression(pattern: str) -> re.Pattern[str]:
    # `fnmatch.translate` avoids the exponential time that `.*` for each of many '*' would need.
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
