"""Sorts kernel versions."""

from __future__ import annotations

import re


def version_key(version: str) -> list[tuple[int, str]]:
    """Return a key that sorts kernel versions in the order of `sort -V`.

    Runs of digits are compared by value, and all other characters as text, letters first. A version
    is newer than its pre-releases, whose versions contain a tilde, or `rc` for Ubuntu's mainline kernels.
    """
    return [
        (int(part), "")
        if part.isdecimal()
        else (-1, re.sub(r"[^A-Za-z\0\1]", "\U0010ffff\\g<0>", part))
        for part in re.findall(r"\d+|\D+", version.replace("~", "\0") + "\1")
    ]
