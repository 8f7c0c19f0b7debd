"""A benchmark's results are written and read again; files with other content are refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.bench.time_to_gpu.figures import figures_of, to_document
from harness.bench.time_to_gpu.samples import OracleResult, Payload, read_benchmark
from harness.errors import BadInputError
from suites.unit.bench.time_to_gpu.benchmarks import benchmark

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_benchmark_is_unchanged_after_it_is_written_to_a_document_and_read(tmp_path: Path) -> None:
    given = benchmark(
        teardowns={"fast": [0.5]}, oracle=[OracleResult(way="fast", differences=("+ path /x",))]
    )
    file = tmp_path / "report.json"
    file.write_text(json.dumps(to_document(figures_of(given))))

    assert read_benchmark(file) == given


def test_samples_with_nvidias_driver_are_read_even_if_no_gpu_was_opened(tmp_path: Path) -> None:
    given = benchmark(payload=Payload.NVIDIA)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(to_document(figures_of(given))))

    found = read_benchmark(file)

    assert found.conditions.payload is Payload.NVIDIA
    assert {sample.allocated_s for sample in found.samples} == {None}


def test_report_without_a_payload_key_is_read_as_a_report_of_the_stand_in_driver(
    tmp_path: Path,
) -> None:
    """An earlier version of the harness wrote such documents."""
    document = json.loads(json.dumps(to_document(figures_of(benchmark()))))
    del document["measured"]["conditions"]["payload"]
    file = tmp_path / "report.json"
    file.write_text(json.dumps(document))

    assert read_benchmark(file) == benchmark()


def test_error_for_a_file_that_is_not_a_benchmark_report_names_the_file(tmp_path: Path) -> None:
    rows: list[tuple[object, str]] = [
        ({"schema": 2}, "schema 1 was expected"),
        ({"clone_ready_s": {"median": 1.0}}, "schema 1 was expected"),
        ({"schema": 1, "measured": {"samples": []}}, "conditions"),
    ]
    for document, message in rows:
        file = tmp_path / "other.json"
        file.write_text(json.dumps(document))

        with pytest.raises(BadInputError, match=message) as refusal:
            read_benchmark(file)

        assert str(file) in str(refusal.value), document


def test_error_for_an_invalid_wait_in_a_report_names_the_key(tmp_path: Path) -> None:
    for wait_s in (0.0, float("inf")):
        document = json.loads(json.dumps(to_document(figures_of(benchmark()))))
        document["measured"]["samples"][0]["wait_s"] = wait_s
        file = tmp_path / "report.json"
        file.write_text(json.dumps(document))

        with pytest.raises(BadInputError, match="wait_s"):
            read_benchmark(file)
