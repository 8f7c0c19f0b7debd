"""The options of `harness bench`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from harness.bench.realistic_runs import RepeatedRuns
from harness.bench.time_to_gpu.figures import figures_of, to_document
from harness.bench.time_to_gpu.samples import Experiment, Mode
from harness.cli import build_parser, main
from harness.cli.options import machine_words, settings_of
from harness.cli.time_to_gpu import _options
from suites.unit.bench.time_to_gpu.benchmarks import BUILDS, PREBAKED, benchmark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.bench.time_to_gpu.run import Options

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--samples", "0"), ("--resets", "-1"), ("--quantile", "1.5")],
)
def test_time_to_gpu_refuses_invalid_numbers(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "time-to-gpu", option, value])

    assert f"'{value}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("differing", "never_passed", "status"),
    [({}, [], 0), ({"a": ["passed", "failed"]}, [], 1), ({}, ["a"], 1)],
)
def test_runs_under_load_need_identical_and_good_verdicts(
    differing: dict[str, list[str]],
    never_passed: list[str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = RepeatedRuns(runs=2, examples=1, differing=differing, never_passed=never_passed)
    monkeypatch.setattr("harness.cli.bench.repeat_under_load", lambda _: runs)

    assert main(["bench", "shell", "--repeat-under-load", "2"]) == status


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "only with --gpu-emulation=gsp"),
        (["--gpu-emulation=identity"], "only with --gpu-emulation=gsp"),
        (["--gpu-emulation=gsp", "--model=v100-pcie-16gb"], "has no key 'gsp'"),
    ],
)
def test_gpu_that_no_driver_opens_is_refused_before_anything_starts(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def open_lab(*_: object) -> None:
        pytest.fail("a lab was opened")

    monkeypatch.setattr("harness.cli.bench.Lab.open", open_lab)

    assert main(["bench", "gpu", "--open", *options]) != 0

    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--payload=nvidia", "--quick"], "is not compiled within the minutes of '--quick'"),
        (
            ["--payload=nvidia", "--image=debian-13"],
            "measures the image 'debian-12-nvidia-identity'",
        ),
        (["--image=debian-12-nvidia-identity"], "write '--payload=nvidia' instead"),
    ],
)
def test_payload_is_refused_with_options_that_do_not_fit(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "time-to-gpu", *options]) == 2

    assert message in capsys.readouterr().err


def planned(*options: str) -> Options:
    return _options(build_parser("bench").parse_args(["bench", "time-to-gpu", *options]))


def test_stand_in_keeps_its_time_limit() -> None:
    assert planned().minutes == 14


def test_nvidias_driver_has_no_time_limit_unless_one_is_given() -> None:
    assert planned("--payload=nvidia").minutes == math.inf
    assert planned("--payload=nvidia", "--minutes=90").minutes == 90


def test_nvidias_driver_is_compiled_by_a_few_fresh_nodes_by_default() -> None:
    found = planned("--payload=nvidia")

    assert (found.samples, found.resets, found.trims, found.teardowns) == (3, 0, 0, 0)
    assert list(found.modes) == [Mode.PREBAKED]
    assert planned("--payload=nvidia", "--samples=1", "--resets=2").resets == 2


@pytest.mark.parametrize("plan", [[], ["--quick"], ["--payload=nvidia"]])
def test_each_plan_takes_the_number_of_vcpus(plan: Sequence[str]) -> None:
    assert planned(*plan).cpus == 1
    assert planned(*plan, "--cpus=2").cpus == 2


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.05, 0), (2.0, 1)])
def test_compare_ends_with_one_on_a_regression(
    factor: float, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    prebaked = (Experiment.SCALE_UP, Mode.PREBAKED.value)
    builds = {(Experiment.SCALE_UP, Mode.BUILD.value): BUILDS}
    for file, waits in ((before, PREBAKED), (after, [wait * factor for wait in PREBAKED])):
        measured = benchmark({**builds, prebaked: waits})
        file.write_text(json.dumps(to_document(figures_of(measured))))

    assert main(["bench", "compare", str(before), str(after)]) == code
    assert "REGRESSION" in capsys.readouterr().out if code else True


def test_compare_names_a_file_that_is_not_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")

    assert main(["bench", "compare", str(file), str(file)]) == 2
    assert str(file) in capsys.readouterr().err


def test_report_of_an_earlier_run_is_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again"
    first.write_text(json.dumps(to_document(figures_of(benchmark()))))

    code = main(
        [
            *("bench", "time-to-gpu", "--json", "--no-plots", "--reference-s=300"),
            *(f"--again={first}", f"--output={again}"),
        ]
    )

    assert code == 0
    assert json.loads(capsys.readouterr().out)["ratio_prebaked"]["median"] == 0.4
    assert "= 158 s" in (again / "report.md").read_text()


def test_shell_that_is_measured_has_the_machines_of_the_bench() -> None:
    asked = [
        *(
            "--accelerator=tcg",
            "--timeout-multiplier=3",
            "--qemu=qemu-11",
            "--machine-driver=libvirt",
        ),
        *("--machine-uri=qemu:///session", "--image=noble", "--images-dir=mine"),
        *("--checkpoint-limit-mib=100", "--store=registry.example:5000/team"),
    ]
    measured = settings_of(build_parser("bench").parse_args(["bench", "clone", *asked]))

    words = machine_words(measured)

    assert settings_of(build_parser("shell").parse_args(["shell", *words])) == measured
