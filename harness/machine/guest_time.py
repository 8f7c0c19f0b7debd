"""Measures how long the host lets a machine run. Deadlines count only this time.

For each thread, the kernel counts how long the thread ran, and how long it was runnable but waited
for a processor. Both times are fields of `/proc/PID/task/TID/schedstat`, in nanoseconds
(`sched-stats.rst` of the kernel's documentation). While the host keeps QEMU waiting, QEMU's guest
makes no progress, so deadlines do not count the waiting time. Deadlines do not count the time of a
suspended host either, since the monotonic clock then stops.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.provisioning.wait import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    import datetime as dt

    from harness.provisioning.wait import Clock

#: The longest total time to which progress can extend a deadline, as a multiple of the deadline's
#: original limit.
MOST_TIMES = 3
#: The guest itself ends a command after this multiple of the command's limit. The host normally ends
#: the command earlier, but only the host knows for how long it kept the guest waiting. If a guest
#: gets a twentieth of a processor, the guest's own clock counts twenty times too much.
GUEST_LIMIT_TIMES = 30
#: Each sign of progress extends a deadline by this fraction of the deadline's limit.
_PATIENCE = 0.5
_NS = 1e9


@dataclass(frozen=True)
class GuestTime:
    """The time that the host gave a machine since its start, in seconds.

    `ran_s` is the processor time of all threads of the machine's QEMU. `kept_waiting_s` is the time
    that deadlines do not count: for each interval between two measurements, the wait of the thread
    that waited longest.
    """

    ran_s: float = 0.0
    kept_waiting_s: float = 0.0


class GuestClock:
    """The clock for waits on a machine, which stops while the host keeps the machine waiting.

    If the kernel does not report how long threads wait for a processor, for example without
    CONFIG_SCHED_INFO, this clock equals the host's clock.
    """

    def __init__(
        self, pid: int, clock: Clock = SYSTEM_CLOCK, *, processes: Path = Path("/proc")
    ) -> None:
        self._tasks = processes / str(pid) / "task"
        self._clock = clock
        self._lock = threading.Lock()
        self._waits = self._read()[1]
        self._began = self._last = self._progressed = clock.monotonic()
        self._kept_waiting_s = 0.0

    def monotonic(self) -> float:
        """Return this clock's time in seconds. The time never decreases."""
        with self._lock:
            return self._look()

    def now(self) -> dt.datetime:
        return self._clock.now()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def hear(self, printed: bytes) -> None:
        """Record output of the guest's console: each line is progress.

        Any thread may call this method.
        """
        if b"\n" in printed:
            with self._lock:
                self._progressed = self._look()

    @property
    def last_progress(self) -> float:
        """Return this clock's time of the last progress, or else of the clock's start."""
        return self._progressed

    def time(self) -> GuestTime:
        """Return the time that the host gave the machine so far."""
        with self._lock:
            self._look()
            return GuestTime(self._read()[0], self._kept_waiting_s)

    def busy_host(self) -> str:
        """Return a clause that says how long the host's other work kept the machine waiting.

        Return "" if the machine was kept waiting for less than half of the time.
        """
        with self._lock:
            self._look()
            lived_s = self._clock.monotonic() - self._began
            if lived_s <= 0 or self._kept_waiting_s * 2 < lived_s:
                return ""
            return (
                f"the host's other work kept the machine waiting for {self._kept_waiting_s:.0f} of "
                f"{lived_s:.0f} s; the guest's own time limits include this waiting time"
            )

    def stretch(self) -> float:
        """Return how many seconds passed on the host for each second of this clock.

        The result is at least 1 and at most GUEST_LIMIT_TIMES.
        """
        with self._lock:
            self._look()
            lived_s = self._clock.monotonic() - self._began
            if lived_s <= 0:
                return 1.0
            # Waits of several threads may add up to the whole time. The lower limit prevents a
            # division by zero.
            return lived_s / max(lived_s - self._kept_waiting_s, lived_s / GUEST_LIMIT_TIMES)

    def _look(self) -> float:
        now = self._clock.monotonic()
        waits = self._read()[1]
        waited = max((waits[tid] - self._waits.get(tid, 0.0) for tid in waits), default=0.0)
        # The kernel adds a thread's wait when the wait ends, so the wait may exceed the time since
        # the last call.
        kept_waiting_s = self._kept_waiting_s + max(waited, 0.0)
        self._kept_waiting_s = min(kept_waiting_s, now - self._began)
        self._waits = waits
        self._last = max(self._last, now - self._kept_waiting_s)
        return self._last

    def _read(self) -> tuple[float, dict[str, float]]:
        """Return the seconds that all threads ran, and the seconds that each thread was kept waiting."""
        ran_s, waits = 0.0, {}
        threads: list[Path] = []
        # The process, or one of its threads, may end at any time.
        with contextlib.suppress(OSError):
            threads = [*self._tasks.iterdir()]
        for thread in threads:
            with contextlib.suppress(OSError, ValueError):
                ran, waited, *_ = (thread / "schedstat").read_text().split()
                ran_s += int(ran) / _NS
                waits[thread.name] = int(waited) / _NS
        return ran_s, waits


def deadline_of_maker(seconds: float) -> Deadline:
    """Return the deadline of a wait for another process that makes an artifact on a machine.

    `seconds` is the expected time. The other process has its own limits, in its guest's time. The
    other process normally reaches its limits before this deadline.
    """
    return Deadline.after(seconds * MOST_TIMES)


@dataclass(frozen=True)
class GuestDeadline(Deadline):
    """A deadline in the time of a guest's clock.

    Each sign of progress moves the deadline to `patience_s` after that sign, but never beyond
    `latest`.
    """

    guest: GuestClock | None = None
    began: GuestTime = GuestTime()
    patience_s: float = 0.0
    latest: float = 0.0

    @classmethod
    def of(
        cls, guest: GuestClock, seconds: float, *, follows_progress: bool = False
    ) -> GuestDeadline:
        """Return a deadline that passes after `seconds` of guest time.

        With `follows_progress`, each sign of progress extends the deadline by half of `seconds`, up
        to three times `seconds` in total.
        """
        now = guest.monotonic()
        return cls(
            now + seconds,
            guest,
            guest=guest,
            began=guest.time(),
            patience_s=seconds * _PATIENCE if follows_progress else 0.0,
            latest=now + seconds * (MOST_TIMES if follows_progress else 1),
        )

    @override
    def remaining_s(self) -> float:
        at = self.at
        if self.guest is not None and self.patience_s:
            at = min(self.latest, max(at, self.guest.last_progress + self.patience_s))
        return max(0.0, at - self.clock.monotonic())

    @override
    def account(self) -> str:
        if self.guest is None:
            return ""
        spent = self.guest.time()
        ran = spent.ran_s - self.began.ran_s
        kept_waiting = spent.kept_waiting_s - self.began.kept_waiting_s
        return (
            f" Meanwhile, the machine's QEMU ran for {ran:.0f} s. The host's other work kept QEMU "
            f"waiting for {kept_waiting:.0f} s, which the time limit does not count."
        )
