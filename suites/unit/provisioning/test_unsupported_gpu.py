"""A GPU that the driver does not support is reported, and nothing is retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.fixtures.recordings import load_recording
from harness.provisioning.command import CommandResult
from harness.provisioning.unsupported_gpu import judge_probe, judge_refusal, parse_refusals

from .driver_logs import PUBLIC_LOGS
from .fakes import GPU_NODE, IMAGE, KERNEL, VERSION, Invocation, make_node

if TYPE_CHECKING:
    from .simulation import SimulatedNode


def failed(program: str, said: str) -> CommandResult:
    return CommandResult(argv=(program,), exit_code=1, stdout="", stderr=said)


NO_DEVICE = failed("nvidia-modprobe", "modprobe: ERROR: could not insert 'nvidia': No such device")
OTHER_FORMAT = "modprobe: ERROR: could not insert 'nvidia': Exec format error"
REJECTED_KEY = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
LOST = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n"
TOLD = (
    f"The NVIDIA driver {VERSION} does not support the GPU 0000:0b:00.0 (10de:2bb5): the GPU is too new "
    "or too old for this driver. Choose a release of the driver that supports the GPU, or a node with another GPU."
)


#: One log for each combination of 'a retry can help' and 'a build can help'; test_driver_words.py
#: tests all logs.
LOGS = {(log.can_retry_help, log.can_rebuild_help): log for log in PUBLIC_LOGS}.values()


def calls_of(simulated: SimulatedNode, *words: str) -> list[tuple[str, ...]]:
    """Return the calls whose argv starts with these words."""
    return [call for call in simulated.calls if call[: len(words)] == words]


def refused_by(version: str) -> str:
    return load_recording("dmesg/2.38.1-nvidia-refusal").text.replace("535.309.01", version)


def reasons_against_a_build(
    simulated: SimulatedNode, log: str, install: CommandResult = NO_DEVICE
) -> str | None:
    """Return why another build of VERSION can't help after this install, or None if it may."""
    simulated.kernel_log = log
    failure = judge_refusal(make_node(simulated, simulated.top), install, version=VERSION)
    return None if failure is None else failure.message


def test_two_unsupported_gpus_are_both_reported(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A rebuild of the same driver would not support them, so no rebuild follows."""
    simulated.build(VERSION, KERNEL)
    log = refused_by(VERSION)
    simulated.kernel_log = log + log.replace("0000:0b:00.0", "0000:0c:00.0")
    second = TOLD.replace("0000:0b:00.0", "0000:0c:00.0")
    for command, program in (("boot", "ctr -n k8s.io run"), ("validate", "nvidia-modprobe")):
        simulated.failing[program] = NO_DEVICE

        assert invocation.run(command, GPU_NODE) == 84

        assert f" {TOLD} {second}" in str(invocation.outcome()["error"])
    assert len(calls_of(simulated, "nvidia-modprobe")) == 1
    runs = calls_of(simulated, "ctr", "-n", "k8s.io", "run")
    assert [call[-1] for call in runs] == ["install-skip-build"]


def test_probe_is_tried_only_once_if_this_driver_release_refused_the_gpu(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-modprobe"] = NO_DEVICE
    tries = []
    for release in (VERSION, "470.82.01"):
        simulated.images = {IMAGE}
        simulated.kernel_log = refused_by(release)
        assert invocation.run("boot", {**GPU_NODE, "retry_budget_s": 60}) == 84
        tries.append(len(calls_of(simulated, "nvidia-modprobe", "-u", "-c0")))

    assert tries == [1, 1 + 12]


def test_incomplete_refusal_message_in_the_kernel_log_is_ignored() -> None:
    cut = (
        "[    1.0] NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2bb5)\n[    1.1] usb 1-1: new\n"
    )

    assert [parse_refusals(log) for log in ("", LOST, cut)] == [(), (), ()]


#: Releases that were loaded earlier in this boot. A release whose number begins with VERSION, or
#: with which VERSION begins, is another release.
OTHER_RELEASES = ["470.82.01", VERSION.rpartition(".")[0], f"{VERSION}.1"]


def test_refusal_by_another_driver_release_does_not_prevent_a_build(
    simulated: SimulatedNode,
) -> None:
    logs = map(refused_by, OTHER_RELEASES)

    assert [reasons_against_a_build(simulated, log) for log in logs] == [None, None, None]


def test_build_is_tried_five_times_if_another_driver_release_refused_the_gpu(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel_log = refused_by(OTHER_RELEASES[0])
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    runs = calls_of(simulated, "ctr", "-n", "k8s.io", "run")
    assert [call[-1] for call in runs] == ["install-skip-build", *["install"] * 5]


def test_only_refusals_by_this_release_are_reported(simulated: SimulatedNode) -> None:
    log = refused_by(OTHER_RELEASES[0]) + refused_by(VERSION)

    assert reasons_against_a_build(simulated, log) == TOLD


def test_probe_is_retried_if_the_kernel_log_is_unreadable(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-modprobe"] = NO_DEVICE
    simulated.failing["dmesg"] = failed(
        "dmesg", "dmesg: read kernel buffer failed: Operation not permitted"
    )

    assert invocation.run("validate", GPU_NODE) == 84

    assert len(calls_of(simulated, "nvidia-modprobe")) == 24


def test_log_message_decides_whether_probe_and_build_are_retried(simulated: SimulatedNode) -> None:
    node = make_node(simulated, simulated.top)
    for log in LOGS:
        simulated.kernel_log = log.text.replace("565.77", VERSION).replace("430.50", VERSION)

        probe = judge_probe(node, NO_DEVICE)
        build = judge_refusal(node, NO_DEVICE, version=VERSION)

        assert (probe is None, build is None) == (log.can_retry_help, log.can_rebuild_help)
        assert build is None or log.words in build.message


def test_messages_of_an_earlier_driver_do_not_prevent_a_build(
    simulated: SimulatedNode,
) -> None:
    """The earlier driver may have had the other kind of kernel modules, open or proprietary."""
    other = "[ 20.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  470.82.01  Mon Nov 23 2026\n"

    assert [reasons_against_a_build(simulated, log.text + other) for log in LOGS] == [None] * 3


def test_rejected_module_key_prevents_a_rebuild_but_other_install_errors_do_not(
    simulated: SimulatedNode,
) -> None:
    others = (
        OTHER_FORMAT,
        "modprobe: ERROR: could not insert 'nvidia': words that nobody knows",
        "curl: (6) Could not resolve host: example.com",
    )

    assert reasons_against_a_build(simulated, "", failed("ctr", REJECTED_KEY)) is not None
    assert {reasons_against_a_build(simulated, "", failed("ctr", said)) for said in others} == {
        None
    }


def test_module_of_another_kernel_is_rebuilt_after_one_failed_probe(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """Retries do not help validation, but the install that follows may succeed."""
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-modprobe"] = failed("nvidia-modprobe", OTHER_FORMAT)

    assert invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False}) == 84

    # The command runs once in the validation, and once after the install.
    assert len(calls_of(simulated, "nvidia-modprobe")) == 2
    assert len(calls_of(simulated, "ctr", "-n", "k8s.io", "run")) == 1


def test_working_driver_is_kept_despite_errors_in_the_kernel_log(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """A dead GPU may be beside a working GPU, and an error may be in the past."""
    simulated.kernel_log = LOST + refused_by(VERSION)

    assert invocation.run("boot", GPU_NODE) == 0


def test_unsupported_gpu_is_reported_before_other_driver_errors(
    simulated: SimulatedNode,
) -> None:
    uvm = "NVRM: uvm_x: uvm encountered global fatal error 0x60, requiring os reboot to recover.\n"

    for log in (refused_by(VERSION) + uvm, uvm + refused_by(VERSION)):
        said = str(reasons_against_a_build(simulated, log))
        assert said.startswith(f"{TOLD} The driver's memory manager (UVM) has failed for good.")


def test_error_that_is_logged_three_times_is_reported_once(simulated: SimulatedNode) -> None:
    said = str(reasons_against_a_build(simulated, LOST * 3))

    assert said.count("fallen off the bus") == 1


def test_kernel_messages_are_reported_before_install_output(
    simulated: SimulatedNode,
) -> None:
    install = CommandResult(argv=("ctr",), exit_code=1, stdout=REJECTED_KEY, stderr="")

    said = str(reasons_against_a_build(simulated, refused_by(VERSION), install))
    assert said.startswith(TOLD)
    assert "is missing or not trusted" in said


def test_driver_errors_are_reported_in_the_order_of_the_log(simulated: SimulatedNode) -> None:
    cables = "NVRM: GPU 0000:02:00.0: GPU does not have the necessary power cables connected.\n"

    for log, is_lost_first in ((LOST + cables, True), (cables + LOST, False)):
        said = str(reasons_against_a_build(simulated, log))
        order = said.index("fallen off the bus") < said.index("power cables are not")
        assert order is is_lost_first


def test_refusals_are_reported_in_the_order_of_first_appearance_in_the_log() -> None:
    first, second = refused_by(VERSION), refused_by(VERSION).replace("0b:00.0", "0a:00.0")

    refusals = parse_refusals(first + second + first)

    assert [refusal.fields["address"] for refusal in refusals] == ["0000:0b:00.0", "0000:0a:00.0"]
