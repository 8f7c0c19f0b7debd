"""A GPU that the driver does not support is reported, and nothing is retried."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.fixtures.recordings import load_recording
from harness.provisioning.command import CommandResult
from harness.provisioning.unsupported_gpu import parse_refusals

from .driver_logs import PUBLIC_LOGS
from .fakes import GPU_NODE, KERNEL, VERSION, Invocation

if TYPE_CHECKING:
    from .driver_logs import PublicLog
    from .simulation import SimulatedNode

NO_DEVICE = CommandResult(
    argv=("nvidia-modprobe",),
    exit_code=1,
    stdout="",
    stderr="modprobe: ERROR: could not insert 'nvidia': No such device",
)


TOLD = (
    "The NVIDIA driver 535.309.01 does not support the GPU 0000:0b:00.0 (10de:2bb5): it is too new "
    "or too old for this release. Choose a release that supports it, or a node with another GPU."
)


#: One log for each answer to whether a retry or a build can help: test_driver_words.py has the table.
LOGS = {(log.can_retry_help, log.can_rebuild_help): log for log in PUBLIC_LOGS}.values()


def calls_of(simulated: SimulatedNode, *words: str) -> list[tuple[str, ...]]:
    """Return the calls whose argv starts with these words."""
    return [call for call in simulated.calls if call[: len(words)] == words]


def refused_by(version: str) -> str:
    return load_recording("dmesg/2.38.1-nvidia-refusal").text.replace("535.309.01", version)


@pytest.mark.parametrize("command", ["boot", "validate"])
def test_two_unsupported_gpus_are_both_reported(
    simulated: SimulatedNode, invocation: Invocation, command: str
) -> None:
    """A rebuild of the same driver would not support them, so no rebuild follows."""
    simulated.build(VERSION, KERNEL)
    log = refused_by(VERSION)
    simulated.kernel_log = log + log.replace("0000:0b:00.0", "0000:0c:00.0")
    simulated.failing["ctr -n k8s.io run" if command == "boot" else "nvidia-modprobe"] = NO_DEVICE

    assert invocation.run(command, GPU_NODE) == 84

    first = TOLD.replace("535.309.01", VERSION)
    second = first.replace("0000:0b:00.0", "0000:0c:00.0")
    assert f" {first} {second}" in str(invocation.outcome()["error"])
    assert [call[-1] for call in calls_of(simulated, "ctr", "-n", "k8s.io", "run")] == (
        ["install-skip-build"] if command == "boot" else []
    )


@pytest.mark.parametrize(("release", "tries"), [(VERSION, 1), ("470.82.01", 120)])
def test_probe_is_tried_only_once_if_this_driver_release_refused_the_gpu(
    simulated: SimulatedNode, invocation: Invocation, release: str, tries: int
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel_log = refused_by(release)
    simulated.failing["nvidia-modprobe"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    assert calls_of(simulated, "nvidia-modprobe") == [("nvidia-modprobe", "-u", "-c0")] * tries


@pytest.mark.parametrize(
    "log",
    [
        "",
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n",
        "[    1.0] NVRM: The NVIDIA GPU 0000:0b:00.0 (PCI ID: 10de:2bb5)\n[    1.1] usb 1-1: new\n",
    ],
    ids=["empty", "other", "cut-off"],
)
def test_log_without_a_complete_refusal_has_no_refusals(log: str) -> None:
    assert parse_refusals(log) == ()


#: Of a driver that was replaced since, in an earlier part of this boot. A prefix is another release.
OTHER_RELEASES = ["470.82.01", VERSION.rpartition(".")[0], f"{VERSION}.1"]


@pytest.mark.parametrize("release", OTHER_RELEASES)
def test_refusal_by_another_release_does_not_prevent_a_build_of_this_release(
    simulated: SimulatedNode, invocation: Invocation, release: str
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel_log = refused_by(release)
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    runs = calls_of(simulated, "ctr", "-n", "k8s.io", "run")
    assert [call[-1] for call in runs] == ["install-skip-build", *["install"] * 5]


def test_only_refusals_by_this_release_are_reported(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel_log = refused_by(OTHER_RELEASES[0]) + refused_by(VERSION)
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    error = str(invocation.outcome()["error"])
    assert f"The NVIDIA driver {VERSION} does not support the GPU" in error
    assert OTHER_RELEASES[0] not in error


def test_unreadable_kernel_log_gives_no_refusals(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-modprobe"] = NO_DEVICE
    simulated.failing["dmesg"] = CommandResult(
        argv=("dmesg",),
        exit_code=1,
        stdout="",
        stderr="dmesg: read kernel buffer failed: Operation not permitted",
    )

    assert invocation.run("validate", GPU_NODE) == 84

    assert len([call for call in simulated.calls if call[0] == "nvidia-modprobe"]) == 24


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.source)
def test_driver_is_built_again_only_if_a_build_can_help(
    simulated: SimulatedNode, invocation: Invocation, log: PublicLog
) -> None:
    if log.can_rebuild_help:
        simulated.build(VERSION, KERNEL)
    simulated.kernel_log = log.text.replace("565.77", VERSION).replace("430.50", VERSION)
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    runs = [call[-1] for call in calls_of(simulated, "ctr", "-n", "k8s.io", "run")]
    can_help = ["install-skip-build", *["install"] * 5]
    assert runs == (can_help if log.can_rebuild_help else ["install"])
    assert log.can_rebuild_help or log.words in str(invocation.outcome()["error"])


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.source)
def test_driver_is_probed_again_only_if_that_can_help(
    simulated: SimulatedNode, invocation: Invocation, log: PublicLog
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.kernel_log = log.text
    simulated.failing["nvidia-modprobe"] = NO_DEVICE

    assert invocation.run("validate", GPU_NODE) == 84

    assert len(calls_of(simulated, "nvidia-modprobe")) == (24 if log.can_retry_help else 1)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.source)
def test_messages_of_an_earlier_driver_do_not_prevent_a_build_of_this_driver(
    simulated: SimulatedNode, invocation: Invocation, log: PublicLog
) -> None:
    """The earlier driver may have had the other kind of kernel modules, open or proprietary."""
    other = "[ 20.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  470.82.01  Mon Nov 23 2026\n"
    simulated.kernel_log = log.text + other
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    assert len(calls_of(simulated, "ctr", "-n", "k8s.io", "run")) == 5


@pytest.mark.parametrize(
    ("said", "builds"),
    [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", 1),
        ("modprobe: ERROR: could not insert 'nvidia': Exec format error", 5),
        ("modprobe: ERROR: could not insert 'nvidia': words that nobody knows", 5),
        ("curl: (6) Could not resolve host: example.com", 5),
    ],
)
def test_install_that_the_kernel_refuses_is_not_repeated(
    simulated: SimulatedNode, invocation: Invocation, said: str, builds: int
) -> None:
    simulated.failing["ctr -n k8s.io run"] = CommandResult(
        argv=("ctr",), exit_code=1, stdout="", stderr=said
    )

    assert invocation.run("boot", GPU_NODE) == 84

    assert len(calls_of(simulated, "ctr", "-n", "k8s.io", "run")) == builds


def test_module_of_another_kernel_is_rebuilt_after_one_try_of_the_probe(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """Retries do not help validation, but the install that follows may succeed."""
    simulated.build(VERSION, KERNEL)
    simulated.failing["nvidia-modprobe"] = CommandResult(
        argv=("nvidia-modprobe",),
        exit_code=1,
        stdout="",
        stderr="modprobe: ERROR: could not insert 'nvidia': Exec format error",
    )

    assert invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False}) == 84

    # Once in the validation, and once after the install.
    assert len(calls_of(simulated, "nvidia-modprobe")) == 2
    assert len(calls_of(simulated, "ctr", "-n", "k8s.io", "run")) == 1


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.source)
def test_working_driver_is_kept_despite_its_messages(
    simulated: SimulatedNode, invocation: Invocation, log: PublicLog
) -> None:
    """A dead GPU may be beside a working GPU, and an error may be in the past."""
    simulated.kernel_log = log.text

    assert invocation.run("boot", GPU_NODE) == 0


LOST = ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n", "A GPU has fallen off the bus")
UVM = (
    "NVRM: uvm_x: uvm encountered global fatal error 0x60, requiring os reboot to recover.\n",
    "The driver's memory manager (UVM) has failed for good.",
)


@pytest.mark.parametrize(
    ("other", "said", "is_first"), [(*LOST, False), (*UVM, False), (*UVM, True)]
)
def test_refusal_is_reported_before_other_reasons_against_a_build(
    simulated: SimulatedNode, invocation: Invocation, other: str, said: str, *, is_first: bool
) -> None:
    logs = [refused_by(VERSION), other]
    simulated.kernel_log = "".join(logs if is_first else logs[::-1])
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    error = str(invocation.outcome()["error"])
    told = TOLD.replace("535.309.01", VERSION)
    assert f". {told}" in error
    before, _, after = error.partition(told)
    assert said in after
    assert said not in before


def test_reason_that_is_logged_three_times_is_reported_once(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel_log = "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n" * 3
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    assert str(invocation.outcome()["error"]).count("fallen off the bus") == 1


def test_messages_of_the_kernel_are_reported_before_messages_of_a_program(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.kernel_log = refused_by(VERSION)
    simulated.failing["ctr -n k8s.io run"] = CommandResult(
        argv=("ctr",),
        exit_code=1,
        stdout="modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
        stderr="",
    )

    assert invocation.run("boot", GPU_NODE) == 84

    error = str(invocation.outcome()["error"])
    assert 0 < error.index("does not support the GPU") < error.index("is missing or not trusted")


@pytest.mark.parametrize("is_first", [True, False])
def test_reasons_of_one_kind_keep_the_order_of_the_log(
    simulated: SimulatedNode, invocation: Invocation, *, is_first: bool
) -> None:
    lines = [
        "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.\n",
        "NVRM: GPU 0000:02:00.0: GPU does not have the necessary power cables connected.\n",
    ]
    simulated.kernel_log = "".join(lines if is_first else lines[::-1])
    simulated.failing["ctr -n k8s.io run"] = NO_DEVICE

    assert invocation.run("boot", GPU_NODE) == 84

    error = str(invocation.outcome()["error"])
    lost, cables = error.index("fallen off the bus"), error.index("power cables are not")
    assert (lost < cables) is is_first


def test_refusals_are_reported_in_the_order_of_their_first_message() -> None:
    first, second = refused_by(VERSION), refused_by(VERSION).replace("0b:00.0", "0a:00.0")

    refusals = parse_refusals(first + second + first)

    assert [refusal.fields["address"] for refusal in refusals] == ["0000:0b:00.0", "0000:0a:00.0"]
