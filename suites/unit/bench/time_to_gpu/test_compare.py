"""Which changes between two runs exceed noise, and which of these are regressions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.bench.time_to_gpu.compare import Comparison, compare, render
from harness.bench.time_to_gpu.estimates import Estimate
from harness.bench.time_to_gpu.rank_test import RankTest
from harness.bench.time_to_gpu.samples import Benchmark, Experiment, Mode, Trim
from harness.errors import BadInputError
from suites.unit.bench.time_to_gpu.benchmarks import BUILDS, PREBAKED, benchmark

_BUILD = (Experiment.SCALE_UP, Mode.BUILD.value)
_PREBAKED = (Experiment.SCALE_UP, Mode.PREBAKED.value)


pytestmark = pytest.mark.usefixtures("few_resamples")


def _with(prebaked: list[float], *, is_emulated: bool = False) -> Benchmark:
    return benchmark({_BUILD: BUILDS, _PREBAKED: prebaked}, is_emulated=is_emulated)


def _prebaked(before: Benchmark, after: Benchmark, limit: float = 0.1) -> Comparison:
    groups = compare(before, after, limit=limit).groups
    return next(each for each in groups if each.variant == Mode.PREBAKED.value)


def test_waits_that_are_longer_by_more_than_the_limit_are_a_regression() -> None:
    """Each of the five later waits is longer than each of the five earlier waits, so p is 2/252."""
    slower = [wait * 1.5 for wait in PREBAKED]

    found = _prebaked(_with([*PREBAKED]), _with(slower))

    assert found.is_regression
    assert found.test.p == pytest.approx(2 / 252)
    assert found.shift.value == pytest.approx(1.5, rel=0.05)
    assert found.shift.low > 1.0


def test_shorter_waits_and_waits_that_are_longer_within_the_limit_are_no_regression() -> None:
    for factor, verdict in ((1.5, "slower, within the limit"), (0.5, "faster")):
        after = _with([wait * factor for wait in PREBAKED])

        found = _prebaked(_with([*PREBAKED]), after, limit=0.8)

        assert not found.is_regression
        assert found.verdict() == verdict


def test_regression_needs_a_small_p_value_and_an_interval_above_1() -> None:
    for p, low, high, is_regression in (
        (0.01, 1.1, 2.0, True),
        (0.01, 0.9, 2.0, False),
        (0.011, 1.1, 2.0, False),
    ):
        compared = replace(
            _prebaked(_with([*PREBAKED]), _with([*PREBAKED])),
            test=RankTest(u=0.0, superiority=1.0, p=p),
            shift=Estimate(value=1.5, low=low, high=high, n=5),
        )

        assert compared.is_regression is is_regression
        assert compared.verdict() == ("REGRESSION" if is_regression else "no change beyond noise")


def test_too_few_samples_never_count_as_a_regression() -> None:
    compared = compare(_with([4.0, 4.1]), _with([40.0, 41.0]))

    assert compared.regressions == []
    assert "too few samples to tell" in render(compared)


def test_emulated_runs_are_compared_by_their_ratios() -> None:
    """A host that is slower in all measurements is not a regression."""

    def run(slowness: float, later: float) -> Benchmark:
        waits = {
            _BUILD: [wait * slowness for wait in BUILDS],
            _PREBAKED: [wait * slowness for wait in PREBAKED],
            (Experiment.POLICY_RESET, Mode.BUILD.value): [wait * later for wait in BUILDS],
            (Experiment.POLICY_RESET, Mode.NEAR.value): [wait * later for wait in PREBAKED],
            (Experiment.TRIM, Trim.NONE_OFF.value): [wait * slowness for wait in PREBAKED],
        }
        return benchmark(waits, is_emulated=True)

    compared = compare(run(1.0, 1.0), run(2.0, 3.0))

    assert compared.is_relative
    assert {each.variant: each.verdict() for each in compared.groups} == dict.fromkeys(
        (Mode.PREBAKED.value, Mode.NEAR.value, Trim.NONE_OFF.value), "no change beyond noise"
    )


def test_two_runs_are_compared_by_ratios_if_one_of_them_was_emulated() -> None:
    for emulated in ((True, False), (False, True)):
        before, after = (_with([*PREBAKED], is_emulated=each) for each in emulated)

        assert compare(before, after).is_relative, emulated


def test_comparison_lists_groups_that_only_one_run_has() -> None:
    near = (Experiment.SCALE_UP, Mode.NEAR.value)
    after = benchmark({_BUILD: BUILDS, _PREBAKED: PREBAKED, near: PREBAKED})

    compared = compare(benchmark(), after)

    assert compared.only_in == (("the second run", "scale-up, precompiled-near"),)


def test_compare_refuses_a_wait_that_is_nan_or_infinite_or_zero() -> None:
    """NaN would be ranked below all numbers and look like a change."""
    for wait in (math.nan, math.inf, 0.0):
        with pytest.raises(BadInputError, match=r"the second run: .* has a wait of"):
            compare(_with([*PREBAKED]), _with([*PREBAKED[1:], wait]))
