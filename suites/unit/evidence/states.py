"""Builders of node states that tests compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.evidence.state import FileIdentity, NodeState, PathState, StateKind, Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The times at which states are taken, and at which files last changed.
TAKEN_NS = 2_000_000_000_000_000_000
OLD_NS = TAKEN_NS - 3600 * 1_000_000_000


def a_file(**changes: Any) -> PathState:
    """Return a file whose content was not read."""
    state = PathState(
        kind="f",
        mode=0o755,
        uid=0,
        gid=0,
        size=10,
        identity=FileIdentity("disk", 12, OLD_NS, OLD_NS),
    )
    return state._replace(**changes)


def rewritten(state: PathState, **changes: Any) -> PathState:
    """Return the state of a file after a rewrite, with a new inode and new times."""
    return state._replace(identity=FileIdentity("disk", 99, OLD_NS + 5, OLD_NS + 5), **changes)


def a_state(
    paths: Mapping[str, PathState] | None = None,
    items: Mapping[StateKind, Mapping[str, Mapping[str, str]]] | None = None,
    *unknown: Unknown,
    folder: Path | None = None,
) -> NodeState:
    return NodeState(
        node="node",
        taken_at_ns=TAKEN_NS,
        boot_id="boot",
        paths=paths or {},
        items=items or {},
        unknown=unknown,
        folder=folder,
    )
