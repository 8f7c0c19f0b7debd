"""`harness bench`: how long things take on this host, as medians of several runs."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table

from harness.cli import bench_gpu, bench_shell
from harness.cli.images import show_event
from harness.cli.options import add_machine_options, settings_of
from harness.errors import HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.lab import open_lab
from harness.lab.layers import booted, cloud_init_done
from harness.lab.node import NodeRequest
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.cli.options import Commands
    from harness.lab import Lab
    from harness.lab.layers import Layer
    from harness.lab.machine import LabMachine

Sample = TypeVar("Sample")

#: What is measured, in the order in which it is shown.
MEASURES: Mapping[str, str] = {
    "cold_boot_s": "from asking for a node to cloud-init's end, without a checkpoint",
    "clone_ready_s": "from asking for a clone to the answer of its first command",
    "clone_gpu_s": "from asking for a clone with an emulated GPU until the guest lists it",
    "ping_ms": "a round trip to the guest's agent",
    "exec_ms": "a round trip that runs true",
    "private_mib": "memory that an idle clone has for itself",
}

_MODEL = "h100-sxm5-80gb"
_ANSWER_S = 60.0
_ROUND_TRIPS = 10


@dataclass(frozen=True, kw_only=True)
class Spread:
    """What several runs of one measurement gave."""

    median: float
    p95: float
    runs: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarise; the 95th percentile lies between samples, or is the largest of few."""
        if len(samples) == 1:
            return cls(median=samples[0], p95=samples[0], runs=1)
        p95 = statistics.quantiles(samples, n=20, method="inclusive")[-1]
        return cls(median=statistics.median(samples), p95=p95, runs=len(samples))


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure on this host")
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT")
    clone = subjects.add_parser("clone", help="cold boots against clones of a checkpoint")
    add_machine_options(clone)
    clone.add_argument("--runs", type=_count, default=20, metavar="N", help="clones of each kind")
    clone.add_argument(
        "--cold-runs", type=_count, default=3, metavar="N", help="cold boots, half a minute each"
    )
    clone.add_argument("--json", action="store_true")
    clone.set_defaults(run=_clone)
    bench_gpu.add_subject(subjects, _count)
    bench_shell.add_parser(subjects)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"'{text}' is no count; give a whole number from 1 on.")
    return int(text)


def _clone(arguments: argparse.Namespace) -> int:
    with open_lab(settings_of(arguments), show_event) as lab:
        layer = cloud_init_done(booted(lab.node_image()))
        lab.hold(layer)
        samples: dict[str, list[float]] = {
            "cold_boot_s": _repeat(arguments.cold_runs, "cold boot", lambda: _cold_boot(lab)),
        }
        for each in _repeat(arguments.runs, "clone", lambda: _plain_clone(lab, layer)):
            for name, value in each.items():
                samples.setdefault(name, []).append(value)
        samples["clone_gpu_s"] = _repeat(
            arguments.runs, "clone with a GPU", lambda: _gpu_clone(lab, layer)
        )
        accelerator = lab.accelerator.accelerator.accel
    spreads = {name: Spread.of(samples[name]) for name in MEASURES}
    ratio = spreads["cold_boot_s"].median / spreads["clone_ready_s"].median
    if arguments.json:
        document = {
            "accelerator": accelerator,
            **{name: _rounded(spread) for name, spread in spreads.items()},
            "cold_boot_s/clone_ready_s": round(ratio, 1),
        }
        print(json.dumps(document, indent=2))
    else:
        _show(spreads, accelerator, ratio)
    return 0


def _repeat(runs: int, what: str, measure: Callable[[], Sample]) -> list[Sample]:
    samples = []
    for run in range(1, runs + 1):
        print(f"\r{what} {run} of {runs} ", end="", file=sys.stderr, flush=True)
        samples.append(measure())
    print(file=sys.stderr)
    return samples


def _cold_boot(lab: Lab) -> float:
    """Return the seconds from asking for a node to cloud-init's end."""
    request = NodeRequest(name="bench-cold", image=lab.node_image(), command=None)
    started = time.monotonic()
    with lab.boot(request, start="cold") as node:
        node.wait_until_provisioned()
        return time.monotonic() - started


def _plain_clone(lab: Lab, layer: Layer) -> Mapping[str, float]:
    """Measure one clone, from asking for it to its idle state."""
    started = time.monotonic()
    with lab.clone(layer, "bench") as machine:
        machine.guest.output_of("true")
        ready_s = time.monotonic() - started
        private_mib = _private_mib(machine)
        pings = [machine.agent.ping(Deadline.after(_ANSWER_S)) * 1000 for _ in range(_ROUND_TRIPS)]
        runs = []
        for _ in range(_ROUND_TRIPS):
            began = time.monotonic()
            machine.guest.output_of("true")
            runs.append((time.monotonic() - began) * 1000)
    return {
        "clone_ready_s": ready_s,
        "ping_ms": statistics.median(pings),
        "exec_ms": statistics.median(runs),
        "private_mib": private_mib,
    }


def _gpu_clone(lab: Lab, layer: Layer) -> float:
    """Return the seconds from asking for a clone with a GPU until the guest lists that."""
    model = load_catalogue().get(_MODEL)
    started = time.monotonic()
    with lab.clone(layer, "bench", gpus=[model]) as machine:
        machine.wait_for_gpu(model)
        return time.monotonic() - started


def _private_mib(machine: LabMachine) -> float:
    """Return what the clone's process has written: memory that no other process shares."""
    if machine.vm.pid is None:
        raise HarnessError("Only a machine of this host shows how much memory it has for itself.")
    rollup = Path(f"/proc/{machine.vm.pid}/smaps_rollup").read_text()
    for line in rollup.splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _rounded(spread: Spread) -> Mapping[str, float]:
    return {
        "median": round(spread.median, 3),
        "p95": round(spread.p95, 3),
        "runs": spread.runs,
    }


def _show(spreads: Mapping[str, Spread], accelerator: str, ratio: float) -> None:
    table = Table(title=f"clones under {accelerator}")
    for column in ("measure", "median", "p95", "runs"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for name, spread in spreads.items():
        table.add_row(name, f"{spread.median:.3f}", f"{spread.p95:.3f}", str(spread.runs))
    table.add_row("cold_boot_s / clone_ready_s", f"{ratio:.0f}", "", "")
    Console().print(table)
