"""The outcome file of a provisioner, read by JSON pointers."""

from __future__ import annotations

import json

import pytest

from harness.errors import HarnessError
from harness.evidence.outcome import (
    ProvisioningOutcome,
    ReportedDecision,
    ReportedStep,
    parse_events,
    parse_log_decision,
    parse_timed_events,
)
from harness.provisioner.outcome import EventFiles, EventFormat, OutcomeFile, StepList

DOCUMENT = {
    "a/b": [{"c~d": 7}, {"c~d": "84"}],
    "a~1b": 5,
    "error": None,
    "done": ["first", {"name": "second"}],
    "steps": [{"id": "one", "took": "1.5"}, {"id": "two", "state": "failed"}],
}


def read(document: object = DOCUMENT, **pointers: object) -> ProvisioningOutcome:
    file = OutcomeFile(path="/o.json", **pointers)  # type: ignore[arg-type]  # by the test
    return ProvisioningOutcome.from_json(json.dumps(document), file)


def test_json_pointers_address_list_items_and_escaped_keys() -> None:
    assert read(exit_code="/a~1b/1/c~0d").exit_code == 84
    assert read(exit_code="/a~1b/0/c~0d").exit_code == 7
    assert read(exit_code="/a~01b").exit_code == 5
    assert read(decision="/done/0").action == "first"
    assert read(decision="/done/1/name").action == "second"
    assert read(reason="/error").reason is None


def test_undeclared_parts_of_the_outcome_are_not_read() -> None:
    assert read() == ProvisioningOutcome()


def test_value_that_is_not_text_is_shown_as_json() -> None:
    outcome = read({"ok": True, "why": {"a": [1, None]}}, decision="/ok", reason="/why")

    assert (outcome.action, outcome.reason) == ("true", '{"a": [1, null]}')


def test_missing_decision_is_none_and_a_missing_exit_code_is_an_error() -> None:
    for pointer in ("/done/2", "/done/-1", "/done/²", "/a/b", "/done/0/1"):
        assert read(decision=pointer).action is None, pointer
        with pytest.raises(HarnessError, match=rf"'outcome\.file' \(it has no '{pointer}'\): "):
            read(exit_code=pointer)


def test_step_fields_are_read_from_the_declared_keys() -> None:
    steps = StepList(at="/steps", name="/id", status="/state", duration_s="/took")

    assert read(steps=steps).steps == (
        ReportedStep(name="one", duration_s=1.5),
        ReportedStep(name="two", status="failed"),
    )


def test_start_of_a_step_is_in_seconds_since_the_epoch() -> None:
    for started in ("1970-01-01T02:01:40.500+02:00", "1970-01-01 00:01:40.500", "100.5"):
        steps = StepList(at="/steps", name="/id", started="/at")

        (step,) = read({"steps": [{"id": "one", "at": started}]}, steps=steps).steps

        assert step.started_s == 100.5, started


def test_event_times_are_read_from_the_declared_keys() -> None:
    event = '{"TaskName": "apt", "Timestamp": "1970-01-01T00:00:01Z", "Id": 2.5}'
    declared = EventFiles(path="/e/*", name="/TaskName", started="/Timestamp", ended="/Id")

    assert parse_timed_events(event, declared, "e") == [("apt", 1.0, 2.5)]
    first = event.replace(":01Z", ":00Z")
    assert parse_timed_events(first, declared, "e") == [("apt", 0.0, 2.5)]
    assert parse_timed_events(event, EventFiles(path="/e/*", name="/TaskName"), "e") == []
    with pytest.raises(HarnessError, match="The event file 'e' has another format"):
        parse_timed_events(event.replace("1970", "then"), declared, "e")


def test_unicode_line_separators_in_json_strings_do_not_end_a_line() -> None:
    declared = EventFiles(path="/e", name="/name", format=EventFormat.JSON_LINES)
    text = '{"name": "a\u2028b"}\r\n\n{"name": "c\x85"}\n'

    assert parse_events(text, declared, "e") == ["a\u2028b", "c\x85"]
    decision = parse_log_decision("decided a\u2028b\r\n", r"decided (.+)$")
    assert decision is not None
    assert decision.decision == "a\u2028b"


def test_expression_is_searched_only_at_the_beginning_of_a_very_long_line() -> None:
    """The time of an expression with `.*` grows with the square of the line's length."""
    for length, found in ((16_000, ReportedDecision(decision="a")), (17_000, None)):
        assert parse_log_decision(f"{'x' * length} decided a\n", r"decided (.+)$") == found


def test_malformed_outcome_is_refused_with_the_reason() -> None:
    for text, why in (
        ("[]", "it is not a JSON object"),
        ('{"steps": {}}', "'/steps' is not a list"),
        ('{"steps": [{}]}', "it has no '/id'"),
        ('{"steps": [], "steps": []}', "an object has the key 'steps' twice"),
    ):
        file = OutcomeFile(path="/o.json", steps=StepList(at="/steps", name="/id"))

        with pytest.raises(HarnessError) as caught:
            ProvisioningOutcome.from_json(text, file)

        assert str(caught.value) == (
            f"The outcome of provisioning in '/o.json' has another format than the provisioner declares in "
            f"'outcome.file' ({why}): {text!r}."
        ), text
