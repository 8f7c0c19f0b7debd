"""The steps that bring a driver up on a managed node.

The module is long because it contains the functions of all steps, in the order of the steps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from . import containerd, toolkit
from .cdi import Engine
from .containerd_config import WantedRuntimes
from .driver_messages import find_tool_words
from .driver_words import CORRUPT_INFOROM, SMI_EXIT_CODES
from .exit_codes import ExitCode
from .facts import teardown_scope
from .kernel_modules import read_resident_version
from .nvidia import GPU_DEST, driver_kind
from .plan import Do, PermanentFailure, Plan, Retry, Run, Step, log_line
from .prebake import Action
from .precompiled_driver import install_step as precompiled_step
from .precompiled_driver import precompiled_image
from .systemd import start
from .teardown import render_grid_line, tear_down
from .unsupported_gpu import expect_no_refusal, judge_probe, judge_refusal

if TYPE_CHECKING:
    from .command import CommandResult
    from .configuration import Configuration
    from .facts import NodeFacts
    from .node_context import NodeContext
    from .nvidia import DriverImage
    from .prebake import Decision
    from .teardown import Scope
    from .toolkit import RuntimeFacts

PROBE = ("nvidia-modprobe", "-u", "-c0")
VALIDATE_PROBE = "validate-probe"
INSTALL_PREBUILT = "install-prebuilt-driver"

_ENSURE = "AKS.CSE.ensureGPUDrivers"
_CONFIGURE = f"{_ENSURE}.configGPUDrivers"
_VALIDATE = f"{_ENSURE}.validateGPUDrivers"
_CONFIGURE_STEP = "AKS.CSE.configGPUDrivers"
_FAILED = ExitCode.GPU_DRIVERS_START_FAIL
_UNTIL_READY = Retry(attempts=120, pause_s=5, timeout_s=25)


def is_configured(configuration: Configuration, decision: Decision) -> bool:
    """Return whether a boot installs and configures the driver, and does not only validate it.

    A complete teardown leaves no driver to validate, and an incomplete teardown leaves a wrong
    driver (AgentBaker 9544). So a node with a teardown gets a full install, even if the
    configuration asks only for validation.
    """
    return configuration.config_gpu_driver_if_needed or decision.action.has_teardown


def driver_steps(configuration: Configuration, facts: NodeFacts, decision: Decision) -> list[Step]:
    """Return all steps from the teardown of a wrong driver to the log line about readiness."""
    teardown = [_teardown_step(configuration, facts)] if decision.action.has_teardown else []
    bring_up = _configure_steps if is_configured(configuration, decision) else _validate_steps
    return [
        *teardown,
        *bring_up(configuration, facts, decision),
        Step(
            name="start-modprobe-unit",
            actions=start("nvidia-modprobe", 30),
            exit_code=_FAILED,
            needs=("restart-node-problem-detector", "validate-query"),
            event=f"{_ENSURE}.nvidia-modprobe",
            groups=(_ENSURE,),
        ),
        Step(
            name="report-readiness",
            actions=(log_line(facts.render_readiness()),),
            exit_code=None,
            needs=("start-modprobe-unit", "validate-runtime"),
        ),
    ]


def _teardown_step(configuration: Configuration, facts: NodeFacts) -> Step:
    """Return the step that removes a baked driver of the wrong kind or version.

    An incomplete teardown does not end the run: the full install after the teardown may still work,
    and the install checks whether another driver version is still loaded.
    """
    scope = teardown_scope(configuration, is_opted_out=False)
    actions = [teardown_action(facts, scope)]
    is_grid_over_other = driver_kind(facts.driver_type) == "grid" and not facts.is_kind_recorded
    if is_grid_over_other:
        actions.insert(0, log_line(render_grid_line(facts.driver_type, facts.record)))
    return Step(
        name="tear-down-driver",
        actions=tuple(actions),
        exit_code=_FAILED,
        needs=("configure-containerd",),
        event=f"{_ENSURE}.cleanUpGridNodeCudaPrebake" if is_grid_over_other else None,
        groups=(_ENSURE,),
    )


def teardown_action(facts: NodeFacts, scope: Scope) -> Do:
    """Return the action of a teardown; the action's description lists what it would remove now."""

    def act(node: NodeContext) -> str:
        return f"The teardown's status is '{tear_down(node, scope).value}'."

    return Do(description=facts.removal, function=act)


def _validate_steps(
    configuration: Configuration, facts: NodeFacts, decision: Decision
) -> list[Step]:
    groups = (_ENSURE, _VALIDATE)
    return [
        Step(
            name=VALIDATE_PROBE,
            actions=(_validate_probe(),),
            exit_code=None,
            needs=("restart-containerd",),
            groups=groups,
        ),
        *(
            step
            if step.only_after_failure_of is not None
            else replace(step, only_after_failure_of=VALIDATE_PROBE)
            for step in _configure_steps(configuration, facts, decision)
        ),
        Step(
            name="validate-query",
            actions=(_validate_query(),),
            exit_code=_FAILED,
            needs=("restart-node-problem-detector",),
            groups=groups,
        ),
    ]


def _configure_steps(
    configuration: Configuration, facts: NodeFacts, decision: Decision
) -> list[Step]:
    groups = (_ENSURE, _CONFIGURE)
    return [
        Step(
            name="wait-for-containerd",
            actions=containerd.wait_until_ready(),
            exit_code=_FAILED,
            needs=("configure-containerd", "restart-containerd", "tear-down-driver"),
            groups=groups,
        ),
        Step(
            name="tolerate-early-cdi-refresh",
            actions=toolkit.tolerate_early_refresh(),
            exit_code=_FAILED,
            needs=("wait-for-containerd",),
            event=f"{_CONFIGURE_STEP}.configureNvidiaCDIRefresh",
            groups=groups,
        ),
        *_install_steps(configuration, facts, decision),
        Step(
            name="probe-device",
            actions=(_probe_once_installed(configuration.image(facts.driver_type)),),
            exit_code=_FAILED,
            needs=("remove-driver-image",),
            event=f"{_CONFIGURE_STEP}.waitForNvidiaModprobe",
            groups=groups,
        ),
        Step(
            name="query-device",
            actions=(query_device(replace(_UNTIL_READY, timeout_s=30)),),
            exit_code=_FAILED,
            needs=("probe-device",),
            event=f"{_CONFIGURE_STEP}.waitForNvidiaSmi",
            groups=groups,
        ),
        Step(
            name="refresh-libraries",
            actions=(Run(argv=("ldconfig",), retry=_UNTIL_READY),),
            exit_code=_FAILED,
            needs=("query-device",),
            groups=groups,
        ),
        Step(
            name="regenerate-cdi-spec",
            actions=toolkit.regenerate_spec(),
            exit_code=_FAILED,
            needs=("refresh-libraries",),
            groups=groups,
        ),
        *_toolkit_steps(facts.runtime),
        Step(
            name="start-containerd",
            actions=start("containerd", 30),
            exit_code=ExitCode.GPU_DRIVERS_INSTALL_TIMEOUT,
            needs=("configure-toolkit",),
            groups=groups,
        ),
        Step(
            name="restart-node-problem-detector",
            actions=(
                Run(
                    argv=("systemctl", "restart", "node-problem-detector"),
                    retry=Retry(timeout_s=30),
                ),
            ),
            exit_code=None,
            needs=("start-containerd",),
            groups=groups,
        ),
    ]


def _toolkit_steps(runtime: RuntimeFacts | None) -> list[Step]:
    """Return the step that sets the nvidia runtime's mode once the driver works."""
    if runtime is None:
        return []
    return [
        Step(
            name="configure-toolkit",
            actions=(toolkit.configure_toolkit(runtime.choice),),
            exit_code=_FAILED,
            needs=("regenerate-cdi-spec",),
            groups=(_ENSURE, _CONFIGURE),
        )
    ]


def _install_steps(
    configuration: Configuration, facts: NodeFacts, decision: Decision
) -> list[Step]:
    """Return the steps from the pull of the driver image to the removal of this image.

    If the node would build the driver and the configuration names a precompiled image, the
    precompiled image is tried first.
    """
    image = configuration.image(facts.driver_type)
    groups = (_ENSURE, _CONFIGURE)
    pull = Step(
        name="pull-driver-image",
        actions=(containerd.fetch(image),),
        exit_code=_FAILED,
        needs=("tolerate-early-cdi-refresh",),
        event=f"{_CONFIGURE_STEP}.pullGPUDriverImage",
        groups=groups,
    )
    remove = Step(
        name="remove-driver-image",
        actions=(containerd.remove(image),),
        exit_code=None,
        needs=("install-driver",),
        groups=groups,
    )
    builds = [pull, *_run_steps(image, decision)]
    if decision.action is Action.INSTALL_SKIP_BUILD:
        return [*builds, remove]
    precompiled = precompiled_image(configuration, facts)
    if precompiled is None:
        return [*builds, remove]
    first = precompiled_step(precompiled, configuration, facts, like=builds[-1])
    fallback = [replace(step, only_after_failure_of=first.name) for step in builds]
    return [
        first,
        *(fallback if configuration.precompiled_fallback else ()),
        replace(
            remove,
            # Which of these images the node has depends on the install.
            actions=tuple(
                replace(containerd.remove(each), is_optional=True) for each in (precompiled, image)
            ),
            needs=(first.name, *remove.needs),
        ),
    ]


def _run_steps(image: DriverImage, decision: Decision) -> list[Step]:
    """Return the install steps; if the record allows a skipped build, the first step skips the build."""

    def install(name: str, action: str, retry: Retry) -> Step:
        run = containerd.run_driver_image(
            image, container=containerd.INSTALL_CONTAINER, action=action, retry=retry
        )
        return Step(
            name=name,
            actions=(
                *containerd.remove_left_container(containerd.INSTALL_CONTAINER),
                replace(run, judge=partial(judge_install, version=image.version)),
            ),
            exit_code=_FAILED,
            needs=("pull-driver-image",),
            event=f"{_CONFIGURE_STEP}.installGPUDriverImage",
            groups=(_ENSURE, _CONFIGURE),
        )

    full = install("install-driver", "install", containerd.INSTALL)
    if decision.action is not Action.INSTALL_SKIP_BUILD:
        return [full]
    prebuilt = install(INSTALL_PREBUILT, "install-skip-build", containerd.INSTALL_ONCE)
    again = replace(full, actions=(expect_no_refusal(image.version), *full.actions))
    return [
        replace(prebuilt, exit_code=None),
        replace(again, only_after_failure_of=INSTALL_PREBUILT),
    ]


def validate_plan(configuration: Configuration) -> Plan:
    """Make the plan of the command `validate`, which uses the driver but installs nothing."""
    return Plan.order(
        [
            Step(
                name=VALIDATE_PROBE,
                actions=(_validate_probe(),),
                exit_code=_FAILED,
                groups=(_VALIDATE,),
            ),
            Step(
                name="validate-query",
                actions=(_validate_query(),),
                exit_code=_FAILED,
                needs=(VALIDATE_PROBE,),
                groups=(_VALIDATE,),
            ),
            Step(
                name="validate-cdi-spec",
                actions=toolkit.validate_spec(),
                exit_code=_FAILED,
                needs=("validate-query",),
                groups=(_VALIDATE,),
            ),
            *_validate_handler_steps(configuration),
        ]
    )


def _validate_handler_steps(configuration: Configuration) -> list[Step]:
    """Return the step that checks containerd's configuration, if containerd runs the pods."""
    if configuration.container_runtime is not Engine.CONTAINERD:
        return []
    return [
        Step(
            name="validate-runtime-handler",
            actions=(toolkit.expect_in_effect(WantedRuntimes(has_nvidia=True)),),
            exit_code=_FAILED,
            needs=("validate-cdi-spec",),
            groups=(_VALIDATE,),
        )
    ]


def _validate_probe() -> Run:
    retry = Retry(attempts=24, pause_s=5, timeout_s=25)
    return Run(argv=PROBE, retry=retry, judge=judge_probe)


def _validate_query() -> Run:
    return query_device(Retry(attempts=24, pause_s=5, timeout_s=30))


def query_device(retry: Retry) -> Run:
    """Return the command that checks whether the driver works with the GPU."""
    return Run(
        argv=("nvidia-smi",),
        retry=retry,
        fallback_program=f"{GPU_DEST}/bin/nvidia-smi",
        judge=judge_gpu,
    )


def judge_gpu(_node: NodeContext, result: CommandResult) -> PermanentFailure | None:
    """Detect failures that a retry cannot repair, and faults that come with the exit code 0."""
    words = find_tool_words(f"{_without_processes(result.stdout)}\n{result.stderr}")
    words = words or SMI_EXIT_CODES.get(result.exit_code)
    if words is None or (words.can_retry_help and not result.ok):
        return None
    code = ExitCode.GPU_INFO_ROM_CORRUPTED if words is CORRUPT_INFOROM else _FAILED
    return PermanentFailure(message=words.meaning, exit_code=code)


def _without_processes(table: str) -> str:
    """Return the output of `nvidia-smi` without the list of processes, whose names users chose."""
    gpus, _, rest = table.partition("| Processes:")
    return "\n".join((gpus, *(line for line in rest.splitlines() if not line.startswith("|"))))


def _probe_once_installed(image: DriverImage) -> Run:
    judge = partial(judge_probe, version=image.version)
    return Run(argv=PROBE, retry=_UNTIL_READY, judge=judge)


def judge_install(
    node: NodeContext, result: CommandResult, *, version: str
) -> PermanentFailure | None:
    """Detect failures that no retry repairs: another loaded driver version, or an unsupported GPU."""
    resident = judge_resident_version(node, version=version)
    return resident or judge_refusal(node, result, version=version)


def judge_resident_version(node: NodeContext, *, version: str) -> PermanentFailure | None:
    """Detect a loaded driver of another version, which an install cannot replace."""
    resident = read_resident_version(node.files)
    if resident is None or resident == version:
        return None
    return PermanentFailure(
        message=f"The driver {resident} is loaded, so {version} cannot be loaded; end the processes that "
        f"use {resident}, or reboot the node.",
        exit_code=_FAILED,
    )
