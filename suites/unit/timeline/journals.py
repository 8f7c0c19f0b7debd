"""Makes journal entries for tests."""

from __future__ import annotations

from harness.evidence.history import JournalEntry
from harness.timeline.boots import Boot


def an_entry(
    monotonic_s: float, *, wall_s: float | None = None, boot: str = "1", **fields: str
) -> JournalEntry:
    return JournalEntry(
        boot=boot,
        monotonic_s=monotonic_s,
        wall_s=1000.0 + monotonic_s if wall_s is None else wall_s,
        fields=fields,
    )


def a_boot(*entries: JournalEntry, offset_s: float = 100.0) -> Boot:
    return Boot(entries=entries, offset_s=offset_s)
