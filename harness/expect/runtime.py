"""Expectations on containerd's images and configuration, CDI specs and systemd units."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence import CDI_FOLDERS, SYSTEMD_PATH
from harness.evidence.units import check_unit_name
from harness.expect.failure import failure, require
from harness.provisioning.cdi import CRI_PLUGINS
from harness.provisioning.containerd_config import (
    cri_table,
    default_runtime,
    format_of,
    is_cri_disabled,
    read_runtimes,
)
from harness.provisioning.nvidia import BOTTLEROCKET_RUNTIME
from harness.provisioning.toml_text import TomlTextError, get_value, read_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.evidence import Evidence

CDI_KIND = "nvidia.com/gpu"
#: The kinds of the CDI specs that the toolkit, the device plugin and the DRA driver write for
#: GPUs. The kind `management.nvidia.com/gpu` is left out, because pods do not get GPUs by specs of
#: that kind.
CDI_KINDS = (
    CDI_KIND,
    "k8s.device-plugin.nvidia.com/gpu",
    "k8s.gpu.nvidia.com/device",
    "k8s.gpu.nvidia.com/claim",
)
#: A spec of this kind lists only the GPUs of one pod.
_CLAIM = "k8s.gpu.nvidia.com/claim"
NVIDIA_RUNTIME = "nvidia-container-runtime"
#: The programs of NVIDIA's runtime, including the runtime's variants with a fixed mode. NVIDIA's
#: hook is not a runtime.
_PROGRAMS = (
    NVIDIA_RUNTIME,
    f"{NVIDIA_RUNTIME}.cdi",
    f"{NVIDIA_RUNTIME}.legacy",
    BOTTLEROCKET_RUNTIME,
)
#: Keys and tables that show that a text is a configuration; containerd's warnings have other keys.
_IN_A_DUMP = frozenset({"version", "plugins", "disabled_plugins"})
#: The active state that systemd reports for a unit that does not run.
_INACTIVE = "inactive"
_ABSENT = "not-found"
_CONTAINERD = "containerd.service"
_CRI_DOCKER = "cri-docker.service"
_DOCKER = "docker.service"
#: Units that run pods with a containerd other than the node's own, or with another runtime.
OTHER_RUNTIMES = (
    _CRI_DOCKER,
    "crio.service",
    "k0scontroller.service",
    "k0sworker.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-agent.service",
    "rke2-server.service",
    "snap.k8s.containerd.service",
    "snap.microk8s.daemon-containerd.service",
)
#: The device node of one GPU.
_GPU_NODE = re.compile(r"/dev/nvidia\d+")
MANAGED_MARKER = "/opt/azure/containers/managed-gpu-experience.enabled"
#: The units that give GPUs to pods; a managed node has one of them.
_GPU_OWNERS = ("nvidia-device-plugin.service", "dra-driver-nvidia-gpu.service")
#: Units that serve GPUs to workloads; a node has some of them, depending on its configuration.
GPU_UNITS = (
    _CONTAINERD,
    "kubelet.service",
    "nvidia-cdi-refresh.path",
    "nvidia-cdi-refresh.service",
    "nvidia-dcgm.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-device-plugin.service",
    "dra-driver-nvidia-gpu.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-modprobe.service",
    "nvidia-persistenced.service",
)


def image_present(evidence: Evidence, reference: str) -> None:
    """Expect containerd to have the image."""
    images = evidence.container_images
    require(
        reference in images,
        f"containerd was expected to have '{reference}', but has {images}.",
        evidence,
    )


def image_absent(evidence: Evidence, reference: str) -> None:
    """Expect containerd not to have the image."""
    require(
        reference not in evidence.container_images,
        f"containerd was expected not to have '{reference}', but has it.",
        evidence,
    )


def unit_state(evidence: Evidence, unit: str, *, active: str) -> None:
    """Expect the systemd unit `unit` to have the active state `active`, such as `failed`.

    systemd does not list a unit that it has not loaded: the unit is inactive, or does not exist.
    The evidence from the commands of `unit_commands` shows whether an unlisted unit exists, and
    contains the unit's other names. Raises HarnessError if `active` is `inactive`, systemd does not
    list the unit, and the evidence lacks the output of the commands of `unit_commands`. Raises
    BadInputError if the unit's name lacks its type, such as `.service`.
    """
    check_unit_name(unit, source="unit_state")
    seen = evidence.unit_states.get(unit)
    found = "systemd has not loaded it" if seen is None else f"is '{seen}'"
    if seen is None and (active == _INACTIVE or unit in evidence.shown_units):
        shown = evidence.shown_unit(unit)
        seen, found = shown.active, f"is '{shown.active}', and its load state is '{shown.load}'"
        if shown.load == _ABSENT:
            seen = None
    require(
        seen == active,
        f"The unit '{unit}' was expected to be '{active}', but {found}.",
        evidence,
    )


def unit_ready_before(evidence: Evidence, first: str, then: str) -> None:
    """Expect the unit `first` to have become ready before systemd began to start `then`.

    Raises HarnessError if systemd has no timestamp for `first` or no timestamp for `then`.
    """
    ready = _stamp(evidence, first, "became ready", evidence.shown_unit(first).ready_us)
    started = _stamp(evidence, then, "started", evidence.shown_unit(then).started_us)
    require(
        ready < started,
        f"The unit '{first}' was expected to be ready before '{then}' started, but it became ready "
        f"{(ready - started) / 1e6:.3f} s after '{then}' started.",
        evidence,
    )


def unit_not_awaited(evidence: Evidence, unit: str, *, by: str) -> None:
    """Expect the unit `by` to have become ready while `unit` was still starting.

    After `by` was ready, `unit` may have become ready, or may still be starting. Raises
    HarnessError if systemd has no timestamp for one of the units, or if `unit` started only after
    `by` was ready.
    """
    shown = evidence.shown_unit(unit)
    started = _stamp(evidence, unit, "started", shown.started_us)
    other = _stamp(evidence, by, "became ready", evidence.shown_unit(by).ready_us)
    if started > other:
        raise HarnessError(
            f"The unit '{unit}' started only after '{by}' was ready, so whether '{by}' would have "
            f"waited for '{unit}' is unknown.",
            evidence=evidence.folder,
        )
    if shown.active == "activating":
        return
    ready = _stamp(evidence, unit, "became ready", shown.ready_us)
    require(
        ready > other,
        f"The unit '{by}' was expected to be ready before '{unit}', but '{unit}' was ready "
        f"{(other - ready) / 1e6:.3f} s earlier.",
        evidence,
    )


def _stamp(evidence: Evidence, unit: str, what: str, stamp: int | None) -> int:
    if stamp is None:
        shown = evidence.shown_unit(unit)
        raise HarnessError(
            f"systemd has no timestamp of when the unit '{unit}' {what}; the unit is '{shown.load}' and "
            f"'{shown.active}', so the order is unknown.",
            evidence=evidence.folder,
        )
    return stamp


def unit_job(evidence: Evidence, unit: str, kind: str | None) -> None:
    """Expect systemd to have queued a job of this `kind` for the unit, or no job if `kind` is None.

    Raises BadInputError if the unit's name lacks its type, such as `.service`.
    """
    check_unit_name(unit, source="unit_job")
    jobs = evidence.unit_jobs
    wanted = "no job" if kind is None else f"a job '{kind}'"
    require(
        jobs.get(unit) == kind,
        f"The unit '{unit}' was expected to have {wanted}, but systemd's jobs are: "
        f"{dict(jobs) or 'none'}.",
        evidence,
    )


def unit_enablement(evidence: Evidence, unit: str, state: str) -> None:
    """Expect the unit's file to have the state `state`, such as `enabled`, `disabled` or `masked`."""
    seen = evidence.shown_unit(unit)
    require(
        seen.enablement == state,
        f"The unit '{unit}' was expected to be '{state}', but is '{seen.enablement}' (its load "
        f"state is '{seen.load}').",
        evidence,
    )


def unit_runs(evidence: Evidence, unit: str, command: str) -> None:
    """Expect the unit, as systemd has loaded it, to have `command` as its only `ExecStart=`."""
    seen = evidence.shown_unit(unit).commands
    require(
        seen == (command,),
        f"The unit '{unit}' was expected to run '{command}' and no other command, but runs {list(seen)}.",
        evidence,
    )


def cdi_offers_gpus(evidence: Evidence) -> str:
    """Expect a CDI spec in /etc/cdi or /run/cdi to offer the GPUs to containers.

    If any spec names the device node of a GPU, the specs must name the device node of each GPU. If
    a spec mounts the driver's libraries, these libraries must have the version of the loaded
    driver. No two specs in one folder may have the same device, because container runtimes would
    ignore that device. An invalid spec of another vendor is reported without an error, because
    container runtimes ignore an invalid spec and use the other specs.
    """
    specs = evidence.cdi_devices
    invalid = [path for path, devices in specs.items() if devices is None]
    kinds = evidence.cdi_kinds
    others = [path for path in invalid if _is_of_another_vendor(path, kinds[path])]
    broken = [path for path in invalid if path not in others]
    require(
        not broken,
        f"Valid CDI specs were expected in {broken}, but these files are not valid, and container "
        "runtimes ignore them. Write them again with `nvidia-ctk cdi generate`.",
        evidence,
    )
    gpus = {
        path: [name for name in devices or () if name.partition("=")[0] in CDI_KINDS]
        for path, devices in specs.items()
    }
    places = Counter(
        (PurePosixPath(path).parent, name) for path, names in gpus.items() for name in names
    )
    twice = sorted(name for (_, name), number in places.items() if number > 1)
    require(
        not twice,
        f"Each CDI device was expected once in a folder, but {twice} are there several times, and "
        "container runtimes offer none of these. Remove all but one of the specs "
        f"{[path for path, names in gpus.items() if not set(names).isdisjoint(twice)]}.",
        evidence,
    )
    offered = {path: names for path, names in gpus.items() if names}
    require(
        bool(offered),
        f"A CDI spec that offers a '{CDI_KIND}' was expected in {' or '.join(CDI_FOLDERS)}, but "
        f"{f'{sorted(specs)} offer none' if specs else 'there is none'}. "
        "Start nvidia-cdi-refresh.service, or run "
        "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`.",
        evidence,
    )
    _require_libraries_of_the_driver(evidence, offered)
    whole = [path for path, names in offered.items() if not names[0].startswith(f"{_CLAIM}=")]
    nodes = {node for path in whole for node in evidence.cdi_device_nodes[path]}
    if any(_GPU_NODE.fullmatch(node) for node in nodes):
        there = filter(_GPU_NODE.fullmatch, evidence.paths.matching("/dev/nvidia*"))
        missing = sorted(set(there) - nodes)
        require(
            not missing,
            f"CDI specs were expected to offer each GPU, but {missing} are in none of "
            f"{sorted(offered)}: a GPU was added later, or the program that writes the specs "
            "omits it. Write the specs again with `nvidia-ctk cdi generate`.",
            evidence,
        )
    return " ".join(
        [
            *(f"'{path}' offers {', '.join(names)}." for path, names in offered.items()),
            *(
                f"'{path}', of another vendor, is not a valid spec, and container runtimes ignore it."
                for path in others
            ),
        ]
    )


def _is_of_another_vendor(path: str, kinds: set[str]) -> bool:
    """Return True if a spec has kinds, and neither the kinds nor the file's name mention NVIDIA."""
    return bool(kinds) and "nvidia" not in "\n".join((PurePosixPath(path).name, *kinds)).lower()


def _require_libraries_of_the_driver(evidence: Evidence, offered: Mapping[str, list[str]]) -> None:
    """Raise ExpectationError if a spec in use mounts libraries of a driver that is not the loaded driver."""
    mounted = {
        path: versions
        for path, versions in evidence.cdi_driver_versions.items()
        if versions and not _overridden(path, offered) >= set(offered.get(path, ()))
    }
    loaded = evidence.driver_version if mounted else None
    stale = {
        path: sorted(others)
        for path, versions in mounted.items()
        if loaded is not None and (others := versions - {loaded})
    }
    require(
        not stale,
        f"CDI specs were expected to mount the libraries of the loaded driver {loaded}, but {stale} "
        "mount libraries of other versions, so containers cannot start or cannot use the GPU. Write "
        "the specs again with `nvidia-ctk cdi generate`.",
        evidence,
    )


def _overridden(path: str, offered: Mapping[str, list[str]]) -> set[str]:
    """Return the devices of specs in later folders of CDI_FOLDERS; runtimes prefer these devices."""
    place = CDI_FOLDERS.index(path.rpartition("/")[0])
    return {
        name
        for other, names in offered.items()
        if CDI_FOLDERS.index(other.rpartition("/")[0]) > place
        for name in names
    }


def runtime_hands_out_gpus(evidence: Evidence) -> str:
    """Expect containerd's configuration to have a runtime that starts NVIDIA's container runtime.

    Raises HarnessError if a unit other than containerd runs the node's pods, or if the form of
    containerd's configuration is unknown.
    """
    refusal = _runtime_refusal(evidence)
    if refusal is None:
        return f"containerd's configuration has '{NVIDIA_RUNTIME}'."
    unit = _runtime_unit(evidence)
    if unit != _CONTAINERD and evidence.unit_states.get(unit) == "active":
        raise HarnessError(
            f"The unit '{unit}' runs the node's pods, so containerd's own runtimes do not show "
            "whether pods get GPUs.",
            evidence=evidence.folder,
        )
    raise failure(refusal, evidence)


def _runtime_refusal(evidence: Evidence) -> str | None:
    """Return the reason why containerd can't give GPUs to pods through NVIDIA's runtime, or None."""
    if evidence.is_command_absent("containerd-config"):
        return (
            "containerd was expected to run the node's containers, but it is not installed. Install "
            "it, and configure the nvidia runtime."
        )
    configuration = evidence.answer_of("containerd-config")
    try:
        number = format_of(configuration)
        cri = cri_table(configuration)
        runtimes = read_runtimes(configuration, cri)
        is_disabled = is_cri_disabled(configuration)
        # A dump always names the default runtime; a part of a file may omit it.
        has_default = (
            get_value(configuration, (*cri, "containerd", "default_runtime_name")) is not None
        )
        default = default_runtime(configuration, cri)
    except TomlTextError as error:
        raise HarnessError(
            f"containerd's configuration has an unknown format: {error}.", evidence=evidence.folder
        ) from error
    if not any(entry.path[0] in _IN_A_DUMP for entry in read_entries(configuration)):
        raise HarnessError(
            "`containerd config dump` printed no configuration, so the runtimes are unknown.",
            evidence=evidence.folder,
        )
    if number is None or (number not in CRI_PLUGINS and not runtimes):
        raise HarnessError(
            "containerd's configuration has a format that the harness does not know, so the "
            "runtimes are unknown.",
            evidence=evidence.folder,
        )
    if is_disabled:
        return (
            "containerd was expected to run pods, but its configuration disables the CRI plugin. Remove the "
            "plugin from 'disabled_plugins', and restart containerd."
        )
    names = [runtime.name for runtime in runtimes]
    if names and has_default and default not in names:
        return (
            f"containerd was expected to run pods, but its default runtime '{default}' is not one of its runtimes "
            f"{names}, so its CRI plugin does not start. Correct 'default_runtime_name', and restart containerd."
        )
    if any(
        PurePosixPath(runtime.program or "").name in _PROGRAMS and runtime.is_effective
        for runtime in runtimes
    ):
        return None
    return (
        f"'{NVIDIA_RUNTIME}' was expected in containerd's configuration, but is not the program of any runtime "
        f"whose type is a runc shim; the runtimes are {names}. Provision the node, or run "
        "`nvidia-ctk runtime configure --runtime=containerd`, and restart containerd."
    )


def _runtime_unit(evidence: Evidence) -> str:
    """Return the active unit that runs the node's pods, or else the unit that should run the pods.

    Docker's packages install `containerd.service`, but this unit does not run if another unit
    starts its own containerd.
    """
    states = evidence.unit_states
    return next(
        (
            unit
            for state in ("active", "activating", "failed")
            for unit in (*OTHER_RUNTIMES, _CONTAINERD)
            if states.get(unit) == state
        ),
        _CONTAINERD,
    )


def gpu_services_up(evidence: Evidence) -> str:
    """Expect the units that serve GPUs not to have failed, and the runtime of pods to be active.

    A unit that waits for a restart, and a unit whose file systemd refuses, count as failed. The
    runtime of pods is containerd by default; if another unit runs the node's pods, that unit is the
    runtime of pods.
    """
    require(
        SYSTEMD_PATH in evidence.paths,
        f"systemd was expected to run the node's services, but does not: there is no "
        f"'{SYSTEMD_PATH}'. Check the node itself, not a container on it.",
        evidence,
    )
    failed_units = {*evidence.failed_units, *evidence.failing_units}
    states = evidence.unit_states
    runtimes = [_runtime_unit(evidence)]
    if runtimes == [_CRI_DOCKER]:
        # Docker starts the containers through containerd.
        runtimes += [unit for unit in (_DOCKER, _CONTAINERD) if unit in states]
    units = [*runtimes, *(unit for unit in GPU_UNITS if unit != _CONTAINERD)]
    failed = [unit for unit in units if unit in failed_units or states.get(unit) == "failed"]
    require(
        not failed,
        f"No unit that serves GPUs was expected to have failed, but {failed} have. Read "
        f"`journalctl -b -u {failed[0] if failed else ''}` on the node.",
        evidence,
    )
    for runtime in runtimes:
        unit_state(evidence, runtime, active="active")
    require(
        MANAGED_MARKER not in evidence.paths
        or any(states.get(unit) == "active" for unit in _GPU_OWNERS),
        f"One of {list(_GPU_OWNERS)} was expected to be active, because '{MANAGED_MARKER}' exists, "
        "but none of them is active, so no pod gets a GPU. Read their journals on the node.",
        evidence,
    )
    active = [unit for unit in units if states.get(unit) == "active"]
    return f"No GPU service has failed; active: {', '.join(active)}."
