"""A campaign: its cases, the order in which a seed tries them, and the summary of a run."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.provisioning.wait import Clock


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try of a case. `moment` and `amount` are random numbers from 0 to 1 for the case to use."""

    number: int
    case: str
    moment: float
    amount: float


#: Tries a case, and returns a sentence on each promise that was broken.
Case: TypeAlias = "Callable[[Attempt], list[str]]"


class Campaign(Protocol):
    """A campaign. `opened` prepares a folder, yields the cases by name, and cleans up at its end."""

    @property
    def is_apart(self) -> bool:
        """Whether the campaign runs in separate namespaces, without a network."""
        ...

    @property
    def promise(self) -> str:
        """The promise that each try checks, as a sentence."""
        ...

    def opened(self, folder: Path) -> AbstractContextManager[Mapping[str, Case]]: ...


def order(seed: int, cases: Sequence[str]) -> Iterator[Attempt]:
    """Yield the attempts of a seed: rounds over all cases, each round in a new order."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    numbers = itertools.count(1)
    while True:
        for case in rng.sample(sorted(cases), len(cases)):
            yield Attempt(
                number=next(numbers), case=case, moment=rng.random(), amount=rng.random()
            )


@dataclass(frozen=True, kw_only=True)
class Found:
    """A broken promise, and the attempt that found it."""

    attempt: Attempt
    what: str


@dataclass(kw_only=True)
class Summary:
    """The tries of a run of one campaign, and the broken promises that it found."""

    campaign: str
    seed: int
    minutes: float
    tries: dict[str, int] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    def render(self) -> str:
        """Return the summary for people."""
        title = (
            f"{self.campaign}: seed {self.seed}, {self.minutes:.1f} minutes, "
            f"{sum(self.tries.values())} tries, {len(self.found)} broken promises"
        )
        lines = [title]
        lines += [f"  {count:5} {case}" for case, count in sorted(self.tries.items())]
        lines += [f"  try {each.attempt.number}: {each.what}" for each in self.found]
        return "\n".join(lines)


def run(
    name: str,
    cases: Mapping[str, Case],
    *,
    seed: int,
    minutes: float,
    clock: Clock,
    report: Callable[[str], None],
    summaries: Path,
) -> Summary:
    """Try the cases until the time is over; a try that has begun is finished.

    The summary is written after each try, since a run of many hours may be killed.
    """
    summary = Summary(
        campaign=name, seed=seed, minutes=minutes, tries=dict.fromkeys(sorted(cases), 0)
    )
    began = clock.monotonic()

    def keep_now() -> Path:
        summary.minutes = round((clock.monotonic() - began) / 60, 1)
        return keep(summary, summaries)

    try:
        for attempt in order(seed, list(cases)):
            if clock.monotonic() - began >= minutes * 60 and attempt.number > 1:
                break
            report(f"{name}: try {attempt.number}, {attempt.case}")
            broken = cases[attempt.case](attempt)
            summary.tries[attempt.case] += 1
            for what in broken:
                report(f"{name}: try {attempt.number} BROKE A PROMISE: {what}")
                summary.found.append(Found(attempt=attempt, what=what))
            keep_now()
    finally:
        report(f"summary: {keep_now()}")
    return summary


def keep(summary: Summary, folder: Path) -> Path:
    """Write the summary into the folder, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{summary.campaign}-{summary.seed}.json"
    file.write_text(summary.to_json())
    return file
