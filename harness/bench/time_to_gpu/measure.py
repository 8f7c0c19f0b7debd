"""Measures nodes in machines: fresh ones, ones whose policy is reset, and teardowns.

The tasks go in rounds over all variants, so that a load of the host that comes and goes meets all
variants alike.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness import expect
from harness.bench.time_to_gpu.critical_path import TimedStep, critical_path, moments_of
from harness.bench.time_to_gpu.node_tools import EVENTS, PROVISION, parse_events
from harness.bench.time_to_gpu.nodes import TRIM_FOLDER
from harness.bench.time_to_gpu.samples import (
    Experiment,
    Mode,
    OracleResult,
    Sample,
    TeardownSample,
    Trim,
)
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.state_diff import CHANGES_AT_REST, AllowedChanges, StateDiff
from harness.lab.node import NodeRequest
from harness.provisioner import BOOT, TEARDOWN
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for
from harness.settings import MachineStart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.bench.time_to_gpu.critical_path import Moments
    from harness.bench.time_to_gpu.nodes import Fleet
    from harness.evidence import Evidence
    from harness.evidence.state import NodeState
    from harness.image import Image
    from harness.lab.node import Node

#: Seconds that KVM is given from the provisioner's end to the allocation; TCG gets them times its patience.
_ADVERTISE_KVM_S = 20.0
_RESET_KVM_S = 30.0
_REMOVAL_KVM_S = 60.0
FAST, DKMS_REMOVE = "fast", "dkms-remove"
#: Prints when DKMS began and ended its latest build, in seconds since the epoch: the date in the head of
#: its log, and the log's own time.
_COMPILATION = (
    "for log in /var/lib/dkms/nvidia/*/$(uname -r)/*/log/make.log; do "
    '[ -e "$log" ] || exit 0; date +%s -d "$(sed -n 2p "$log")" && stat -c %.Y "$log"; done'
)
#: Prints the time that a command takes by the guest's clock, and leaves its output out.
_TIMED = (
    'read -r before _ </proc/uptime; "$@" >/run/timed.log 2>&1; code=$?; '
    'read -r after _ </proc/uptime; echo "$before $after"; exit "$code"'
)
_DKMS_REMOVE = (
    "for tree in /var/lib/dkms/nvidia/[0-9]*; do "
    'dkms remove "nvidia/$(basename "$tree")" --all || exit 1; done'
)
#: What two machines differ in, and what the harness and its provisioner write about their runs.
_OWN = AllowedChanges(
    paths=[
        *("/var/lib/cloud/*", "/root/.ssh/*", "/etc/ssh/ssh_host_*", "/dev/disk/by-uuid/*"),
        *("/etc/hosts", "/etc/shadow-", "/etc/machine-id", "/var/lib/dbus/machine-id"),
        *("/etc/netplan/*", "/etc/systemd/network/*", "/etc/gpu-node/*", "/opt/gpu-node/*"),
        *("/var/lib/gpu-node/*", "/run/gpu-node*", "/opt/azure/containers/*"),
        *("/var/cache/apt/*pkgcache.bin", "/var/lib/apt/lists/auxfiles"),
        "/var/lib/containerd/io.containerd.runtime.v2.task/k8s.io",
        "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*",
        "/var/lib/containerd/io.containerd.content.v1.content/blobs/sha256/*",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How many samples of what."""

    scale_ups: int
    resets: int
    """Counted ones; one more is measured and dropped."""
    trims: int
    teardowns: int
    modes: Sequence[Mode]
    reset_modes: Sequence[Mode]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one task measured."""

    samples: tuple[Sample, ...] = ()
    teardowns: tuple[TeardownSample, ...] = ()
    oracle: tuple[OracleResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Task:
    """Something to measure on machines of its own, one at a time."""

    title: str
    run: Callable[[Callable[[str], None]], Measured]


def tasks_of(fleet: Fleet, plan: Plan) -> list[Task]:
    """Return what there is to measure: the long tasks first, and then rounds over all variants."""
    tasks = []
    if plan.resets:
        tasks += [
            Task(
                title=f"policy resets, {mode.value}",
                run=functools.partial(_resets, fleet, mode, plan.resets),
            )
            for mode in plan.reset_modes
        ]
    if plan.teardowns:
        tasks.append(
            Task(title="teardowns, compared", run=functools.partial(_judged_teardowns, fleet))
        )
    for number in range(1, max(plan.scale_ups, plan.trims, plan.teardowns) + 1):
        if number <= plan.scale_ups:
            tasks += [
                Task(
                    title=f"fresh node {number} of {plan.scale_ups}, {mode.value}",
                    run=functools.partial(_fresh_node, fleet, mode),
                )
                for mode in plan.modes
            ]
        if number <= plan.trims:
            tasks += [
                Task(
                    title=f"trims {number} of {plan.trims}, {trim.value}",
                    run=functools.partial(_trimmed, fleet, trim),
                )
                for trim in Trim
            ]
        if 2 <= number <= plan.teardowns:
            tasks += [
                Task(
                    title=f"teardown {number} of {plan.teardowns}, {way}",
                    run=functools.partial(_teardown, fleet, way),
                )
                for way in (FAST, DKMS_REMOVE)
            ]
    return tasks


def _fresh_node(fleet: Fleet, mode: Mode, _progress: Callable[[str], None]) -> Measured:
    with _node(fleet, fleet.request(mode)) as node:
        sample, evidence = _provision(node, Experiment.SCALE_UP, mode.value)
        _expect_mode(mode, evidence)
    return Measured(samples=(sample,))


def _resets(fleet: Fleet, mode: Mode, count: int, progress: Callable[[str], None]) -> Measured:
    """Reset one node's policy again and again; the first sample is dropped."""
    samples = []
    with _node(fleet, fleet.request(mode)) as node:
        _provision(node, Experiment.POLICY_RESET, mode.value)
        for number in range(count + 1):
            progress(f"policy reset {number} of {count}, {mode.value}")
            _reset(node, fleet, mode)
            sample, evidence = _provision(node, Experiment.POLICY_RESET, mode.value)
            _expect_mode(mode, evidence)
            samples.append(replace(sample, is_dropped=number == 0))
    return Measured(samples=tuple(samples))


def _trimmed(fleet: Fleet, trim: Trim, _progress: Callable[[str], None]) -> Measured:
    with _node(fleet, fleet.trimmed()) as node:
        path = node.guest.output_of("sh", "-c", 'printf %s "$PATH"')
        sample, evidence = _provision(
            node,
            Experiment.TRIM,
            trim.value,
            prefix=("env", f"TRIM_OFF={trim.value}", f"PATH={TRIM_FOLDER}:{path}"),
        )
        _expect_mode(Mode.PREBAKED, evidence)
    return Measured(samples=(sample,))


def _node(fleet: Fleet, request: NodeRequest) -> _Booted:
    return _Booted(fleet, request)


class _Booted:
    """A node that keeps its evidence where measuring it fails."""

    def __init__(self, fleet: Fleet, request: NodeRequest) -> None:
        self._fleet = fleet
        self._request = request
        self._boot = fleet.lab.boot(request, start=MachineStart.CLONE)

    def __enter__(self) -> Node:
        self._node = self._boot.__enter__()
        return self._node

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (HarnessError, ExpectationError)) and error.evidence is None:
            error.evidence = self._fleet.lab.try_save_evidence(
                self._node, f"time-to-gpu/{self._request.name}"
            )
        self._boot.__exit__(None, None, None)


def _provision(
    node: Node, experiment: Experiment, variant: str, *, prefix: Sequence[str] = ()
) -> tuple[Sample, Evidence]:
    """Provision a node that is ready, wait for its GPU, and return the sample.

    Raises ExpectationError where the provisioner fails, HarnessError where no GPU comes.
    """
    patience = node.machine.deadline(node.provisioner.timeout_s)
    argv = node.provisioner.guest_command(BOOT, output=CLOUD_INIT_OUTPUT_PATH)
    result = node.guest.run(
        *prefix, "sh", PROVISION, *argv, timeout_s=max(1.0, patience.remaining_s())
    )
    if not result.ok:
        raise ExpectationError(
            f"The provisioner '{node.provisioner.name}' was expected to make a node of '{variant}', but "
            f"ended with {result.exit_code}; its last lines are:\n{result.stdout[-1500:]}"
        )
    moments = _wait_for_gpu(node)
    evidence = node.result()
    compiled = node.guest.output_of("sh", "-c", _COMPILATION).split()
    return (
        Sample(
            experiment=experiment,
            variant=variant,
            wait_s=round(moments.capacity_s - moments.ready_s, 4),
            allocated_s=round(moments.allocated_s - moments.ready_s, 4),
            segments=critical_path(moments, _steps(evidence, moments)),
            compile_s=_compilation(compiled, moments),
        ),
        evidence,
    )


def _wait_for_gpu(node: Node) -> Moments:
    def look() -> Observation[Moments]:
        events = parse_events(node.guest.read_text(EVENTS) or "")
        last = events[-1]["name"] if events else "nothing"
        return Observation(moments_of(events), f"'{last}', of {len(events)} events")

    deadline = node.machine.deadline(_ADVERTISE_KVM_S)
    try:
        return wait_for("the allocation of a GPU", look, deadline, interval_s=0.3)
    except WaitTimeoutError as error:
        raise HarnessError(
            f"No GPU of the node '{node.request.name}' was allocated, though its provisioner ended well. "
            f"{error} Look whether it makes the device nodes /dev/nvidia0 and following."
        ) from error


def _compilation(stamps: Sequence[str], moments: Moments) -> float | None:
    """Return how long DKMS compiled, if that was within this wait."""
    if len(stamps) < 2:
        return None
    began, ended = float(stamps[-2]), float(stamps[-1])
    if began < moments.ready_wall_s - 1.0:
        return None
    return round(max(0.0, ended - began), 3)


def _steps(evidence: Evidence, moments: Moments) -> list[TimedStep]:
    """Return the steps that took time, with their starts where the outcome file has them."""
    try:
        steps = evidence.steps or ()
    except BadInputError:
        # A provisioner need not declare steps.
        return []
    started = _starts(evidence)
    # A log's steps come the latest first.
    in_order = steps if started else list(reversed(steps))
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


def _starts(evidence: Evidence) -> dict[str, float]:
    """Return the starts of steps in seconds since the epoch, where the outcome file has `started`."""
    declared = evidence.provisioner.outcome.file
    text = None if declared is None else evidence.file(declared.path)
    if declared is None or declared.steps is None or text is None:
        return {}
    steps = json.loads(text).get(declared.steps.at.lstrip("/"), [])
    return {
        step["name"]: dt.datetime.fromisoformat(step["started"]).timestamp()
        for step in steps
        if isinstance(step, dict) and "started" in step and "name" in step
    }


def _expect_mode(mode: Mode, evidence: Evidence) -> None:
    """Expect the node to have got its driver in the way that its sample is counted for."""
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
    """Clear the capacity and take the driver away, up to what the mode's image has."""
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


def _teardown(fleet: Fleet, way: str, _progress: Callable[[str], None]) -> Measured:
    with _node(fleet, _bare(fleet, fleet.baked)) as node:
        return Measured(teardowns=(_tear_down(node, fleet, way),))


def _judged_teardowns(fleet: Fleet, progress: Callable[[str], None]) -> Measured:
    """Tear down in both ways, and compare each whole node with one that never had the driver."""
    with _node(fleet, _bare(fleet, fleet.node_image)) as node:
        pristine = node.state()
    samples, results = [], []
    for way in (FAST, DKMS_REMOVE):
        progress(f"teardown and its oracle, {way}")
        with _node(fleet, _bare(fleet, fleet.baked)) as node:
            samples.append(_tear_down(node, fleet, way))
            results.append(_judge(way, pristine, node.state()))
    return Measured(teardowns=tuple(samples), oracle=tuple(results))


def _tear_down(node: Node, fleet: Fleet, way: str) -> TeardownSample:
    """Tear down the baked driver on a machine of the saved state.

    The slow way is `dkms remove --all`, of which only that command is timed, and then the same teardown
    for what DKMS does not know. The fast way is timed as a whole, with the provisioner's start.
    """
    command = fleet.builtin.guest_command(TEARDOWN)
    if way == FAST:
        return TeardownSample(way=way, duration_s=_timed(node, command))
    took = _timed(node, ["sh", "-c", _DKMS_REMOVE])
    _timed(node, command)
    return TeardownSample(way=way, duration_s=took)


def _bare(fleet: Fleet, image: Image) -> NodeRequest:
    return NodeRequest(
        name="teardown",
        image=image,
        provisioner=fleet.builtin,
        command=None,
        skip_cloud_init=True,
    )


def _timed(node: Node, argv: Sequence[str]) -> float:
    deadline = node.machine.deadline(_REMOVAL_KVM_S)
    printed = node.guest.output_of(
        "sh", "-c", _TIMED, "timed", *argv, timeout_s=max(1.0, deadline.remaining_s())
    )
    before, after = printed.split()
    return round(float(after) - float(before), 3)


def _judge(way: str, before: NodeState, after: NodeState) -> OracleResult:
    diff = StateDiff.between(before, after, CHANGES_AT_REST | _OWN)
    unknown = [f"? {each.kind.value} {each.name}: {each.reason}" for each in diff.unknown]
    return OracleResult(
        way=way,
        differences=(*(f"{each.kind.value} {each.render()}" for each in diff.changes), *unknown),
    )
