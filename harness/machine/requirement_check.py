"""The result of checking whether the host meets one requirement of machines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """A requirement, and what was found or is missing. Only an unmet requirement has a `remedy`.

    If `is_needed` is false, the host can run machines even if this requirement is not met.
    `package` is the Debian package that has the missing part.
    """

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
    is_needed: bool = True
    package: str | None = None
