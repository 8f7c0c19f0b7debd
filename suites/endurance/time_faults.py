"""The campaign *time*: processes stand still for a while."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.provisioning.wait import SYSTEM_CLOCK
from suites.endurance.disturbed import disturbed_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from suites.endurance.campaign import Case
    from suites.endurance.disturbed import Running

_STOPPED_S = 60.0


@dataclass(frozen=True)
class Time:
    """Stops one of an operation's processes for up to a minute."""

    is_apart: bool = True
    promise: str = (
        "An operation passes although one of its processes stands still for up to a minute."
    )

    def opened(self, folder: Path) -> AbstractContextManager[Mapping[str, Case]]:
        return disturbed_operations(
            folder, lambda _: {"a process stands still": _stop}, must_pass=True
        )


def _stop(running: Running, amount: float) -> Callable[[], None]:
    pids = running.pids()
    if pids:
        pid = pids[int(amount * len(pids))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            SYSTEM_CLOCK.sleep(amount * _STOPPED_S)
            os.kill(pid, signal.SIGCONT)
    return lambda: None
