"""`harness bench time-to-gpu` measures waits for a GPU; `harness bench compare` compares runs."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.bench.time_to_gpu.advice import MARGIN, QUANTILE
from harness.bench.time_to_gpu.compare import LIMIT, compare, render
from harness.bench.time_to_gpu.figures import conclusions, figures_of, to_document
from harness.bench.time_to_gpu.nvidia import NVIDIA_IMAGE
from harness.bench.time_to_gpu.report import write_report
from harness.bench.time_to_gpu.run import NVIDIA, PADDING_MIB, Options, quick, run_benchmark
from harness.bench.time_to_gpu.samples import Mode, Payload, read_benchmark
from harness.cli.options import (
    add_gpu_options,
    add_json_option,
    add_machine_options,
    add_provisioner_option,
    positive_number,
    positive_quantity,
    quantity,
    settings_of,
    whole_number,
)
from harness.cli.progress import ElapsedLog, show_event
from harness.errors import BadInputError
from harness.lab import Lab
from harness.provisioner.choice import choose_provisioner
from harness.settings import PROVISIONER, Settings

if TYPE_CHECKING:
    from harness.bench.time_to_gpu.samples import Benchmark
    from harness.cli.options import Actions

_T = TypeVar("_T")
_FULL = Options()
_DEFAULT = "(default: {}; with --payload=nvidia {})"


def add_time_to_gpu(subjects: Actions) -> None:
    """Add the command `harness bench time-to-gpu`."""
    parser = subjects.add_parser(
        "time-to-gpu",
        help="measure the time from a ready node to a usable GPU, for each way to install the driver",
    )
    add_machine_options(parser)
    add_provisioner_option(parser)
    add_gpu_options(parser)
    parser.add_argument(
        "--payload",
        choices=[payload.value for payload in Payload],
        default=Payload.STAND_IN.value,
        help=f"the driver: the stand-in, or NVIDIA's own driver from the image {NVIDIA_IMAGE}; an emulated "
        "node compiles NVIDIA's driver for about an hour (default: %(default)s)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run for a few minutes; the samples are too few for conclusions",
    )
    parser.add_argument(
        "--samples",
        type=positive_number,
        metavar="N",
        help="how many fresh nodes of each mode to measure "
        + _DEFAULT.format(_FULL.samples, NVIDIA.samples),
    )
    parser.add_argument(
        "--resets",
        type=whole_number,
        metavar="N",
        help="on how many fresh nodes of each mode to measure a policy reset too; 0 for none "
        + _DEFAULT.format(_FULL.resets, NVIDIA.resets),
    )
    parser.add_argument(
        "--trims",
        type=whole_number,
        metavar="N",
        help="on how many nodes to measure each trim (shortening) of the boot path; 0 for none "
        + _DEFAULT.format(_FULL.trims, NVIDIA.trims),
    )
    parser.add_argument(
        "--teardowns",
        type=whole_number,
        metavar="N",
        help="how many teardowns of each kind to measure; 0 for none "
        + _DEFAULT.format(_FULL.teardowns, NVIDIA.teardowns),
    )
    parser.add_argument(
        "--mode",
        action="append",
        default=[],
        choices=[mode.value for mode in Mode],
        help="a mode to measure in addition to build-at-boot; may be repeated "
        + _DEFAULT.format("all", Mode.PREBAKED.value),
    )
    parser.add_argument(
        "--no-registry",
        action="store_true",
        help="measure neither precompiled drivers nor trims of the boot path",
    )
    parser.add_argument(
        "--padding-mib",
        type=whole_number,
        default=PADDING_MIB,
        metavar="MIB",
        help="the size of a file that is added to the precompiled image, to make it as large as a real "
        "image (default: %(default)s)",
    )
    parser.add_argument(
        "--machines",
        type=positive_number,
        default=min(4, os.cpu_count() or 1),
        metavar="N",
        help="how many machines run at the same time (default: one for each processor, at most four)",
    )
    parser.add_argument(
        "--cpus",
        type=positive_number,
        default=1,
        metavar="N",
        help="vCPUs of each machine; several need QEMU 10.1.1 or newer (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes",
        type=positive_quantity,
        metavar="M",
        help="stop after this number of minutes; the report leaves out what was not measured "
        + _DEFAULT.format(f"{_FULL.minutes:g}", "no limit"),
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("time-to-gpu"),
        metavar="DIR",
        help="the folder for the report (default: %(default)s)",
    )
    parser.add_argument("--no-plots", action="store_true", help="write no plots")
    _add_advice_options(parser)
    parser.add_argument(
        "--again",
        type=Path,
        metavar="REPORT.JSON",
        help="measure nothing; write the report of an earlier run again",
    )
    add_json_option(parser)
    parser.set_defaults(run=_time_to_gpu)


def _add_advice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quantile",
        type=_share,
        default=QUANTILE,
        metavar="SHARE",
        help="the quantile of the measured times of node starts from which the advice is computed (default: %(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=_share,
        default=MARGIN,
        metavar="SHARE",
        help="the margin that is added to the quantile (default: %(default)s)",
    )
    parser.add_argument(
        "--reference-s",
        type=positive_quantity,
        metavar="SECONDS",
        help="the time in seconds that a build at boot takes on your real node; adds advice in seconds",
    )
    parser.add_argument(
        "--ready-s",
        type=quantity,
        default=0.0,
        metavar="SECONDS",
        help="the time in seconds that your cloud takes until a node is ready; the advice adds this time (default: 0)",
    )


def add_compare(subjects: Actions) -> None:
    """Add the command `harness bench compare`."""
    parser = subjects.add_parser("compare", help="compare two runs of time-to-gpu")
    parser.add_argument("before", type=Path, metavar="A.JSON", help="report.json of the first run")
    parser.add_argument("after", type=Path, metavar="B.JSON", help="report.json of the second run")
    parser.add_argument(
        "--limit",
        type=_share,
        default=LIMIT,
        metavar="SHARE",
        help="the share by which a wait may grow; the exit code is 1 if a wait grows more, beyond noise "
        "(default: %(default)s)",
    )
    parser.set_defaults(run=_compare)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"a share from 0 to 1 is expected, but got '{text}'.")
    return value


def _options(arguments: argparse.Namespace) -> Options:
    own = None
    if arguments.provisioner != PROVISIONER:
        own = choose_provisioner(arguments.provisioner)
    is_nvidia = arguments.payload == Payload.NVIDIA.value
    if arguments.quick and is_nvidia:
        raise BadInputError(
            "Compiling NVIDIA's own driver takes longer than '--quick' allows; leave out one of the "
            "two options, or measure one node with '--samples=1'.",
            source="--quick",
        )
    if arguments.quick:
        return replace(quick(arguments.machines, own), cpus=arguments.cpus)
    plan = NVIDIA if is_nvidia else _FULL
    return replace(
        plan,
        samples=_given(arguments.samples, plan.samples),
        resets=_given(arguments.resets, plan.resets),
        trims=_given(arguments.trims, plan.trims),
        teardowns=_given(arguments.teardowns, plan.teardowns),
        modes=tuple(Mode(name) for name in arguments.mode) or plan.modes,
        has_registry=plan.has_registry and not arguments.no_registry,
        padding_mib=arguments.padding_mib,
        machines=arguments.machines,
        cpus=arguments.cpus,
        minutes=_given(arguments.minutes, plan.minutes),
        own=own,
    )


def _given(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the command line's settings, with the image that contains the chosen driver.

    Raises BadInputError if `--image` and `--payload` contradict each other.
    """
    settings = settings_of(arguments)
    if arguments.payload == Payload.NVIDIA.value:
        if settings.image not in {Settings().image, NVIDIA_IMAGE}:
            raise BadInputError(
                f"'--payload=nvidia' measures the image '{NVIDIA_IMAGE}', not '{settings.image}'; leave "
                "out --image.",
                source="--image",
            )
        return replace(settings, image=NVIDIA_IMAGE)
    if settings.image == NVIDIA_IMAGE:
        raise BadInputError(
            f"The image '{NVIDIA_IMAGE}' has NVIDIA's own driver; write '--payload=nvidia' instead of "
            "this option.",
            source="--image",
        )
    return settings


def _measure(arguments: argparse.Namespace, log: ElapsedLog) -> Benchmark:
    if arguments.again is not None:
        return read_benchmark(arguments.again)
    options = _options(arguments)
    with Lab.open(_settings(arguments), show_event) as lab:
        return run_benchmark(lab, options, log)


def _time_to_gpu(arguments: argparse.Namespace) -> int:
    log = ElapsedLog()
    figures = figures_of(_measure(arguments, log), q=arguments.quantile, margin=arguments.margin)
    written = write_report(
        figures,
        arguments.output,
        has_plots=not arguments.no_plots,
        reference_s=arguments.reference_s,
        ready_s=arguments.ready_s,
    )
    log("the report is written")
    if arguments.json:
        print(json.dumps(to_document(figures), indent=2))
    else:
        for line in conclusions(figures):
            print(line)
        print(f"report: {written['report.html']}")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    compared = compare(
        read_benchmark(arguments.before), read_benchmark(arguments.after), limit=arguments.limit
    )
    print(render(compared))
    return 1 if compared.regressions else 0
