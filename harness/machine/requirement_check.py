"""What was found of one thing that machines need of their host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """One requirement: what was found, or what is missing; `remedy` only where not `is_met`.

    What is not `is_needed` is of use to those who want it; a host without it lacks nothing. `package` is the
    Debian package that has what is missing.
    """

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
    is_needed: bool = True
    package: str | None = None
