"""The campaign *crash*: processes of an operation are killed, and the next run cleans up."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suites.endurance.disturbed import disturbed_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from suites.endurance.campaign import Case
    from suites.endurance.disturbed import Running


@dataclass(frozen=True)
class Crash:
    """Kills the first process of an operation, or another of its processes."""

    is_apart: bool = True
    promise: str = (
        "If the first process of an operation, or any other of its processes, is killed by kill -9, the next "
        "run removes every process, file, mount and socket that is left, and passes."
    )

    def opened(self, folder: Path) -> AbstractContextManager[Mapping[str, Case]]:
        return disturbed_operations(
            folder, lambda _: {"the first process": _kill_first, "any": _kill_any}
        )


def _kill_first(running: Running, _amount: float) -> Callable[[], None]:
    if running.process.poll() is None:
        os.kill(running.process.pid, signal.SIGKILL)
    return lambda: None


def _kill_any(running: Running, amount: float) -> Callable[[], None]:
    pids = running.pids()
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[int(amount * len(pids))], signal.SIGKILL)
    return lambda: None
