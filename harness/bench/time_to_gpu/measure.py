"""Measures nodes in virtual machines: fresh nodes, nodes after a policy reset, and teardowns.

The measurement tasks run in rounds over all variants, so that temporary load of the host affects
all variants equally.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness import expect
from harness.bench.time_to_gpu.build_progress import build_progress
from harness.bench.time_to_gpu.critical_path import TimedStep, critical_path, moments_of
from harness.bench.time_to_gpu.node_tools import EVENTS, PROVISION, parse_events
from harness.bench.time_to_gpu.nodes import TRIM_FOLDER, booted_node
from harness.bench.time_to_gpu.samples import (
    Experiment,
    Measured,
    Mode,
    Sample,
    Trim,
    UnitTimes,
)
from harness.bench.time_to_gpu.schedule import Task
from harness.bench.time_to_gpu.teardowns import (
    DKMS_REMOVE,
    FAST,
    judged_teardowns,
    tear_down_once,
)
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.units import SHOWN_UNITS, parse_shown_units, unit_commands
from harness.provisioner import BOOT
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.bench.time_to_gpu.critical_path import Moments
    from harness.bench.time_to_gpu.nodes import Fleet
    from harness.bench.time_to_gpu.samples import Payload
    from harness.evidence import Evidence
    from harness.lab.node import Node

#: The time limit under KVM from the provisioner's end to the allocation; for TCG, the limit is
#: multiplied by TCG's factor.
_ADVERTISE_KVM_S = 20.0
_RESET_KVM_S = 30.0
#: The units that provisioning starts on a GPU node; a unit that does not exist has no timestamps.
_UNITS = (
    *("containerd.service", "nvidia-modprobe.service", "nvidia-device-plugin.service"),
    *("nvidia-dcgm.service", "nvidia-dcgm-exporter.service", "kubelet.service"),
)
#: Prints when DKMS began and ended its latest build, in seconds since the epoch. The times are the date in the
#: log's second line, and the log's modification time.
_COMPILATION = (
    "for log in /var/lib/dkms/nvidia/*/$(uname -r)/*/log/make.log; do "
    '[ -e "$log" ] || exit 0; date +%s -d "$(sed -n 2p "$log")" && stat -c %.Y "$log" || exit 0; done'
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many samples of each kind to measure."""

    scale_ups: int
    """The number of fresh nodes of each mode."""
    resets: int
    """The number of fresh nodes of each mode whose policy is reset once."""
    trims: int
    teardowns: int
    """The number of teardowns of each kind."""
    is_judged: bool
    """Whether the first teardown of each kind is compared with a node that never had the driver."""
    modes: Sequence[Mode]
    reset_modes: Sequence[Mode]


def tasks_of(fleet: Fleet, plan: Plan) -> list[Task]:
    """Return the measurement tasks in rounds; each round covers all variants that need samples.

    A run that stops early has about as many samples of one variant as of another, because tasks run
    in rounds.
    """
    rounds = max(plan.scale_ups, plan.trims, plan.teardowns)
    return [task for number in range(1, rounds + 1) for task in _round(fleet, plan, number)]


def _round(fleet: Fleet, plan: Plan, number: int) -> list[Task]:
    tasks = []
    # Short tasks come first, because the first round has no estimates of the tasks' times.
    if number <= plan.teardowns:
        if plan.is_judged and number == 1:
            tasks.append(_task("teardowns, compared", number, judged_teardowns, fleet))
        else:
            tasks += [
                _task(f"teardown, {way}", number, tear_down_once, fleet, way)
                for way in (FAST, DKMS_REMOVE)
            ]
    if number <= plan.scale_ups:
        for mode in plan.modes:
            has_reset = number <= plan.resets and mode in plan.reset_modes
            kind = f"fresh node, {mode.value}" + (", and a policy reset" if has_reset else "")
            tasks.append(_task(kind, number, _fresh_node, fleet, mode, has_reset))
    if number <= plan.trims:
        tasks += [_task(f"trims, {trim.value}", number, _trimmed, fleet, trim) for trim in Trim]
    return tasks


def _task(kind: str, number: int, measure: Callable[..., Measured], *given: object) -> Task:
    return Task(
        kind=kind, title=f"{kind}, number {number}", run=functools.partial(measure, *given)
    )


def _fresh_node(
    fleet: Fleet, mode: Mode, has_reset: bool, progress: Callable[[str], None]
) -> Measured:
    """Provision a fresh node; if `has_reset`, reset the policy and provision the node again.

    The first provisioning is a sample of a fresh node, which the published experiment on policy
    resets drops.
    """
    with booted_node(fleet, fleet.request(mode)) as node:
        fresh, evidence = _provision(
            node, fleet, Experiment.SCALE_UP, mode.value, progress=progress
        )
        _expect_mode(mode, evidence)
        if not has_reset:
            return Measured(samples=(fresh,))
        progress(f"policy reset, {mode.value}")
        _reset(node, fleet, mode)
        again, evidence = _provision(
            node, fleet, Experiment.POLICY_RESET, mode.value, progress=progress
        )
        _expect_mode(mode, evidence)
    return Measured(samples=(fresh, again))


def _trimmed(fleet: Fleet, trim: Trim, progress: Callable[[str], None]) -> Measured:
    with booted_node(fleet, fleet.trimmed()) as node:
        path = node.guest.output_of("sh", "-c", 'printf %s "$PATH"')
        sample, evidence = _provision(
            node,
            fleet,
            Experiment.TRIM,
            trim.value,
            progress=progress,
            prefix=("env", f"TRIM_OFF={trim.value}", f"PATH={TRIM_FOLDER}:{path}"),
        )
        _expect_mode(Mode.PREBAKED, evidence)
    return Measured(samples=(sample,))


def _provision(
    node: Node,
    fleet: Fleet,
    experiment: Experiment,
    variant: str,
    *,
    progress: Callable[[str], None],
    prefix: Sequence[str] = (),
) -> tuple[Sample, Evidence]:
    """Provision a ready node, wait until its GPU is allocated, and return sample and evidence.

    Raises ExpectationError if the provisioner fails or the GPU can't be opened, and HarnessError if
    no GPU is allocated in time.
    """
    patience = node.machine.deadline(node.provisioner.timeout_s)
    argv = node.provisioner.guest_command(BOOT, output=CLOUD_INIT_OUTPUT_PATH)
    with build_progress(node.guest, lambda line: progress(f"{node.request.name}: {line}")):
        result = node.guest.run(
            *prefix, "sh", PROVISION, *argv, timeout_s=max(1.0, patience.remaining_s())
        )
    if not result.ok:
        raise ExpectationError(
            f"The provisioner '{node.provisioner.name}' was expected to make a node of '{variant}', but "
            f"ended with exit code {result.exit_code}; its last lines are:\n{result.stdout[-1500:]}"
        )
    moments = _wait_for_gpu(node, fleet.payload)
    evidence = node.result()
    compiled = node.guest.output_of("sh", "-c", _COMPILATION).split()
    return (
        Sample(
            experiment=experiment,
            variant=variant,
            wait_s=round(moments.capacity_s - moments.ready_s, 4),
            allocated_s=None
            if moments.allocated_s is None
            else round(moments.allocated_s - moments.ready_s, 4),
            segments=critical_path(moments, _steps(evidence, moments)),
            units=_units(node, moments),
            compile_s=_compilation(compiled, moments),
        ),
        evidence,
    )


def _wait_for_gpu(node: Node, payload: Payload) -> Moments:
    def look() -> Observation[Moments]:
        events = parse_events(node.guest.read_text(EVENTS) or "")
        last = events[-1]["name"] if events else "nothing"
        return Observation(moments_of(events, payload), f"'{last}', of {len(events)} events")

    deadline = node.machine.deadline(_ADVERTISE_KVM_S)
    try:
        return wait_for("the allocation of a GPU", look, deadline, interval_s=0.3)
    except WaitTimeoutError as error:
        raise HarnessError(
            f"No GPU of the node '{node.request.name}' was allocated, although its provisioner "
            f"succeeded. {error} Check that the provisioner creates the device nodes "
            "/dev/nvidia0, /dev/nvidia1 and so on."
        ) from error


def _compilation(stamps: Sequence[str], moments: Moments) -> float | None:
    """Return the seconds that DKMS compiled during the wait for the GPU, or None if DKMS did not compile."""
    if len(stamps) < 2:
        return None
    began, ended = float(stamps[-2]), float(stamps[-1])
    if began < moments.ready_wall_s - 1.0:
        return None
    return round(max(0.0, ended - began), 3)


def _units(node: Node, moments: Moments) -> tuple[UnitTimes, ...]:
    """Return the systemd units that started and became ready during the wait for the GPU."""
    shown = parse_shown_units(node.guest.output_of(*unit_commands(*_UNITS)[SHOWN_UNITS]))
    found = []
    # A unit is listed under each of its aliases, so count it once.
    for unit in {each.name: each for each in shown.values()}.values():
        if unit.started_us is None or unit.ready_us is None:
            continue
        started_s = unit.started_us / 1e6 - moments.ready_s
        ready_s = unit.ready_us / 1e6 - moments.ready_s
        if started_s >= 0.0 and ready_s <= moments.capacity_s - moments.ready_s:
            found.append(
                UnitTimes(
                    name=unit.name.removesuffix(".service"),
                    started_s=round(started_s, 4),
                    ready_s=round(ready_s, 4),
                )
            )
    return tuple(sorted(found, key=lambda unit: unit.ready_s))


def _steps(evidence: Evidence, moments: Moments) -> list[TimedStep]:
    """Return the provisioner's steps that took time; a start that the outcome file lacks is None."""
    try:
        steps = evidence.steps or ()
    except BadInputError:
        # The declaration of the provisioner lists no steps.
        return []
    started = evidence.step_starts
    declared = evidence.provisioner.outcome.file
    is_of_file = declared is not None and declared.steps is not None
    # Steps read from a log are sorted from the latest to the first.
    in_order = steps if is_of_file else list(reversed(steps))
    return [
        TimedStep(
            name=step.name,
            duration_s=step.duration_s,
            start_s=None
            if step.name not in started
            else started[step.name] - moments.ready_wall_s,
        )
        for step in in_order
        if step.duration_s
    ]


def _expect_mode(mode: Mode, evidence: Evidence) -> None:
    """Expect that the node's driver was installed as `mode` describes."""
    if mode is Mode.PREBAKED:
        expect.decided(evidence, "install-skip-build", reason="ok")
    elif mode in {Mode.BUILD, Mode.OTHER_KERNEL}:
        expect.decided(evidence, "install")
        _expect_done(evidence, "install-driver")
    elif mode in {Mode.NEAR, Mode.FAR}:
        _expect_done(evidence, "install-precompiled-driver")


def _expect_done(evidence: Evidence, name: str) -> None:
    status = expect.step_of(evidence, name).status
    if status != "done":
        raise ExpectationError(f"The step '{name}' was expected to be done, but is '{status}'.")


def _reset(node: Node, fleet: Fleet, mode: Mode) -> None:
    """Clear the node's GPU capacity, and remove the parts of the driver that the mode's image lacks."""
    deadline = node.machine.deadline(_RESET_KVM_S)
    for argv in fleet.reset_commands(mode):
        node.guest.output_of(*argv, timeout_s=max(1.0, deadline.remaining_s()))

    def look() -> Observation[bool]:
        events = parse_events(node.guest.read_text(EVENTS) or "")
        counts = [event["count"] for event in events if event["name"] == "capacity"]
        is_clear = bool(counts) and counts[-1] == 0
        return Observation(True if is_clear else None, f"the capacities {counts}")

    wait_for("the node's GPU capacity to be cleared", look, deadline, interval_s=0.2)
    node.guest.output_of("rm", "-f", EVENTS)
