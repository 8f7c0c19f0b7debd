"""Which conclusions the samples support, and which claims they do not support."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.bench.time_to_gpu.figures import Figures, conclusions, figures_of, to_document
from harness.bench.time_to_gpu.plots import plots_of
from harness.bench.time_to_gpu.report import render_markdown
from harness.bench.time_to_gpu.samples import Experiment, Mode, OracleResult, Trim
from suites.unit.bench.time_to_gpu.benchmarks import BUILDS, PREBAKED, benchmark

pytestmark = pytest.mark.usefixtures("few_resamples")

_ALL, _WITHOUT = Trim.NONE_OFF.value, Trim.LOCAL_IMAGE.value


def _trims(trimmed: list[float], without: list[float]) -> Figures:
    return figures_of(
        benchmark(
            {(Experiment.TRIM, _ALL): trimmed, (Experiment.TRIM, _WITHOUT): without},
        )
    )


def test_ratio_is_computed_from_medians_of_the_same_experiment() -> None:
    figures = figures_of(
        benchmark(
            {
                (Experiment.SCALE_UP, Mode.BUILD.value): BUILDS,
                (Experiment.SCALE_UP, Mode.PREBAKED.value): PREBAKED,
                (Experiment.POLICY_RESET, Mode.BUILD.value): [20.0] * 5,
                (Experiment.POLICY_RESET, Mode.PREBAKED.value): [5.0] * 5,
            }
        )
    )

    document = to_document(figures)

    found = document["ratio_prebaked"]
    assert isinstance(found, dict)
    assert (found["median"], found["n"]) == (0.4, 5)
    assert 3.8 / 11 <= found["interval_low"] < 0.4 < found["interval_high"] <= 4.2 / 9
    reset = figures.mode(Experiment.POLICY_RESET, Mode.PREBAKED)
    assert reset is not None
    assert reset.ratio is not None
    assert reset.ratio.value == 0.25


def test_unmeasured_values_are_null_in_the_json_document() -> None:
    document = to_document(figures_of(benchmark()))

    assert document["ratio_precompiled_near"] is None
    assert document["ratio_teardown"] is None
    assert document["savings"] == {}


def test_report_without_a_measured_build_has_no_advice() -> None:
    figures = figures_of(benchmark({(Experiment.SCALE_UP, Mode.PREBAKED.value): PREBAKED}))

    assert to_document(figures)["advice"] == {}
    assert plots_of(figures) == []
    text = render_markdown(figures, reference_s=100.0)
    assert "Advice" not in text
    assert "| scale-up | prebaked | no build measured |" in text


def test_compilation_share_is_the_compilation_time_divided_by_the_wait() -> None:
    """In each sample, the install is 0.8 of the wait, and half of the install is compilation."""
    given = benchmark()
    found = figures_of(given).mode(Experiment.SCALE_UP, Mode.BUILD)

    assert found is not None
    assert found.compile_share is not None
    assert found.compile_share.value == pytest.approx(0.4)
    first, *others = given.samples
    given = replace(given, samples=(replace(first, compile_s=None), *others))
    found = figures_of(given).mode(Experiment.SCALE_UP, Mode.BUILD)
    assert found is not None
    assert found.compile_share is None


def test_saving_is_claimed_only_if_at_least_five_samples_show_it() -> None:
    for trimmed, without, verdict in (
        # 10 s without the trim and 8 s with it are a fifth of the wait.
        ([8.0, 8.1, 7.9, 8.0, 8.0], [10.0, 10.1, 9.9, 10.0, 10.0], "saves 20.0 %"),
        ([8.0, 12.0, 9.0, 11.0, 9.5], [10.0, 8.5, 12.5, 9.0, 11.5], "no saving shown"),
        ([1.0] * 4, [10.0] * 4, "no claim: n = 4"),
        ([10.0] * 5, [8.0] * 5, "costs time"),
    ):
        (saving,) = _trims(trimmed, without).savings

        assert saving.verdict().startswith(verdict), trimmed
        assert saving.is_claimed == verdict.startswith("saves"), trimmed


def test_conclusion_from_fewer_than_five_samples_makes_no_claim() -> None:
    figures = figures_of(
        benchmark(
            {
                (Experiment.SCALE_UP, Mode.BUILD.value): [10.0, 11.0],
                (Experiment.SCALE_UP, Mode.PREBAKED.value): [4.0, 4.1],
            }
        )
    )

    assert "no claim, since a claim needs 5 samples" in conclusions(figures)[0]


def test_conclusion_for_equal_waits_says_that_no_difference_is_shown() -> None:
    figures = figures_of(
        benchmark(
            {
                (Experiment.SCALE_UP, Mode.BUILD.value): BUILDS,
                (Experiment.SCALE_UP, Mode.OTHER_KERNEL.value): BUILDS,
            }
        )
    )

    assert "no difference from the build at boot is shown" in conclusions(figures)[0]


def test_conclusions_count_the_differences_that_each_teardown_leaves() -> None:
    figures = figures_of(
        benchmark(
            teardowns={"fast": [1.0] * 5, "dkms-remove": [4.0] * 5},
            oracle=[
                OracleResult(way="fast", differences=()),
                OracleResult(way="dkms-remove", differences=("+ path /usr/src/nvidia-1",)),
            ],
        )
    )

    lines = conclusions(figures)

    assert figures.teardown is not None
    assert figures.teardown.value == 0.25
    assert any("'fast' the whole node is like a node that never had" in line for line in lines)
    assert any("'dkms-remove' 1 items differ" in line for line in lines)
