"""The result of checking one requirement of machines on their host."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RequirementCheck:
    """A requirement, with the found or the missing part; `remedy` is set only if it is not `is_met`.

    A requirement that is not `is_needed` is optional: the host can run machines without it.
    `package` is the Debian package that has the missing part.
    """

    requirement: str
    is_met: bool
    found: str
    remedy: str | None = None
    is_needed: bool = True
    package: str | None = None
