"""Handles the records that a running spec writes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.shell.spec.sentences import PathFact, VariableFact
from harness.shell.spec.verdict import RunningJobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.spec.sentences import Facts
    from harness.shell.spec.verdict import ExampleRecord


def _note_variable(facts: Facts, fields: Sequence[str]) -> None:
    value = fields[3] if fields[1] == "set" else None
    facts.variable = VariableFact(value=value, attributes=fields[2])


def _note_path(facts: Facts, fields: Sequence[str]) -> None:
    facts.path = PathFact(path=fields[0], flags=fields[1])


def _note_contents(facts: Facts, fields: Sequence[str]) -> None:
    if facts.path is not None:
        facts.path = replace(facts.path, contents=fields[0])


def _note_result(facts: Facts, fields: Sequence[str]) -> None:
    facts.result = fields[2].rstrip("\n") if fields[0] == "0" else None
    facts.stderr_texts.extend(fields[1:2] if fields[1] else [])


def _note_answer(facts: Facts, fields: Sequence[str]) -> None:
    facts.answer = fields[0] == "0"
    facts.message = fields[2].rstrip("\n")
    facts.stderr_texts.extend(fields[1:2] if fields[1] else [])


def _note_unknown(facts: Facts, fields: Sequence[str]) -> None:
    facts.unreadable = f"there is no matcher '{fields[0]}'"


def _note_miscounted(facts: Facts, fields: Sequence[str]) -> None:
    facts.unreadable = f"the matcher '{fields[0]}' takes another number of arguments"


def _note_begun(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.when = int(fields[0])


def _note_when(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.when, reported.status = int(fields[0]), int(fields[1])


def _note_skip(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.skip_reason = fields[0] or "Temporarily skipped"


def _note_pending(reported: ExampleRecord, fields: Sequence[str]) -> None:
    if reported.pending_reason is None:
        reported.pending_after = len(reported.problems), len(reported.sentences)
    reported.pending_reason = fields[0] or "Temporarily pended"


def _note_finished(reported: ExampleRecord, fields: Sequence[str]) -> None:
    del fields
    reported.finished = True


def _note_misuse(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.has_expectation = True
    reported.add_problem(int(fields[0]), fields[1])


def _note_vanished(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.add_problem(
        0,
        f"The code under test deleted {fields[0]}, a directory that the system needs. Because of "
        "the sandbox, the deletion affected only the rest of this file.",
    )


def _note_broken(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.add_problem(0, f"{fields[0]}, so the example did not run.")


def _note_hook_stderr(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.hook_stderr = fields[0]


def _note_running(reported: ExampleRecord, fields: Sequence[str]) -> None:
    reported.running = RunningJobs(seconds=fields[0], commands=tuple(fields[1:]))


FACTS: dict[str, Callable[[Facts, Sequence[str]], None]] = {
    "variable": _note_variable,
    "path": _note_path,
    "contents": _note_contents,
    "result": _note_result,
    "answer": _note_answer,
    "unknown": _note_unknown,
    "miscounted": _note_miscounted,
}
EVENTS: dict[str, Callable[[ExampleRecord, Sequence[str]], None]] = {
    "begun": _note_begun,
    "called": _note_begun,
    "when": _note_when,
    "skip": _note_skip,
    "pending": _note_pending,
    "finished": _note_finished,
    "misuse": _note_misuse,
    "vanished": _note_vanished,
    "broken": _note_broken,
    "running": _note_running,
    "hook_stderr": _note_hook_stderr,
}
