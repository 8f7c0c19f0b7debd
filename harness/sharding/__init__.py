"""Shards of a test run: which tests each job of a CI engine runs, and the record of these tests."""

from __future__ import annotations

import re
from dataclasses import dataclass

from typing_extensions import Self, override

from harness.errors import BadInputError

#: The most shards of a run. No CI engine starts as many jobs; the limit is needed because some code
#: makes a list of all shards.
MOST_SHARDS = 10_000
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One of the `count` parts of a run; the first part has the number 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count <= MOST_SHARDS:
            raise BadInputError(
                f"{self.number}/{self.count} is not a shard; the first number has to be from 1 to the "
                f"second number, which is at most {MOST_SHARDS}.",
                source="--shard",
            )

    @classmethod
    def parse(cls, word: str) -> Self:
        """Return the shard that `word` names in the form K/N; raises BadInputError for any other form."""
        match = _SHARD.fullmatch(word)
        if match is None:
            raise BadInputError(
                f"'{word}' is not a shard; give K/N, such as 2/5, or 'auto'.", source="--shard"
            )
        return cls(number=int(match[1]), count=int(match[2]))

    @override
    def __str__(self) -> str:
        return f"{self.number}/{self.count}"
