"""The result of checking one requirement of machines on their host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """A requirement, and the found or missing part; `remedy` is set only for an unmet requirement.

    If `is_needed` is false, the host can run machines without the part. `package` is the Debian
    package that has the missing part.
    """

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
    is_needed: bool = True
    package: str | None = None
