"""Divides tests among shards of equal duration, and keeps families of tests together.

The algorithms of pytest-split do not keep groups of tests together. The algorithm `least_duration`
of pytest-split spreads tests that share a saved machine state over all shards, so each shard has to
make or fetch this state. With the algorithm `duration_based_chunks` of pytest-split, the durations
of two shards may differ by the duration of a test. The algorithm of this module distributes the
longest tests first, and then whole families of shorter tests. The algorithm of this module divides
a family only if the family fits into no shard. The file of durations has pytest-split's format.
"""

from __future__ import annotations

import bisect
import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: The assumed duration of a test, in seconds, if no durations were recorded.
_UNKNOWN_S = 1.0
#: A test that takes at least this share of a shard is distributed separately from its family.
_LONG = 0.25


@dataclass(frozen=True, kw_only=True)
class TimedTest:
    """A test's node id, duration and family; the tests of a family share images or saved machine states."""

    # Without this attribute, pytest would collect this class in the modules that import it.
    __test__ = False

    test_id: str
    family: str
    duration_s: float


def timed_tests(
    families: Mapping[str, str], recorded: Mapping[str, float]
) -> dict[str, TimedTest]:
    """Return a TimedTest by node id for each test in `families`, which maps node ids to families.

    A test without a recorded duration gets the average duration of the tests in its file or, if
    none of them has a recorded duration, the average of all tests.
    """
    files: defaultdict[str, list[float]] = defaultdict(list)
    for test_id in families:
        if test_id in recorded:
            files[_file(test_id)].append(recorded[test_id])
    known = [each for durations in files.values() for each in durations]
    usual_s = sum(known) / len(known) if known else _UNKNOWN_S
    means = {file: sum(durations) / len(durations) for file, durations in files.items()}
    return {
        test_id: TimedTest(
            test_id=test_id,
            family=family,
            duration_s=recorded.get(test_id, means.get(_file(test_id), usual_s)),
        )
        for test_id, family in families.items()
    }


def split(tests: Iterable[TimedTest], count: int) -> list[list[TimedTest]]:
    """Return the tests of each of `count` shards; the order of `tests` makes no difference.

    Each test is in exactly one shard. A shard takes longer than the average only if the shard has a
    test for which no shard had enough time left.
    """
    by_duration = sorted(tests, key=lambda each: (each.duration_s, each.test_id))
    mean_s = sum(each.duration_s for each in by_duration) / count
    families: defaultdict[str, list[TimedTest]] = defaultdict(list)
    long_tests: list[TimedTest] = []
    for test in by_duration:
        is_long = test.duration_s > mean_s * _LONG
        (long_tests if is_long else families[test.family]).append(test)
    shards: list[list[TimedTest]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]
    left: list[TimedTest] = []

    def put(members: Sequence[TimedTest]) -> None:
        load_s, index = heapq.heappop(loads)
        shards[index].extend(members)
        heapq.heappush(loads, (load_s + sum(each.duration_s for each in members), index))

    for test in reversed(long_tests):
        put([test])
    # The families of short tests come last, since short tests fit into the remaining time.
    for name in sorted(families, key=lambda each: (-families[each][-1].duration_s, each)):
        members = families[name]
        # The loop ends when no test fits: then all shards have nearly reached the mean.
        while piece := _fitting(members, mean_s - loads[0][0]):
            put(piece)
        left += members
    for test in sorted(left, key=lambda each: (-each.duration_s, each.test_id)):
        put([test])
    return shards


def _fitting(members: list[TimedTest], free_s: float) -> list[TimedTest]:
    """Remove from the sorted `members` the tests that fit into `free_s` seconds; return the removed tests."""
    taken: list[TimedTest] = []
    while members:
        at = bisect.bisect_right(members, free_s, key=lambda each: each.duration_s)
        if at == 0:
            break
        test = members.pop(at - 1)
        taken.append(test)
        free_s -= test.duration_s
    return taken


def ordered(tests: Sequence[TimedTest]) -> list[TimedTest]:
    """Return the tests of a shard in the order in which they should start.

    The family with the longest test comes first; within a family, the file with the longest test
    comes first. So the last tests of a shard are short, and pytest's parallel workers end at about
    the same time. The tests of a file keep their order, since they may share fixtures.
    """
    families: defaultdict[str, float] = defaultdict(float)
    files: defaultdict[tuple[str, str], float] = defaultdict(float)
    for test in tests:
        file = test.family, _file(test.test_id)
        families[test.family] = max(families[test.family], test.duration_s)
        files[file] = max(files[file], test.duration_s)
    return sorted(
        tests,
        key=lambda each: (
            -families[each.family],
            each.family,
            -files[each.family, _file(each.test_id)],
            _file(each.test_id),
        ),
    )


def _file(test_id: str) -> str:
    return test_id.partition("::")[0]
