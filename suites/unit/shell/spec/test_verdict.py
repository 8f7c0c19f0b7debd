"""The verdict on an example, determined from the records that its shell wrote."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.shell.spec.record_handlers import EVENTS, FACTS
from harness.shell.spec.sentences import Facts
from harness.shell.spec.spec_file import Case, SpecFile
from harness.shell.spec.verdict import (
    ExampleRecord,
    Outcome,
    RecordedSentence,
    Streams,
    Verdict,
    judge,
    shorten,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_CASE = Case(number=0, name="it", groups=(), begin=1, end=6)
_SPEC = SpecFile(
    path="a_spec.sh",
    cases=(_CASE,),
    script="",
    texts=(),
    mocks=(),
    lines=("It 'it'", "When call f \\", "  x \\", "  y", "The output should eq a", "End"),
    preserves=False,
)
_QUIET = Streams(
    stdout=lambda: "a\n",
    stderr=lambda: "b\n",
    stdout_bytes=0,
    stderr_bytes=0,
    stray_stdout="",
    stray_stderr="",
)
_CALLED = ("when", "2", "0")
_HOLDS = "output should eq a"
_FAILS = "output should eq b"


def verdict(
    *reports: Sequence[str] | str, exit_status: int = 0, end_message: str = "", **streams: Any
) -> Verdict:
    """Return the verdict on an example from its sentences (texts) and its records.

    All sentences are judged after all records.
    """
    reported = ExampleRecord(exit_status=exit_status, end_message=end_message)
    for report in (*reports, ("finished",)):
        if isinstance(report, str):
            reported.has_expectation = True
            reported.sentences.append(
                RecordedSentence(line=5, words=tuple(report.split()), facts=Facts())
            )
        elif report != ("unfinished",):
            EVENTS[report[0]](reported, report[1:])
    if ("unfinished",) in reports:
        reported.finished = False
    return judge(_SPEC, _CASE, reported, replace(_QUIET, **streams))


def test_records_of_an_example_decide_its_outcome() -> None:
    outcomes: list[tuple[list[Sequence[str] | str], dict[str, Any], Outcome]] = [
        ([], {}, Outcome.PENDING),
        ([_CALLED, _HOLDS], {"stdout_bytes": 2}, Outcome.SUCCEEDED),
        ([_CALLED, _HOLDS], {"stdout_bytes": 2, "stderr_bytes": 2}, Outcome.WARNED),
        ([_CALLED, _HOLDS, "error should eq b"], {"stderr_bytes": 2}, Outcome.SUCCEEDED),
        ([_CALLED, "error should eq b"], {"stdout_bytes": 2}, Outcome.WARNED),
        ([("when", "2", "3"), _HOLDS], {}, Outcome.WARNED),
        ([("when", "2", "3"), _HOLDS, "status should eq 3"], {}, Outcome.SUCCEEDED),
        ([_CALLED], {}, Outcome.WARNED),
        ([_CALLED, _FAILS], {}, Outcome.FAILED),
        ([_CALLED, _FAILS], {"stderr_bytes": 2}, Outcome.FAILED),
        ([_CALLED, _FAILS, _HOLDS], {}, Outcome.FAILED),
        ([_CALLED, _HOLDS], {"stray_stderr": "x"}, Outcome.FAILED),
        ([_CALLED, _HOLDS, ("unfinished",)], {}, Outcome.FAILED),
        ([_CALLED, _HOLDS], {"exit_status": 1}, Outcome.FAILED),
        ([("skip", ""), _CALLED, _HOLDS], {"stderr_bytes": 2}, Outcome.SKIPPED),
        ([("skip", ""), _CALLED, _FAILS], {}, Outcome.FAILED),
        ([("pending", "x"), _CALLED, _FAILS], {}, Outcome.PENDING),
        ([("pending", "x"), _CALLED, _HOLDS], {}, Outcome.FIXED),
        ([("pending", "x"), _CALLED, _FAILS], {"exit_status": 1}, Outcome.FAILED),
        ([("pending", "x"), _CALLED, _FAILS], {"stray_stderr": "x"}, Outcome.PENDING),
        ([("pending", "x"), _CALLED, _HOLDS], {"stray_stderr": "x"}, Outcome.FIXED),
        ([("pending", "x"), _CALLED, _FAILS, ("unfinished",)], {}, Outcome.FAILED),
        ([("pending", "x"), _CALLED, _FAILS], {"stray_stdout": "x"}, Outcome.PENDING),
        ([("pending", "x"), _CALLED, _HOLDS], {"stray_stdout": "x"}, Outcome.FIXED),
        (
            [("pending", "x"), _CALLED, _HOLDS],
            {"stdout_bytes": 2, "stderr_bytes": 2},
            Outcome.PENDING,
        ),
        ([("pending", "x")], {}, Outcome.PENDING),
        ([("pending", "x")], {"stray_stderr": "x"}, Outcome.PENDING),
        ([("pending", "x")], {"exit_status": 1}, Outcome.FAILED),
        ([("pending", "x"), ("skip", ""), _CALLED, _HOLDS], {}, Outcome.SKIPPED),
        ([("pending", "x"), ("skip", ""), _CALLED, _FAILS], {}, Outcome.FAILED),
        ([("skip", ""), ("pending", "x"), _CALLED, _HOLDS], {}, Outcome.SKIPPED),
        ([("skip", "")], {}, Outcome.SKIPPED),
        ([("skip", "")], {"stray_stdout": "x"}, Outcome.SKIPPED),
        ([("skip", "")], {"stray_stderr": "x"}, Outcome.SKIPPED),
        ([("skip", ""), ("unfinished",)], {}, Outcome.FAILED),
        ([("skip", "")], {"exit_status": 1}, Outcome.FAILED),
        ([], {"stray_stderr": "x"}, Outcome.FAILED),
        ([("unfinished",)], {}, Outcome.FAILED),
        ([], {"exit_status": 1}, Outcome.FAILED),
        ([_CALLED, _HOLDS], {"stdout_bytes": 2, "stray_stdout": "x"}, Outcome.SUCCEEDED),
        ([_CALLED, _HOLDS], {"stderr_bytes": 2, "stray_stderr": "x"}, Outcome.FAILED),
        ([("misuse", "3", "x"), ("pending", "y"), _CALLED, _HOLDS], {}, Outcome.FAILED),
        ([("misuse", "3", "x"), ("skip", "y")], {}, Outcome.FAILED),
        ([("pending", "y"), ("misuse", "3", "x"), _CALLED, _HOLDS], {}, Outcome.PENDING),
        ([_CALLED, _FAILS, ("pending", "y"), _HOLDS], {}, Outcome.FAILED),
        ([_CALLED, _HOLDS, ("pending", "y"), _FAILS], {}, Outcome.PENDING),
        ([("pending", "x"), _CALLED, _FAILS, ("pending", "y")], {}, Outcome.PENDING),
    ]
    for reports, streams, outcome in outcomes:
        assert verdict(*reports, **streams).outcome is outcome, (reports, streams)


def test_verdict_has_the_reason_of_a_skipped_or_pending_example() -> None:
    assert verdict(("pending", "later"), _CALLED, _FAILS).reason == "later"
    assert verdict(("skip", "no GPU"), _CALLED).reason == "no GPU"
    shown = verdict(_CALLED, _FAILS, _HOLDS).render(_SPEC, _CASE)
    assert shown.startswith("a_spec.sh:5: The output should eq a\n")
    assert "evaluation: When call f" in shown
    assert _SPEC.line(4) == "When call f x y"


def test_verdict_has_the_running_jobs_and_the_last_line_that_was_reached() -> None:
    jobs = ("running", "1", "sleep 60", "sleep 60", "dd")
    for sentence in (_HOLDS, _FAILS):
        running = verdict(jobs, _CALLED, sentence).running
        assert running is not None
        assert running.commands == ("sleep 60", "sleep 60", "dd")
    assert verdict(("skip", ""), _CALLED, stderr_bytes=2).problems == ()
    aborted = verdict(_CALLED, _HOLDS, ("unfinished",), exit_status=1).render(_SPEC, _CASE)
    assert "5 (The output should eq a)" in aborted


def test_long_text_is_shortened_in_the_middle() -> None:
    assert shorten("x" * 4000) == "x" * 4000
    shown = shorten(f"begin{'x' * 4000}end")
    assert (shown[:5], shown[-3:]) == ("begin", "end")
    assert len(shown) < 4100


def test_exit_code_is_reported_as_a_signal_only_if_the_shell_names_the_signal() -> None:
    endings: list[tuple[int, str, str]] = [
        (128 + signal.SIGKILL, "line 3: 77 Killed", "killed by signal 9"),
        (128 + signal.SIGKILL, "", "ended with exit code 137"),
        (255, "Killed", "ended with exit code 255"),
    ]
    for exit_status, end_message, shown in endings:
        found = verdict(
            _CALLED, _HOLDS, ("unfinished",), exit_status=exit_status, end_message=end_message
        )

        assert shown in found.render(_SPEC, _CASE)


def test_result_modifier_is_unset_if_its_function_failed() -> None:
    found: list[str | None] = []
    for status in ("0", "1"):
        facts = Facts()
        FACTS["result"](facts, (status, "", "text\n\n"))
        found.append(facts.result)

    assert found == ["text", None]
