"""What was found of one thing that machines need of their host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """One requirement: what was found, or what is missing; `remedy` only where not `is_met`."""

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
