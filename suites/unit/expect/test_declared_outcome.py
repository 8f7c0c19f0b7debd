"""Expectations read the files that a provisioner declares, and name a missing declaration."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import BadInputError, ExpectationError, HarnessError
from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.outcome import ReportedStep
from harness.payload import Payload
from harness.provisioner import (
    EXIT_CODE_PATH,
    RUNS_FOLDER,
    EvidenceDeclaration,
    Provisioner,
)
from harness.provisioner.declaration import (
    DECLARATION_NAME,
    GPU_NODE,
    read_declaration,
    write_declaration,
)
from harness.provisioner.gpu_node import gpu_node_provisioner
from harness.provisioner.outcome import (
    EventFiles,
    EventFormat,
    LogPatterns,
    OutcomeDeclaration,
    OutcomeFile,
    StepList,
)
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from harness.evidence import Evidence

LOG = "/var/log/my.log"
OUTCOME = "/var/lib/my/outcome.json"

EXIT_CODES = OutcomeDeclaration(exit_codes={0: "ok", 84: "no-driver"})
FILE = OutcomeDeclaration(
    file=OutcomeFile(
        path=OUTCOME,
        exit_code="/result/code",
        error="/result/why",
        decision="/decision",
        steps=StepList(at="/steps", name="/id", status="/end", duration_s="/s"),
    ),
    failed_status="FAIL",
)
EVENTS = OutcomeDeclaration(
    events=EventFiles(
        path="/var/log/my/*.jsonl", name="/event/name", format=EventFormat.JSON_LINES
    )
)
PATTERNS = OutcomeDeclaration(
    log=LogPatterns(
        path=LOG,
        decision=r"decision: (\S+)",
        step=r"step (?P<name>\S+) (?P<status>ok|failed)( in (?P<duration_s>\S+) s)?",
    )
)
REASONED = OutcomeDeclaration(log=LogPatterns(decision=r"(?P<decision>\w+) for (?P<reason>\w+)"))

DOCUMENT = {
    "result": {"code": 0, "why": None},
    "decision": "skip-build",
    "steps": [{"id": "driver", "end": "OK", "s": "1.5"}, {"id": "dcgm", "end": "FAIL"}],
}
DCGM_FAILED = "Step 'dcgm' failed. Its exit code is 1."
LINES = (
    "decision: build\nstep driver failed in 0.5 s\ndecision: skip-build\n"
    "step driver ok in 2 s\nstep dcgm failed\n"
)


def evidence_of(
    folder: Path, outcome: OutcomeDeclaration, *, exit_code: str = "0\n", **texts: str
) -> Evidence:
    """Return the evidence of a provisioner that wrote these texts and ended with this exit code."""
    folder.mkdir(exist_ok=True)
    mine = Provisioner(name="mine", source="/p/mine.yaml", run=["/opt/mine"], outcome=outcome)
    write_declaration(mine, folder)
    made = EvidenceFolder(folder).file(EXIT_CODE_PATH, exit_code)
    for path, text in {
        OUTCOME: texts.get("document", json.dumps(DOCUMENT)),
        LOG: texts.get("log", LINES),
        CLOUD_INIT_OUTPUT_PATH: texts.get("output", "build for kernel\n"),
        "/var/log/my/a.jsonl": texts.get("events", '{"event": {"name": "started"}}\n\n'),
        "/var/log/my/b.jsonl": '{"event": {"name": "built"}}\n{"event": {"name": "up"}}\n',
        "/var/log/my/no-events": "",
    }.items():
        made.file(path, text)
    return made.evidence


@dataclass(frozen=True, kw_only=True)
class Case:
    """An expectation, the evidence that it judges, and a part of the message of its refusal."""

    expectation: Callable[[Evidence], object]
    outcome: OutcomeDeclaration
    exit_code: str = "0\n"
    texts: tuple[tuple[str, str], ...] = ()
    message: str = ""

    def judge(self, folder: Path) -> object:
        evidence = evidence_of(folder, self.outcome, exit_code=self.exit_code, **dict(self.texts))
        return self.expectation(evidence)


ACCEPTED = {
    "exit code alone": Case(expectation=expect.provisioned, outcome=OutcomeDeclaration()),
    "exit code by name": Case(
        expectation=lambda e: expect.provisioned(e, exit_code="no-driver"),
        outcome=EXIT_CODES,
        exit_code="84\n",
    ),
    "exit code of file and shell": Case(expectation=expect.provisioned, outcome=FILE),
    "exit code beside a file without one": Case(
        expectation=expect.provisioned,
        outcome=OutcomeDeclaration(file=OutcomeFile(path="/elsewhere", decision="/decision")),
    ),
    "decision of the file": Case(
        expectation=lambda e: expect.decided(e, "skip-build"), outcome=FILE
    ),
    "last decision of the log": Case(
        expectation=lambda e: expect.decided(e, "skip-build"), outcome=PATTERNS
    ),
    "reason of the log": Case(
        expectation=lambda e: expect.decided(e, "build", reason="kernel"), outcome=REASONED
    ),
    "decision with any reason": Case(
        expectation=lambda e: expect.decided(e, "build"), outcome=REASONED
    ),
    "failed step of the file": Case(
        expectation=lambda e: expect.step_failed(e, "dcgm"), outcome=FILE
    ),
    "failed step of the log": Case(
        expectation=lambda e: expect.step_failed(e, "dcgm"), outcome=PATTERNS
    ),
    "end at a step of the file": Case(
        expectation=lambda e: expect.run_ended_at(e, "dcgm"),
        outcome=FILE,
        texts=(("document", json.dumps({**DOCUMENT, "result": {"code": 4, "why": DCGM_FAILED}})),),
    ),
    "end at a step of the log": Case(
        expectation=lambda e: expect.run_ended_at(e, "dcgm"),
        outcome=replace(PATTERNS, file=OutcomeFile(path=OUTCOME, error="/result/why")),
        texts=(("document", json.dumps({"result": {"why": DCGM_FAILED}})),),
    ),
    "events of all files": Case(
        expectation=lambda e: expect.events_recorded(e, "started", "built", "up"), outcome=EVENTS
    ),
    "line of the declared log": Case(
        expectation=lambda e: expect.log_line(e, "dcgm failed"), outcome=PATTERNS
    ),
    "line of a log that is cut": Case(
        expectation=lambda e: expect.log_line(e, "dcgm failed"),
        outcome=PATTERNS,
        texts=(("log", LINES.ljust(4096 << 10)),),
    ),
    "line of what was printed": Case(
        expectation=lambda e: expect.log_line(e, "for kernel"), outcome=EXIT_CODES
    ),
}

REFUSED = {
    "exit code": Case(
        expectation=expect.provisioned,
        outcome=EXIT_CODES,
        exit_code="84\n",
        message="Provisioner 'mine' was expected to end with 0 (ok), but it ended with 84 (no-driver).",
    ),
    "exit code without a name": Case(
        expectation=expect.provisioned,
        outcome=EXIT_CODES,
        exit_code="7\n",
        message="but it ended with 7 (without a name in 'outcome.exit_codes' of '/p/mine.yaml').",
    ),
    "no file with the exit code": Case(
        expectation=expect.provisioned,
        outcome=OutcomeDeclaration(file=OutcomeFile(path="/elsewhere", exit_code="/code")),
        message="An outcome of provisioning was expected, but there is none",
    ),
    "no exit code": Case(
        expectation=expect.provisioned,
        outcome=OutcomeDeclaration(),
        exit_code="\n",
        message="was expected to end with 0, but it ended with no exit code.",
    ),
    "exit code of the shell alone": Case(
        expectation=expect.provisioned,
        outcome=FILE,
        exit_code="1\n",
        message="The provisioner's command was expected to end with exit code 0, but ended with 1.",
    ),
    "exit code of the file alone": Case(
        expectation=expect.provisioned,
        outcome=FILE,
        texts=(
            ("document", json.dumps({"result": {"code": 9, "why": "no headers"}, "steps": []})),
        ),
        message="was expected to end with 0, but it ended with 9: no headers.",
    ),
    "success where a failure was expected": Case(
        expectation=lambda evidence: expect.provisioned(evidence, exit_code="no-headers"),
        outcome=replace(FILE, exit_codes={0: "ok", 9: "no-headers"}),
        texts=(("document", json.dumps({"result": {"code": 0, "why": ""}, "steps": []})),),
        message="was expected to end with 9 (no-headers), but it ended with 0 (ok).",
    ),
    "exit code without a name among others": Case(
        expectation=expect.provisioned,
        outcome=replace(FILE, exit_codes={0: "ok"}),
        texts=(("document", json.dumps({"result": {"code": 1, "why": "step x"}, "steps": []})),),
        message="was expected to end with 0 (ok), but it ended with 1: step x.",
    ),
    "error of a file that is a sentence": Case(
        expectation=expect.provisioned,
        outcome=OutcomeDeclaration(file=OutcomeFile(path=OUTCOME, error="/result/why")),
        exit_code="9\n",
        texts=(("document", json.dumps({"result": {"why": "No headers."}})),),
        message="but it ended with 9: No headers. Read the output",
    ),
    "step of a file that is not there": Case(
        expectation=lambda e: expect.step_of(e, "driver"),
        outcome=OutcomeDeclaration(
            file=OutcomeFile(path="/elsewhere", steps=StepList(at="/steps", name="/id"))
        ),
        message="An outcome of provisioning was expected, but there is none",
    ),
    "decision of the file": Case(
        expectation=lambda e: expect.decided(e, "build"),
        outcome=FILE,
        message="The decision was expected to be 'build', but it was 'skip-build'.",
    ),
    "no decision in the log": Case(
        expectation=lambda e: expect.decided(e, "build"),
        outcome=PATTERNS,
        texts=(("log", ""),),
        message="was expected to be 'build', but it was none.",
    ),
    "another reason": Case(
        expectation=lambda e: expect.decided(e, "build", reason="module"),
        outcome=REASONED,
        message="to be 'build' with reason 'module', but it was 'build' with reason 'kernel'.",
    ),
    "step that went well at last": Case(
        expectation=lambda e: expect.step_failed(e, "driver"),
        outcome=PATTERNS,
        message="but its status is 'ok'.",
    ),
    "step that failed in the words of another provisioner": Case(
        expectation=lambda e: expect.step_failed(e, "driver"),
        outcome=FILE,
        texts=(
            (
                "document",
                json.dumps({"result": {"code": 0}, "steps": [{"id": "driver", "end": "failed"}]}),
            ),
        ),
        message="but its status is 'failed'.",
    ),
    "end in other words": Case(
        expectation=lambda e: expect.run_ended_at(e, "dcgm"),
        outcome=FILE,
        texts=(("document", json.dumps({**DOCUMENT, "result": {"code": 4, "why": "dcgm"}})),),
        message="The run was expected to end at the step 'dcgm', but the run's error is: dcgm",
    ),
    "step that did not run": Case(
        expectation=lambda e: expect.step_of(e, "mig"),
        outcome=FILE,
        message="The step 'mig' was expected, but the steps were ['driver', 'dcgm'].",
    ),
    "event": Case(
        expectation=lambda e: expect.events_recorded(e, "up", "down"),
        outcome=EVENTS,
        message="Events named ['down'] were expected, but the names of all events are ['started', "
        "'built', 'up'].",
    ),
    "line of the declared log": Case(
        expectation=lambda e: expect.log_line(e, "for kernel"),
        outcome=PATTERNS,
        message=f"A line with 'for kernel' was expected in '{LOG}', but there was none.",
    ),
}

#: The result is unknown if nothing is declared.
UNDECLARED = {
    "decision": (
        lambda e: expect.decided(e, "build"),
        "key 'outcome.file.decision': Provisioner 'mine' does not declare 'outcome.file.decision'",
    ),
    "step": (lambda e: expect.step_of(e, "x"), "key 'outcome.log.step': "),
    "failed step": (lambda e: expect.step_failed(e, "x"), "key 'outcome.log.step': "),
    "step at which the run ended": (
        lambda e: expect.run_ended_at(e, "x"),
        "key 'outcome.log.step': ",
    ),
    "events": (lambda e: expect.events_recorded(e, "x"), "key 'outcome.events': "),
    "no events": (lambda e: expect.no_event_recorded(e, "x"), "key 'outcome.events': "),
    "name of an exit code": (
        lambda e: expect.provisioned(e, exit_code="no-drver"),
        "key 'outcome.exit_codes': No exit code has the name 'no-drver'; the declared names are 'ok', 'no-driver'",
    ),
}

UNDECIDED = {
    "outcome without the exit code": Case(
        expectation=expect.provisioned,
        outcome=FILE,
        texts=(("document", '{"steps": []}'),),
        message="in 'outcome.file' (it has no '/result/code')",
    ),
    "steps that are no list": Case(
        expectation=lambda e: expect.step_of(e, "x"),
        outcome=FILE,
        texts=(("document", '{"result": {"code": 0}, "steps": {}}'),),
        message="'/steps' is not a list",
    ),
    "status that is not declared": Case(
        expectation=lambda e: expect.step_failed(e, "driver"),
        outcome=OutcomeDeclaration(log=LogPatterns(path=LOG, step=r"step (\S+)")),
        message="Provisioner 'mine' does not report how the step 'driver' ended; declare 'status'",
    ),
    "duration that is no number": Case(
        expectation=lambda e: expect.step_of(e, "driver"),
        outcome=PATTERNS,
        texts=(("log", "step driver ok in two s"),),
        message="took 'two', which is not a number of seconds",
    ),
    "decision of a log that is cut": Case(
        expectation=lambda e: expect.decided(e, "build"),
        outcome=PATTERNS,
        texts=(("log", LINES.ljust(4096 << 10)),),
        message=f"Only the first 4096 KiB of '{LOG}' were collected",
    ),
    "line that a cut log does not have": Case(
        expectation=lambda e: expect.log_line(e, "step mig"),
        outcome=PATTERNS,
        texts=(("log", LINES.ljust(4096 << 10)),),
        message=f"Only the first 4096 KiB of '{LOG}' were collected",
    ),
    "unexpected line that a cut log may have": Case(
        expectation=lambda e: expect.no_log_line(e, "step mig"),
        outcome=PATTERNS,
        texts=(("log", LINES.ljust(4096 << 10)),),
        message=f"Only the first 4096 KiB of '{LOG}' were collected",
    ),
    "damaged event": Case(
        expectation=lambda e: expect.events_recorded(e, "up"),
        outcome=EVENTS,
        texts=(("events", "{"),),
        message="The event file '/var/log/my/a.jsonl' has another format",
    ),
}


def test_met_expectation_about_a_declared_outcome_raises_no_error(tmp_path: Path) -> None:
    for name, case in ACCEPTED.items():
        # The error names the evidence folder, and the folder has the name of the case.
        case.judge(tmp_path / name)


def test_decision_without_a_reason_does_not_match_an_expected_reason(tmp_path: Path) -> None:
    for name, outcome in (("file", FILE), ("log", PATTERNS)):
        evidence = evidence_of(tmp_path / name, outcome)

        with pytest.raises(ExpectationError, match="reason 'kernel', but it was 'skip-build'"):
            expect.decided(evidence, "skip-build", reason="kernel")


def test_run_ended_at_is_refused_if_the_provisioner_declares_no_error(
    tmp_path: Path,
) -> None:
    evidence = evidence_of(tmp_path, PATTERNS)

    with pytest.raises(BadInputError, match=r"key 'outcome\.file\.error': Provisioner 'mine'"):
        expect.run_ended_at(evidence, "dcgm")


def _undeclared(ask: Callable[[Evidence], object], message: str) -> Case:
    return Case(expectation=ask, outcome=EXIT_CODES, message=f"/p/mine.yaml: {message}")


@pytest.mark.parametrize(
    ("cases", "error"),
    [
        (REFUSED, ExpectationError),
        (UNDECIDED, HarnessError),
        (
            {name: _undeclared(*asked) for name, asked in UNDECLARED.items()},
            BadInputError,
        ),
    ],
    ids=["refused", "undecided", "undeclared"],
)
def test_unmet_or_unknown_or_undeclared_outcome_raises_its_own_error_type(
    tmp_path: Path, cases: Mapping[str, Case], error: type[Exception]
) -> None:
    for number, (name, case) in enumerate(cases.items()):
        with pytest.raises(error) as caught:
            pytest.fail(f"'{name}' gave {case.judge(tmp_path / str(number))} and no error.")
        assert case.message in str(caught.value)


def test_steps_are_read_from_the_declared_outcome_file_or_log_pattern(tmp_path: Path) -> None:
    by_file = evidence_of(tmp_path / "file", FILE)
    by_log = evidence_of(tmp_path / "log", PATTERNS)

    assert expect.step_of(by_file, "driver") == ReportedStep(
        name="driver", status="OK", duration_s=1.5
    )
    assert expect.step_of(by_log, "driver") == ReportedStep(
        name="driver", status="ok", duration_s=2.0
    )
    assert expect.step_of(by_log, "dcgm").duration_s is None


def test_earlier_run_is_judged_by_the_outcome_and_log_of_that_run(tmp_path: Path) -> None:
    failed = json.dumps({**DOCUMENT, "result": {"code": 4, "why": DCGM_FAILED}})
    sound = {"result": {"code": 0, "why": None}, "steps": [{"id": "dcgm", "end": "OK"}]}
    outcome = replace(FILE, log=LogPatterns(path=LOG))
    evidence = evidence_of(tmp_path, outcome, document=json.dumps(sound))
    folder = EvidenceFolder(tmp_path).file(f"{RUNS_FOLDER}/1/exit-code", "4\n")
    folder.file(f"{RUNS_FOLDER}/2/outcome-before", failed)
    folder.file(f"{RUNS_FOLDER}/2/log-bytes-before", "6\n")
    (tmp_path / f"files{LOG}").write_bytes(b"\xff one\ntwo\n")

    expect.log_line(evidence, "one", run=1)
    expect.no_log_line(evidence, "two", run=1)
    expect.run_ended_at(evidence, "dcgm", run=1)
    for run in (None, 2):
        with pytest.raises(ExpectationError, match="its status is 'OK'"):
            expect.step_failed(evidence, "dcgm", run=run)


def test_provisioner_declaration_is_written_to_the_evidence_and_read_back(tmp_path: Path) -> None:
    mine = Provisioner(
        name="mine",
        source="/p/mine.yaml",
        run=["/opt/mine"],
        outcome=replace(FILE, events=EVENTS.events, log=PATTERNS.log, exit_codes={84: "x"}),
        evidence=EvidenceDeclaration(files=["/var/log/my/*"], commands={"mounts": ["findmnt"]}),
    )

    write_declaration(mine, tmp_path)

    found = read_declaration(tmp_path)
    assert (found.name, found.source, found.outcome) == ("mine", "/p/mine.yaml", mine.outcome)
    assert (found.files, found.commands) == (("/var/log/my/*",), ("mounts",))


def test_evidence_without_a_declaration_uses_the_declaration_of_gpu_node(
    tmp_path: Path,
) -> None:
    assert read_declaration(tmp_path) == GPU_NODE

    write_declaration(gpu_node_provisioner(Payload(content=b"", digest="0" * 64)), tmp_path)

    assert read_declaration(tmp_path).outcome == GPU_NODE.outcome


def a_declaration(*, step: str) -> str:
    outcome = {"log": {"step": step}}
    return json.dumps({"schema": 1, "name": "x", "source": "y", "outcome": outcome})


def test_damaged_declaration_raises_a_harness_error(tmp_path: Path) -> None:
    for text in (
        *("{", "{}", '{"schema": 2, "name": "x"}', "[" * 100_000),
        a_declaration(step="(x)").replace('"name":', '"name": "w", "name":'),
        *(a_declaration(step="(" * 1000), a_declaration(step="(a{99999999999})")),
    ):
        (tmp_path / DECLARATION_NAME).write_text(text)

        with pytest.raises(HarnessError, match="does not say how the provisioner's result is"):
            expect.provisioned(EvidenceFolder(tmp_path).evidence)
