"""The clock of a guest whose process waits for a busy processor."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from harness.machine.guest_time import GuestClock
from harness.provisioning.command import spawn
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.provisioning.command import ChildProcess

_ENOUGH_S = 2.0


@contextlib.contextmanager
def _busy(processor: int) -> Iterator[ChildProcess]:
    """Keep one processor busy until the block ends."""
    process = spawn(
        [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            *("taskset", "--cpu-list", str(processor)),
            *(sys.executable, "-c", "while True: pass"),
        ]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_guest_clock_excludes_the_time_in_which_the_guest_waits_for_a_cpu() -> None:
    processor = min(os.sched_getaffinity(0))
    with contextlib.ExitStack() as busy:
        process = busy.enter_context(_busy(processor))
        for _ in range(3):
            busy.enter_context(_busy(processor))
        guest = GuestClock(process.pid)
        began, guest_began = SYSTEM_CLOCK.monotonic(), guest.monotonic()

        def look() -> Observation[bool]:
            spent = guest.time()
            return Observation(spent.kept_waiting_s >= _ENOUGH_S or None, f"{spent}")

        wait_for("the process to be kept waiting", look, Deadline.after(60))
        counted_s = guest.monotonic() - guest_began
        passed_s = SYSTEM_CLOCK.monotonic() - began

    assert counted_s <= passed_s - _ENOUGH_S
    assert guest.time().ran_s <= passed_s
