"""Runs the whole benchmark: prepares images, registry and states, and runs the planned measurements."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.bench.time_to_gpu.measure import Plan, tasks_of
from harness.bench.time_to_gpu.nodes import FAR, NEAR, Fleet
from harness.bench.time_to_gpu.nvidia import INSTALL_LIMIT_S, with_longer_limit
from harness.bench.time_to_gpu.samples import Benchmark, Conditions, Mode, Payload
from harness.bench.time_to_gpu.schedule import Pace, run_tasks
from harness.errors import BadInputError
from harness.gpu.catalogue import load_catalogue
from harness.lab.registry import open_registry, prepare_registry_host
from harness.provisioner.choice import choose_provisioner
from harness.settings import PROVISIONER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.lab import Lab
    from harness.provisioner import Provisioner

_MODEL = "h100-sxm5-80gb"
#: The padding layer that makes a precompiled image as large as a small real image.
PADDING_MIB = 8
_NVIDIA_NOTE = (
    "NVIDIA's own driver makes the device node by which the emulated GPU is advertised, and then refuses to "
    "open the GPU, which has no engine: the wait ends when the capacity is advertised, and nothing is computed"
)
MINUTES = 14.0
QUICK_MINUTES = 3.5
QUICK_MODES = (Mode.BUILD, Mode.PREBAKED, Mode.NEAR)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a benchmark that the user chose."""

    is_quick: bool = False
    samples: int = 5
    """The number of fresh nodes of each mode, and of nodes of each variant of a trim."""
    resets: int = 5
    """The number of fresh nodes of each mode whose policy is reset afterwards; 0 for no resets."""
    trims: int = 5
    teardowns: int = 5
    is_judged: bool = True
    """Whether the nodes after teardowns are compared with a node that never had the driver."""
    modes: Sequence[Mode] = ()
    """The modes to measure; by default all possible modes."""
    has_registry: bool = True
    padding_mib: int = PADDING_MIB
    machines: int = 1
    """The number of machines that run at a time."""
    cpus: int = 1
    """The vCPUs of each machine."""
    minutes: float = MINUTES
    """The time limit: tasks that would not end in time are left out, and the report contains the other samples."""
    own: Provisioner | None = None
    """The user's own provisioner, measured beside the harness's provisioner."""
    payload: Payload = Payload.STAND_IN
    """The driver to measure; the lab's image has to contain this driver."""


#: The options for a run with NVIDIA's own driver. Its image has the module, so no node can be
#: compared with a node that never had the driver. The registry's images have the stand-in's
#: modules only.
NVIDIA = Options(
    payload=Payload.NVIDIA,
    samples=3,
    resets=0,
    trims=0,
    teardowns=0,
    is_judged=False,
    modes=(Mode.PREBAKED,),
    has_registry=False,
    minutes=math.inf,
)


def quick(machines: int, own: Provisioner | None = None) -> Options:
    """Return the options for a run of a few minutes, whose results support no claims."""
    return Options(
        machines=machines,
        own=own,
        is_quick=True,
        minutes=QUICK_MINUTES,
        samples=2,
        resets=0,
        trims=0,
        teardowns=2,
        is_judged=False,
        modes=QUICK_MODES,
    )


def run_benchmark(lab: Lab, options: Options, progress: Callable[[str], None]) -> Benchmark:
    """Run the whole benchmark, and return the samples.

    `progress` is called with a sentence before each machine starts. Raises ExpectationError if a
    provisioner fails, and BadInputError for a mode that this run cannot measure.
    """
    with _fleet(lab, options, progress) as fleet:
        plan = _plan(fleet, options)
        _prepare(fleet, plan, options, progress)
        tasks = tasks_of(fleet, plan)
        machines = min(options.machines, len(tasks))
        progress(f"measuring: {len(tasks)} tasks, {machines} machines at a time")
        started, began = dt.datetime.now(dt.timezone.utc), time.monotonic()
        measured = run_tasks(
            tasks,
            machines=machines,
            pace=Pace(until=began + 60.0 * options.minutes),
            progress=progress,
            stop=lab.kill_machines,
        )
        notes = []
        if len(measured) < len(tasks):
            notes.append(
                f"{len(measured)} of {len(tasks)} tasks were done; the other tasks would not have ended "
                f"within {options.minutes:g} minutes; raise this limit with --minutes"
            )
            progress(notes[0])
        conditions = _conditions(
            fleet,
            plan,
            options,
            started,
            duration_s=time.monotonic() - began,
            further=notes,
        )
    return Benchmark(
        conditions=conditions,
        samples=tuple(sample for each in measured for sample in each.samples),
        teardowns=tuple(sample for each in measured for sample in each.teardowns),
        oracle=tuple(result for each in measured for result in each.oracle),
    )


@contextlib.contextmanager
def _fleet(lab: Lab, options: Options, progress: Callable[[str], None]) -> Iterator[Fleet]:
    progress(f"accelerator: {lab.accelerator.reason}")
    builtin = choose_provisioner(PROVISIONER)
    own = options.own
    node_image = lab.node_image()
    if options.payload is Payload.NVIDIA and _is_emulated(lab):
        builtin = with_longer_limit(builtin)
    with contextlib.ExitStack() as opened:
        registry = None
        if options.has_registry:
            registry = opened.enter_context(open_registry(prepare_registry_host(lab)))
        yield Fleet(
            lab=lab,
            gpu=load_catalogue(*lab.settings.gpu_models).get(_MODEL),
            node_image=node_image,
            builtin=builtin,
            own=own,
            registry=registry,
            shapes={Mode.NEAR: NEAR, Mode.FAR: FAR},
            payload=options.payload,
            cpus=options.cpus,
        )


def _is_emulated(lab: Lab) -> bool:
    return lab.accelerator.accelerator.accel == "tcg"


def _plan(fleet: Fleet, options: Options) -> Plan:
    possible = fleet.modes()
    wanted = list(options.modes) or possible
    if options.is_quick:
        # A user who names a provisioner wants to measure that provisioner.
        wanted += [mode for mode in possible if mode in {Mode.OWN, Mode.OWN_PREBAKED}]
    wanted = [mode for mode in possible if mode in wanted or mode is Mode.BUILD]
    for mode in options.modes:
        if mode not in possible and not options.is_quick:
            raise BadInputError(
                f"This run cannot measure '{mode.value}', only "
                f"{', '.join(each.value for each in possible)}. To measure your own "
                "provisioner, name the provisioner with '--provisioner'. To measure precompiled "
                "drivers, leave out '--no-registry'.",
                source="--mode",
            )
    if options.payload is Payload.NVIDIA:
        # Modes that compile for hours come last, so that errors of the other modes show within minutes.
        wanted.sort(key=lambda mode: mode in {Mode.BUILD, Mode.OTHER_KERNEL})
    resettable = [mode for mode in wanted if mode is not Mode.FAR and fleet.can_reset(mode)]
    return Plan(
        scale_ups=options.samples,
        resets=options.resets,
        trims=options.trims if fleet.registry is not None else 0,
        teardowns=options.teardowns,
        is_judged=options.is_judged,
        modes=wanted,
        reset_modes=resettable,
    )


def _prepare(fleet: Fleet, plan: Plan, options: Options, progress: Callable[[str], None]) -> None:
    """Make the plan's baked images and saved states, so that no sample includes the time of this work."""
    needs_registry = plan.trims > 0 or any(mode in fleet.shapes for mode in plan.modes)
    is_baked = any(mode in {Mode.PREBAKED, Mode.OTHER_KERNEL} for mode in plan.modes)
    if is_baked or needs_registry or plan.teardowns:
        progress("baking the driver, unless the bake is cached")
        _ = fleet.baked
    if needs_registry:
        fleet.publish(options.padding_mib)
    progress(f"preparing {len(plan.modes)} modes, unless their states are cached")
    for mode in plan.modes:
        fleet.ensure_state(fleet.request(mode))


def _conditions(
    fleet: Fleet,
    plan: Plan,
    options: Options,
    started: dt.datetime,
    *,
    duration_s: float,
    further: Sequence[str],
) -> Conditions:
    lab, driver = fleet.lab, fleet.node_image.driver
    notes = [
        (
            "a fresh node continues from a state that was saved after the boot, with kubelet and device plugin "
            "loaded; the wait begins when the kubelet reports ready"
        ),
        f"{options.machines} machines ran at a time, in rounds over the variants",
        f"a node has {options.cpus} vCPU{'s' if options.cpus > 1 else ''}",
    ]
    if any(mode in fleet.shapes for mode in plan.modes):
        notes.append(
            f"precompiled images contain {options.padding_mib} MiB of incompressible data beside the driver"
        )
    if options.payload is Payload.NVIDIA:
        notes.append(_NVIDIA_NOTE)
        if _is_emulated(lab):
            notes.append(
                f"an attempt to install the driver may take {INSTALL_LIMIT_S / 3600:g} hours on these "
                "emulated nodes, and ten minutes on a real node"
            )
    return Conditions(
        accelerator=lab.accelerator.accelerator.accel,
        is_emulated=_is_emulated(lab),
        image=fleet.node_image.name,
        kernels=tuple(kernel.version for kernel in fleet.node_image.kernels),
        driver="none" if driver is None else driver.reference,
        provisioner=fleet.builtin.name if fleet.own is None else fleet.own.name,
        started_at=started.isoformat(timespec="seconds"),
        is_quick=options.is_quick,
        registries={
            mode.value: shape.describe()
            for mode, shape in fleet.shapes.items()
            if mode in plan.modes
        },
        notes=(*notes, *further),
        host=f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end",
        duration_s=round(duration_s, 1),
        payload=options.payload,
    )
