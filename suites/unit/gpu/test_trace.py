"""The access trace has a limited size, and assertions on a trace with dropped entries stay true."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.gpu.trace import NO_BAR, AccessKind, IncidentKind, Stray, TraceRecorder
from harness.gpu.trace_file import parse_trace, render_trace
from suites.fakes.clock import FakeClock


def _recorder(capacity: int = 4) -> TraceRecorder:
    return TraceRecorder(FakeClock(look_s=1.0), capacity)


def test_bar_accesses_of_a_trace_are_filtered_by_bar() -> None:
    recorder = _recorder()
    recorder.access(AccessKind.CONFIG_READ, None, 0, 4, 0x233010DE)
    recorder.access(AccessKind.BAR_READ, 0, 0xA00, 4, 0x180A1000)
    recorder.access(AccessKind.BAR_WRITE, 1, 0, 4, 1)
    recorder.access(AccessKind.BAR_READ, NO_BAR, 0x1000, 4, 0xFFFFFFFF)

    trace = recorder.snapshot()

    assert [access.offset for access in trace.bar_accesses(0)] == [0xA00]
    assert [access.bar for access in trace.bar_accesses(1)] == [1]
    assert [access.bar for access in trace.bar_accesses()] == [0, 1, NO_BAR]
    assert [access.value for access in trace.bar_accesses(NO_BAR)] == [0xFFFFFFFF]
    assert [access.value for access in trace.config_accesses()] == [0x233010DE]
    assert trace.bar_accesses(3) == ()


def test_trace_keeps_the_times_and_the_order_of_its_entries() -> None:
    recorder = _recorder()
    recorder.access(AccessKind.BAR_READ, 0, 0, 4, 0)
    recorder.incident(IncidentKind.RESET)
    recorder.access(AccessKind.CONFIG_READ, None, 0, 4, 0)
    recorder.incident(IncidentKind.DIED)

    trace = recorder.snapshot()

    assert [access.at_s for access in trace.accesses] == [1.0, 3.0]
    assert [(reset.sequence, reset.at_s) for reset in trace.resets()] == [(1, 2.0)]
    assert trace.incidents_of(IncidentKind.FELL_OFF_BUS) == ()


def test_configuration_accesses_do_not_evict_bar_accesses_from_the_trace() -> None:
    recorder = _recorder(capacity=4)
    for offset in range(100):
        recorder.access(AccessKind.CONFIG_READ, None, offset, 1, 0)
        if offset == 50:
            recorder.access(AccessKind.BAR_READ, 0, 0, 4, 0)
    for _ in range(6):
        recorder.incident(IncidentKind.RESET)

    trace = recorder.snapshot()

    assert (len(trace.resets()), trace.dropped_incidents) == (4, 2)
    assert len(trace.bar_accesses(0)) == 1
    assert [access.offset for access in trace.config_accesses()] == [0, 1, 98, 99]
    assert trace.dropped == 98


def test_rendered_trace_shows_how_many_entries_are_missing() -> None:
    recorder = _recorder(capacity=2)
    recorder.access(AccessKind.CONFIG_READ, None, 0, 2, 0x10DE)
    recorder.access(AccessKind.CONFIG_READ, None, 4, 2, 0)
    recorder.incident(IncidentKind.FELL_OFF_BUS)
    recorder.access(AccessKind.BAR_WRITE, 0, 0x140, 4, 1)
    recorder.access(AccessKind.CONFIG_READ, None, 0, 2, 0xFFFF)

    assert recorder.snapshot().render().splitlines() == [
        "      0.0 ms config read 0x0 -> 0x10de",
        "             (1 entries not shown)",
        "   2000.0 ms -- fell off the bus",
        "   3000.0 ms BAR write 0 0x140 <- 0x00000001",
        "   4000.0 ms config read 0x0 -> 0xffff",
    ]


@given(bars=st.lists(st.sampled_from([None, 0, 1, 5, NO_BAR]), max_size=200))
def test_trace_keeps_the_first_and_the_last_access_to_each_bar(bars: list[int | None]) -> None:
    recorder = _recorder(capacity=4)
    for bar in bars:
        kind = AccessKind.CONFIG_READ if bar is None else AccessKind.BAR_READ
        recorder.access(kind, bar, 0, 4, 0)

    trace = recorder.snapshot()

    for place in set(bars):
        kept = [access for access in trace.accesses if access.bar == place]
        when = [index for index, bar in enumerate(bars) if bar == place]
        assert len(kept) <= 4
        assert (kept[0].sequence, kept[-1].sequence) == (when[0], when[-1])
    assert len(trace.accesses) + trace.dropped == len(bars)


def test_mark_in_a_trace_is_found_by_a_part_of_its_text() -> None:
    recorder = _recorder()
    recorder.incident(IncidentKind.MARK, "step one done")
    recorder.access(AccessKind.BAR_READ, 0, 0, 4, 1)
    recorder.incident(IncidentKind.MARK, "step two done")
    trace = recorder.snapshot()

    mark = trace.find_mark("step")

    assert mark is not None
    assert str(mark) == "-- mark: step one done"
    assert trace.find_mark("three") is None
    assert len(trace.around(mark, 1).accesses) == 1
    assert trace.around(mark, 0).accesses == ()
    last = trace.incidents[-1]
    assert trace.around(last, 2).incidents == trace.incidents
    assert trace.around(last, 1).incidents == (last,)


def test_rendered_trace_shows_the_lowest_bytes_of_a_long_access() -> None:
    recorder = _recorder()
    recorder.access(AccessKind.CONFIG_READ, None, 0, 4096, 0x2330_10DE)

    assert recorder.snapshot().render().endswith("-> 0x...00000000233010de (4096 bytes)\n")


_KINDS = st.sampled_from(AccessKind)


@given(
    accesses=st.lists(
        st.tuples(
            _KINDS,
            st.sampled_from([None, 0, 5, NO_BAR]),
            st.integers(0, 2**64 - 1),
            st.integers(1, 8),
            st.integers(0, 2**64 - 1),
        ),
        max_size=20,
    ),
    marks=st.lists(st.text(max_size=10), max_size=3),
)
def test_trace_that_is_rendered_and_parsed_is_unchanged(
    accesses: list[tuple[AccessKind, int | Stray | None, int, int, int]], marks: list[str]
) -> None:
    recorder = _recorder(capacity=4)
    for kind, bar, offset, size, value in accesses:
        recorder.access(kind, bar, offset, size, value)
    for words in marks:
        recorder.incident(IncidentKind.MARK, words)
    recorder.incident(IncidentKind.RESET)
    trace = recorder.snapshot()

    assert parse_trace(render_trace(trace), "a test") == trace


def test_text_that_is_not_a_trace_is_refused() -> None:
    for text in ("", "[]", "{}", '{"accesses": 3}', '{"accesses": [[]]}'):
        with pytest.raises(HarnessError, match="'a test' was expected to be the access trace"):
            parse_trace(text, "a test")


def test_rendered_trace_with_a_value_of_200_bytes_is_parsed_to_the_same_trace() -> None:
    """QEMU combines writes to GPU memory into messages of up to 200 bytes."""
    recorder = _recorder()
    assert recorder.snapshot().render() == ""
    recorder.access(AccessKind.BAR_WRITE, 1, 0x40, 200, int.from_bytes(b"\xa5" * 200, "little"))
    trace = recorder.snapshot()

    assert parse_trace(render_trace(trace), "a test") == trace
