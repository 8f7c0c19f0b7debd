"""The order of kernel versions."""

from __future__ import annotations

import re


def version_key(version: str) -> list[tuple[int, str]]:
    """Order kernel versions as `sort -V` does: runs of digits by value, the rest as text.

    A version is newer than its pre-releases, whose versions have a tilde.
    """
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.findall(r"\d+|\D+", version.replace("~", "\0") + "\1")
    ]
