"""The median and the 95th percentile of several runs of one measurement."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The results of several runs of one measurement."""

    median: float
    p95: float
    runs: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Return the spread of samples; the 95th percentile is interpolated."""
        if len(samples) == 1:
            return cls(median=samples[0], p95=samples[0], runs=1)
        p95 = statistics.quantiles(samples, n=20, method="inclusive")[-1]
        return cls(median=statistics.median(samples), p95=p95, runs=len(samples))
