"""Pure functions for the rank test of Mann, Whitney and Wilcoxon on two groups of samples.

SciPy has this test too, but nothing else in the harness needs SciPy. For groups as small as a
benchmark's groups, counting the orders of samples yields the exact result.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Above this number of pairs of samples, the normal approximation is used.
_EXACT_PAIRS = 400


@dataclass(frozen=True, kw_only=True)
class RankTest:
    """The result of the rank test.

    `u` is the number of pairs in which the second group's sample is larger; a tie counts as a half.
    `superiority` is `u` as a share of all pairs: 0.5 if the groups do not differ, 1 if each sample
    of the second group is larger. `p` is the two-sided p-value.
    """

    u: float
    superiority: float
    p: float


def rank_test(first: Sequence[float], second: Sequence[float]) -> RankTest:
    """Test whether two groups have the same distribution.

    The result is exact for small groups without ties. For other groups, the result is the normal
    approximation with a correction for ties and for continuity. Raises ValueError for an empty
    group, and for NaN, which has no rank.
    """
    if any(map(math.isnan, (*first, *second))):
        raise ValueError("NaN has no rank.")
    if not first or not second:
        raise ValueError("Two groups of samples are needed.")
    m, n = len(first), len(second)
    u = sum((b > a) + 0.5 * (b == a) for a in first for b in second)
    counts = Counter([*first, *second])
    has_ties = any(count > 1 for count in counts.values())
    if m * n <= _EXACT_PAIRS and not has_ties:
        p = _exact_p(int(u), m, n)
    else:
        p = _normal_p(u, m, n, counts.values())
    return RankTest(u=u, superiority=u / (m * n), p=p)


def _exact_p(u: int, m: int, n: int) -> float:
    low = min(u, m * n - u)
    as_low = sum(_arrangements(value, m, n) for value in range(low + 1))
    return min(1.0, 2.0 * as_low / math.comb(m + n, m))


@cache
def _arrangements(u: int, m: int, n: int) -> int:
    """Return how many orders of a group of `m` and a group of `n` samples have the statistic `u`."""
    if u < 0:
        return 0
    if m == 0 or n == 0:
        return int(u == 0)
    # If the largest sample is from the second group, it exceeds all m samples of the first group;
    # else it adds nothing to u.
    return _arrangements(u - m, m, n - 1) + _arrangements(u, m - 1, n)


def _normal_p(u: float, m: int, n: int, counts: Iterable[int]) -> float:
    total = m + n
    ties = sum(count**3 - count for count in counts)
    variance = m * n / 12.0 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(u - m * n / 2.0) - 0.5)
    return math.erfc(distance / math.sqrt(2.0 * variance))
