"""Timeouts for a cluster's autoscaler, of measured node starts; pure.

Times are in the unit of the samples. `docs/time-to-gpu.md` has the method and its assumptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.autoscaler import (
    Job,
    Policy,
    Simulated,
    drawn_from,
    random_jobs,
    simulate,
)
from harness.bench.time_to_gpu.estimates import quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

QUANTILE = 0.95
MARGIN = 0.25
#: The simulated load, in medians of the build at boot: a job comes every 1.5 of them, and takes 3.
JOBS = 400
MEAN_GAP = 1.5
MEAN_DURATION = 3.0
_SEED = 7
#: Settings of the curves, as multiples of what is advised.
FACTORS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What is advised of one mode's samples."""

    max_node_provision_time: float
    """The worst sample, with the margin: a node that takes longer is not like any that was seen."""
    unneeded_time: float
    """The node start at the quantile, with the margin: what a new node would cost is paid for an idle one."""
    delay_after_add: float
    """The same: a new node is not judged before it can have a GPU."""
    quantile: float
    margin: float
    n: int


def advise(node_starts: Sequence[float], *, q: float = QUANTILE, margin: float = MARGIN) -> Advice:
    """Return the timeouts for nodes whose starts are like the samples.

    `q` is a share between 0 and 1, and `margin` is added as a share. Raises ValueError without samples.
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


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """What one setting comes to: `factor` is the setting as a multiple of what is advised."""

    factor: float
    setting: float
    outcome: Simulated


def load_of(median_build: float) -> list[Job]:
    """Return the simulated jobs, in the unit of the samples."""
    return random_jobs(
        JOBS,
        mean_gap=MEAN_GAP * median_build,
        mean_duration=MEAN_DURATION * median_build,
        seed=_SEED,
    )


def provision_time_curve(
    node_starts: Sequence[float], advice: Advice, jobs: Sequence[Job]
) -> list[CurvePoint]:
    """Simulate settings of `maxNodeProvisionTime` around the advised one."""
    return [
        CurvePoint(
            factor=factor,
            setting=factor * advice.max_node_provision_time,
            outcome=_simulate(
                node_starts, jobs, factor * advice.max_node_provision_time, advice.unneeded_time
            ),
        )
        for factor in FACTORS
    ]


def unneeded_time_curve(
    node_starts: Sequence[float], advice: Advice, jobs: Sequence[Job]
) -> list[CurvePoint]:
    """Simulate settings of `unneededTime` around the advised one."""
    return [
        CurvePoint(
            factor=factor,
            setting=factor * advice.unneeded_time,
            outcome=_simulate(
                node_starts, jobs, advice.max_node_provision_time, factor * advice.unneeded_time
            ),
        )
        for factor in FACTORS
    ]


def _simulate(
    node_starts: Sequence[float], jobs: Sequence[Job], max_provision: float, unneeded: float
) -> Simulated:
    policy = Policy(max_node_provision_time=max_provision, unneeded_time=unneeded)
    return simulate(jobs, drawn_from(node_starts, seed=_SEED), policy)
