"""Sorts kernel versions."""

from __future__ import annotations

import re


def version_key(version: str) -> list[tuple[int, str]]:
    """Return a key that sorts kernel versions in the order of `sort -V`.

    Runs of digits are compared by value, and all other characters as text. A version is newer than
    its pre-releases, whose versions contain a tilde.
    """
    return [
        (int(part), "") if part.isdecimal() else (-1, part)
        for part in re.findall(r"\d+|\D+", version.replace("~", "\0") + "\1")
    ]
