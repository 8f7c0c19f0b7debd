"""The plots of a report, which matplotlib draws in both colour schemes."""

from __future__ import annotations

import re

import pytest

from harness.bench.time_to_gpu.figures import figures_of
from harness.bench.time_to_gpu.plots import plots_of, render
from harness.bench.time_to_gpu.report import render_page
from harness.bench.time_to_gpu.samples import Experiment, Mode, Trim
from harness.plots import DARK, LIGHT, Scheme
from suites.unit.bench.time_to_gpu.benchmarks import BUILDS, PREBAKED, benchmark

_FIGURES = figures_of(
    benchmark(
        {
            (Experiment.SCALE_UP, Mode.BUILD.value): BUILDS,
            (Experiment.SCALE_UP, Mode.NEAR.value): PREBAKED,
            (Experiment.POLICY_RESET, Mode.BUILD.value): BUILDS,
            (Experiment.TRIM, Trim.NONE_OFF.value): PREBAKED,
            (Experiment.TRIM, Trim.ASYNC_REMOVAL.value): BUILDS,
        }
    )
)


def test_report_has_a_plot_of_each_measured_quantity() -> None:
    names = [plot.name for plot in plots_of(_FIGURES)]

    assert names == ["waits", "critical-path", "distribution", "savings"]


def test_report_has_no_plot_of_unmeasured_quantities() -> None:
    assert "savings" not in [plot.name for plot in plots_of(figures_of(benchmark()))]


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=lambda scheme: scheme.name)
def test_plots_have_the_background_of_their_colour_scheme(scheme: Scheme) -> None:
    for plot in plots_of(_FIGURES):
        assert scheme.background.encode() in render(plot, _FIGURES, scheme)


def test_plots_of_the_same_samples_are_equal_byte_for_byte() -> None:
    plot = plots_of(_FIGURES)[0]

    assert render(plot, _FIGURES, LIGHT) == render(plot, _FIGURES, LIGHT)
    assert render(plot, _FIGURES, LIGHT, form="png").startswith(b"\x89PNG")


def test_page_embeds_its_plots_in_both_colour_schemes() -> None:
    plots = plots_of(_FIGURES)

    page = render_page(_FIGURES, plots)

    assert len(re.findall(r'srcset="data:image/svg\+xml', page)) == len(plots)
    assert len(re.findall(r'<img src="data:image/svg\+xml', page)) == len(plots)
