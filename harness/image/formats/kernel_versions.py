"""Sorts kernel versions."""

from __future__ import annotations

import re


def version_key(version: str) -> list[tuple[int, str]]:
    """Return a sort key for kernel versions; the order is that of `sort -V`.

    Runs of digits are compared by value, the rest as text. A version is newer than its
    pre-releases, whose versions have a tilde.
    """
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.findall(r"\d+|\D+", version.replace("~", "\0") + "\1")
    ]
