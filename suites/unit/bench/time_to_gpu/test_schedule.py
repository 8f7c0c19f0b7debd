"""Which tasks run within a time limit, and how a failed task ends the run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from harness.bench.time_to_gpu.samples import Measured, TeardownSample
from harness.bench.time_to_gpu.schedule import Pace, Task, run_tasks
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable

FAR_AWAY = 1e12


def a_task(kind: str = "a", run: Callable[[], None] = lambda: None) -> Task:
    def measure(_progress: Callable[[str], None]) -> Measured:
        run()
        return Measured(teardowns=(TeardownSample(way=kind, duration_s=1.0),))

    return Task(kind=kind, title=kind, run=measure)


def run_all(
    *tasks: Task,
    pace: Pace | None = None,
    machines: int = 1,
    stop: Callable[[], None] = lambda: None,
) -> list[str]:
    """Return the kinds of the tasks that were done."""
    found = run_tasks(
        tasks,
        machines=machines,
        pace=pace or Pace(until=FAR_AWAY),
        progress=lambda _sentence: None,
        stop=stop,
    )
    return [sample.way for each in found for sample in each.teardowns]


def test_all_tasks_are_done_if_the_time_limit_allows() -> None:
    assert run_all(a_task("a"), a_task("b"), a_task("a"), machines=2) == ["a", "b", "a"]


def test_task_starts_only_if_the_longest_earlier_task_of_its_kind_fits_in_the_time() -> None:
    """A task of a new kind is estimated by the mean of the other kinds."""
    pace = Pace(until=100.0)
    assert pace.has_time_for("teardown", 99.0)
    for kind, took_s in (("build", 60.0), ("build", 30.0), ("prebaked", 20.0)):
        pace.note(kind, took_s)

    for kind, latest in (("build", 40.0), ("prebaked", 80.0), ("teardown", 60.0)):
        assert pace.has_time_for(kind, latest), kind
        assert not pace.has_time_for(kind, latest + 0.1), kind


def test_tasks_that_would_exceed_the_time_limit_are_left_out() -> None:
    pace = Pace(until=0.0)

    assert run_all(a_task(), pace=pace) == []


def test_failed_task_ends_the_benchmark_run() -> None:
    """Waiting tasks are not started, and running tasks are stopped."""
    stopped, begun = threading.Event(), []

    def fail() -> None:
        raise HarnessError("No GPU.")

    def wait() -> None:
        assert stopped.wait(timeout=60)

    def wait_in_line() -> None:
        begun.append("one")
        wait()

    with pytest.raises(HarnessError, match="No GPU"):
        run_all(
            a_task("waits", wait),
            a_task("fails", fail),
            *[a_task("in line", wait_in_line)] * 9,
            machines=2,
            stop=stopped.set,
        )

    assert stopped.is_set()
    # The next node may begin before the failure is known.
    assert len(begun) <= 1
