"""Expectations that compare the state of a whole node with an earlier state."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from harness.errors import ExpectationError, HarnessError
from harness.evidence.state_diff import CHANGES_AT_REST, AllowedChanges, StateDiff

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.state import NodeState

_MOST_LINES = 40


def unchanged(before: NodeState, after: NodeState, *, allow: AllowedChanges | None = None) -> None:
    """Expect a node's state to be the same as before, except for allowed differences.

    The states may be of one node, or of two nodes whose disks began as copies of one image. The
    changes that every idle node makes are always allowed. The error message shows at most forty
    lines of the difference; the evidence contains the whole difference. Raises HarnessError if a
    part of a state is unknown, unless `allow` allows the whole part to differ.
    """
    diff = StateDiff.between(before, after, CHANGES_AT_REST | (allow or AllowedChanges()))
    if diff.unknown:
        parts = "\n".join(
            f"  {each.kind.value} {each.name}: {each.reason}"
            for each in diff.unknown[:_MOST_LINES]
        )
        raise HarnessError(
            f"The states of '{before.node}' and '{after.node}' can't be compared, because these "
            f"parts are unknown:\n{parts}\nMake these parts readable, or let the test allow these parts to differ.",
            evidence=after.folder,
        )
    if diff.changes:
        whole = _write(after.folder, diff)
        first = diff.changes[0]
        more = f" and {len(diff.changes) - 1} others" if len(diff.changes) > 1 else ""
        raise ExpectationError(
            f"Changed: '{first.render()}'{more}. The state of '{after.node}' was expected to "
            f"equal the earlier state of '{before.node}', but {len(diff.changes)} items "
            f"differ{whole}:\n{diff.render(_MOST_LINES)}",
            evidence=after.folder,
        )


def _write(folder: Path | None, diff: StateDiff) -> str:
    """Write the whole difference into the evidence folder; return a remark with the file's name."""
    if folder is None:
        return ""
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        path = folder / f"difference-{number}.txt"
        if not path.exists():
            path.write_text(diff.render() + "\n", errors="surrogateescape")
            return f" ('{path.name}' has them all)"
    return ""
