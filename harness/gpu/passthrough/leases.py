"""The leases of the host's GPUs, the queue of waiting processes, and the rule for who is next."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.gpu.passthrough.strict_json import Value
from harness.reservation_folder import ahead_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet


@dataclass(frozen=True, kw_only=True)
class GpuLease:
    """A lease of the GPUs in `taken`; if `taken` is empty, the process still waits for GPUs.

    `wanted` lists, for each wanted GPU, the addresses of the GPUs that fit. `since` is the time, in
    ISO 8601, at which the process entered the queue.
    """

    who: str
    process: int
    user: str
    since: str
    wanted: tuple[tuple[str, ...], ...]
    taken: tuple[str, ...] = ()

    @property
    def is_granted(self) -> bool:
        return bool(self.taken)

    @override
    def __str__(self) -> str:
        return f"'{self.who}' of user {self.user} (process {self.process}, since {self.since})"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GpuLease:
        """Parse a lease; raises ValueError if `text` is not a lease."""
        fields = Value.parse(text)
        return cls(
            who=fields["who"].line(),
            process=fields["process"].process(),
            user=fields["user"].line(),
            since=fields["since"].line(),
            wanted=tuple(each.addresses() for each in fields["wanted"].items()),
            taken=fields["taken"].addresses(),
        )


@dataclass(frozen=True)
class Turn:
    """The result for a waiting process: addresses in the order of `wanted`, or why the process waits."""

    taken: tuple[str, ...] = ()
    text: str = ""


def grant(
    name: str,
    entries: Sequence[tuple[str, GpuLease]],
    usable: AbstractSet[str],
    why_not: Mapping[str, str],
) -> Turn:
    """Return which GPUs the entry `name` gets if the GPUs in `usable` are usable now.

    A process gets all GPUs that it wants or none, so that no two processes wait for each other. The
    first process in the queue reserves all GPUs that it could use. So a process that wants several
    GPUs gets them eventually, even if many processes want one GPU each. A process that wants a
    particular GPU does not delay processes that want other GPUs. `why_not` says why other GPUs are
    not usable.
    """
    mine = next(entry for each, entry in entries if each == name)
    held = {address: entry for _, entry in entries for address in entry.taken}
    ahead = ahead_of(name, entries)
    kept = {address for entry in ahead for wish in entry.wanted for address in wish}
    free = [
        [each for each in wish if each in usable and each not in held and each not in kept]
        for wish in mine.wanted
    ]
    taken = _assigned(free)
    if taken is not None:
        return Turn(taken)
    could_use = {address for wish in mine.wanted for address in wish}
    holders = [f"{address} is held by {held[address]}" for address in sorted(could_use & {*held})]
    before = [f"{entry} asked earlier" for entry in ahead if could_use & {*_wishes(entry)}]
    busy = [
        f"{each}: {why_not.get(each, 'The GPU is in use.')}".rstrip(".")
        for each in sorted(could_use - usable - {*held})
    ]
    return Turn(text="; ".join([*holders, *before[:1], *busy]))


def _wishes(entry: GpuLease) -> list[str]:
    return [address for wish in entry.wanted for address in wish]


def _assigned(wishes: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """Assign a different address to each wish (Kuhn's algorithm); return None if that fails."""
    taker: dict[str, int] = {}

    def place(wish: int, seen: set[str]) -> bool:
        for address in wishes[wish]:
            if address in seen:
                continue
            seen.add(address)
            if address not in taker or place(taker[address], seen):
                taker[address] = wish
                return True
        return False

    if not all(place(wish, set()) for wish in range(len(wishes))):
        return None
    by_wish = {wish: address for address, wish in taker.items()}
    return tuple(by_wish[wish] for wish in range(len(wishes)))
