"""What the garbage collection of a cache reports about each thing that it removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What was removed, how much disk space it took, and why."""

    path: Path
    size_mib: float
    reason: str
