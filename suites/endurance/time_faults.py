"""The campaign *time*: processes stand still for a while."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.provisioning.wait import SYSTEM_CLOCK
from suites.endurance.disturbed import Disturber
from suites.endurance.operations import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from suites.endurance.campaign import Attempt, Case
    from suites.endurance.disturbed import Running

_STOPPED_S = 60.0


@dataclass(frozen=True)
class Time:
    """Stops one of an operation's processes for up to a minute."""

    is_apart: bool = True
    promise: str = (
        "An operation passes although one of its processes stands still for up to a minute."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        with operations(folder) as found:
            disturber = Disturber(found, watched=[folder.parent])
            yield {
                f"{name}, a process stands still": functools.partial(_stop, disturber, name)
                for name in found
            }


def _stop(disturber: Disturber, name: str, attempt: Attempt) -> list[str]:
    def disturb(running: Running) -> Callable[[], None]:
        pids = running.pids()
        if pids:
            pid = pids[int(attempt.amount * len(pids))]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                SYSTEM_CLOCK.sleep(attempt.amount * _STOPPED_S)
                os.kill(pid, signal.SIGCONT)
        return lambda: None

    return disturber.disturbed(name, attempt.moment, disturb, must_pass=True)
