"""The content of each form of the report, and a page that needs no other file."""

from __future__ import annotations

import csv
import html
import io
import re
from typing import TYPE_CHECKING

import pytest

from harness.bench.time_to_gpu.figures import figures_of, to_document
from harness.bench.time_to_gpu.report import (
    render_csv,
    render_markdown,
    render_page,
    write_report,
)
from harness.bench.time_to_gpu.samples import Experiment, Mode, Payload
from suites.unit.bench.time_to_gpu.benchmarks import BUILDS, PREBAKED, benchmark

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_report_has_a_warning_only_if_the_seconds_were_measured_under_emulation() -> None:
    text = render_markdown(figures_of(benchmark()))

    assert "read the ratios" in text
    assert "10.0 s emulated" in text
    assert "40.0 %" in text
    assert "emulated" not in render_markdown(figures_of(benchmark(is_emulated=False)))


def test_report_shows_the_published_ratio_beside_the_measured_ratio() -> None:
    waits = {
        (Experiment.SCALE_UP, Mode.BUILD.value): BUILDS,
        (Experiment.SCALE_UP, Mode.NEAR.value): PREBAKED,
    }

    assert "56.1 % (207 s of 369 s)" in render_markdown(figures_of(benchmark(waits)))


def test_advice_is_in_seconds_only_if_the_time_of_a_real_build_is_given() -> None:
    """The worst prebaked node takes 0.42 of a build, and 0.525 with the margin: 200 s and 52.5 s."""
    figures = figures_of(benchmark())

    assert "0.53 x = 252 s" in render_markdown(figures, reference_s=100.0, ready_s=200.0)
    assert "0.53 x |" in render_markdown(figures)


def test_report_shows_the_compilation_share_with_interval_and_sample_count() -> None:
    figures = figures_of(benchmark(payload=Payload.NVIDIA))

    share = "40.0 % (interval 40.0 % to 40.0 %, n = 5)"
    for text in (render_markdown(figures), render_page(figures, [])):
        assert f"The compilation of NVIDIA's own driver is {share}" in html.unescape(text)
    row = "| build-at-boot | 40.0 % | 40.0 % to 40.0 % | 5 | install-driver 80.0 %"
    assert row in render_markdown(figures)
    assert to_document(figures)["payload"] == "nvidia"


def test_csv_has_a_line_for_each_sample() -> None:
    figures = figures_of(benchmark(teardowns={"fast": [0.5]}))
    rows = list(csv.DictReader(io.StringIO(render_csv(figures))))

    assert len(rows) == 11
    assert (rows[10]["experiment"], rows[10]["variant"], rows[10]["wait_s"]) == (
        *("teardown", "fast", "0.5"),
    )
    assert rows[0]["variant"] == "build-at-boot"
    assert float(rows[0]["wait_s"]) == 10.0
    # With NVIDIA's driver, no GPU was opened.
    unopened = render_csv(figures_of(benchmark(payload=Payload.NVIDIA)))
    assert {row["allocated_s"] for row in csv.DictReader(io.StringIO(unopened))} == {""}


def test_html_page_loads_no_other_file_and_escapes_its_texts() -> None:
    page = render_page(figures_of(benchmark()), [])

    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "&lt;angle brackets&gt;" in page
    assert "prefers-color-scheme: dark" in page


def test_report_is_written_as_csv_and_html_and_json_and_markdown(tmp_path: Path) -> None:
    written = write_report(figures_of(benchmark()), tmp_path / "report", has_plots=False)

    assert sorted(written) == ["report.csv", "report.html", "report.json", "report.md"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(written)
