"""Tasks run within the time limit, in rounds over all variants."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from harness.bench.time_to_gpu.measure import Plan, tasks_of
from harness.bench.time_to_gpu.samples import Measured, Mode, TeardownSample
from harness.bench.time_to_gpu.schedule import Pace, Task, run_tasks
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.bench.time_to_gpu.nodes import Fleet

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


def test_all_tasks_are_done_while_there_is_time() -> None:
    assert run_all(a_task("a"), a_task("b"), a_task("a"), machines=2) == ["a", "b", "a"]


def test_task_longer_than_the_remaining_time_is_not_begun_again() -> None:
    pace = Pace(until=100.0)
    pace.note("build", 60.0)
    pace.note("prebaked", 20.0)

    assert pace.has_time_for("build", 40.0)
    assert not pace.has_time_for("build", 40.1)
    assert pace.has_time_for("prebaked", 80.0)


def test_longest_duration_of_a_kind_counts() -> None:
    pace = Pace(until=100.0)
    pace.note("build", 60.0)
    pace.note("build", 30.0)

    assert not pace.has_time_for("build", 50.0)


def test_new_kind_counts_as_the_mean_of_the_others() -> None:
    pace = Pace(until=100.0)
    assert pace.has_time_for("teardown", 99.0)
    pace.note("build", 60.0)
    pace.note("prebaked", 20.0)

    assert pace.has_time_for("teardown", 60.0)
    assert not pace.has_time_for("teardown", 61.0)


def test_tasks_out_of_time_are_left_out() -> None:
    pace = Pace(until=0.0)

    assert run_all(a_task(), pace=pace) == []


def test_failure_ends_the_run() -> None:
    """The tasks that wait are not begun, and those that run are stopped."""
    stopped, begun = threading.Event(), []

    def fail() -> None:
        raise HarnessError("No GPU.")

    def wait() -> None:
        assert stopped.wait(timeout=60)

    def never() -> None:
        begun.append("never")

    with pytest.raises(HarnessError, match="No GPU"):
        run_all(
            a_task("waits", wait),
            a_task("fails", fail),
            a_task("never", never),
            machines=2,
            stop=stopped.set,
        )

    assert stopped.is_set()


@pytest.fixture
def a_fleet() -> Fleet:
    """Return what tasks are planned with, and use only when they run."""
    return cast("Fleet", object())


def planned(fleet: Fleet, *, judged: bool = True) -> list[str]:
    modes = [Mode.BUILD, Mode.PREBAKED, Mode.FAR]
    plan = Plan(
        scale_ups=2,
        resets=1,
        trims=1,
        teardowns=2,
        is_judged=judged,
        modes=modes,
        reset_modes=modes[:2],
    )
    return [task.title for task in tasks_of(fleet, plan)]


def test_first_round_has_every_variant_once(a_fleet: Fleet) -> None:
    assert planned(a_fleet)[:8] == [
        "teardowns, compared, number 1",
        "fresh node, build-at-boot, and a policy reset, number 1",
        "fresh node, prebaked, and a policy reset, number 1",
        "fresh node, precompiled-far, number 1",
        "trims, all-trims, number 1",
        "trims, without-local-image-check, number 1",
        "trims, without-async-removal, number 1",
        "trims, without-deferred-monitoring, number 1",
    ]


def test_later_rounds_have_more_of_the_wanted_variants(a_fleet: Fleet) -> None:
    assert planned(a_fleet)[8:] == [
        "teardown, fast, number 2",
        "teardown, dkms-remove, number 2",
        "fresh node, build-at-boot, number 2",
        "fresh node, prebaked, number 2",
        "fresh node, precompiled-far, number 2",
    ]


def test_teardowns_that_are_not_judged_are_tasks_of_their_own(a_fleet: Fleet) -> None:
    titles = planned(a_fleet, judged=False)

    assert "teardown, fast, number 1" in titles
    assert "teardowns, compared, number 1" not in titles
