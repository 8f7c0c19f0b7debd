"""The report of the garbage collection of a cache about each thing that it removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A removed thing, the disk space that it took, and the reason."""

    path: Path
    size_mib: float
    reason: str
