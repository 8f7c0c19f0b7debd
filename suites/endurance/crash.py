"""The campaign *crash*: processes of an operation are killed, and the next run finds all in order."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suites.endurance.disturbed import Disturber
from suites.endurance.operations import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from suites.endurance.campaign import Attempt, Case
    from suites.endurance.disturbed import Running


@dataclass(frozen=True)
class Crash:
    """Kills the operation's own process, or one of those that it started."""

    is_apart: bool = True
    promise: str = (
        "After kill -9 of the first process of an operation, or of another of its processes, no "
        "process, file, mount or socket stays that the next run does not remove, and that run passes."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        with operations(folder) as found:
            disturber = Disturber(found, watched=[folder.parent])
            yield {
                f"{name}, {whom}": functools.partial(_try, disturber, name, kill)
                for name in found
                for whom, kill in (("the first process", _kill_first), ("any", _kill_any))
            }


def _try(
    disturber: Disturber,
    name: str,
    kill: Callable[[Running, float], None],
    attempt: Attempt,
) -> list[str]:
    def disturb(running: Running) -> Callable[[], None]:
        kill(running, attempt.amount)
        return lambda: None

    return disturber.disturbed(name, attempt.moment, disturb)


def _kill_first(running: Running, _amount: float) -> None:
    if running.process.poll() is None:
        os.kill(running.process.pid, signal.SIGKILL)


def _kill_any(running: Running, amount: float) -> None:
    pids = running.pids()
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[int(amount * len(pids))], signal.SIGKILL)
