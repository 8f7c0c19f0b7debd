"""The limits on what guests, files, servers and shell code may make the harness hold or do.

Each has a name, and an environment variable that sets another value: a person who trusts a source raises
the limit for one run. `docs/reference/limits.md` is generated from this table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from harness.errors import BadInputError, HarnessError

_PREFIX = "HARNESS_LIMIT_"


class Unit(Enum):
    """What a limit counts; each member's value is the word in messages."""

    BYTES = "bytes"
    KIB = "KiB"
    MIB = "MiB"
    ENTRIES = "entries"
    SECONDS = "seconds"
    LEVELS = "levels"
    DIGITS = "digits"

    @property
    def bytes(self) -> int:
        """The bytes in one unit; 1 for what is no size."""
        return {Unit.KIB: 1 << 10, Unit.MIB: 1 << 20}.get(self, 1)


class LimitError(HarnessError):
    """A source has more of something than its limit allows."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """At most `default` units of `what`, or as many as the environment says.

    `name` is in words with hyphens and ends with its unit where that is a size or a time.
    """

    name: str
    default: int
    unit: Unit
    what: str

    @property
    def variable(self) -> str:
        """The environment variable that sets another value, in units."""
        return _PREFIX + self.name.upper().replace("-", "_")

    @property
    def value(self) -> int:
        """The limit in units. Raises BadInputError if the variable holds no positive whole number."""
        written = os.environ.get(self.variable, "").strip()
        if not written:
            return self.default
        if not (written.isascii() and written.isdigit() and len(written) <= 12 and int(written)):
            raise BadInputError(
                f"A whole number of {self.unit.value} of at least 1 was expected, but is {written!r}.",
                source=self.variable,
            )
        return int(written)

    @property
    def bytes(self) -> int:
        """The limit in bytes, of a limit whose unit is a size."""
        return self.value * self.unit.bytes

    def error(self, source: str, *, remedy: str = "") -> LimitError:
        """Return the error for a source that has more; `remedy` is a further sentence."""
        return LimitError(
            f"{source}: {self.what}: more than {self.value} {self.unit.value}, which is the limit "
            f"'{self.name}'.{remedy and ' '}{remedy} If you trust the source, set {self.variable} to a "
            "larger number."
        )

    def check(self, amount: float, source: str) -> None:
        """Raise LimitError if `amount`, in units, is more than the limit."""
        if amount > self.value:
            raise self.error(source)

    def check_bytes(self, amount: int, source: str) -> None:
        """Raise LimitError if `amount`, in bytes, is more than the limit."""
        if amount > self.bytes:
            raise self.error(source)


def all_limits() -> list[Limit]:
    """Return every limit, by name."""
    return sorted(
        (value for value in globals().values() if isinstance(value, Limit)),
        key=lambda limit: limit.name,
    )
