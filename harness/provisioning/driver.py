"""The steps that bring a driver up on a managed node."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from . import containerd, toolkit
from .exit_codes import ExitCode
from .facts import teardown_scope
from .kernel_modules import read_resident_version
from .nvidia import GPU_DEST, driver_kind
from .plan import Do, Plan, Retry, Run, Step, Verdict, say
from .prebake import Action
from .refusals import expect_no_refusal, judge_refusal
from .systemd import start
from .teardown import render_grid_line, tear_down

if TYPE_CHECKING:
    from .command import CommandResult
    from .configuration import Configuration
    from .facts import Facts
    from .node import Node
    from .nvidia import DriverImage
    from .prebake import Decision
    from .teardown import Scope
    from .toolkit import RuntimeFacts

CORRUPT_INFOROM = "infoROM is corrupted"
#: What nvidia-smi ends with then (https://docs.nvidia.com/deploy/nvidia-smi, 'Return Value').
GPU_IS_LOST = 15
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
    """Tell whether the driver is configured rather than only validated.

    After a teardown there is nothing to validate, or, if it was incomplete, a driver that is
    not wanted (AgentBaker 9544): the node gets a full install in either mode.
    """
    return configuration.config_gpu_driver_if_needed or decision.action.has_teardown


def driver_steps(configuration: Configuration, facts: Facts, decision: Decision) -> list[Step]:
    """Return the steps from the teardown of a wrong driver to the readiness line."""
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
            actions=(say(facts.render_readiness()),),
            exit_code=None,
            needs=("start-modprobe-unit",),
        ),
    ]


def _teardown_step(configuration: Configuration, facts: Facts) -> Step:
    """Return the step that removes a baked driver which is not the one wanted.

    An incomplete teardown does not end the run: the full install that follows may still work,
    and whether another version stayed in the kernel is looked at with it.
    """
    scope = teardown_scope(configuration, is_opted_out=False)
    actions = [teardown_action(facts, scope)]
    is_grid_over_other = driver_kind(facts.driver_type) == "grid" and not facts.is_kind_recorded
    if is_grid_over_other:
        actions.insert(0, say(render_grid_line(facts.driver_type, facts.record)))
    return Step(
        name="tear-down-driver",
        actions=tuple(actions),
        exit_code=_FAILED,
        needs=("configure-containerd",),
        event=f"{_ENSURE}.cleanUpGridNodeCudaPrebake" if is_grid_over_other else None,
        groups=(_ENSURE,),
    )


def teardown_action(facts: Facts, scope: Scope) -> Do:
    """Return the action that tears down, with the words of what it would remove now."""

    def act(node: Node) -> str:
        return f"The teardown's status is '{tear_down(node, scope).value}'."

    return Do(words=facts.removal, function=act)


def _validate_steps(configuration: Configuration, facts: Facts, decision: Decision) -> list[Step]:
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


def _configure_steps(configuration: Configuration, facts: Facts, decision: Decision) -> list[Step]:
    image = configuration.image(facts.driver_type)
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
        Step(
            name="pull-driver-image",
            actions=(containerd.fetch(image),),
            exit_code=_FAILED,
            needs=("tolerate-early-cdi-refresh",),
            event=f"{_CONFIGURE_STEP}.pullGPUDriverImage",
            groups=groups,
        ),
        *_install_steps(image, decision),
        Step(
            name="remove-driver-image",
            actions=(containerd.remove(image),),
            exit_code=None,
            needs=("install-driver",),
            groups=groups,
        ),
        Step(
            name="probe-device",
            actions=(Run(argv=PROBE, retry=_UNTIL_READY, judge=judge_refusal),),
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
    """Return the step that sets the nvidia runtime's mode; only after the driver works."""
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


def _install_steps(image: DriverImage, decision: Decision) -> list[Step]:
    """Return the install, after one try to do without the build where the record allows it."""

    def install(name: str, action: str, retry: Retry) -> Step:
        run = containerd.run_driver_image(
            image, container=containerd.INSTALL_CONTAINER, action=action, retry=retry
        )
        return Step(
            name=name,
            actions=(replace(run, judge=partial(judge_install, version=image.version)),),
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


def validate_plan() -> Plan:
    """Make the plan of `validate`: the driver is used, nothing is installed or mended."""
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
            Step(
                name="validate-runtime-handler",
                actions=(toolkit.validate_handler(),),
                exit_code=_FAILED,
                needs=("validate-cdi-spec",),
                groups=(_VALIDATE,),
            ),
        ]
    )


def _validate_probe() -> Run:
    retry = Retry(attempts=24, pause_s=5, timeout_s=25)
    return Run(argv=PROBE, retry=retry, judge=judge_refusal)


def _validate_query() -> Run:
    return query_device(Retry(attempts=24, pause_s=5, timeout_s=30))


def query_device(retry: Retry) -> Run:
    """Return the command that shows whether the driver works with the GPU."""
    return Run(
        argv=("nvidia-smi",),
        retry=retry,
        elsewhere=f"{GPU_DEST}/bin/nvidia-smi",
        judge=judge_gpu,
    )


def judge_gpu(_node: Node, result: CommandResult) -> Verdict | None:
    """See what no further try mends: a corrupted infoROM, a GPU that has fallen off the bus."""
    if CORRUPT_INFOROM in result.stdout:
        return Verdict(
            message="The GPU's infoROM is corrupted; the machine needs repair.",
            exit_code=ExitCode.GPU_INFO_ROM_CORRUPTED,
        )
    if result.exit_code == GPU_IS_LOST:
        return Verdict(
            message="A GPU has fallen off the bus; the machine needs a reboot, or repair.",
            exit_code=_FAILED,
        )
    return None


def judge_install(node: Node, result: CommandResult, *, version: str) -> Verdict | None:
    """See what no further install mends: another version in the kernel, or a GPU refused."""
    return judge_resident_version(node, version=version) or judge_refusal(node, result)


def judge_resident_version(node: Node, *, version: str) -> Verdict | None:
    """See another version of the driver in the kernel, which no install can replace."""
    resident = read_resident_version(node.root)
    if resident is None or resident == version:
        return None
    return Verdict(
        message=f"The kernel holds the driver {resident} and cannot take {version}; what uses it "
        "must end, or the node reboot.",
        exit_code=_FAILED,
    )
