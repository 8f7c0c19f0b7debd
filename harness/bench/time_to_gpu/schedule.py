"""Runs the tasks of a benchmark, several at a time, and stops at a time limit."""

from __future__ import annotations

import concurrent.futures
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.bench.time_to_gpu.samples import Measured


@dataclass(frozen=True, kw_only=True)
class Task:
    """A measurement that starts its own machines, one machine at a time."""

    kind: str
    """The kind of measurement; tasks of one kind take about the same time."""
    title: str
    run: Callable[[Callable[[str], None]], Measured]


@dataclass
class Pace:
    """Predicts from the times of earlier tasks which tasks can still end in time."""

    until: float
    """The moment by which all tasks should have ended, by `time.monotonic`."""
    _took_s: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def has_time_for(self, kind: str, now: float) -> bool:
        """Return whether a task of `kind` can end in time; for a new kind, assume the mean of known kinds."""
        with self._lock:
            mean = statistics.fmean(self._took_s.values()) if self._took_s else 0.0
            return now + self._took_s.get(kind, mean) <= self.until

    def note(self, kind: str, took_s: float) -> None:
        """Record how long a task of `kind` took, to estimate later tasks of the same kind."""
        with self._lock:
            self._took_s[kind] = max(took_s, self._took_s.get(kind, 0.0))


def run_tasks(
    tasks: Sequence[Task],
    *,
    machines: int,
    pace: Pace,
    progress: Callable[[str], None],
    stop: Callable[[], None],
) -> list[Measured]:
    """Run tasks in order, `machines` at a time, and leave out tasks that could not end in time.

    After the first failure, call `stop`, which has to end the running tasks, and raise the failure.
    """

    def run(task: Task) -> Measured | None:
        began = time.monotonic()
        if not pace.has_time_for(task.kind, began):
            return None
        progress(task.title)
        measured = task.run(progress)
        pace.note(task.kind, time.monotonic() - began)
        return measured

    with concurrent.futures.ThreadPoolExecutor(machines, thread_name_prefix="node") as pool:
        futures = [pool.submit(run, task) for task in tasks]
        try:
            done = concurrent.futures.wait(
                futures, return_when=concurrent.futures.FIRST_EXCEPTION
            ).done
            for future in done:
                future.result()
        except BaseException:
            # Without this call, the pool would wait for its threads, which may wait minutes for machines.
            for future in futures:
                future.cancel()
            stop()
            raise
        found = [future.result() for future in futures]
    return [each for each in found if each is not None]
