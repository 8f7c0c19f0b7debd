"""The median and the 95th percentile of several runs of a measurement."""

from __future__ import annotations

import pytest

from harness.bench.spread import Spread


def test_median_and_95th_percentile_of_20_runs_are_interpolated() -> None:
    spread = Spread.of([float(sample) for sample in range(1, 21)])

    assert (spread.median, spread.runs) == (10.5, 20)
    assert spread.p95 == pytest.approx(19.05)
    assert Spread.of([0.5]) == Spread(median=0.5, p95=0.5, runs=1)
