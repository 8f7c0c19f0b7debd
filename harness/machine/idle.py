"""Waits until a guest is idle, judged by the processor time that its VM uses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.wait import Deadline

#: A guest that uses no more of a core than this in so many measurements in a row is idle. udev's
#: workers end after three idle seconds; otherwise they would end in each clone.
_IDLE_SHARE = 0.05
_INTERVAL_S = 1.0
_IDLE_MEASUREMENTS = 5


def wait_until_idle(name: str, processor_s: Callable[[], float], deadline: Deadline) -> None:
    """Wait until machine `name` is idle; `processor_s` returns what its VM has used so far.

    Raises HarnessError where it never is.
    """
    # The first measurement has nothing to compare with.
    before, idle = -math.inf, 0

    def poll() -> Observation[bool]:
        nonlocal before, idle
        now = processor_s()
        share, before = (now - before) / _INTERVAL_S, now
        idle = idle + 1 if share <= _IDLE_SHARE else 0
        return Observation(
            True if idle >= _IDLE_MEASUREMENTS else None, f"{share:.0%} of a core in use"
        )

    try:
        wait_for(f"machine '{name}' to become idle", poll, deadline, interval_s=_INTERVAL_S)
    except WaitTimeoutError as error:
        raise HarnessError(
            f"{error} A checkpoint is taken of an idle guest; end what keeps it busy."
        ) from error
