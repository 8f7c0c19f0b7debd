"""Expectations on the requests that a test's container registry received."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from harness.registry import RegistryLog


def no_request(log: RegistryLog) -> None:
    """Expect no connection to the registry, not even a connection without a request."""
    if log.connections:
        raise ExpectationError(
            f"No connection to the registry was expected, but there were {log.connections}:\n"
            f"{log.render()}"
        )


def pulls_tried(log: RegistryLog, times: int) -> None:
    """Expect clients to have tried to pull exactly `times` times, with or without success."""
    if len(log.pulls) != times:
        raise ExpectationError(
            f"{times} tries to pull were expected, but there were {len(log.pulls)}:\n{log.render()}"
        )


def pulls_paused(log: RegistryLog, at_least_s: float) -> None:
    """Expect a pause of at least this length between any two consecutive tries to pull.

    Raises ExpectationError if a pause is shorter, or if there are fewer than two tries.
    """
    pauses = [later.started_s - earlier.ended_s for earlier, later in pairwise(log.pulls)]
    if not pauses or min(pauses) < at_least_s:
        seen = ", ".join(f"{pause:.1f} s" for pause in pauses) or "no two tries"
        raise ExpectationError(
            f"At least {at_least_s:g} s were expected between tries to pull, but there were {seen}:\n"
            f"{log.render()}"
        )


def pull_answered(log: RegistryLog, number: int, *, status: int) -> None:
    """Expect every response in pull `number` to have this status; the first pull has number 1."""
    # There is no pull 0: for that number, the set is empty.
    seen = {each.status for pull in log.pulls[number - 1 : number] for each in pull.requests}
    if seen != {status}:
        raise ExpectationError(
            f"Pull {number} was expected to get only status {status}, but got {sorted(map(str, seen)) or 'nothing'}:\n"
            f"{log.render()}"
        )
