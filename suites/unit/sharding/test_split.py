"""Which tests each shard runs."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.sharding.split import TimedTest, ordered, split, timed_tests


def a_test(number: int, *, family: str = "booted", duration_s: float = 1.0) -> TimedTest:
    return TimedTest(test_id=f"a.py::test_{number}", family=family, duration_s=duration_s)


def loads(shards: list[list[TimedTest]]) -> list[float]:
    return [sum(test.duration_s for test in shard) for shard in shards]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 2.5]) | st.floats(0, 1000)),
        max_size=60,
    ),
    st.integers(1, 12),
    st.randoms(),
)
@example([("a", 1.0)] * 7, 2, random.Random(1))  # noqa: S311 - no secret
@example([("a", 0.1), ("b", 0.1)] * 20, 3, random.Random(1))  # noqa: S311 - no secret
def test_each_test_is_in_one_shard_whatever_the_order_of_the_tests(
    rows: list[tuple[str, float]], count: int, chance: random.Random
) -> None:
    tests = [
        a_test(number, family=family, duration_s=duration_s)
        for number, (family, duration_s) in enumerate(rows)
    ]
    shuffled = chance.sample(tests, len(tests))

    shards = split(tests, count)

    assert len(shards) == count
    assert sorted(test.test_id for shard in shards for test in shard) == sorted(
        test.test_id for test in tests
    )
    assert [{test.test_id for test in shard} for shard in split(shuffled, count)] == [
        {test.test_id for test in shard} for shard in shards
    ]


def test_five_thousand_tests_are_divided_evenly_among_a_hundred_shards() -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    tests = [
        a_test(
            number,
            family=f"state {min(int(chance.expovariate(0.02)), 300)}",
            duration_s=chance.lognormvariate(1, 1),
        )
        for number in range(5000)
    ]

    shards = split(tests, 100)

    mean_s = sum(loads(shards)) / 100
    assert max(loads(shards)) <= mean_s * 1.05
    assert min(loads(shards)) >= mean_s * 0.95


def test_families_that_fit_in_a_shard_are_rarely_divided() -> None:
    """Each family has tests of all durations, and one file has tests of all families."""
    tests = [
        a_test(number, family=f"state {number % 6}", duration_s=1 + number // 6 % 6)
        for number in range(240)
    ]

    shards = split(tests, 3)

    pairs = sum(len({test.family for test in shard}) for shard in shards)
    assert pairs <= 6 + 2
    assert max(loads(shards)) <= 1.05 * sum(loads(shards)) / 3


def test_family_larger_than_a_shard_is_divided() -> None:
    shards = split([a_test(number) for number in range(30)], 3)

    assert [len(shard) for shard in shards] == [10, 10, 10]


def test_longest_tests_are_placed_first_and_shorter_tests_fill_the_gaps() -> None:
    shards = split([a_test(number, duration_s=number) for number in (3, 4, 5, 6)], 2)

    assert loads(shards) == [9, 9]

    long, short = (6, 6, 6, 6, 6, 7), (1, 4, 5, 5, 5, 5)
    shards = split([a_test(at, duration_s=one) for at, one in enumerate((*long, *short))], 3)
    assert max(loads(shards)) == 22, (
        "Tests that fit in no shard are placed from the longest to the shortest."
    )


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("c8 b1 c3 b9 b8 a7 c8 b7", [24, 27]), ("c4 b8 a4 a5 a8 a6 a3 a8", [23, 23])],
)
def test_tests_that_fit_in_no_shard_are_placed_from_the_longest_to_the_shortest(
    rows: str, expected: list[float]
) -> None:
    tests = [
        a_test(number, family=word[0], duration_s=int(word[1:]))
        for number, word in enumerate(rows.split())
    ]

    shards = split(tests, 2)

    assert sorted(loads(shards)) == expected
    assert sum(map(len, shards)) == len({test.test_id for shard in shards for test in shard}) == 8


def test_unknown_test_gets_the_mean_duration_of_its_file() -> None:
    names = ("a.py::x", "a.py::C::new", "a.py::y", "b.py::new", "c.py::z")

    tests = timed_tests(
        dict.fromkeys(names, "f"),
        {"a.py::x": 2.0, "a.py::y": 4.0, "c.py::z": 9.0, "gone.py::z": 100.0},
    )

    assert [tests[name].duration_s for name in names] == [2.0, 3.0, 4.0, 5.0, 9.0]


def test_all_tests_get_the_same_duration_if_no_durations_are_recorded() -> None:
    tests = timed_tests({"a.py::x": "f", "b.py::y": "f"}, {"gone.py::z": 9.0})

    assert {each.duration_s for each in tests.values()} == {1.0}


def test_tests_are_ordered_by_the_longest_test_of_family_and_file() -> None:
    """Shorter tests may take longer in total, but they fill the end of a run evenly."""
    many = [a_test(number, family="many", duration_s=2) for number in range(20)]
    long = [
        TimedTest(test_id="b.py::second", family="slow", duration_s=6),
        TimedTest(test_id="b.py::first", family="slow", duration_s=5),
        TimedTest(test_id="c.py::third", family="slow", duration_s=9),
    ]

    names = [test.test_id for test in ordered([*many, *long])]

    assert names[:3] == ["c.py::third", "b.py::second", "b.py::first"]
    assert names[3:] == [test.test_id for test in many]
