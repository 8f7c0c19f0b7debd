"""Steps that run on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.executor import Executor
from harness.provisioning.exit_codes import ExitCode, ProvisioningError
from harness.provisioning.node_files import NodeFiles
from harness.provisioning.outcome import StepStatus
from harness.provisioning.plan import (
    Action,
    Do,
    MakeDirectory,
    Plan,
    Remove,
    Retry,
    Run,
    Step,
    When,
    Write,
)
from harness.provisioning.retry import StepFailedError
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import EPOCH, FakeClock

from .fakes import make_node, read_events

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.provisioning.node_context import NodeContext
    from harness.provisioning.outcome import StepReport

FATAL = ExitCode.GPU_DRIVERS_START_FAIL


def run(line: str) -> Run:
    return Run(argv=tuple(line.split()), retry=Retry(timeout_s=30))


def step(
    name: str, *actions: Action, exit_code: ExitCode | None = FATAL, **changes: object
) -> Step:
    return Step(name=name, actions=actions, exit_code=exit_code, **changes)  # type: ignore[arg-type]


def raising(error: Exception) -> Do:
    def function(_: NodeContext) -> None:
        raise error

    return Do(description=(), function=function)


def statuses(executor: Executor) -> dict[str, str]:
    return {report.name: report.status.value for report in executor.reports}


def only(executor: Executor) -> StepReport:
    (report,) = executor.reports
    return report


def test_step_is_reported_with_its_start_and_duration(tmp_path: Path) -> None:
    clock = FakeClock()
    console: list[str] = []
    clock.advance(1.5)

    def set_clock_back() -> None:
        clock.advance(2.25)
        clock.set_by_s = -3600

    with ScriptedRunner().expect("a", effect=set_clock_back) as runner:
        executor = Executor(make_node(runner, tmp_path, clock, console=console))
        executor.run(Plan((step("one", run("a")),)))

    report = only(executor)
    assert report.status is StepStatus.DONE
    assert (report.started - EPOCH).total_seconds() == 1.5
    assert report.duration_s == 2.25
    assert report.detail is None
    assert console == ["2026-08-21T12:00:01.500+00:00 step one done after 2.2 s"]


def test_step_writes_a_file_and_makes_a_folder_and_removes_a_file(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write("/old", "")
    executor = Executor(make_node(ScriptedRunner(), tmp_path))

    executor.run(
        Plan(
            (
                step(
                    "files",
                    Write(path="/etc/x", text="text", mode=0o600),
                    MakeDirectory(path="/opt/a/b"),
                    Remove(path="/old"),
                ),
            )
        )
    )

    assert files.read("/etc/x") == "text"
    assert files.at("/etc/x").stat().st_mode & 0o777 == 0o600
    assert files.is_directory("/opt/a/b")
    assert not files.exists("/old")
    assert only(executor).status is StepStatus.DONE


def test_report_of_a_step_joins_the_details_of_its_actions(tmp_path: Path) -> None:
    executor = Executor(make_node(ScriptedRunner(), tmp_path))
    one = Do(description=(), function=lambda _: "One.")
    silent = Do(description=(), function=lambda _: None)
    two = Do(description=(), function=lambda _: "Two.")

    executor.run(Plan((step("talk", one, silent, two),)))

    assert only(executor).detail == "One. Two."


def test_fatal_failure_ends_the_run_with_the_exit_code_of_the_step(tmp_path: Path) -> None:
    console: list[str] = []
    with ScriptedRunner().expect("a", exit_code=1, stderr="no") as runner:
        executor = Executor(make_node(runner, tmp_path, console=console))
        with pytest.raises(ProvisioningError) as failure:
            executor.run(Plan((step("one", run("a")), step("two", run("b")))))

    block = "command: a\nexit code: 1, after 0.0 s\nstdout: -\nstderr: no"
    assert failure.value.exit_code is FATAL
    assert str(failure.value) == f"Step 'one' failed. {block}"
    assert statuses(executor) == {"one": "failed", "two": "skipped"}
    assert executor.reports[0].detail == block
    assert executor.reports[1].detail == "An earlier step failed."
    assert executor.reports[1].duration_s == 0
    assert console[0] == (f"2026-08-21T12:00:00.000+00:00 step one failed after 0.0 s: {block}")


def test_ignored_failure_skips_the_remaining_actions_but_not_the_next_step(
    tmp_path: Path,
) -> None:
    with ScriptedRunner().expect("a", exit_code=1).expect("b") as runner:
        executor = Executor(make_node(runner, tmp_path))
        executor.run(
            Plan((step("one", run("a"), run("x"), exit_code=None), step("two", run("b"))))
        )

    assert statuses(executor) == {"one": "failed", "two": "done"}


def test_exit_code_of_an_error_overrides_the_exit_code_of_its_step(tmp_path: Path) -> None:
    """If the failure of a step is ignored, the exit code of an error does not end the run."""
    for error in (
        ProvisioningError(ExitCode.APT_INSTALL_TIMEOUT, "No."),
        StepFailedError("No.", ExitCode.APT_INSTALL_TIMEOUT),
    ):
        node = make_node(ScriptedRunner(), tmp_path)
        with pytest.raises(ProvisioningError) as failure:
            Executor(node).run(Plan((step("one", raising(error)),)))

        assert failure.value.exit_code is ExitCode.APT_INSTALL_TIMEOUT
        assert str(failure.value) == "Step 'one' failed. No."
        ignoring = Executor(node)
        ignoring.run(Plan((step("one", raising(error), exit_code=None),)))
        assert only(ignoring).detail == "No."


def test_step_fails_if_its_file_cannot_be_read_or_written(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write("/file", "")
    files.make_directory("/folder")

    for action, words in (
        (Write(path="/", text=""), "The path '/' is refused"),
        (Write(path="/file/below", text=""), "exists|Not a directory"),
        (Do(description=(), function=lambda node: node.files.read("/folder")), "regular file"),
    ):
        executor = Executor(make_node(ScriptedRunner(), tmp_path))
        with pytest.raises(ProvisioningError, match=words) as failure:
            executor.run(Plan((step("one", action),)))
        assert failure.value.exit_code is FATAL


def test_fallback_step_runs_only_after_the_failure_of_the_step_it_replaces(tmp_path: Path) -> None:
    with (
        ScriptedRunner()
        .expect("a b", exit_code=1)
        .expect("c", exit_code=1)
        .expect("d")
        .expect("full")
        .expect("other") as runner
    ):
        executor = Executor(make_node(runner, tmp_path))
        executor.run(
            Plan(
                (
                    step("quick", run("a b"), exit_code=None),
                    step("next", run("c"), exit_code=None),
                    step("last", run("d"), exit_code=None),
                    step("full", run("full"), only_after_failure_of="quick"),
                    step("other", run("other"), only_after_failure_of="next"),
                    step("after done", run("x"), only_after_failure_of="last"),
                    step("after fallback", run("x"), only_after_failure_of="full"),
                    step("after skip", run("x"), only_after_failure_of="after done"),
                )
            )
        )

    assert [report.status.value for report in executor.reports] == [
        *("failed", "failed", "done", "done", "done", "skipped", "skipped", "skipped")
    ]
    assert executor.reports[-1].detail == "Only needed after failure of 'after done'."


def _when(*then: Action) -> When:
    return When(
        query=("ask",),
        timeout_s=10,
        condition="it says yes",
        otherwise="It says no.",
        is_met=lambda result: result.stdout == "yes",
        then=then,
    )


def test_unmet_condition_skips_the_step_and_its_event(tmp_path: Path) -> None:
    with ScriptedRunner().expect("ask", timeout_s=10, stdout="no") as runner:
        executor = Executor(make_node(runner, tmp_path))
        executor.run(Plan((step("one", _when(run("a")), event="E"),)))

    assert only(executor).status is StepStatus.SKIPPED
    assert only(executor).detail == "It says no."
    assert read_events(NodeFiles(tmp_path)) == []


def test_actions_are_run_if_their_condition_is_met(tmp_path: Path) -> None:
    talk = Do(description=(), function=lambda _: "Said.")
    with ScriptedRunner().expect("ask", stdout="yes").expect("a").expect("b") as runner:
        executor = Executor(make_node(runner, tmp_path))
        executor.run(Plan((step("one", _when(run("a"), talk, run("b"))),)))

    assert (only(executor).status, only(executor).detail) == (StepStatus.DONE, "Said.")


def test_unmet_condition_does_not_skip_the_other_actions_of_the_step(tmp_path: Path) -> None:
    """The time limit of the condition's command is reduced to the remaining budget."""
    with ScriptedRunner().expect("ask", timeout_s=4).expect("a") as runner:
        executor = Executor(make_node(runner, tmp_path, budget_s=4))
        executor.run(Plan((step("one", _when(), run("a")),)))

    assert (only(executor).status, only(executor).detail) == (StepStatus.DONE, "It says no.")


def test_step_without_actions_is_skipped_with_a_reason(tmp_path: Path) -> None:
    executor = Executor(make_node(ScriptedRunner(), tmp_path))

    executor.run(Plan((step("one"),)))

    assert only(executor).status is StepStatus.SKIPPED
    assert only(executor).detail == "There was nothing to do."


def _pass(clock: FakeClock, seconds: float) -> Callable[[], None]:
    return lambda: clock.advance(seconds)


def test_events_have_the_start_and_end_of_their_step_or_group(tmp_path: Path) -> None:
    clock = FakeClock()
    with (
        ScriptedRunner()
        .expect("a", effect=_pass(clock, 1))
        .expect("b", effect=_pass(clock, 2), exit_code=1)
        .expect("c", effect=_pass(clock, 4))
        .expect("d", effect=_pass(clock, 8)) as runner
    ):
        executor = Executor(make_node(runner, tmp_path, clock))
        executor.run(
            Plan(
                (
                    step("a", run("a"), event="E.a", groups=("G.all", "G.all.first")),
                    step("b", run("b"), exit_code=None, event="E.b", groups=("G.all",)),
                    step("x", run("x"), groups=("G.x",), only_after_failure_of="a"),
                    step("c", run("c"), groups=("G.all", "G.all.last")),
                    step("d", run("d"), event="E.d"),
                )
            )
        )

    assert [
        (event["TaskName"], event["Timestamp"][-6:], event["OperationId"][-6:], event["Message"])
        for event in read_events(NodeFiles(tmp_path))
    ] == [
        ("E.a", "00.000", "01.000", "Completed: a"),
        ("G.all.first", "00.000", "01.000", "Completed: first"),
        ("G.all", "00.000", "07.000", "Completed: all"),
        ("E.b", "01.000", "03.000", "Completed: b"),
        ("G.all.last", "03.000", "07.000", "Completed: last"),
        ("E.d", "07.000", "15.000", "Completed: d"),
    ]


def test_event_of_a_group_of_steps_is_written_even_if_a_step_fails(tmp_path: Path) -> None:
    with ScriptedRunner().expect("a", exit_code=1) as runner:
        executor = Executor(make_node(runner, tmp_path))
        with pytest.raises(ProvisioningError):
            executor.run(
                Plan((step("a", run("a"), event="E.a", groups=("G", "H")), step("b", run("b"))))
            )

    events = [event["TaskName"] for event in read_events(NodeFiles(tmp_path))]
    assert events == ["E.a", "H", "G"], "the innermost group ends first"


def test_event_of_a_group_is_written_when_a_signal_ends_the_run(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with ScriptedRunner().expect("a", effect=interrupt) as runner:
        executor = Executor(make_node(runner, tmp_path))
        with pytest.raises(KeyboardInterrupt):
            executor.run(Plan((step("a", run("a"), groups=("G",)),)))

    assert [event["TaskName"] for event in read_events(NodeFiles(tmp_path))] == ["G"]
