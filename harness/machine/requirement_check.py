"""The result of checking one requirement of machines on their host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """One requirement: the found part, or the missing part; `remedy` is set only if it is not `is_met`.

    A requirement that is not `is_needed` helps those who want it; a host without it lacks nothing.
    `package` is the Debian package that has the missing part.
    """

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
    is_needed: bool = True
    package: str | None = None
