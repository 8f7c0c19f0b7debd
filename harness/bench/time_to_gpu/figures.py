"""Computes ratios, savings and advice from samples, and makes the document that `--json` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.advice import MARGIN, QUANTILE, Advice, advise
from harness.bench.time_to_gpu.critical_path import shares, unit_shares
from harness.bench.time_to_gpu.estimates import (
    FEWEST_FOR_CLAIM,
    Estimate,
    median_of,
    ratio_of,
    reached_confidence,
)
from harness.bench.time_to_gpu.samples import PAYLOADS, SCHEMA, Experiment, Mode, Trim
from harness.bench.time_to_gpu.teardowns import DKMS_REMOVE, FAST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.bench.time_to_gpu.samples import Benchmark


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published pair of times in seconds, whose ratio is shown beside measured ratios."""

    experiment: Experiment
    mode: Mode
    baseline_s: float
    seconds: float
    where: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline_s


#: The figures that `--json` prints in addition to the figures of each mode; each figure has an
#: interval and the number n of its samples.
MEASURES: Mapping[str, str] = {
    "ratio_prebaked": "the wait of fresh prebaked nodes, divided by the wait with a build at boot",
    "ratio_precompiled_near": "the wait with a precompiled driver, near registry, divided by the wait with a build",
    "ratio_precompiled_far": "the wait with a precompiled driver, far registry, divided by the wait with a build",
    "ratio_policy_reset_prebaked": "the wait after a policy reset of a prebaked node, divided by the wait with a build",
    "ratio_policy_reset_precompiled_near": "the ratio after a policy reset with a precompiled driver from a near registry",
    "ratio_teardown": "the time of the fast deregistration, divided by the time of `dkms remove --all`",
}
_T4 = "T4, g4dn.xlarge, OpenShift 4.13, driver 525.125.06"
#: Published times of builds at boot and of precompiled drivers; there are none for prebaked images.
PUBLISHED = (
    Published(
        experiment=Experiment.POLICY_RESET, mode=Mode.NEAR, baseline_s=308, seconds=132, where=_T4
    ),
    Published(
        experiment=Experiment.SCALE_UP,
        mode=Mode.FAR,
        baseline_s=369,
        seconds=217,
        where=f"{_T4}, quay.io",
    ),
    Published(
        experiment=Experiment.SCALE_UP,
        mode=Mode.NEAR,
        baseline_s=369,
        seconds=207,
        where=f"{_T4}, the cluster's registry",
    ),
)
#: Published times of a teardown: the fast deregistration and `dkms remove --all`.
PUBLISHED_TEARDOWN = Published(
    experiment=Experiment.SCALE_UP,
    mode=Mode.PREBAKED,
    baseline_s=35,
    seconds=0.49,
    where="the fast deregistration's step alone",
)


def percent(value: float) -> str:
    """Render a share as a percentage."""
    return f"{100 * value:.1f} %"


def interval(estimate: Estimate) -> str:
    """Render the interval of an estimated share as percentages."""
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def share_of(estimate: Estimate) -> str:
    """Render an estimated share with its interval and the number of samples."""
    return f"{percent(estimate.value)} (interval {interval(estimate)}, n = {estimate.n})"


@dataclass(frozen=True, kw_only=True)
class ModeFigures:
    """The figures of one mode in one experiment."""

    mode: Mode
    waits: tuple[float, ...]
    wait: Estimate
    ratio: Estimate | None
    """The wait divided by the wait of the build at boot; None for the build itself, or if the build has no wait."""
    parts: Mapping[str, Estimate]
    """Shares of the wait, the largest first."""
    units: Mapping[str, Estimate]
    """The share of the wait after which each unit was ready, by systemd's timestamps, earliest first."""
    compile_share: Estimate | None
    published: tuple[Published, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The share of the wait that a trim of the boot path saves."""

    trim: Trim
    share: Estimate

    @property
    def is_claimed(self) -> bool:
        return self.share.is_claimable and self.share.low > 0

    def verdict(self) -> str:
        """Return what the samples show about the trim's saving, as a clause."""
        size = f"{percent(self.share.value)}, interval {interval(self.share)}"
        if not self.share.is_claimable:
            return f"no claim: n = {self.share.n}, and a claim needs {FEWEST_FOR_CLAIM} samples ({size})"
        if self.share.low > 0:
            return f"saves {size} of the wait"
        if self.share.high < 0:
            return f"costs time ({size})"
        return f"no saving shown: the interval includes zero ({size})"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The content of a report."""

    benchmark: Benchmark
    experiments: Mapping[Experiment, tuple[ModeFigures, ...]]
    savings: tuple[Saving, ...]
    teardown: Estimate | None
    """The time of the fast deregistration, divided by the time of `dkms remove --all`."""
    advice: Mapping[Mode, Advice]
    """Times as multiples of the median wait for a build at boot; empty if no build was measured."""

    def mode(self, experiment: Experiment, mode: Mode) -> ModeFigures | None:
        return next(
            (each for each in self.experiments.get(experiment, ()) if each.mode is mode), None
        )


def figures_of(benchmark: Benchmark, *, q: float = QUANTILE, margin: float = MARGIN) -> Figures:
    """Compute the content of a report from the measurements of a run."""
    experiments = {
        experiment: tuple(
            _mode_figures(benchmark, experiment, mode) for mode in benchmark.modes(experiment)
        )
        for experiment in (Experiment.SCALE_UP, Experiment.POLICY_RESET)
    }
    builds = benchmark.waits(Experiment.SCALE_UP, Mode.BUILD.value)
    unit_s = median_of(builds).value if builds else None
    fast, slow = benchmark.teardown_times(FAST), benchmark.teardown_times(DKMS_REMOVE)
    return Figures(
        benchmark=benchmark,
        experiments={name: found for name, found in experiments.items() if found},
        savings=_savings(benchmark),
        teardown=ratio_of(fast, slow) if fast and slow else None,
        advice={}
        if unit_s is None
        else {
            each.mode: advise([wait / unit_s for wait in each.waits], q=q, margin=margin)
            for each in experiments[Experiment.SCALE_UP]
        },
    )


def _mode_figures(benchmark: Benchmark, experiment: Experiment, mode: Mode) -> ModeFigures:
    samples = benchmark.of(experiment, mode.value)
    waits = [sample.wait_s for sample in samples]
    builds = benchmark.waits(experiment, Mode.BUILD.value)
    compiled = [
        sample.compile_s / sample.wait_s for sample in samples if sample.compile_s is not None
    ]
    return ModeFigures(
        mode=mode,
        waits=tuple(waits),
        wait=median_of(waits),
        ratio=ratio_of(waits, builds) if builds and mode is not Mode.BUILD else None,
        parts=shares(samples),
        units=unit_shares(samples),
        compile_share=median_of(compiled) if len(compiled) == len(samples) else None,
        published=tuple(
            each for each in PUBLISHED if each.experiment is experiment and each.mode is mode
        ),
    )


def _savings(benchmark: Benchmark) -> tuple[Saving, ...]:
    trimmed = benchmark.waits(Experiment.TRIM, Trim.NONE_OFF.value)
    found = []
    for trim in Trim:
        without = benchmark.waits(Experiment.TRIM, trim.value)
        if trim is Trim.NONE_OFF or not without or not trimmed:
            continue
        kept = ratio_of(trimmed, without)
        share = Estimate(
            value=1.0 - kept.value, low=1.0 - kept.high, high=1.0 - kept.low, n=kept.n
        )
        found.append(Saving(trim=trim, share=share))
    return tuple(found)


def to_document(figures: Figures) -> dict[str, object]:
    """Return the document that `--json` prints: the figures, and all measurements for later comparisons."""
    scale_up = Experiment.SCALE_UP

    def ratio(mode: Mode, experiment: Experiment = scale_up) -> object:
        found = figures.mode(experiment, mode)
        return None if found is None or found.ratio is None else found.ratio.to_json()

    return {
        "schema": SCHEMA,
        "is_emulated": figures.benchmark.conditions.is_emulated,
        "payload": figures.benchmark.conditions.payload.value,
        "unit": "seconds of the guest's clock; under emulation only ratios mean something",
        "ratio_prebaked": ratio(Mode.PREBAKED),
        "ratio_precompiled_near": ratio(Mode.NEAR),
        "ratio_precompiled_far": ratio(Mode.FAR),
        "ratio_policy_reset_precompiled_near": ratio(Mode.NEAR, Experiment.POLICY_RESET),
        "ratio_policy_reset_prebaked": ratio(Mode.PREBAKED, Experiment.POLICY_RESET),
        "ratio_teardown": None if figures.teardown is None else figures.teardown.to_json(),
        "teardown_leaves": {each.way: list(each.differences) for each in figures.benchmark.oracle},
        "modes": {
            experiment.value: {each.mode.value: _mode_document(each) for each in modes}
            for experiment, modes in figures.experiments.items()
        },
        "savings": {
            each.trim.value: {
                **each.share.to_json(),
                "is_claimed": each.is_claimed,
                "verdict": each.verdict(),
            }
            for each in figures.savings
        },
        "advice": {
            mode.value: _advice_document(advice) for mode, advice in figures.advice.items()
        },
        "published": [
            {
                "experiment": each.experiment.value,
                "mode": each.mode.value,
                "seconds": [each.baseline_s, each.seconds],
                "ratio": round(each.ratio, 3),
                "where": each.where,
            }
            for each in PUBLISHED
        ],
        "measured": figures.benchmark.to_json(),
    }


def _mode_document(figures: ModeFigures) -> dict[str, object]:
    return {
        **figures.wait.to_json(),
        "reached_confidence": round(reached_confidence(figures.wait.n), 3),
        "ratio_to_build": None if figures.ratio is None else figures.ratio.to_json(),
        "published_ratios": [round(each.ratio, 3) for each in figures.published],
        "compile_share": None
        if figures.compile_share is None
        else figures.compile_share.to_json(),
        "units_ready": {name: part.to_json() for name, part in figures.units.items()},
        "critical_path": {name: part.to_json() for name, part in figures.parts.items()},
    }


def _advice_document(advice: Advice) -> dict[str, object]:
    return {
        "unit": "medians of the build at boot",
        "maxNodeProvisionTime": round(advice.max_node_provision_time, 3),
        "unneededTime": round(advice.unneeded_time, 3),
        "scaleDownDelayAfterAdd": round(advice.delay_after_add, 3),
        "quantile": advice.quantile,
        "margin": advice.margin,
        "n": advice.n,
    }


def conclusions(figures: Figures) -> list[str]:
    """Return a sentence for each claim; the sentence says whether the samples support the claim."""
    lines = []
    for experiment, modes in figures.experiments.items():
        lines += [_conclusion(experiment, each) for each in modes if each.ratio is not None]
    lines += [f"{_trim_name(each.trim)}: {each.verdict()}." for each in figures.savings]
    if figures.teardown is not None:
        lines.append(
            f"The fast deregistration takes {share_of(figures.teardown)} of the time of "
            f"`dkms remove --all` (published: {percent(PUBLISHED_TEARDOWN.ratio)}, {PUBLISHED_TEARDOWN.where})."
        )
    for result in figures.benchmark.oracle:
        left = len(result.differences)
        lines.append(
            f"After the teardown '{result.way}' the whole node is like a node that never had the driver."
            if left == 0
            else f"After the teardown '{result.way}' {left} items differ from a node that never had "
            "the driver; the JSON lists them."
        )
    build = figures.mode(Experiment.SCALE_UP, Mode.BUILD)
    if build is not None and build.compile_share is not None:
        lines.append(
            f"The compilation of {PAYLOADS[figures.benchmark.conditions.payload]} is "
            f"{share_of(build.compile_share)} of the wait with a build at boot."
        )
    return lines


def _conclusion(experiment: Experiment, each: ModeFigures) -> str:
    assert each.ratio is not None  # noqa: S101 - the caller has checked this
    ratio, subject = each.ratio, f"{experiment.value}, {each.mode.value}"
    if not ratio.is_claimable:
        return (
            f"{subject}: {share_of(ratio)} of the build at boot; no claim, since a claim needs "
            f"{FEWEST_FOR_CLAIM} samples."
        )
    if not ratio.excludes(1.0):
        return f"{subject}: no difference from the build at boot is shown ({share_of(ratio)})."
    return f"{subject}: {share_of(ratio)} of the wait with a build at boot."


def _trim_name(trim: Trim) -> str:
    return {
        Trim.LOCAL_IMAGE: "Local image check",
        Trim.ASYNC_REMOVAL: "Asynchronous removal",
        Trim.DEFERRED: "Deferred monitoring",
        Trim.NONE_OFF: "All trims",
    }[trim]
