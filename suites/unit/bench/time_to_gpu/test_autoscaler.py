"""The simulated autoscaler, against a case worked out by hand."""

from __future__ import annotations

import itertools

import pytest

from harness.bench.time_to_gpu.autoscaler import (
    MOST_ATTEMPTS,
    Job,
    Policy,
    drawn_from,
    random_jobs,
    simulate,
)


def test_hand_checked_case() -> None:
    """Three jobs, of which the second meets a node that is given up.

    At 0 job A requests node 0, ready at 40. At 10 job B requests node 1, which would take 100 and is
    given up at 70; node 2 is requested, ready at 100. A has waited 40 and frees node 0 at 90, which
    takes B after a wait of 80, until 120. Node 2 finds no job, idles from 100 and is removed at 150; node 0
    idles from 120 to 170. At 200 job C requests node 3, ready at 240; it idles from 250 to 300.
    """
    jobs = [
        Job(arrival=0, duration=50),
        Job(arrival=10, duration=30),
        Job(arrival=200, duration=10),
    ]
    starts = iter([40.0, 100.0, 30.0, 40.0])

    found = simulate(
        jobs, lambda: next(starts), Policy(max_node_provision_time=60, unneeded_time=50)
    )

    assert (found.started, found.given_up, found.unserved) == (4, 1, 0)
    assert list(found.waits) == [40, 80, 40]
    assert found.idle_time == 150
    assert found.starting_time == 40 + 60 + 30 + 40


def test_idle_node_takes_the_next_job_and_stays() -> None:
    """Ready at 10, free at 15, idle until 20, busy until 25, idle until its removal at 35."""
    jobs = [Job(arrival=0, duration=5), Job(arrival=20, duration=5)]

    found = simulate(jobs, lambda: 10.0, Policy(max_node_provision_time=10, unneeded_time=10))

    assert found.started == 1
    assert list(found.waits) == [10, 0]
    assert found.idle_time == 5 + 10


def test_job_without_a_node_is_given_up_at_last() -> None:
    found = simulate(
        [Job(arrival=0, duration=5)],
        lambda: 11.0,
        Policy(max_node_provision_time=10, unneeded_time=10),
    )

    assert (found.given_up, found.unserved, found.waits) == (MOST_ATTEMPTS, 1, ())


@pytest.mark.parametrize(("limit", "given_up"), [(5.0, True), (30.0, False)])
def test_limit_above_the_worst_start_gives_no_node_up(limit: float, given_up: bool) -> None:
    jobs = random_jobs(100, mean_gap=10, mean_duration=20, seed=1)

    found = simulate(
        jobs,
        drawn_from([4.0, 20.0, 30.0], seed=2),
        Policy(max_node_provision_time=limit, unneeded_time=15),
    )

    assert (found.given_up > 0) is given_up
    assert len(found.waits) + found.unserved == 100


def test_longer_unneeded_time_idles_more_and_starts_fewer() -> None:
    jobs = random_jobs(200, mean_gap=10, mean_duration=20, seed=1)

    short, long = (
        simulate(jobs, lambda: 8.0, Policy(max_node_provision_time=10, unneeded_time=unneeded))
        for unneeded in (5.0, 50.0)
    )

    assert short.idle_time < long.idle_time
    assert short.started > long.started


def test_random_jobs_are_the_same_each_time() -> None:
    jobs = random_jobs(50, mean_gap=3, mean_duration=2, seed=9)

    assert jobs == random_jobs(50, mean_gap=3, mean_duration=2, seed=9)
    assert all(one.arrival < two.arrival for one, two in itertools.pairwise(jobs))
