"""Describes a folder or file that the garbage collection of a cache removed."""

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
