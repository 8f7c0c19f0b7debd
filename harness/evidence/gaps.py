"""Detects gaps in the evidence of a node, so that 'not found' is not mistaken for 'does not exist'.

A file or path is a gap if it was not requested, if the user on the node had no permission to read
it, or if gathering did not finish.
"""

from __future__ import annotations

import itertools
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.requested import REQUESTED_NAME, is_match, unrequested
from harness.foreign_files import evidence_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.evidence.requested import Kind

UNREADABLE_NAME = "unreadable.txt"
#: The file with the reason why no evidence could be gathered in the guest.
NOT_COLLECTED = "not-collected.txt"


def refuse_gaps(folder: Path, kind: Kind, *patterns: str) -> None:
    """Raise HarnessError if the evidence may lack an existing path that matches one of the patterns."""
    refuse_closed(folder, *patterns)
    for pattern in unrequested(folder, kind, patterns):
        raise HarnessError(
            f"'{pattern}' was not gathered, so the evidence does not show whether the file exists; "
            f"gather the file by `node.evidence(files=[{pattern!r}])`.",
            evidence=folder,
        )


def refuse_closed(folder: Path, *patterns: str) -> None:
    """Raise HarnessError if a path that matches one of the patterns may exist but could not be read."""
    for pattern, closed in itertools.product(patterns, _closed(folder)):
        if _hides(closed, str(PurePosixPath(pattern)).split("/")):
            raise HarnessError(
                f"The user on the node had no permission to read '{closed}', so the evidence does "
                f"not show whether '{pattern}' exists or what it contains. Gather the evidence as root.",
                evidence=folder,
            )


def refuse_any_closed(folder: Path) -> None:
    """Raise HarnessError if any path on the node could not be read."""
    for closed in _closed(folder):
        refuse_closed(folder, f"{closed}/*")


def _closed(folder: Path) -> Sequence[str]:
    """Return the node's paths that could not be read; raises HarnessError if gathering did not finish."""
    kept = folder / UNREADABLE_NAME
    reason = folder / NOT_COLLECTED
    if not reason.is_file():
        if kept.is_file():
            return [each for each in evidence_text(kept, below=folder).split("\n") if each]
        # Earlier versions wrote neither of these files.
        has_guest_part = (folder / "commands").is_dir() or (folder / "files").is_dir()
        if has_guest_part and not (folder / REQUESTED_NAME).is_file():
            return ()
    said = (
        f" The reason is: {evidence_text(reason, below=folder).strip()}"
        if reason.is_file()
        else ""
    )
    raise HarnessError(
        "The evidence of the guest is not complete, so an item that is missing in the evidence may "
        f"still exist in the guest.{said}",
        evidence=folder,
    )


def _hides(closed: str, parts: Sequence[str]) -> bool:
    """Return whether `closed` matches the pattern with these `parts`, or is a folder that may contain a match."""
    depth = closed.rstrip("/").count("/")
    return is_match(closed, "/".join(parts[: depth + 1]) or "/")
