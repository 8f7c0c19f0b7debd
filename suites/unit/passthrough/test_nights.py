"""The results of nightly runs on a host, and their comparison with earlier nights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from suites.passthrough.nights import GpuFacts, Night, StepTime, nights_file, read_nights, table_of

if TYPE_CHECKING:
    from pathlib import Path

H100 = GpuFacts(model="NVIDIA H100", vbios="96.00.5E", driver="580.126.09")


def a_night(folder: Path, run: str, *seconds: float, gpu: GpuFacts = H100) -> Night:
    night = Night(run=run, file=nights_file(folder), gpu=gpu)
    for each in seconds:
        night.add(StepTime(test="test_bus", step="start", seconds=each))
    return night


def test_step_times_of_each_night_are_appended_to_the_file(tmp_path: Path) -> None:
    file = a_night(tmp_path, "one", 1.0).file
    a_night(tmp_path, "two", 2.0)

    entries = read_nights(file)

    assert [(each.run, each.seconds, each.gpu) for each in entries] == [
        ("one", 1.0, H100),
        ("two", 2.0, H100),
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def test_table_compares_a_night_with_the_median_of_earlier_nights(tmp_path: Path) -> None:
    for number, seconds in enumerate((10.0, 30.0, 20.0)):
        a_night(tmp_path, str(number), seconds)
    night = a_night(tmp_path, "now", 25.0)
    night.add(StepTime(test="test_bus", step="a new step", seconds=1.25))

    table = table_of(read_nights(night.file), run="now")

    assert table.splitlines() == [
        "NVIDIA H100, VBIOS 96.00.5E, driver 580.126.09",
        "TEST      STEP        SECONDS  EARLIER  NIGHTS",
        "test_bus  start       25.0     20.0     3",
        "test_bus  a new step  1.2      -        0",
    ]


def test_table_mentions_the_gpu_model_even_if_some_steps_did_not_record_it(tmp_path: Path) -> None:
    night = a_night(tmp_path, "now", 1.0, gpu=GpuFacts())
    night.gpu = H100
    night.add(StepTime(test="test_driver", step="provision", seconds=2.0))
    night.gpu = GpuFacts()
    night.add(StepTime(test="test_bus", step="reboot", seconds=3.0))

    assert table_of(read_nights(night.file), run="now").startswith("NVIDIA H100")


def test_run_without_steps_has_no_table(tmp_path: Path) -> None:
    night = a_night(tmp_path, "earlier", 1.0)

    assert table_of(read_nights(night.file), run="now") == ""


@pytest.mark.parametrize("line", ["", "{}", '{"run": "x"', '{"seconds": -1}'])
def test_error_has_file_and_number_of_a_broken_line(tmp_path: Path, line: str) -> None:
    file = a_night(tmp_path, "one", 1.0).file
    file.write_text(file.read_text() + line + "\n")

    with pytest.raises(BadInputError, match=r"Line 2 is not a step.*Remove the line") as refused:
        read_nights(file)

    assert str(file) in str(refused.value)
