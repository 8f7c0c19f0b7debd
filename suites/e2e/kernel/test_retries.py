"""Commands that fail at first are tried again, unless no attempt can help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence import RECORD_PATH
from suites.e2e.guest_script import shell
from suites.e2e.interruption.interrupt import DONE, Interruption
from suites.e2e.kernel_module import BAKED_VERSION, OTHER_VERSION, refused_by
from suites.e2e.promises import promise
from suites.e2e.services.units import smi_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.api import Argv
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_driver.py"
PROBE = "nvidia-modprobe -u -c0"
INSTALL = "ctr -n k8s.io run *"
FAIL = "exit 1"
FAILING_PROBE = Interruption(at=PROBE, act=FAIL).file
#: The client `ctr` ends as at a time limit; the processes in its container continue.
TIME_LIMIT = (
    '"$real" "$@" & until "$real" -n k8s.io task ls | grep -q RUNNING; do sleep 0.1; done; '
    "kill -KILL $!; exit 1"
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A command that fails once, the step that runs it, and the pause before its next attempt."""

    at: str
    step: str
    act: str = FAIL
    pause_s: float = 5.0
    skip: int = 0
    """How many such commands succeed before the failure."""
    before: Sequence[Argv] = ()


FAILURES = {
    "containerd": Failure(at="ctr version", step="wait-for-containerd", pause_s=0.1),
    "probe": Failure(at=PROBE, step="probe-device"),
    "query": Failure(at="nvidia-smi *", step="query-device"),
    "libraries": Failure(at="ldconfig ", step="refresh-libraries", skip=1),
    "modprobe unit": Failure(at="systemctl restart nvidia-modprobe", step="start-modprobe-unit"),
    "kubelet": Failure(at="systemctl enable kubelet", step="start-kubelet"),
}
VALIDATED = {
    "probe": Failure(at=PROBE, step="validate-probe"),
    "query": Failure(at="nvidia-smi *", step="validate-query"),
}


def expect_second_attempt(start: StartNode, failure: Failure) -> None:
    """Expect that a node gets ready although a command fails once."""
    fails_once = Interruption(at=failure.at, act=failure.act, skip=failure.skip).file
    node = start("retry", files=[fails_once], before=failure.before)

    evidence = node.evidence()

    expect.provisioned(evidence)
    step = expect.step_of(evidence, failure.step)
    assert step.status == "done"
    # A slow machine may exceed the limit of an attempt, which is one second for containerd.
    assert "Succeeded on attempt " in (step.detail or ""), (
        f"'{failure.step}' was expected to succeed after its first attempt, but is {step}."
    )
    assert step.duration_s is not None
    assert step.duration_s >= failure.pause_s, "No pause was made before the second attempt."


@promise(section="5, steps 5, 10, 14 and 16", unit=UNIT)
@pytest.mark.parametrize(
    "failure", [pytest.param(failure, id=name) for name, failure in FAILURES.items()]
)
def test_command_that_fails_at_first_is_tried_again(
    start_node: StartNode, failure: Failure
) -> None:
    """A GPU or a unit may need time after the driver is loaded; containerd may need time after a boot."""
    expect_second_attempt(start_node, failure)


@promise(section="5, step 13", unit=UNIT)
@pytest.mark.parametrize(
    "failure", [pytest.param(failure, id=name) for name, failure in VALIDATED.items()]
)
def test_present_driver_that_fails_at_first_is_tried_again(
    start_validated: StartNode, failure: Failure
) -> None:
    """A driver that is already installed gets as much time as a new driver."""
    expect_second_attempt(start_validated, failure)


@pytest.mark.slow
@promise(section="5, step 8", unit=UNIT)
def test_install_that_fails_at_first_is_tried_again(start_node: StartNode) -> None:
    """A full install has five attempts, unlike the fast path.

    A failed attempt may leave its container, but the next attempt needs the container's name.
    """
    failure = Failure(
        at="ctr -n k8s.io run *",
        step="install-driver",
        act=TIME_LIMIT,
        pause_s=10,
        before=[["rm", RECORD_PATH]],
    )

    expect_second_attempt(start_node, failure)


@promise(section="5, step 8", unit="suites/unit/provisioning/test_containerd.py")
def test_install_that_reaches_its_time_limit_leaves_no_container(start_node: StartNode) -> None:
    """The container's processes would disturb the next install, which needs the container's name."""
    budget_s = 90
    node = start_node(
        "hanging", config={"retry_budget_s": budget_s}, files=[smi_settings("exec sleep infinity")]
    )

    evidence = node.evidence(
        commands={"containers": ["ctr", "-n", "k8s.io", "containers", "ls", "-q"]}
    )

    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, "install-driver")
    assert "(time limit)" in (expect.step_of(evidence, "install-prebuilt-driver").detail or "")
    left = evidence.answer_of("containers").split()
    assert left == [], f"No container was expected to be left, but there are {left}."
    duration_s = expect.step_of(evidence, "install-prebuilt-driver").duration_s
    assert duration_s is not None
    assert duration_s < budget_s, "An attempt was expected to end with the budget of the retries."


#: No other process on the node sleeps for this many seconds.
_LEFT_SLEEP = "31536001"


@promise(section="5, step 8", unit="suites/unit/provisioning/test_command.py")
def test_command_ends_with_its_process_although_a_daemon_keeps_its_output_open(
    start_node: StartNode,
) -> None:
    """A wait for the end of output would last to the time limit, since a daemon keeps the output open."""
    budget_s = 240
    leaves_daemon = Interruption(at=INSTALL, act=f"sleep {_LEFT_SLEEP} &").file
    node = start_node("daemon", files=[leaves_daemon], config={"retry_budget_s": budget_s})

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert node.guest.read_text(DONE) is not None, f"No command was '{INSTALL}'."
    step = expect.step_of(evidence, "install-prebuilt-driver")
    assert step.status == "done"
    assert step.duration_s is not None
    assert step.duration_s < budget_s / 2, f"The time limit was used up: {step}."


@promise(section="5, step 5", unit="suites/unit/provisioning/test_command.py")
@pytest.mark.parametrize(
    "act",
    [
        pytest.param(f"sleep {_LEFT_SLEEP} & wait", id="at the time limit"),
        pytest.param(f"sleep {_LEFT_SLEEP} & exit 1", id="after the end of its parent"),
    ],
)
def test_failed_command_leaves_no_process(start_node: StartNode, act: str) -> None:
    """A process of an earlier attempt, such as dpkg, would keep its locks during the next attempt."""
    fails_once = Interruption(at="ctr version", act=act).file
    node = start_node("left-process", files=[fails_once])

    evidence = node.evidence()

    expect.provisioned(evidence)
    assert node.guest.read_text(DONE) is not None, "No command was 'ctr version'."
    left = node.guest.run("pgrep", "--full", f"^sleep {_LEFT_SLEEP}")
    assert not left.ok, f"No process was expected to be left, but there are: {left.stdout}"


#: The plan's lines for the contract's attempts, with the pause between them and their limit.
ATTEMPTS = (
    "ctr version  # 240 attempts, 0.1 s apart, limit 1 s each, doubled after a timeout, up to 8 s",
    "  # 3 attempts, 5 s apart, limit 120 s each",
    "/entrypoint.sh install-skip-build  # limit 600 s",
    "/entrypoint.sh install  # 5 attempts, 10 s apart, limit 600 s each",
    "nvidia-modprobe -u -c0  # 24 attempts, 5 s apart, limit 25 s each",
    "nvidia-modprobe -u -c0  # 120 attempts, 5 s apart, limit 25 s each",
    "nvidia-smi  # 24 attempts, 5 s apart, limit 30 s each",
    "nvidia-smi  # 120 attempts, 5 s apart, limit 30 s each",
    "ldconfig  # 120 attempts, 5 s apart, limit 25 s each",
    "systemctl restart containerd  # 100 attempts, 5 s apart, limit 30 s each",
    "systemctl enable containerd  # 120 attempts, 5 s apart, limit 25 s each",
    "systemctl restart nvidia-modprobe  # 100 attempts, 5 s apart, limit 30 s each",
    "systemctl stop nvidia-fabricmanager  # 20 attempts, 5 s apart, limit 25 s each",
)


@promise(section="5", unit="suites/unit/provisioning/test_plans_of_boot.py")
def test_each_command_gets_the_attempts_that_the_contract_states(
    start_validated: StartNode,
) -> None:
    """A GPU or a registry may need minutes, but a hanging command must not use up the budget."""
    evidence = start_validated("attempts", command="plan").result()

    expect.provisioned(evidence)
    missing = [line for line in ATTEMPTS if line not in evidence.log]
    assert missing == [], f"The plan was expected to have these lines too: {missing}."


@promise(section="5, steps 8 and 10", unit="suites/unit/provisioning/test_unsupported_gpu.py")
@pytest.mark.parametrize(
    ("at", "before", "step"),
    [
        pytest.param(PROBE, [], "probe-device", id="after the install"),
        pytest.param(INSTALL, [], "install-driver", id="without the build"),
        pytest.param(INSTALL, [["rm", RECORD_PATH]], "install-driver", id="at the full install"),
    ],
)
def test_gpu_that_the_release_does_not_support_ends_the_run(
    start_node: StartNode, at: str, before: Sequence[Argv], step: str
) -> None:
    """Retries cannot help, so the run ends after the first attempt and reports the GPU."""
    node = start_node(
        "refused",
        files=[Interruption(at=at, act=FAIL).file],
        before=[*before, refused_by(BAKED_VERSION)],
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, step)
    outcome = evidence.outcome
    assert outcome is not None
    sentence = (
        f"The NVIDIA driver {BAKED_VERSION} does not support the GPU 0000:00:05.0 (10de:2330)"
    )
    assert sentence in (outcome.error or "")


#: Messages of a driver about faults that no attempt can repair, and a part of provisioning's
#: error.
BEYOND_REPAIR = {
    "open modules": (
        (
            "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2330)\\n"
            "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\\n"
        ),
        "The GPU 0000:02:00.0 (10de:2330) needs NVIDIA's open kernel modules",
    ),
    "off the bus": (
        (
            "NVRM: The NVIDIA GPU 0000:02:00.0\\nNVRM: (PCI ID: 10de:2330) installed in this system has\\n"
            "NVRM: fallen off the bus and is not responding to commands.\\n"
        ),
        "A GPU has fallen off the bus",
    ),
    "memory region": (
        (
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\\n"
            "NVRM: BAR0 is 0M @ 0x0 (PCI:0000:02:00.0)\\n"
        ),
        "The memory region BAR0 of the GPU 0000:02:00.0 is invalid (0M @ 0x0)",
    ),
}


@promise(section="5, step 8", unit="suites/unit/provisioning/test_unsupported_gpu.py")
@pytest.mark.parametrize(
    ("said", "sentence"), [pytest.param(*each, id=name) for name, each in BEYOND_REPAIR.items()]
)
def test_driver_is_not_built_again_if_no_build_can_help(
    start_node: StartNode, said: str, sentence: str
) -> None:
    """Five builds would take most of the time budget, and each would fail like the first build."""
    node = start_node(
        "beyond-repair",
        files=[Interruption(at=INSTALL, act=FAIL).file],
        before=[["rm", RECORD_PATH], shell(f"printf '{said}' >/dev/kmsg")],
    )

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, "install-driver")
    outcome = evidence.outcome
    assert outcome is not None
    assert sentence in (outcome.error or "")


@promise(section="5, step 10", unit="suites/unit/provisioning/test_unsupported_gpu.py")
@pytest.mark.parametrize(
    "before",
    [
        pytest.param(refused_by(OTHER_VERSION), id="names its release"),
        pytest.param(
            shell(
                f"echo 'NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {OTHER_VERSION}' >/dev/kmsg; "
                f"printf '{BEYOND_REPAIR['memory region'][0]}' >/dev/kmsg"
            ),
            id="between the loads of two releases",
        ),
    ],
)
def test_gpu_refusal_logged_by_another_driver_release_does_not_end_the_run(
    start_node: StartNode, before: Argv
) -> None:
    """The kernel log of a boot may contain messages of a driver that was replaced since."""
    node = start_node("not-refused", files=[FAILING_PROBE], before=[before])

    evidence = node.evidence()

    expect.provisioned(evidence)
    detail = expect.step_of(evidence, "probe-device").detail
    assert "Succeeded on attempt 2." in (detail or "")


@promise(section="5, step 10", unit="suites/unit/provisioning/test_unsupported_gpu.py")
def test_unsupported_gpu_does_not_stop_a_node_that_also_has_a_working_gpu(
    start_node: StartNode,
) -> None:
    """The driver refuses one GPU of the node, but its commands succeed with another GPU."""
    node = start_node("second-refused", before=[refused_by(BAKED_VERSION)])

    expect.provisioned(node.evidence())


@promise(section="5, step 10", unit=UNIT)
def test_gpu_that_is_lost_after_the_install_ends_the_run(start_node: StartNode) -> None:
    """A node whose GPU is lost is not ready, even after a successful install."""
    lost = Interruption(at="nvidia-smi *", act="exit 15").file
    node = start_node("lost", files=[lost])

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="GPU_DRIVERS_START_FAIL")
    expect.run_ended_at(evidence, "query-device")
    expect.log_line(evidence, "A GPU has fallen off the bus")


@promise(section="5, step 13", unit=UNIT)
def test_present_driver_that_does_not_work_is_installed_again(start_validated: StartNode) -> None:
    """If validation of the present driver fails, the run installs the driver."""
    node = start_validated("invalid", files=[FAILING_PROBE], before=[refused_by(OTHER_VERSION)])

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.step_failed(evidence, "validate-probe")
    for name in ("install-prebuilt-driver", "query-device", "validate-query"):
        assert expect.step_of(evidence, name).status == "done"
    assert expect.step_of(evidence, "install-driver").status == "skipped"
