"""Medians, ratios and their intervals, compared with values computed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bench.time_to_gpu.estimates import (
    Estimate,
    median_of,
    quantile,
    ratio_of,
    reached_confidence,
    shift_ratio_of,
)

_TIMES = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=8)


def test_interval_of_the_median_of_three_samples_is_the_range_of_the_samples() -> None:
    """The median of a resample is the smallest sample in 7 of 27 cases, far more than 2.5 %."""
    assert median_of([3.0, 1.0, 2.0]) == Estimate(value=2.0, low=1.0, high=3.0, n=3)


def test_interval_of_the_median_of_nine_samples_excludes_the_smallest_and_the_largest_sample() -> (
    None
):
    """The median of a resample is the smallest sample in 0.1 % of cases, and one of the smallest two in 3 %."""
    found = median_of([float(value) for value in range(1, 10)])

    assert (found.value, found.low, found.high, found.n) == (5.0, 2.0, 8.0, 9)


@pytest.mark.usefixtures("few_resamples")
def test_ratio_of_constant_samples_has_an_interval_of_zero_width() -> None:
    found = ratio_of([5.0] * 4, [20.0] * 6)

    assert found == Estimate(value=0.25, low=0.25, high=0.25, n=4)
    assert ratio_of([5.0] * 6, [20.0] * 4) == found
    assert found.excludes(1.0)
    assert not found.is_claimable
    assert not Estimate(value=1.2, low=1.0, high=1.4, n=5).excludes(1.0)
    assert not Estimate(value=0.8, low=0.6, high=1.0, n=5).excludes(1.0)


@pytest.mark.usefixtures("few_resamples")
def test_shift_ratio_is_the_median_of_the_ratios_of_all_pairs() -> None:
    """The ratios of 2 and 6 to 1 and 2 are 2, 6, 1 and 3; their median is between 2 and 3."""
    assert shift_ratio_of([1.0, 2.0], [2.0, 6.0]).value == 2.5


def test_quantile_returns_a_sample_without_interpolation() -> None:
    samples = [5.0, 3.0, 1.0, 2.0, 4.0]
    quantiles = {0.0: 1.0, 0.2: 1.0, 0.21: 2.0, 0.95: 5.0, 1.0: 5.0}

    assert {share: quantile(samples, share) for share in quantiles} == quantiles


def test_reached_confidence_is_lower_for_fewer_samples() -> None:
    confidences = {1: 0.0, 3: 0.75, 5: 0.9375, 9: 0.95}

    assert {n: reached_confidence(n) for n in confidences} == confidences


def test_median_of_no_samples_and_ratio_to_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="without samples"):
        median_of([])
    with pytest.raises(ValueError, match="greater than 0"):
        ratio_of([1.0], [0.0])


@pytest.mark.usefixtures("few_resamples")
@given(_TIMES)
def test_interval_contains_the_median_and_lies_within_the_samples(samples: list[float]) -> None:
    found = median_of(samples)

    assert min(samples) <= found.low <= found.value <= found.high <= max(samples)
