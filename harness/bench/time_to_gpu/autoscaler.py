"""A simulated autoscaler: jobs that need a GPU node each, and nodes that take their time; pure.

All times are in one unit, whichever the caller uses.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: After as many nodes that were given up in a row, the autoscaler starts no more for a job.
MOST_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work that occupies one node."""

    arrival: float
    duration: float


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The settings of the autoscaler, by the words of Kubernetes' cluster autoscaler."""

    max_node_provision_time: float
    """A node that has no GPU by then is given up, and another one started."""
    unneeded_time: float
    """A node that has been idle for so long is removed."""


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What became of the jobs and nodes."""

    started: int
    given_up: int
    idle_time: float
    """The sum over nodes of the time in which a ready node had no job."""
    starting_time: float
    """The sum over nodes of the time from their request until ready, or given up."""
    waits: tuple[float, ...]
    """For each served job, in the order of service, the time from its arrival to its start."""
    unserved: int
    """Jobs for which MOST_ATTEMPTS nodes in a row were given up."""


class _Kind(enum.IntEnum):
    """What happens; at the same moment in this order."""

    FREE = 0
    READY = 1
    GIVEN_UP = 2
    ARRIVAL = 3
    REMOVAL = 4


@dataclass
class _Run:
    node_start: Callable[[], float]
    policy: Policy
    events: list[tuple[float, int, int, int]] = field(default_factory=list)
    order: Iterator[int] = field(default_factory=itertools.count)
    waiting: deque[Job] = field(default_factory=deque)
    idle: dict[int, float] = field(default_factory=dict)
    """Since when each idle node is; the one that became idle last is last."""
    starting: int = 0
    started: int = 0
    given_up: int = 0
    failures: int = 0
    idle_time: float = 0.0
    starting_time: float = 0.0
    unserved: int = 0
    waits: list[float] = field(default_factory=list)

    def plan(self, at: float, kind: _Kind, subject: int) -> None:
        heapq.heappush(self.events, (at, kind, next(self.order), subject))

    def start_node(self, now: float) -> None:
        needed, limit = self.node_start(), self.policy.max_node_provision_time
        node = self.started
        self.started += 1
        self.starting += 1
        self.starting_time += min(needed, limit)
        if needed <= limit:
            self.plan(now + needed, _Kind.READY, node)
        else:
            self.plan(now + limit, _Kind.GIVEN_UP, node)

    def offer(self, node: int, now: float) -> None:
        """Give a node its next job, or let it idle."""
        if self.waiting:
            job = self.waiting.popleft()
            self.waits.append(now - job.arrival)
            self.plan(now + job.duration, _Kind.FREE, node)
        else:
            self.idle[node] = now
            self.plan(now + self.policy.unneeded_time, _Kind.REMOVAL, node)

    def arrive(self, job: Job) -> None:
        self.waiting.append(job)
        if self.idle:
            # The one used last: the others come nearer to their removal.
            node, since = self.idle.popitem()
            self.idle_time += job.arrival - since
            self.offer(node, job.arrival)
        elif self.starting < len(self.waiting):
            self.start_node(job.arrival)

    def give_up(self, now: float) -> None:
        self.starting -= 1
        self.given_up += 1
        self.failures += 1
        if self.starting >= len(self.waiting):
            return
        if self.failures >= MOST_ATTEMPTS:
            self.failures = 0
            self.waiting.popleft()
            self.unserved += 1
            if self.starting >= len(self.waiting):
                return
        self.start_node(now)

    def remove(self, node: int, now: float) -> None:
        """Remove a node if it has been idle since its removal was planned."""
        since = self.idle.get(node)
        if since is not None and since + self.policy.unneeded_time <= now:
            del self.idle[node]
            self.idle_time += now - since


def simulate(jobs: Sequence[Job], node_start: Callable[[], float], policy: Policy) -> Simulated:
    """Serve jobs in the order of their arrival, each by one node, until all nodes are removed.

    `node_start` returns the time that the next node takes until its GPU is usable. For each job that
    waits, one node is starting; a node that becomes free takes the first waiting job, and so the one
    that was started for it may come to nothing.
    """
    run = _Run(node_start=node_start, policy=policy)
    for number, job in enumerate(jobs):
        run.plan(job.arrival, _Kind.ARRIVAL, number)
    while run.events:
        now, kind, _, subject = heapq.heappop(run.events)
        if kind == _Kind.ARRIVAL:
            run.arrive(jobs[subject])
        elif kind == _Kind.READY:
            run.starting -= 1
            run.failures = 0
            run.offer(subject, now)
        elif kind == _Kind.FREE:
            run.offer(subject, now)
        elif kind == _Kind.GIVEN_UP:
            run.give_up(now)
        else:
            run.remove(subject, now)
    return Simulated(
        started=run.started,
        given_up=run.given_up,
        idle_time=run.idle_time,
        starting_time=run.starting_time,
        waits=tuple(run.waits),
        unserved=run.unserved,
    )


def random_jobs(count: int, *, mean_gap: float, mean_duration: float, seed: int) -> list[Job]:
    """Return jobs that arrive at random (a Poisson process), with exponential durations."""
    chance = random.Random(seed)  # noqa: S311 - nothing here is secret
    jobs, now = [], 0.0
    for _ in range(count):
        now += chance.expovariate(1.0 / mean_gap)
        jobs.append(Job(arrival=now, duration=chance.expovariate(1.0 / mean_duration)))
    return jobs


def drawn_from(samples: Sequence[float], *, seed: int) -> Callable[[], float]:
    """Return a function that draws from samples, with repetition."""
    chance = random.Random(seed)  # noqa: S311 - nothing here is secret
    return lambda: chance.choice(samples)
