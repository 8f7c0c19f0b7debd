"""The plan of a node's boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import services, toolkit
from .cdi import Engine, plugin_environment
from .containerd_config import CONTAINERD_CONFIG, WantedRuntimes
from .driver import driver_steps, is_configured, teardown_action
from .exit_codes import ExitCode, ProvisioningError
from .facts import teardown_scope
from .families import OS_RELEASE, Family
from .mig import mig_steps
from .plan import Plan, Step
from .prebake import Action
from .systemd import reset_failed, start, stop, where_loaded
from .toml_text import TomlTextError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .configuration import Configuration
    from .facts import NodeFacts

FABRIC_MANAGER = "nvidia-fabricmanager"


def make_plan(configuration: Configuration, facts: NodeFacts, program: Sequence[str]) -> Plan:
    """Make the plan of a boot; `program` is the argv that runs this program again.

    Raises ProvisioningError if a driver is wanted on an unsupported operating system, or if
    containerd's configuration cannot be parsed.
    """
    steps = [*_runtime_steps(configuration, facts)]
    if not facts.is_opted_out:
        if facts.decision is not None:
            if facts.family is not Family.DEBIAN:
                raise ProvisioningError(
                    ExitCode.UNSUPPORTED_OS,
                    f"A GPU driver is wanted, but '{OS_RELEASE}' names neither Debian nor Ubuntu; no other "
                    "distribution is supported.",
                )
            steps += driver_steps(configuration, facts, facts.decision)
        steps.append(_fabric_manager_step(is_needed=configuration.gpu_needs_fabric_manager))
        if configuration.mig_node:
            steps += mig_steps(configuration, program)
        steps += (
            services.steps_off()
            if facts.mode is None
            else services.steps_on(configuration, facts.mode, facts.node_name)
        )
        if facts.mode is services.Mode.DEVICE_PLUGIN and facts.runtime is not None:
            steps.append(services.environment_step(plugin_environment(facts.runtime.choice)))
    steps.append(
        Step(
            name="start-kubelet",
            actions=start("kubelet", 240),
            exit_code=ExitCode.SYSTEMCTL_START_FAIL,
            needs=(
                "restart-containerd",
                "validate-runtime",
                "configure-cri-o",
                "report-readiness",
                "partition-gpu",
                "start-dcgm-exporter",
                "unmark-managed-services",
            ),
        )
    )
    if facts.decision is not None and facts.decision.action is Action.TEARDOWN:
        scope = teardown_scope(configuration, is_opted_out=True)
        steps.append(
            Step(
                name="clean-up-driver",
                actions=(teardown_action(facts, scope),),
                exit_code=None,
                needs=("start-kubelet",),
                event="AKS.CSE.cleanUpGPUDrivers",
            )
        )
    return Plan.order(steps)


def _runtime_steps(configuration: Configuration, facts: NodeFacts) -> list[Step]:
    """Return the steps that configure and restart the container runtime of the pods."""
    if facts.runtime is None:
        return []
    if facts.runtime.engine is Engine.CRI_O:
        choice = None if facts.is_opted_out else facts.runtime.choice
        return [
            Step(
                name="configure-cri-o",
                actions=toolkit.cri_o_files(choice),
                exit_code=ExitCode.SYSTEMCTL_START_FAIL,
            )
        ]
    render = toolkit.non_gpu_configuration if facts.is_opted_out else toolkit.gpu_configuration
    try:
        text = render(facts.runtime)
    except TomlTextError as error:
        raise ProvisioningError(
            ExitCode.FILE_WATCH_TIMEOUT,
            f"containerd's configuration '{CONTAINERD_CONFIG}' cannot be edited: {error}.",
        ) from error
    wanted = (
        WantedRuntimes(has_nvidia=False)
        if facts.is_opted_out
        else toolkit.wanted_of_gpu_node(facts.runtime)
    )
    steps = []
    if text is not None:
        steps.append(
            Step(
                name="configure-containerd",
                actions=(toolkit.configure_containerd(text, wanted),),
                exit_code=ExitCode.FILE_WATCH_TIMEOUT,
            )
        )
    is_restarted_later = (
        not facts.is_opted_out
        and facts.decision is not None
        and is_configured(configuration, facts.decision)
    )
    is_changed = text is not None or facts.runtime.is_stale
    if is_changed and not is_restarted_later:
        steps.append(
            Step(
                name="restart-containerd",
                actions=start("containerd", 30),
                exit_code=ExitCode.SYSTEMCTL_START_FAIL,
                needs=("configure-containerd",),
            )
        )
    # Even if the file is unchanged, a file that it imports may contain other settings.
    dump = facts.runtime.dump
    is_other = dump is not None and wanted.difference(dump) is not None
    if is_changed or is_other or not facts.is_opted_out:
        steps.append(
            Step(
                name="validate-runtime",
                actions=(toolkit.expect_in_effect(wanted),),
                exit_code=ExitCode.FILE_WATCH_TIMEOUT,
                needs=("configure-containerd", "restart-containerd", "start-modprobe-unit"),
            )
        )
    return steps


def _fabric_manager_step(*, is_needed: bool) -> Step:
    """Return the step that starts a needed fabric manager, or stops an unneeded one."""
    event = f"AKS.CSE.{FABRIC_MANAGER}"
    needs = ("report-readiness",)
    if is_needed:
        return Step(
            name="start-fabric-manager",
            actions=start(FABRIC_MANAGER, 30),
            exit_code=ExitCode.GPU_DRIVERS_START_FAIL,
            needs=needs,
            event=event,
        )
    return Step(
        name="stop-fabric-manager",
        actions=(
            where_loaded(FABRIC_MANAGER, *stop(FABRIC_MANAGER), reset_failed(FABRIC_MANAGER)),
        ),
        exit_code=None,
        needs=needs,
        event=event,
    )
