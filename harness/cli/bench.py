"""`harness bench`: runs benchmarks on this host, and prints medians of several runs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from harness.bench.clone import measure_clones
from harness.bench.gpu import GPU_MEASURES, measure_gpu
from harness.bench.gpu_open import GPU_OPEN_S, REOPENS, measure_gpu_open, require_openable
from harness.bench.realistic_runs import measure_realistic, repeat_under_load
from harness.bench.shell import FIGURES, SHELLSPEC_PREFIX, measure_shell, shell_figures
from harness.bench.spread import Spread
from harness.cli.columns import print_columns
from harness.cli.options import (
    add_gpu_options,
    add_json_option,
    add_machine_options,
    machine_words,
    positive_number,
    positive_quantity,
    settings_of,
)
from harness.cli.progress import show_event
from harness.cli.time_to_gpu import add_compare, add_time_to_gpu
from harness.gpu.catalogue import load_catalogue
from harness.lab import Lab

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from harness.bench.clone import CloneBench
    from harness.bench.realistic_runs import RepeatedRuns
    from harness.cli.options import Actions, Commands
    from harness.gpu import GpuModel

_MODEL = "h100-sxm5-80gb"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("bench")
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT")
    _add_clone(subjects)
    _add_gpu(subjects)
    _add_shell(subjects)
    add_time_to_gpu(subjects)
    add_compare(subjects)


def _add_clone(subjects: Actions) -> None:
    parser = subjects.add_parser("clone", help="compare cold boots with clones of a checkpoint")
    add_machine_options(parser)
    parser.add_argument(
        "--runs",
        type=positive_number,
        default=20,
        metavar="N",
        help="how many clones of each kind to measure",
    )
    parser.add_argument(
        "--cold-runs",
        type=positive_number,
        default=3,
        metavar="N",
        help="how many cold boots to measure; each takes half a minute",
    )
    add_json_option(parser)
    parser.set_defaults(run=_clone)


def _clone(arguments: argparse.Namespace) -> int:
    with Lab.open(settings_of(arguments), show_event) as lab:
        bench = measure_clones(
            lab,
            runs=arguments.runs,
            cold_runs=arguments.cold_runs,
            shell_words=machine_words(lab.settings),
            progress=_show_progress,
        )
    if arguments.json:
        document = {
            "accelerator": bench.accelerator,
            **{name: _rounded(spread) for name, spread in bench.spreads.items()},
            "cold_boot_s/clone_ready_s": round(bench.speedup, 1),
            "cold_boot_s/prompt_s": round(bench.prompt_speedup, 1),
        }
        print(json.dumps(document, indent=2))
    else:
        _show_clones(bench)
    return 0


def _show_progress(what: str, run: int, runs: int) -> None:
    end = "\n" if run == runs else ""
    print(f"\r{what} {run} of {runs} ", end=end, file=sys.stderr, flush=True)


def _rounded(spread: Spread) -> Mapping[str, float]:
    return {
        "median": round(spread.median, 3),
        "p95": round(spread.p95, 3),
        "runs": spread.runs,
    }


def _show_clones(bench: CloneBench) -> None:
    table = Table(title=f"clones under {bench.accelerator}")
    for column in ("measure", "median", "p95", "runs"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for name, spread in bench.spreads.items():
        table.add_row(name, f"{spread.median:.3f}", f"{spread.p95:.3f}", str(spread.runs))
    table.add_row("cold_boot_s / clone_ready_s", f"{bench.speedup:.0f}", "", "")
    table.add_row("cold_boot_s / prompt_s", f"{bench.prompt_speedup:.0f}", "", "")
    Console().print(table)


def _add_gpu(subjects: Actions) -> None:
    parser = subjects.add_parser(
        "gpu", help="measure accesses to an emulated GPU through each transport"
    )
    add_machine_options(parser)
    add_gpu_options(parser)
    parser.add_argument("--model", default=_MODEL, metavar="NAME", help="the GPU model")
    parser.add_argument(
        "--open",
        action="store_true",
        help="measure only the time from plugging a GPU into a clone until `nvidia-smi -L` shows the GPU; "
        "the image needs NVIDIA's driver",
    )
    parser.add_argument(
        "--runs",
        type=positive_number,
        default=5,
        metavar="N",
        help="how many runs to measure of each kind",
    )
    parser.add_argument(
        "--seconds",
        type=positive_quantity,
        default=1.0,
        metavar="S",
        help="the length of each run in seconds",
    )
    add_json_option(parser)
    parser.set_defaults(run=_gpu)


def _gpu(arguments: argparse.Namespace) -> int:
    model = load_catalogue(*settings_of(arguments).gpu_models).get(arguments.model)
    if arguments.open:
        return _gpu_open(arguments, model)
    rates = {
        transport.value: asdict(each)
        for transport, each in measure_gpu(
            model, runs=arguments.runs, seconds=arguments.seconds
        ).items()
    }
    if arguments.json:
        document = {"model": model.name, "runs": arguments.runs, "transports": rates}
        print(json.dumps(document, indent=2))
    else:
        print_columns(
            ("TRANSPORT", *(measure.upper() for measure in GPU_MEASURES)),
            [(name, *(f"{rate:.0f}" for rate in each.values())) for name, each in rates.items()],
        )
    return 0


def _gpu_open(arguments: argparse.Namespace, model: GpuModel) -> int:
    settings = settings_of(arguments)
    require_openable(settings, model)
    with Lab.open(settings, show_event) as lab:
        accelerator = lab.accelerator.accelerator.accel
        opens = measure_gpu_open(lab, model, runs=arguments.runs)
    figures = {
        name: _rounded(figure) if isinstance(figure, Spread) else round(figure, 1)
        for name, figure in vars(opens).items()
    }
    if arguments.json:
        document = {"model": model.name, "accelerator": accelerator, **figures}
        print(json.dumps(document, indent=2))
    else:
        spread = opens.gpu_open_s
        print(f"{GPU_OPEN_S} under {accelerator}: {spread.median:.2f} (p95 {spread.p95:.2f})")
        print(
            f"{opens.accesses} accesses; {opens.device_mib:.0f} MiB of memory, "
            f"and {opens.reopen_growth_mib:.1f} MiB in addition after {REOPENS} more opens"
        )
    return 0


def _add_shell(subjects: Actions) -> None:
    parser = subjects.add_parser("shell", help="measure the time of an example of a *_spec.sh")
    add_json_option(parser)
    parser.add_argument(
        "--rounds",
        type=positive_number,
        default=5,
        help="how often to run each suite; the median of the runs is shown",
    )
    parser.add_argument(
        "--quick", action="store_true", help="do not measure the suite of 5,000 examples"
    )
    parser.add_argument(
        "--realistic",
        action="store_true",
        help="measure only the realistic suite, and the start of pytest",
    )
    parser.add_argument(
        "--repeat-under-load",
        type=positive_number,
        metavar="N",
        help="only run the realistic suite N times with two workers while two busy loops run, and compare "
        "the verdicts of the runs",
    )
    parser.set_defaults(run=_shell)


def _shell(arguments: argparse.Namespace) -> int:
    if arguments.repeat_under_load is not None:
        return _compare_verdicts(repeat_under_load(arguments.repeat_under_load))
    if arguments.realistic:
        own, shellspec = measure_realistic(arguments.rounds)
        figures = shell_figures(own, shellspec)
    else:
        figures = measure_shell(rounds=arguments.rounds, quick=arguments.quick).figures()
    if arguments.json:
        rounded = {name: round(value, 3) for name, value in figures.items()}
        print(json.dumps(rounded, indent=2))
        return 0
    for name, value in figures.items():
        meaning = FIGURES[name.removeprefix(SHELLSPEC_PREFIX)]
        print(f"{name:34}{value:10.3f}  {meaning}")
    return 0


def _compare_verdicts(repeated: RepeatedRuns) -> int:
    for name, outcomes in repeated.differing.items():
        counts = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes).items())
        print(f"different verdicts: {name}: {counts}")
    for name in repeated.never_passed:
        print(f"never passed: {name}")
    verdicts = "identical" if repeated.are_identical else "not identical"
    print(f"{repeated.runs} runs of {repeated.examples} examples: {verdicts} verdicts")
    return 0 if repeated.are_identical else 1
