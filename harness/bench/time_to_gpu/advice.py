"""Pure functions that compute timeouts for a cluster's autoscaler from measured node starts.

Times are in the unit of the samples. `docs/time-to-gpu.md` describes the method and its
assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.estimates import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

QUANTILE = 0.95
MARGIN = 0.25


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The timeouts that are computed from one mode's samples."""

    max_node_provision_time: float
    """The longest measured node start, plus the margin."""
    unneeded_time: float
    """The quantile of the node starts, plus the margin: an idle node is kept for the time that a new node needs to start."""
    delay_after_add: float
    """Equal to `unneeded_time`, so that no new node is removed before it can have a GPU."""
    quantile: float
    margin: float
    n: int


def advise(node_starts: Sequence[float], *, q: float = QUANTILE, margin: float = MARGIN) -> Advice:
    """Return the timeouts for nodes that take as long to start as the measured nodes.

    `q` is the quantile, from 0 to 1; `margin` is the share by which each timeout is increased.
    Raises ValueError if there are no samples.
    """
    if not node_starts:
        raise ValueError("There is no advice without samples.")
    at_quantile = quantile(node_starts, q) * (1.0 + margin)
    return Advice(
        max_node_provision_time=max(node_starts) * (1.0 + margin),
        unneeded_time=at_quantile,
        delay_after_add=at_quantile,
        quantile=q,
        margin=margin,
        n=len(node_starts),
    )
