"""Reads the traces of bash that `harness.lab.shell_trace` left. This program runs in the machine.

The program uses only the standard library, since the machine gets only the text of this file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys

_ENTRY = re.compile(
    rb"^(\++)\x1e(\d{1,9})\x1f([^\0\x1e\x1f]*)\x1f([1-9]\d{0,8})\x1f([^\0\x1e]*)\x1e", re.MULTILINE
)


def read_traces(folder: str, names: list[str], digests: list[str]) -> dict[str, object]:
    """Return the lines that ran in the scripts with these names or SHA-256 digests, by path.

    A script that no longer exists has no digest. A relative name is looked up in the working
    directory of its first entry, and then in the directory where its process began.
    """
    found: dict[str, tuple[str | None, set[tuple[int, int, int]]]] = {}
    traces = sorted(os.listdir(folder)) if os.path.isdir(folder) else []  # noqa: PTH112, PTH208, TID251
    for trace in traces:
        with open(os.path.join(folder, trace), "rb") as file:  # noqa: PTH118, PTH123, TID251
            entries = _ENTRY.findall(file.read())
        places: dict[bytes, str] = {}
        for level, depth, name, line, directory in entries:
            if name not in places:
                places[name] = _place(name, [directory, entries[0][4]])
            path = places[name]
            if path not in found:
                found[path] = (_digest(path), set())
            found[path][1].add((int(line), int(depth), len(level)))
    return {
        # A lone surrogate, for a byte that is not UTF-8, is not valid in JSON.
        os.fsencode(path).decode(errors="backslashreplace"): {
            "sha256": digest,
            "places": sorted(seen),
        }
        for path, (digest, seen) in found.items()
        if path.rpartition("/")[2] in names or digest in digests
    }


def _place(name: bytes, directories: list[bytes]) -> str:
    candidates = [os.path.join(directory, name) for directory in directories]  # noqa: PTH118, TID251
    there = [path for path in candidates if os.path.isfile(path)]  # noqa: PTH113, TID251
    return os.fsdecode(os.path.realpath((there or candidates)[0]))  # noqa: TID251


def _digest(path: str) -> str | None:
    if not os.path.isfile(path):  # noqa: PTH113, TID251 - opening a FIFO would wait for a writer
        return None
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    json.dump(read_traces(sys.argv[1], wanted["names"], wanted["digests"]), sys.stdout)
