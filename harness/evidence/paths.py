"""The paths that were found on a node; a path that could not be seen is not treated as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.evidence.gaps import refuse_any_closed, refuse_gaps
from harness.evidence.node_state import PathStat
from harness.evidence.requested import is_match

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class GatheredPaths(Mapping[str, PathStat]):
    """All paths that were found, by name.

    Looking up a path that was not found raises HarnessError if the path was not requested, or if a
    folder above it could not be read. Iterating raises HarnessError if any path could not be read.
    """

    def __init__(self, found: Mapping[str, PathStat], folder: Path) -> None:
        self._found = found
        self._folder = folder

    @override
    def __getitem__(self, path: str) -> PathStat:
        if path not in self._found:
            refuse_gaps(self._folder, "paths", path)
        return self._found[path]

    @override
    def __iter__(self) -> Iterator[str]:
        refuse_any_closed(self._folder)
        return iter(self._found)

    @override
    def __len__(self) -> int:
        refuse_any_closed(self._folder)
        return len(self._found)

    def seen(self, *patterns: str) -> Mapping[str, PathStat]:
        """Return the found paths that match a pattern (`*`, `?`); do not check whether any are missing."""
        return {
            path: state
            for path, state in self._found.items()
            if any(is_match(path, pattern) for pattern in patterns)
        }

    def matching(self, *patterns: str) -> Mapping[str, PathStat]:
        """Return all paths that match a pattern (`*`, `?`).

        Raises HarnessError if a matching path may exist but could not be seen.
        """
        refuse_gaps(self._folder, "paths", *patterns)
        return self.seen(*patterns)
