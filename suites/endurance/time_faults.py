"""The campaign *time*: processes are stopped, the clock jumps, and writes to the disk are slow."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.wait import SYSTEM_CLOCK
from suites.endurance.disturbed import disturbed_operations
from suites.endurance.surroundings import run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from suites.endurance.campaign import Case
    from suites.endurance.disturbed import Disturbing, Running

_LIBRARY = Path(__file__).with_name("disturbing_libc.c")
_STOPPED_S = 60.0
_JUMP_S = 3600
#: The longest duration of a write to a file, and of a wait for the disk, in microseconds.
_WRITE_US, _SYNC_US = 50_000, 5_000_000


@dataclass(frozen=True, kw_only=True)
class DisturbedLibc:
    """The shared library of `disturbing_libc.c`, and the file of disturbances that it maps.

    Files still get their times from the kernel, so a file that is written after a jump looks up to
    an hour older or younger than it is.
    """

    library: Path
    state: Path

    @classmethod
    def build(cls, folder: Path) -> DisturbedLibc:
        """Compile the library into `folder`, without a disturbance.

        Raises HarnessError if there is no C compiler.
        """
        libc = cls(library=folder / "disturbing_libc.so", state=folder / "disturbances")
        run_checked("cc", "-O2", "-shared", "-fPIC", "-o", str(libc.library), str(_LIBRARY))
        libc.disturb()
        return libc

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(self.library), "DISTURBANCES": str(self.state)}

    def disturb(self, *, ahead_s: int = 0, write_us: int = 0, sync_us: int = 0) -> None:
        """Set the disturbance of all programs that have loaded the library; it begins at once."""
        # The file is changed in place, since programs have it mapped.
        with self.state.open("r+b" if self.state.exists() else "wb") as state:
            state.write(struct.pack("=3q", ahead_s, write_us, sync_us))

    def jump(self, sign: int, _running: Running, amount: float) -> Callable[[], None]:
        """Move the clock by up to an hour."""
        self.disturb(ahead_s=sign * max(1, int(amount * _JUMP_S)))
        return self.disturb

    def slow_disk(self, _running: Running, amount: float) -> Callable[[], None]:
        self.disturb(write_us=int(amount * _WRITE_US), sync_us=int(amount * _SYNC_US))
        return self.disturb


@dataclass(frozen=True)
class Time:
    """Stops a process of an operation for a time, moves the operation's clock, or slows its writes."""

    is_apart: bool = True
    promise: str = (
        "An operation passes even if one of its processes is stopped for up to a minute, the clock "
        "jumps by up to an hour, or each wait for the disk takes up to five seconds."
    )

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        # The library is outside of the watched folder.
        libc = DisturbedLibc.build(Path("/run/lock"))
        ways: Mapping[str, Disturbing] = {
            "a process stands still": _stop,
            "the clock jumps ahead": functools.partial(libc.jump, 1),
            "the clock jumps back": functools.partial(libc.jump, -1),
            "a slow disk": libc.slow_disk,
        }
        with disturbed_operations(
            folder, lambda _: ways, must_pass=True, environment=libc.environment
        ) as cases:
            yield cases


def _stop(running: Running, amount: float) -> Callable[[], None]:
    pids = running.pids()
    if pids:
        pid = pids[int(amount * len(pids))]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            SYSTEM_CLOCK.sleep(amount * _STOPPED_S)
            os.kill(pid, signal.SIGCONT)
    return lambda: None
