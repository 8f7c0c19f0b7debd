"""Whether a guest has come to rest, judged by the processor time that its VM takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.wait import Deadline

#: A guest that takes no more of a core than this, over so many looks in a row, rests. udev's
#: workers end after three idle seconds; each clone would have to see them off.
_IDLE_SHARE = 0.05
_IDLE_LOOK_S = 1.0
_IDLE_LOOKS = 5


def wait_until_idle(name: str, processor_s: Callable[[], float], deadline: Deadline) -> None:
    """Wait until machine `name`, whose VM has taken `processor_s` in all, has nothing to do.

    Raises HarnessError where it never rests.
    """
    # The first look has nothing to compare with.
    before, rests = -math.inf, 0

    def look() -> Observation[bool]:
        nonlocal before, rests
        now = processor_s()
        share, before = (now - before) / _IDLE_LOOK_S, now
        rests = rests + 1 if share <= _IDLE_SHARE else 0
        return Observation(True if rests >= _IDLE_LOOKS else None, f"{share:.0%} of a core in use")

    try:
        wait_for(f"machine '{name}' to come to rest", look, deadline, interval_s=_IDLE_LOOK_S)
    except WaitTimeoutError as error:
        raise HarnessError(
            f"{error} A checkpoint is taken of a guest that rests; end what keeps it busy."
        ) from error
