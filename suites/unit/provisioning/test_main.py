"""The command line."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import harness.provisioning
from harness.provisioning.__main__ import COMMANDS, Session, _parser, main, run
from harness.provisioning.cdi import CdiSupport
from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import CONTAINERD_CONFIG
from harness.provisioning.exit_codes import ExitCode
from harness.provisioning.journal import LOG_PATH
from harness.provisioning.node_context import LimitedRunner
from harness.provisioning.toolkit import RuntimeFacts, gpu_configuration
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import FakeClock

from .fakes import GPU_NODE, KERNEL, PROGRAM, RECORD_PATH, VERSION, Invocation, write_tags
from .simulation import SimulatedNode

PACKAGE = Path(harness.provisioning.__file__).parent


def failing(exit_code: int = 1, stdout: str = "") -> CommandResult:
    return CommandResult(argv=(), exit_code=exit_code, stdout=stdout, stderr="no")


def test_outcome_of_a_boot_has_all_fields(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    """The outcome has the record from the configured path."""
    simulated.build(VERSION, KERNEL)
    simulated.files.write("/opt/other", simulated.files.read(RECORD_PATH) or "")
    simulated.files.remove(RECORD_PATH)

    assert invocation.run("boot", {**GPU_NODE, "gpu_dkms_marker_file": "/opt/other"}) == 0

    outcome = invocation.outcome()
    steps = outcome.pop("steps")
    assert isinstance(steps, list)
    assert steps[0] == {
        "name": "configure-containerd",
        "status": "done",
        "started": "2026-08-21T12:00:00.000+00:00",
        "duration_s": 0.0,
        "detail": None,
    }
    assert outcome == {
        "schema": 1,
        "command": "boot",
        "exit_code": 0,
        "exit_name": "OK",
        "error": None,
        "decision": {"action": "install-skip-build", "reason": "ok"},
        "record": {
            "kernel": KERNEL,
            "driver_version": VERSION,
            "driver_kind": "cuda",
            "arch": "x86_64",
        },
        "kernel": KERNEL,
        "version": harness.provisioning.__version__,
    }


def test_plan_prints_the_steps_that_a_later_boot_runs(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    assert invocation.run("plan", GPU_NODE) == 0
    printed = "\n".join(invocation.console).splitlines()
    planned = [line.split()[0] for line in printed[1:] if not line.startswith(" ")]
    assert printed[0] == "# AKS_GPU_PREBAKE event=decision action=install-skip-build reason=ok"

    assert invocation.run("boot", GPU_NODE) == 0

    assert list(invocation.steps()) == planned


def test_plan_changes_nothing_and_logs_nothing(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    before = sorted(simulated.files.top.rglob("*"))

    assert invocation.run("plan", GPU_NODE) == 0

    added = set(simulated.files.top.rglob("*")) - set(before)
    assert {path.name for path in added} == {"config.json", "outcome.json"}
    assert {call[0] for call in simulated.calls} == {
        "uname",
        "ldconfig",
        "dkms",
        "modinfo",
        "containerd",
    }
    assert ("ldconfig",) not in simulated.calls
    assert not invocation.console[-1].endswith("\n")
    assert invocation.outcome()["decision"] == {"action": "install-skip-build", "reason": "ok"}
    assert invocation.outcome()["kernel"] == KERNEL


def test_plan_without_a_decision_prints_only_steps(invocation: Invocation) -> None:
    """The unit `mig-partition` runs this program."""
    assert isinstance(invocation.runner, SimulatedNode)
    invocation.runner.arch = "aarch64"

    assert invocation.run("plan", {**GPU_NODE, "gpu_instance_profile": "MIG1g"}) == 0

    assert invocation.console[0].startswith("configure-containerd")
    assert f"ExecStart={' '.join(PROGRAM)} mig-partition" in invocation.console[-1]


def test_status_command_prints_json(simulated: SimulatedNode, invocation: Invocation) -> None:
    assert invocation.run("status") == 0
    assert ("ldconfig",) not in simulated.calls

    (text,) = invocation.console
    assert json.loads(text)["kernel"] == KERNEL
    assert text.startswith('{\n  "kernel"')
    assert not invocation.files.exists(LOG_PATH)


def test_status_command_needs_no_configuration(simulated: SimulatedNode) -> None:
    console: list[str] = []

    code = run(
        ["status", f"--root={simulated.top}"],
        runner=simulated,
        clock=FakeClock(),
        environment={"GPU_DKMS_MARKER_FILE": "/opt/other"},
        print_line=console.append,
        program=PROGRAM,
    )

    assert code == 0
    assert json.loads(console[0])["record"] is None


def test_error_for_an_unknown_field_is_in_the_outcome_and_on_the_console_and_in_the_log(
    invocation: Invocation,
) -> None:
    errors = []
    for command in ("boot", "bake", "teardown", "validate"):
        code = invocation.run(command, {"gpu_nodes": True})

        assert code == ExitCode.INVALID_CONFIGURATION, command
        outcome = invocation.outcome()
        errors.append(str(outcome["error"]))
        assert errors[-1].startswith("The field 'gpu_nodes' is unknown")
        assert invocation.console == invocation.log() == errors
        assert outcome["exit_name"] == "INVALID_CONFIGURATION"
        assert (outcome["steps"], outcome["record"], outcome["kernel"]) == ([], None, None)
        assert outcome["decision"] is None


def test_plan_prints_the_error_for_a_bad_configuration_on_standard_error(
    invocation: Invocation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invocation.run("plan", {"gpu_node": 1}) == ExitCode.INVALID_CONFIGURATION

    assert invocation.console == []
    assert not invocation.files.exists(LOG_PATH)
    assert capsys.readouterr().err == (
        "The field 'gpu_node' must be either true or false, but is 1.\n"
    )


def test_environment_overrides_the_configuration_file(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    invocation.environment["GPU_NODE"] = "false"

    assert invocation.run("boot", GPU_NODE) == 0

    assert invocation.outcome()["decision"] == {"action": "teardown", "reason": "opted_out"}


def test_failure_is_printed_and_logged_and_written_to_the_outcome(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units.clear()
    simulated.failing["systemctl restart kubelet"] = failing()

    assert invocation.run("boot", {"retry_budget_s": 12.3456}) == 4

    error = invocation.outcome()["error"]
    assert str(error).startswith(
        "Step 'start-kubelet' failed. The time budget of the node is used up."
    )
    assert "\n".join(invocation.console).endswith(str(error))
    assert invocation.clock.elapsed_s == pytest.approx(12.3456)
    steps = invocation.outcome()["steps"]
    assert isinstance(steps, list)
    assert [(step["name"], step["duration_s"]) for step in steps] == [("start-kubelet", 12.346)]


def test_time_limit_multiplier_increases_the_time_budget_and_command_limits(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.units.clear()
    simulated.failing["systemctl restart kubelet"] = failing()

    assert invocation.run("boot", {"retry_budget_s": 100, "time_limit_multiplier": 2.5}) == 4

    assert invocation.clock.elapsed_s == pytest.approx(250)
    limits_s = [
        limit_s
        for call, limit_s in zip(simulated.calls, simulated.limits_s, strict=True)
        if call == ("systemctl", "restart", "kubelet")
    ]
    assert limits_s[0] == 250
    assert limits_s[-1] == pytest.approx(5)


def test_each_subcommand_has_its_own_time_budget(
    invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, float]] = []

    def see(session: Session) -> None:
        runner = session.node.runner
        assert isinstance(runner, LimitedRunner)
        seen.append((session.node.retries.remaining_s(), runner.deadline.remaining_s()))

    for command in ("boot", "teardown", "bake"):
        monkeypatch.setitem(COMMANDS, command, ("", see))
        assert invocation.run(command) == 0

    assert seen == [(780, 900), (780, 900), (7200, 7320)]


def test_run_that_a_signal_ends_leaves_an_outcome(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: tuple[str, ...]) -> CommandResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulated, "_modprobe", interrupt)
    simulated.build(VERSION, KERNEL)

    assert invocation.run("boot", {**GPU_NODE, "config_gpu_driver_if_needed": False}) == 143

    assert invocation.outcome()["exit_name"] == "TERMINATED"
    assert invocation.outcome()["error"] == "The run was terminated by a signal."
    assert invocation.outcome()["kernel"] == KERNEL


def test_unexpected_exception_leaves_an_outcome_with_its_traceback(
    simulated: SimulatedNode, invocation: Invocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(_: tuple[str, ...]) -> CommandResult:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(simulated, "_systemctl", break_down)

    assert invocation.run("boot") == ExitCode.INTERNAL_ERROR

    error = str(invocation.outcome()["error"])
    assert error.startswith("Traceback (most recent call last):")
    assert error.endswith("ZeroDivisionError: a defect\n")


def test_outcome_is_written_to_the_target_of_a_symbolic_link(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    link, target = simulated.top / "outcome.json", simulated.top / "b" / "result.json"
    target.parent.mkdir()
    link.symlink_to("b/result.json")

    assert invocation.run("status") == 0

    assert json.loads(target.read_text())["command"] == "status"
    assert link.is_symlink()
    assert [each.name for each in target.parent.iterdir()] == ["result.json"]


def test_outcome_path_that_cannot_be_a_file_does_not_change_the_exit_code(
    simulated: SimulatedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    fifo, loop = simulated.top / "fifo", simulated.top / "loop"
    folder = simulated.top / "folder"
    folder.mkdir()
    os.mkfifo(fifo)
    loop.symlink_to("loop")

    for outcome in (folder, loop, fifo, Path("/")):
        code = run(
            ["status", f"--root={simulated.top}", f"--outcome={outcome}"],
            runner=simulated,
            clock=FakeClock(),
            environment={},
            print_line=print,
            program=PROGRAM,
        )
        assert code == 0

    errors = capsys.readouterr().err.splitlines()
    assert errors[0].startswith(f"The outcome '{folder}' cannot be written: [Errno 21]")
    assert (
        errors[-2] == f"The outcome '{fifo}' cannot be written: [Errno 22] It is no regular file."
    )
    assert errors[-1].startswith("The outcome '/' cannot be written: The path '/' is refused: ")
    assert fifo.is_fifo()


def test_outcome_file_is_written_only_with_the_outcome_option(simulated: SimulatedNode) -> None:
    code = run(
        ["teardown", f"--root={simulated.top}"],
        runner=simulated,
        clock=FakeClock(),
        environment={},
        print_line=lambda _: None,
        program=PROGRAM,
    )

    assert code == 0
    assert not (simulated.top / "outcome.json").exists()


# -- teardown and validate ----------------------------------------------------------------------


def test_teardown_of_an_opted_out_node_never_fails(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, users=1)
    simulated.files.write("/opt/gpu/config.sh", "")
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))

    assert invocation.run("teardown", GPU_NODE) == 0

    assert not simulated.files.exists("/opt/gpu")

    assert "status=incomplete" in invocation.prebake_lines()[0]
    assert invocation.outcome()["kernel"] == KERNEL
    assert invocation.outcome()["decision"] is None


def test_incomplete_teardown_of_a_managed_node_fails(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.load(VERSION, users=1)

    assert invocation.run("teardown", GPU_NODE) == 84

    assert invocation.outcome()["error"] == (
        "The driver was not completely removed; the log names the remaining parts."
    )
    assert "gpu_node=true status=incomplete" in invocation.prebake_lines()[0]


def test_complete_teardown_of_a_managed_node_succeeds_and_keeps_the_payload(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.write("/opt/gpu/config.sh", "")

    assert invocation.run("teardown", GPU_NODE) == 0

    assert simulated.files.exists("/opt/gpu/config.sh")
    assert not simulated.files.exists(RECORD_PATH)


def test_teardown_exits_224_if_the_tags_are_missing(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.files.remove("/opt/azure/containers")

    assert invocation.run("teardown", GPU_NODE) == 224


def test_validation_succeeds_with_a_working_driver_and_the_nvidia_runtime(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.write(
        CONTAINERD_CONFIG, gpu_configuration(RuntimeFacts(text=None, cdi=CdiSupport.NATIVE)) or ""
    )

    assert invocation.run("validate", GPU_NODE) == 0

    assert invocation.steps() == {
        "validate-probe": "done",
        "validate-query": "done",
        "validate-cdi-spec": "skipped",
        "validate-runtime-handler": "done",
    }
    assert invocation.outcome()["kernel"] == KERNEL


def test_validation_fails_if_the_nvidia_runtime_is_not_in_effect(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    simulated.build(VERSION, KERNEL)
    simulated.files.write(
        CONTAINERD_CONFIG, '# BinaryName = "/usr/bin/nvidia-container-runtime"\nversion = 2\n'
    )

    assert invocation.run("validate", GPU_NODE) == 84

    assert invocation.steps()["validate-runtime-handler"] == "failed"


def test_validation_fails_without_a_driver_and_installs_none(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("validate", GPU_NODE) == 84

    assert invocation.steps()["validate-query"] == "skipped"
    assert [call for call in simulated.calls if call[0] == "ctr"] == []
    assert len(invocation.clock.sleeps) == 23


# -- the unit mig-partition ---------------------------------------------------------------------


def test_mig_partition_command_uses_the_profile_in_the_environment(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("nvidia-smi -mig 1")
        .expect("nvidia-smi mig -cgi 9,9")
        .expect("nvidia-smi mig -cci") as runner
    ):
        invocation = Invocation(tmp_path, runner)
        invocation.environment["GPU_INSTANCE_PROFILE"] = "MIG3g"

        assert invocation.run("mig-partition") == 0


def test_mig_partition_exits_1_without_a_known_profile_or_if_the_gpu_refuses_mig_mode(
    tmp_path: Path,
) -> None:
    invocation = Invocation(tmp_path, ScriptedRunner().expect("nvidia-smi -mig 1", exit_code=3))

    assert invocation.run("mig-partition") == 1
    invocation.environment["GPU_INSTANCE_PROFILE"] = "MIG9g"
    assert invocation.run("mig-partition") == 1
    assert invocation.console == [
        f"'{profile}' is not a valid GPU instance profile" for profile in ("", "MIG9g")
    ]
    invocation.environment["GPU_INSTANCE_PROFILE"] = "MIG3g"
    assert invocation.run("mig-partition") == 1


# -- as a program -------------------------------------------------------------------------------


def parse(*argv: str) -> int:
    """Run a command line that must fail before anything is done."""
    return run(
        argv,
        runner=ScriptedRunner(),
        clock=FakeClock(),
        environment={},
        print_line=print,
        program=PROGRAM,
    )


def test_root_option_defaults_to_the_root_of_this_machine() -> None:
    for name in COMMANDS:
        assert _parser().parse_args([name]).root == Path("/")
        assert _parser().parse_args([name, "--root=/mnt"]).root == Path("/mnt")


def test_printed_version_is_the_version_in_pyproject_toml(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse("--version")

    project = (PACKAGE.parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{capsys.readouterr().out.strip()}"\n' in project


def test_bad_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["nonsense"], ["boot", "--nonsense"]):
        with pytest.raises(SystemExit) as end:
            parse(*argv)

        assert end.value.code == ExitCode.INVALID_CONFIGURATION
        assert capsys.readouterr().err.startswith("usage: provisioning")


def test_main_handles_sigterm_like_sigint_and_uses_the_local_runner(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handlers: list[object] = []
    given: dict[str, object] = {}

    def fake_run(argv: list[str], **rest: object) -> int:
        given.update(rest, argv=argv)
        return 7

    module = sys.modules[main.__module__]
    monkeypatch.setattr(signal, "signal", lambda number, do: handlers.append((number, do)))
    monkeypatch.setattr(module, "run", fake_run)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "y" / ".." / "x.pyz"), "boot"])
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setenv("GPU_NODE", "true")

    assert main() == 7

    assert handlers == [(signal.SIGTERM, signal.default_int_handler)]
    assert given["argv"] == ["boot"]
    assert given["environment"] is os.environ
    print_line = given["print_line"]
    assert callable(print_line)
    print_line("zw\N{LATIN SMALL LETTER O WITH DIAERESIS}lf")
    assert written.getvalue() == b"zw\\xf6lf\n", "as it is said, not when the process ends"
    assert main(["status"]) == 7
    assert given["argv"] == ["status"]
    assert given["program"] == (sys.executable, "-I", "-S", str(tmp_path / "x.pyz"))
    assert type(given["runner"]).__name__ == "LocalRunner"
    assert type(given["clock"]).__name__ == "SystemClock"
