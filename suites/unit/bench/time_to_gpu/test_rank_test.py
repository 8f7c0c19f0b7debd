"""The rank test, compared with published results and with results counted by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bench.time_to_gpu.rank_test import rank_test


def test_disjoint_groups_have_the_smallest_p_value() -> None:
    """Of the 20 ways to divide six values into two groups of three, two are as extreme."""
    found = rank_test([1, 2, 3], [4, 5, 6])

    assert (found.u, found.superiority) == (9.0, 1.0)
    assert found.p == pytest.approx(0.1)


def test_rank_test_matches_the_example_of_scipy() -> None:
    """Ages at diagnosis of five men and four women, as in SciPy's documentation: U 17, p 0.111."""
    found = rank_test([20, 11, 17, 12], [19, 22, 16, 29, 24])

    assert found.u == 17.0
    assert found.p == pytest.approx(1 / 9)


def test_rank_test_finds_no_difference_between_equal_groups() -> None:
    found = rank_test([2.0, 2.0, 2.0], [2.0, 2.0])

    assert (found.superiority, found.p) == (0.5, 1.0)


def test_each_tie_is_counted_as_half_a_pair() -> None:
    """The pairs 1<2, 1<3, 2=2 and 2<3 count as 3.5 of 4."""
    assert rank_test([1, 2], [2, 3]).u == 3.5


def test_many_samples_use_the_normal_approximation() -> None:
    """With 30 values in each group, U has mean 450 and deviation 67.64; p is for 6.65 deviations."""
    found = rank_test([float(i) for i in range(30)], [float(i) + 100 for i in range(30)])

    deviation = math.sqrt(30 * 30 * 61 / 12)
    assert found.p == pytest.approx(math.erfc((450 - 0.5) / deviation / math.sqrt(2)))


def test_rank_test_refuses_an_empty_group_and_nan() -> None:
    """Every comparison with NaN is false, so the test would find a difference."""
    with pytest.raises(ValueError, match="Two groups"):
        rank_test([], [1.0])
    with pytest.raises(ValueError, match="NaN"):
        rank_test([math.nan] * 5, [1, 2, 3, 4, 5])


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
    st.lists(st.integers(0, 50), min_size=1, max_size=8),
)
def test_order_of_the_groups_does_not_change_the_p_value(
    first: list[int], second: list[int]
) -> None:
    forward, backward = rank_test(first, second), rank_test(second, first)

    assert forward.p == pytest.approx(backward.p)
    assert forward.superiority == pytest.approx(1.0 - backward.superiority)
    assert 0.0 < forward.p <= 1.0
