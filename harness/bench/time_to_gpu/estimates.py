"""Pure, deterministic functions for medians and their ratios, with bootstrap intervals."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONFIDENCE = 0.95
RESAMPLES = 4000
#: With fewer samples, the `reached_confidence` of a median's interval is below 90 %.
FEWEST_FOR_CLAIM = 5
_SEED = 20260801


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate with its interval; `n` is the number of samples (for a ratio: in the smaller group)."""

    value: float
    low: float
    high: float
    n: int

    def excludes(self, value: float) -> bool:
        """Return whether `value` is outside the interval."""
        return self.low > value or self.high < value

    @property
    def is_claimable(self) -> bool:
        """Return whether the number of samples is large enough for a conclusion from the interval."""
        return self.n >= FEWEST_FOR_CLAIM

    def to_json(self) -> dict[str, float]:
        return {
            "median": round(self.value, 4),
            "interval_low": round(self.low, 4),
            "interval_high": round(self.high, 4),
            "n": self.n,
        }


def reached_confidence(n: int) -> float:
    """Return the confidence that the median is between the extremes of n samples: 1 - 2^(1-n).

    No interval between two samples has a higher confidence, because all samples are between the
    extremes.
    """
    return min(CONFIDENCE, 1.0 - 2.0 ** (1 - n))


def median_of(samples: Sequence[float]) -> Estimate:
    """Return the median of the samples with its bootstrap interval."""
    return _estimate(lambda groups: statistics.median(groups[0]), [samples])


def ratio_of(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Return the ratio of two medians; the groups are resampled independently.

    Raises ValueError if a sample of the denominator is not above zero.
    """
    if any(each <= 0 for each in denominator):
        raise ValueError("A time that divides another time must be greater than 0.")
    return _estimate(
        lambda groups: statistics.median(groups[0]) / statistics.median(groups[1]),
        [numerator, denominator],
    )


def shift_ratio_of(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """Return the median of the ratios of each sample of `second` to each sample of `first`.

    The result is the Hodges-Lehmann shift on a logarithmic scale.
    """

    def shift(groups: Sequence[Sequence[float]]) -> float:
        return statistics.median(b / a for a in groups[0] for b in groups[1])

    if any(each <= 0 for each in first):
        raise ValueError("A time that divides another time must be greater than 0.")
    return _estimate(shift, [first, second])


def _estimate(
    statistic: Callable[[Sequence[Sequence[float]]], float], groups: Sequence[Sequence[float]]
) -> Estimate:
    """Return a statistic of the samples with the percentile interval of a bootstrap.

    The seed is fixed, so the interval of the same samples is always the same. Raises ValueError for an empty group.
    """
    if not all(groups):
        raise ValueError("There is no estimate without samples.")
    chance = random.Random(_SEED)  # noqa: S311 - nothing here is secret
    found = sorted(
        statistic([chance.choices(group, k=len(group)) for group in groups])
        for _ in range(RESAMPLES)
    )
    tail = (1.0 - CONFIDENCE) / 2.0
    return Estimate(
        value=statistic(groups),
        low=quantile(found, tail),
        high=quantile(found, 1.0 - tail),
        n=min(len(group) for group in groups),
    )


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that is at least as large as the given share of the samples.

    The result is always one of the samples, without interpolation.
    """
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
