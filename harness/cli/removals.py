"""What a `gc` removed, for people and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.published.removal import Removal


def print_removals(removals: Iterable[Removal], *, as_json: bool) -> None:
    """Print a line for each, or a list of objects with path, size and reason."""
    if as_json:
        told = [
            {
                "path": str(removal.path),
                "size_mib": round(removal.size_mib, 1),
                "reason": removal.reason,
            }
            for removal in removals
        ]
        print(json.dumps(told, indent=2))
        return
    for removal in removals:
        print(f"Removed '{removal.path}' ({removal.size_mib:.0f} MiB): {removal.reason}")
