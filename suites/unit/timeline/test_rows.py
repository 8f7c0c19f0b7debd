"""Which work a timeline's picture shows, and how the picture and the page word it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.timeline import Gap, Lane, Moment, Span, SpanState, Timeline, seconds
from harness.timeline.page import render_page
from harness.timeline.rows import at_most, rows_of, shown_units


def a_span(name: str, start_s: float, end_s: float, **fields: Any) -> Span:
    return Span(**{"lane": Lane.UNITS, "name": name, "start_s": start_s, "end_s": end_s, **fields})


def a_timeline(*spans: Span, **fields: Any) -> Timeline:
    return Timeline(**{"title": "node", "end_s": 1000.0, "spans": spans, **fields})


def test_short_units_are_left_out_unless_they_are_critical_or_not_done() -> None:
    timeline = a_timeline(
        a_span("long", 0.0, 4.0),
        a_span("short", 0.0, 3.9),
        a_span("critical", 0.0, 0.1, is_critical=True),
        *(a_span(each.value, 9.0, 9.1, state=each) for each in SpanState),
        a_span("step", 0.0, 9.0, lane=Lane.STEPS),
        *(a_span(f"longer-{number}", 0.0, 5.0 + number) for number in range(25)),
        a_span("longest", 0.0, 900.0),
    )

    shown = shown_units(timeline)

    not_done = {"failed", "running", "waiting"}
    assert {"critical", *not_done, "longest", "longer-0", "longer-24"} <= shown
    assert not {"short", "step", "long", "done"} & shown


def test_rows_are_sorted_by_start_time_with_gaps_last() -> None:
    one = a_timeline(
        a_span("b", 5.0, 50.0), a_span("step", 5.0, 9.0, lane=Lane.STEPS), a_span("a", 1.0, 50.0)
    )
    other = a_timeline(a_span("c", 0.0, 50.0), gaps=(Gap(what="journal", reason="No answer."),))

    rows = rows_of([one, other, a_timeline()])

    assert [row.name for row in rows] == ["c", "a", "b", "step", "journal"]
    assert [len(spans) for spans in rows[1].spans] == [1, 0, 0]
    assert rows[-1].reasons == (None, "No answer.", None)


def test_at_most_returns_the_longest_rows_in_their_original_order() -> None:
    spans = [a_span(str(n), float(n), n + 1.0 + n % 7, lane=Lane.STEPS) for n in range(400)]
    rows = rows_of([a_timeline(*spans, gaps=(Gap(what="gap", reason="?"),))])

    few = at_most(rows)

    assert len(few) == 301
    assert few[-1].reasons == ("There are 401 rows; the table on the page has all rows.",)
    assert few[-2].name == "gap"
    numbers = [int(row.name) for row in few[:-2]]
    assert numbers == sorted(numbers)
    assert {6, 13, 398} <= set(numbers)
    assert not {0, 7, 14} & set(numbers)
    assert at_most(rows[:300]) == rows[:300]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 ms"),
        (0.049, "49 ms"),
        (0.05, "0.1 s"),
        (99.9, "99.9 s"),
        (100.0, "100 s"),
    ],
)
def test_duration_is_in_ms_or_in_seconds_with_at_most_one_decimal(value: float, text: str) -> None:
    assert seconds(value) == text


def test_page_has_all_times_in_a_table_and_escapes_the_text_of_a_guest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.timeline.page._picture", lambda *_: "")
    evil = "<script>x</script>"
    span = a_span(
        evil, 2.0, 5.0, state=SpanState.FAILED, detail=evil, blockers=(evil, "b"),
        blocked_from_s=0.0, is_critical=True,
    )  # fmt: skip
    timeline = a_timeline(
        span,
        a_span("free", 0.0, 1.0),
        title=evil,
        moments=(Moment(at_s=3.0, words=evil),),
        gaps=(Gap(what=evil, reason=evil),),
    )

    page = render_page([timeline, timeline])

    assert "<script>" not in page
    shown = "&lt;script&gt;x&lt;/script&gt;"
    row = (
        f'<tr class=critical><td class="n">2.0 s</td><td class="n">3.0 s</td><td class="">{shown}</td>'
        f'<td class="">systemd unit, critical</td><td class="">failed: {shown}</td>'
        f'<td class="">{shown}, b</td><td class="n">2.0 s</td></tr>'
    )
    assert page.count(row) == 2
    assert page.count('<td class=""></td><td class="n"></td></tr>') == 2
    assert page.count(f"<h2>{shown}</h2>") == 2
