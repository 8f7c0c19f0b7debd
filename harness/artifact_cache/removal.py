"""Describes each folder or file that a cache's garbage collection removed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A removed folder or file, the disk space that it took, and the reason for its removal."""

    path: Path
    size_mib: float
    reason: str
