"""When systemd units started."""

from __future__ import annotations

from typing import Any

import pytest

from harness.evidence.history import UnitTimes
from harness.timeline import SpanState
from harness.timeline.units import start_of, starts_in_journal
from suites.unit.timeline.journals import a_boot, an_entry

STARTING = "7d4958e842da4a758f6c1cdc7b36dcc5"
STARTED = "39f53479d3a045ac8e11786248231fbf"
FAILED = "be02cf6855d2428ba40df7e9d022f03d"


def a_unit(**fields: Any) -> UnitTimes:
    usual = {"name": "a.service", "active": "active", "result": "success", "after": frozenset()}
    return UnitTimes(**{**usual, "started_s": 2.0, "ready_s": 5.0, **fields})


@pytest.mark.parametrize(
    ("fields", "has_job", "found"),
    [
        ({}, False, (12.0, 15.0, SpanState.DONE, None)),
        ({"active": "inactive"}, False, (12.0, 15.0, SpanState.DONE, None)),
        ({"active": "reloading"}, True, (12.0, 15.0, SpanState.DONE, None)),
        ({"active": "activating"}, True, (12.0, 90.0, SpanState.RUNNING, None)),
        ({"ready_s": None}, False, (12.0, 90.0, SpanState.RUNNING, None)),
        ({"active": "inactive"}, True, (90.0, 90.0, SpanState.WAITING, None)),
        ({"active": "failed"}, False, (12.0, 15.0, SpanState.FAILED, "result: success")),
        ({"result": "timeout"}, False, (12.0, 15.0, SpanState.FAILED, "result: timeout")),
        ({"result": ""}, False, (12.0, 15.0, SpanState.DONE, None)),
        ({"started_s": None}, False, None),
        ({"started_s": None, "active": "inactive"}, True, (90.0, 90.0, SpanState.WAITING, None)),
    ],
)
def test_span_of_a_unit_ends_when_the_unit_is_ready(
    fields: dict[str, Any], has_job: bool, found: tuple[float, float, SpanState, str] | None
) -> None:
    span = start_of(a_unit(**fields), 10.0, 90.0, has_job=has_job)

    assert (None if span is None else (span.start_s, span.end_s, span.state, span.detail)) == found


def test_each_unit_start_in_the_journal_of_an_earlier_boot_is_a_span() -> None:
    boot = a_boot(
        an_entry(1.0, UNIT="a.service", MESSAGE_ID=STARTING),
        an_entry(2.0, MESSAGE_ID=STARTING),
        an_entry(3.0, UNIT="a.service", MESSAGE_ID=FAILED),
        an_entry(4.0, UNIT="a.service", MESSAGE_ID=STARTING),
        an_entry(4.5, UNIT="b.service", MESSAGE_ID=STARTED),
        an_entry(6.0, UNIT="a.service", MESSAGE_ID=STARTED),
        # A start that ended without a message is left out.
        an_entry(6.5, UNIT="c.service", MESSAGE_ID=STARTING),
        an_entry(7.0, UNIT="c.service", MESSAGE_ID=STARTING),
    )

    assert [
        (span.name, span.start_s, span.end_s, span.state)
        for span in starts_in_journal(boot, 150.0)
    ] == [
        ("a.service", 101.0, 103.0, SpanState.FAILED),
        ("a.service", 104.0, 106.0, SpanState.DONE),
        ("c.service", 107.0, 150.0, SpanState.RUNNING),
    ]
