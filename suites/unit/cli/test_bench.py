"""The options and the exit codes of `harness bench`."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.bench.clone import CloneBench
from harness.bench.gpu import GpuRates
from harness.bench.realistic_runs import RepeatedRuns
from harness.bench.spread import Spread
from harness.bench.time_to_gpu.figures import figures_of, to_document
from harness.bench.time_to_gpu.samples import Experiment, Mode
from harness.cli import build_parser, exit_code_of
from harness.cli.options import machine_words, settings_of
from harness.cli.time_to_gpu import _options
from harness.gpu.transport import Transport
from harness.settings import Settings
from suites.unit.bench.time_to_gpu.benchmarks import PREBAKED, benchmark

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from harness.bench.time_to_gpu.run import Options

pytestmark = pytest.mark.usefixtures("few_resamples")

_parser = functools.cache(build_parser)


def parsed(*words: str) -> argparse.Namespace:
    return _parser("bench").parse_args(["bench", *words])


def run(*words: str) -> int:
    arguments = parsed(*words)
    return exit_code_of(lambda: arguments.run(arguments), command="harness bench")


def test_time_to_gpu_command_refuses_invalid_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (
        ("--samples", "0"),
        ("--resets", "-1"),
        ("--quantile", "1.5"),
        ("--margin", "nan"),
        ("--minutes", "nan"),
        ("--reference-s", "0"),
        ("--ready-s", "inf"),
    ):
        with pytest.raises(SystemExit):
            parsed("time-to-gpu", option, value)

        assert f"'{value}'" in capsys.readouterr().err


def test_gpu_bench_refuses_invalid_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    for value in ("nan", "0", "inf", "1s"):
        with pytest.raises(SystemExit):
            parsed("gpu", "--seconds", value)

        assert f"'{value}'" in capsys.readouterr().err


def test_exit_code_is_1_if_runs_under_load_differ_or_an_example_never_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[tuple[dict[str, list[str]], list[str], int]] = [
        ({}, [], 0),
        ({"a": ["passed", "failed"]}, [], 1),
        ({}, ["a"], 1),
    ]
    for differing, never_passed, status in rows:
        runs = RepeatedRuns(runs=2, examples=1, differing=differing, never_passed=never_passed)
        monkeypatch.setattr("harness.cli.bench.repeat_under_load", lambda _, runs=runs: runs)

        assert run("shell", "--repeat-under-load", "2") == status, differing


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = SimpleNamespace(settings=Settings())
    opened = SimpleNamespace(open=lambda *_: contextlib.nullcontext(lab))
    monkeypatch.setattr("harness.cli.bench.Lab", opened)


@pytest.mark.usefixtures("lab")
def test_requested_number_of_clones_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(_lab: object, *, runs: int, cold_runs: int, progress: Any, **_: object) -> Any:
        for run in (1, 2):
            progress("clone", run, 2)
        medians = {"cold_boot_s": 30.0, "clone_ready_s": 0.2, "prompt_s": 0.1234567}
        spreads = {
            name: Spread(median=median, p95=2 * median, runs=cold_runs if median > 1 else runs)
            for name, median in medians.items()
        }
        return CloneBench(accelerator="tcg", spreads=spreads)

    monkeypatch.setattr("harness.cli.bench.measure_clones", measure)

    assert run("clone", "--json", "--runs=7", "--cold-runs=2") == 0

    streams = capsys.readouterr()
    assert json.loads(streams.out) == {
        "accelerator": "tcg",
        "cold_boot_s": {"median": 30.0, "p95": 60.0, "runs": 2},
        "clone_ready_s": {"median": 0.2, "p95": 0.4, "runs": 7},
        "prompt_s": {"median": 0.123, "p95": 0.247, "runs": 7},
        "cold_boot_s/clone_ready_s": 150.0,
        "cold_boot_s/prompt_s": 243.0,
    }
    assert streams.err.count("\n") == 1
    assert streams.err.endswith("\n")


def test_bench_commands_use_the_requested_runs_and_seconds_and_rounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rates(model: Any, *, runs: int, seconds: float) -> Any:
        assert model.name == "t4-16gb"
        return {
            each: GpuRates(config_reads_per_s=runs, bar_reads_per_s=seconds) for each in Transport
        }

    monkeypatch.setattr("harness.cli.bench.measure_gpu", rates)
    monkeypatch.setattr("harness.cli.bench.measure_realistic", lambda rounds: (rounds, None))
    monkeypatch.setattr("harness.cli.bench.shell_figures", lambda own, _: {"start_ms": own})

    assert run("gpu", "--json", "--model=t4-16gb", "--runs=3", "--seconds=0.5") == 0
    measured = json.loads(capsys.readouterr().out)
    assert run("shell", "--json", "--realistic", "--rounds=4") == 0

    assert json.loads(capsys.readouterr().out) == {"start_ms": 4}
    assert (measured["model"], measured["runs"]) == ("t4-16gb", 3)
    assert measured["transports"] == {
        each.value: {"config_reads_per_s": 3, "bar_reads_per_s": 0.5} for each in Transport
    }


def test_gpu_open_bench_without_gsp_emulation_is_refused_before_the_lab_opens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[tuple[list[str], str]] = [
        ([], "only with --gpu-emulation=gsp"),
        (["--gpu-emulation=identity"], "only with --gpu-emulation=gsp"),
        (["--gpu-emulation=gsp", "--model=v100-pcie-16gb"], "has no key 'gsp'"),
    ]
    for options, message in rows:

        def open_lab(*_: object) -> None:
            pytest.fail("a lab was opened")

        monkeypatch.setattr("harness.cli.bench.Lab.open", open_lab)

        assert run("gpu", "--open", *options) != 0

        assert message in capsys.readouterr().err


def test_payload_option_that_conflicts_with_the_quick_or_image_option_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for options, message in (
        (["--payload=nvidia", "--quick"], "takes longer than '--quick' allows"),
        (
            ["--payload=nvidia", "--image=debian-13"],
            "measures the image 'debian-12-nvidia-identity'",
        ),
        (["--image=debian-12-nvidia-identity"], "write '--payload=nvidia' instead"),
    ):
        assert run("time-to-gpu", *options) == 2

        assert message in capsys.readouterr().err


def planned(*options: str) -> Options:
    return _options(parsed("time-to-gpu", *options))


def test_options_of_time_to_gpu_override_its_defaults_even_with_zero() -> None:
    assert (planned().minutes, planned().has_registry) == (14, True)
    assert not planned("--no-registry").has_registry
    assert not planned("--payload=nvidia").has_registry
    # A value of 0 is not replaced by a default.
    found = planned("--resets=0", "--trims=0", "--teardowns=0", "--padding-mib=0")
    assert (found.resets, found.trims, found.teardowns, found.padding_mib) == (0, 0, 0, 0)
    modes = [Mode.NEAR, Mode.PREBAKED]
    words = [f"--mode={mode.value}" for mode in modes]
    assert list(planned(*words).modes) == modes
    assert list(planned(*words, "--payload=nvidia").modes) == modes


def test_plan_for_nvidias_driver_has_3_samples_and_no_resets_and_no_time_limit_by_default() -> (
    None
):
    found = planned("--payload=nvidia")

    assert (found.samples, found.resets, found.trims, found.teardowns) == (3, 0, 0, 0)
    assert list(found.modes) == [Mode.PREBAKED]
    assert found.minutes == math.inf
    assert planned("--payload=nvidia", "--minutes=90").minutes == 90
    assert planned("--payload=nvidia", "--samples=1", "--resets=2").resets == 2


def test_every_plan_has_the_requested_number_of_vcpus() -> None:
    rows: list[Sequence[str]] = [[], ["--quick"], ["--payload=nvidia"]]
    for plan in rows:
        assert planned(*plan).cpus == 1, plan
        assert planned(*plan, "--cpus=2").cpus == 2, plan


def test_exit_code_of_the_compare_command_is_1_on_a_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for factor, code in ((1.05, 0), (2.0, 1)):
        files = {}
        for name, times in (("before", 1.0), ("after", factor)):
            waits = [wait * times for wait in PREBAKED]
            measured = benchmark(
                {(Experiment.SCALE_UP, Mode.PREBAKED.value): waits}, is_emulated=False
            )
            files[name] = tmp_path / name
            files[name].write_text(json.dumps(to_document(figures_of(measured))))

        assert run("compare", str(files["before"]), str(files["after"])) == code
        assert ("REGRESSION" in capsys.readouterr().out) is bool(code)


def test_compare_command_names_a_file_without_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")

    assert run("compare", str(file), str(file)) == 2
    assert str(file) in capsys.readouterr().err


def test_report_is_rewritten_from_the_figures_of_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again = tmp_path / "first.json", tmp_path / "again"
    first.write_text(json.dumps(to_document(figures_of(benchmark()))))

    code = run(
        *("time-to-gpu", "--json", "--no-plots", "--reference-s=300"),
        *(f"--again={first}", f"--output={again}", "--quick", "--payload=nvidia"),
    )

    assert code == 0
    assert json.loads(capsys.readouterr().out)["ratio_prebaked"]["median"] == 0.4
    assert "= 158 s" in (again / "report.md").read_text()


def test_machine_options_of_a_bench_are_passed_to_the_measured_shell() -> None:
    asked = [
        *(
            "--accelerator=tcg",
            "--timeout-multiplier=3",
            "--qemu=qemu-11",
            "--machine-driver=libvirt",
        ),
        *("--machine-uri=qemu:///session", "--image=noble", "--images-dir=mine"),
        *("--images-dir=theirs", "--accept-licence=one", "--accept-licence=two"),
        *("--checkpoint-limit-mib=100", "--store=registry.example:5000/team"),
    ]
    measured = settings_of(parsed("clone", *asked))

    words = machine_words(measured)

    assert settings_of(build_parser("shell").parse_args(["shell", *words])) == measured
