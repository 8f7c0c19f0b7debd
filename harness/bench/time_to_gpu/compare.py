"""Pure functions that compare two runs: which waits changed beyond noise, and which grew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.estimates import median_of, shift_ratio_of
from harness.bench.time_to_gpu.rank_test import rank_test
from harness.bench.time_to_gpu.samples import Experiment, Mode
from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.bench.time_to_gpu.estimates import Estimate
    from harness.bench.time_to_gpu.rank_test import RankTest
    from harness.bench.time_to_gpu.samples import Benchmark

#: A change is significant if its p is at most this value. The value is below the usual 5 %, since a
#: comparison tests a dozen groups at once. A test of five samples in each run can reach this p.
SIGNIFICANCE = 0.01
#: The share by which a wait may grow; a larger growth is a regression.
LIMIT = 0.10


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one group of samples between two runs."""

    experiment: Experiment
    variant: str
    test: RankTest
    shift: Estimate
    """The factor by which the waits changed."""
    smallest_p: float
    """The smallest p that the test can reach with this number of samples."""
    limit: float

    @property
    def is_changed(self) -> bool:
        return self.test.p <= SIGNIFICANCE and self.shift.excludes(1.0)

    @property
    def is_regression(self) -> bool:
        return self.is_changed and self.shift.value > 1.0 + self.limit

    def verdict(self) -> str:
        """Return how the wait changed, in a few words."""
        if self.smallest_p > SIGNIFICANCE:
            return "too few samples to tell"
        if self.is_regression:
            return "REGRESSION"
        if not self.is_changed:
            return "no change beyond noise"
        return "slower, within the limit" if self.shift.value > 1.0 else "faster"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The result of a comparison of two runs."""

    groups: tuple[Comparison, ...]
    is_relative: bool
    """Whether waits were divided by the wait of the same run's build at boot, as is done under emulation."""
    only_in: tuple[tuple[str, str], ...]
    """The groups that only one run has; each entry is the name of the run and the name of the group."""

    @property
    def regressions(self) -> list[Comparison]:
        return [each for each in self.groups if each.is_regression]

    @property
    def can_tell(self) -> bool:
        """Return whether any group has enough samples for a verdict."""
        return any(each.smallest_p <= SIGNIFICANCE for each in self.groups)


def compare(before: Benchmark, after: Benchmark, *, limit: float = LIMIT) -> Compared:
    """Compare the waits of each group of samples that both runs have.

    If a run had an emulated processor, waits are divided by the median wait for a build at boot in
    the same experiment and the same run. Builds at boot are compared only between runs without an
    emulated processor. Raises BadInputError if a wait is not a number above 0.
    """
    for which, benchmark in (("the first run", before), ("the second run", after)):
        for sample in benchmark.samples:
            if not 0 < sample.wait_s < math.inf:
                raise BadInputError(
                    f"A sample of '{sample.variant}' in the experiment '{sample.experiment.value}' has "
                    f"a wait of {sample.wait_s} s, but more than 0 s were expected; run the benchmark "
                    "again.",
                    source=which,
                )
    is_relative = before.conditions.is_emulated or after.conditions.is_emulated
    old, new = dict(_groups(before, is_relative)), dict(_groups(after, is_relative))
    groups = [
        Comparison(
            experiment=experiment,
            variant=variant,
            test=rank_test(old[experiment, variant], new[experiment, variant]),
            shift=shift_ratio_of(old[experiment, variant], new[experiment, variant]),
            smallest_p=_smallest_p(len(old[experiment, variant]), len(new[experiment, variant])),
            limit=limit,
        )
        for experiment, variant in old
        if (experiment, variant) in new
    ]
    only = [("the first run", *each) for each in old if each not in new]
    only += [("the second run", *each) for each in new if each not in old]
    return Compared(
        groups=tuple(groups),
        is_relative=is_relative,
        only_in=tuple(
            (which, f"{experiment.value}, {variant}") for which, experiment, variant in only
        ),
    )


def _groups(
    benchmark: Benchmark, is_relative: bool
) -> Iterator[tuple[tuple[Experiment, str], Sequence[float]]]:
    seen = dict.fromkeys((sample.experiment, sample.variant) for sample in benchmark.samples)
    for experiment, variant in seen:
        waits = benchmark.waits(experiment, variant)
        baseline = Experiment.SCALE_UP if experiment is Experiment.TRIM else experiment
        builds = benchmark.waits(baseline, Mode.BUILD.value)
        if not waits:
            continue
        if not is_relative:
            yield (experiment, variant), waits
        elif builds and variant != Mode.BUILD.value:
            unit = median_of(builds).value
            yield (experiment, variant), [wait / unit for wait in waits]


def _smallest_p(m: int, n: int) -> float:
    return min(1.0, 2.0 / math.comb(m + n, m))


def render(compared: Compared) -> str:
    """Render a comparison as text for people."""
    unit = (
        "waits as multiples of each run's own build at boot, since a processor was emulated"
        if compared.is_relative
        else "waits in seconds of the nodes' clocks"
    )
    lines = [f"compared: {unit}"]
    for each in compared.groups:
        shift = each.shift
        lines.append(
            f"{each.experiment.value:13} {each.variant:28} x{shift.value:.2f} "
            f"(interval {shift.low:.2f} to {shift.high:.2f})  p = {each.test.p:.4f}  "
            f"superiority {each.test.superiority:.2f}  {each.verdict()}"
        )
    lines += [f"only in {which}: {what}" for which, what in compared.only_in]
    if not compared.can_tell:
        lines.append("No group has enough samples: at least five in each run are needed.")
    count = len(compared.regressions)
    lines.append(
        f"{count} regressions beyond the limit" if count != 1 else "1 regression beyond the limit"
    )
    return "\n".join(lines)
