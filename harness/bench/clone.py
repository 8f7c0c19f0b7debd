"""Measures how long cold boots and clones of a checkpoint take."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.bench.prompt import measure_prompt, seconds_of_command
from harness.bench.spread import Spread
from harness.errors import HarnessError
from harness.gpu.catalogue import load_catalogue
from harness.lab.node_request import NodeRequest
from harness.lab.saved_states import booted, cloud_init_done
from harness.provisioning.wait import Deadline
from harness.settings import MachineStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.lab import Lab
    from harness.lab.machine import LabMachine
    from harness.lab.saved_states import SavedState

Sample = TypeVar("Sample")

#: The measures, in the order in which they are shown.
MEASURES: Mapping[str, str] = {
    "cold_boot_s": "from the request for a node to cloud-init's end, without a checkpoint",
    "clone_ready_s": "from the request for a clone to the result of its first command",
    "clone_gpu_s": "from the request for a clone with an emulated GPU until the guest lists the GPU",
    "prompt_s": "from the start of `harness shell` to its prompt, in a clone with an emulated GPU",
    "answer_s": "from the start of `harness shell` to the output of a command typed at once at its prompt",
    "command_s": "from the start of `harness shell -- true`, with an emulated GPU, to its end",
    "ping_ms": "a round trip to the guest's agent",
    "exec_ms": "a round trip to the guest's agent that runs the command `true`",
    "private_mib": "memory that an idle clone shares with no other process",
}

_MODEL = "h100-sxm5-80gb"
_ANSWER_S = 60.0
_ROUND_TRIPS = 10


@dataclass(frozen=True, kw_only=True)
class CloneBench:
    """The results of the benchmark, by the names in `MEASURES`."""

    accelerator: str
    spreads: Mapping[str, Spread]

    @property
    def speedup(self) -> float:
        """The time of a cold boot, divided by the time until a clone is ready."""
        return self.spreads["cold_boot_s"].median / self.spreads["clone_ready_s"].median

    @property
    def prompt_speedup(self) -> float:
        """The time of a cold boot, divided by the time until the prompt in a clone."""
        return self.spreads["cold_boot_s"].median / self.spreads["prompt_s"].median


def measure_clones(
    lab: Lab,
    *,
    runs: int,
    cold_runs: int,
    shell_words: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> CloneBench:
    """Measure `cold_runs` cold boots and `runs` clones of each kind.

    `shell_words` are the options with which `harness shell` starts machines like the machines of
    `lab`. `progress` is called before each run with the name of the measure, the run's number and
    the number of runs.
    """

    def repeat(count: int, what: str, measure: Callable[[], Sample]) -> list[Sample]:
        samples = []
        for run in range(1, count + 1):
            progress(what, run, count)
            samples.append(measure())
        return samples

    state = cloud_init_done(booted(lab.node_image()))
    lab.ensure_checkpoint(state)
    samples: dict[str, list[float]] = {
        "cold_boot_s": repeat(cold_runs, "cold boot", lambda: _cold_boot(lab)),
    }
    for each in repeat(runs, "clone", lambda: _plain_clone(lab, state)):
        for name, value in each.items():
            samples.setdefault(name, []).append(value)
    samples["clone_gpu_s"] = repeat(runs, "clone with a GPU", lambda: _gpu_clone(lab, state))
    prompts = repeat(runs, "prompt", lambda: measure_prompt(shell_words))
    samples["prompt_s"] = [each.prompt_s for each in prompts]
    samples["answer_s"] = [each.answer_s for each in prompts]
    samples["command_s"] = repeat(runs, "command", lambda: seconds_of_command(shell_words))
    return CloneBench(
        accelerator=lab.accelerator.accelerator.accel,
        spreads={name: Spread.of(samples[name]) for name in MEASURES},
    )


def _cold_boot(lab: Lab) -> float:
    """Return the seconds from the request for a node to cloud-init's end."""
    request = NodeRequest(name="bench-cold", image=lab.node_image(), command=None)
    started = time.monotonic()
    with lab.boot(request, start=MachineStart.COLD) as node:
        node.wait_until_provisioned()
        return time.monotonic() - started


def _plain_clone(lab: Lab, state: SavedState) -> Mapping[str, float]:
    """Measure one clone, from the request until the clone is idle."""
    started = time.monotonic()
    with lab.clone(state, "bench") as machine:
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


def _gpu_clone(lab: Lab, state: SavedState) -> float:
    """Return the seconds from the request for a clone with a GPU until the guest lists the GPU."""
    model = load_catalogue().get(_MODEL)
    started = time.monotonic()
    with lab.clone(state, "bench", gpus=[model]) as machine:
        machine.wait_for_gpu(model)
        return time.monotonic() - started


def _private_mib(machine: LabMachine) -> float:
    """Return the MiB of memory that the clone's QEMU has written and shares with no other process."""
    if machine.vm.pid is None:
        raise HarnessError(
            "The memory of a machine can be measured only if this host runs the machine, but "
            f"machine '{machine.name}' runs elsewhere."
        )
    rollup = Path(f"/proc/{machine.vm.pid}/smaps_rollup").read_text()
    for line in rollup.splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) / 1024
    return 0.0
