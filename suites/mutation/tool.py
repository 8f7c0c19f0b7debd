"""Runs mutmut."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def run_tool(repository: Path) -> int:
    """Run."""
    raise NotImplementedError(repository)
