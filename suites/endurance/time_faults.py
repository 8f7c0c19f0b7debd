"""The campaign *time*: processes stand still for a while, the host's clock jumps, the disk is slow."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.provisioning.wait import SYSTEM_CLOCK
from suites.endurance.disturbed import Disturber
from suites.endurance.operations import operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from suites.endurance.campaign import Attempt, Case
    from suites.endurance.disturbed import Running

_STOPPED_S = 60.0
_HOUR_S = 3600


@dataclass(frozen=True)
class Time:
    """Stops an operation's processes for up to a minute, or moves its clock by an hour."""

    is_apart: bool = True
    promise: str = (
        "An operation passes although one of its processes stands still for up to a minute, or the "
        "wall clock jumps by an hour."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        clock = folder / "clock"
        _set(clock, 0)
        faked = {
            "LD_PRELOAD": str(_libfaketime()),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            # Waits are by the monotonic clock, which no clock that is set moves.
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        with operations(folder) as found:
            plain = Disturber(found, watched=[folder.parent])
            jumping = Disturber(found, watched=[folder.parent], environment=faked)
            cases: dict[str, Case] = {}
            for name in found:
                cases[f"{name}, a process stands still"] = functools.partial(_stop, plain, name)
                for word, jump_s in (("forward", _HOUR_S), ("back", -_HOUR_S)):
                    cases[f"{name}, the clock jumps {word}"] = functools.partial(
                        _jump, jumping, name, clock, jump_s
                    )
            yield cases


def _libfaketime() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        raise RequirementError(
            "There is no libfaketime, by which the clock of an operation jumps; install libfaketime."
        )
    return found[0]


def _set(clock: Path, seconds: int) -> None:
    clock.write_text(f"{seconds:+d}\n")


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


def _jump(
    disturber: Disturber, name: str, clock: Path, jump_s: int, attempt: Attempt
) -> list[str]:
    def disturb(_running: Running) -> Callable[[], None]:
        _set(clock, jump_s)
        return lambda: _set(clock, 0)

    return disturber.disturbed(name, attempt.moment, disturb, must_pass=True)
