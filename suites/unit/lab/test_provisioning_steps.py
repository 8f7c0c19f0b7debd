"""Runs of provisioning as steps of a report, with the inner steps that the provisioner reports."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import HarnessError
from harness.evidence import reported_steps
from harness.lab.provisioning_steps import ProvisioningSteps
from harness.provisioner import Provisioner
from harness.provisioner.outcome import LogPatterns, OutcomeDeclaration
from harness.steps import InnerStep, listening
from suites.unit.lab.step_titles import Titles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.evidence import Evidence

STEP = r"^(?P<name>\w+) (?P<status>\w+) in (?P<duration_s>\S+) s(?:: (?P<detail>.*))?$"


def mine(step: str | None = STEP) -> Provisioner:
    return Provisioner(
        name="mine",
        run=["/opt/mine"],
        outcome=OutcomeDeclaration(
            log=None if step is None else LogPatterns(step=step), failed_status="broke"
        ),
    )


@pytest.fixture
def report() -> Iterator[Titles]:
    listener = Titles()
    with listening(listener):
        yield listener


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)


def test_declared_console_lines_are_reported_as_steps_of_their_run(report: Titles) -> None:
    with ProvisioningSteps(mine()).run("Provision node 'node'") as see:
        see("driver done in 2.5 s")
        see("nothing that it declares")
        see("services broke in 1 s: dcgm is missing")
        see("record broke in 0 s")

    assert report.titles == ["Provision node 'node'"]
    assert report.told == [
        (
            "Provision node 'node'",
            [
                InnerStep(title="driver", start_s=997.5, stop_s=1000.0),
                InnerStep(title="services", start_s=999.0, stop_s=1000.0, error="dcgm is missing"),
                InnerStep(
                    title="record", start_s=1000.0, stop_s=1000.0, error="record broke in 0 s"
                ),
            ],
        )
    ]


def test_line_without_a_duration_is_not_a_step(report: Titles) -> None:
    for step in (
        None,
        r"^(\w+) \w+ in",
        r"^(?P<name>\w+) (?P<status>\w+) in (?P<duration_s>2\.)",
        r"^(?P<name>\w+) \w+ (?P<duration_s>in)",
        r"(?P<name>end) (?P<duration_s>\S+)",
    ):
        with ProvisioningSteps(mine(step)).run("Provision") as see:
            see("driver done in 3 s")
            see("end inf")
            see("end nan")
            see("end 1e300")
            see("end -1")

        assert report.told[-1] == ("Provision", []), step


def test_step_without_a_name_has_its_console_line_as_title(report: Titles) -> None:
    with ProvisioningSteps(mine(r"in (?P<duration_s>\S+) s")).run("Provision") as see:
        see("driver done in 3 s")

    ((_, (step,)),) = report.told
    assert (step.title, step.error) == ("driver done in 3 s", None)


def test_steps_before_the_failure_of_a_run_are_reported(report: Titles) -> None:
    def run() -> None:
        with ProvisioningSteps(mine()).run("Provision") as see:
            see("driver done in 2.5 s")
            raise HarnessError("It hangs.")

    with pytest.raises(HarnessError):
        run()

    assert [step.title for step in report.told[0][1]] == ["driver"]


def an_evidence(*runs: int) -> Evidence:
    made = SimpleNamespace(runs=list(runs), number=None)
    made.of_run = lambda number: SimpleNamespace(number=number)
    return cast("Evidence", made)


@pytest.fixture
def inner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each run in the evidence one step, except the third run."""

    def steps_of(evidence: Evidence) -> tuple[InnerStep, ...]:
        number = cast("SimpleNamespace", evidence).number
        if number == 3:
            return ()
        return (InnerStep(title=f"step of run {number}", start_s=1000.0, stop_s=1000.0),)

    monkeypatch.setattr(reported_steps, "inner_steps", steps_of)


def told(report: Titles) -> list[tuple[str, list[str]]]:
    return [(title, [step.title for step in steps]) for title, steps in report.told if steps]


@pytest.mark.usefixtures("inner")
def test_steps_in_the_evidence_replace_the_recorded_steps_of_the_latest_runs(
    report: Titles,
) -> None:
    """The test started the first run without the harness."""
    steps = ProvisioningSteps(mine())
    for title in ("boot", "again"):
        with steps.run(title):
            pass
    evidence = an_evidence(1, 2, 4)

    assert steps.told_by(evidence) is evidence

    assert told(report) == [("again", ["step of run 4"]), ("boot", ["step of run 2"])]


@pytest.mark.usefixtures("inner")
def test_steps_from_evidence_without_numbered_runs_belong_to_the_latest_run(
    report: Titles,
) -> None:
    steps = ProvisioningSteps(mine())
    with steps.run("boot"):
        pass

    steps.told_by(an_evidence())

    assert told(report) == [("boot", ["step of run None"])]


@pytest.mark.usefixtures("inner")
def test_steps_from_the_console_are_kept_for_a_run_without_evidence(report: Titles) -> None:
    steps = ProvisioningSteps(mine())
    with steps.run("boot") as see:
        see("driver done in 2.5 s")

    steps.told_by(an_evidence(3))

    assert told(report) == [("boot", ["driver"])]


@pytest.mark.usefixtures("inner")
def test_evidence_of_a_node_without_recorded_runs_reports_no_steps(report: Titles) -> None:
    ProvisioningSteps(mine()).told_by(an_evidence(1))

    assert report.told == []


def test_unreadable_evidence_does_not_break_the_report(report: Titles) -> None:
    rows: list[Exception] = [HarnessError("No outcome."), OSError("No such file")]
    for error in rows:

        def refuse(_: int, error: Exception = error) -> None:
            raise error

        steps = ProvisioningSteps(mine())
        with steps.run("boot"):
            pass
        evidence = cast("Evidence", SimpleNamespace(runs=[1], of_run=refuse))

        assert steps.told_by(evidence) is evidence

        assert told(report) == []
