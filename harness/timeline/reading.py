"""Reads a timeline from the evidence of a machine; unreadable parts become gaps."""

from __future__ import annotations

import contextlib
import functools
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from harness.errors import BadInputError, HarnessError
from harness.evidence import Evidence
from harness.evidence.gaps import NOT_COLLECTED
from harness.evidence.history import (
    DKMS_LOGS,
    HISTORY,
    JOURNAL_MIB,
    MANAGER_TIMES,
    PACKED_JOURNAL,
    UNIT_TIMES,
    UPTIME,
    JournalEntry,
    parse_journal,
    parse_manager_times,
    parse_unit_times,
    parse_uptime,
)
from harness.evidence.outcome import parse_timed_events
from harness.evidence.units import UNIT_JOBS, parse_unit_jobs
from harness.foreign_files import read_plain, read_plain_text
from harness.foreign_json import parse_json
from harness.limits import JSON, TIMELINE_ENTRIES, LimitError
from harness.machine.channels.console_recording import RECORDING, read_recording
from harness.timeline import Gap, Lane, Moment, Span, SpanState, Timeline
from harness.timeline.boots import Boot, Boots
from harness.timeline.builds import build_of
from harness.timeline.containers import containers_of
from harness.timeline.units import start_of, starts_in_journal
from harness.timeline.waits import with_blockers, with_critical_path
from harness.visible_text import visible_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_Found = TypeVar("_Found")

_STATES = {
    "failed": SpanState.FAILED,
    "error": SpanState.FAILED,
    "running": SpanState.RUNNING,
}
#: The fields with the start and the end of an event in the format of Azure's guest agent.
_AZURE_BEGIN, _AZURE_END = "/Timestamp", "/OperationId"
#: After this number of seconds without output, new console output begins a new piece of work.
_SILENCE_S = 5.0
_UNREADABLE = (
    *(HarnessError, OSError, EOFError, zlib.error),
    *(ValueError, LookupError, TypeError, ArithmeticError, RecursionError),
)
"""The exceptions for evidence of an unknown format, from a broken machine or from other software."""
#: The value of `wbits` with which zlib reads a stream with gzip's header.
_GZIP = 16 + zlib.MAX_WBITS
#: Gathering truncates the journal to JOURNAL_MIB; reading one more byte shows that the journal is
#: longer.
_JOURNAL_LIMIT = (JOURNAL_MIB << 20) + 1
#: A kernel begins to write its log within this number of seconds after its start.
_BOOT_S = 5.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f]")
#: The paths of DKMS's logs in evidence that has no history.
_NODE_DKMS_LOGS = (
    "/var/lib/dkms/nvidia/*/*/*/log/make.log",
    "/var/lib/dkms/nvidia/*/build/make.log",
)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """One evidence folder, and its parts that could not be read so far (the gaps)."""

    folder: Path
    gaps: list[Gap] = field(default_factory=list)

    @property
    def node(self) -> Evidence:
        return Evidence(self.folder)

    @property
    def history(self) -> Evidence:
        return Evidence(self.folder / HISTORY)

    @contextlib.contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """If the context ends with an error, suppress the error and record the gap `what`."""
        try:
            yield
        except _UNREADABLE as error:
            self.gaps.append(Gap(what=what, reason=_first_sentence(str(error))))

    def bounded(self, found: list[_Found]) -> list[_Found]:
        """Return `found`, a list of timeline entries. Raises LimitError if the list has too many entries."""
        TIMELINE_ENTRIES.check(len(found), f"'{self.folder}'")
        return found


def read_timeline(folder: Path, *, title: str | None = None) -> Timeline:
    """Return the timeline of the machine whose evidence is in `folder`.

    Raises BadInputError if the folder has no evidence of a machine.
    """
    if not any((folder / name).is_dir() for name in ("commands", "host", HISTORY)):
        raise BadInputError(
            "This is not the evidence of a machine; name the folder of a test's machine, such as "
            "evidence/TEST/node.",
            source=str(folder),
        )
    reader = _Reader(folder=folder)
    entries = _journal(reader)
    boots = Boots.of(entries, most=1 + _resets(reader))
    if not entries:
        boots = _without_journal(reader)
    spans: list[Span] = []
    end_s = _end(reader, boots)
    with reader.reading("systemd units"):
        spans += _units(reader, boots, end_s)
    with reader.reading("provisioning steps"):
        spans += _steps(reader, boots, end_s)
    with reader.reading("DKMS builds"):
        spans += _builds(reader, boots, end_s)
    with reader.reading("containers"):
        spans += reader.bounded(
            [span for boot in boots.all for span in containers_of(boot, end_s)]
        )
    if not spans:
        with reader.reading("serial console"):
            spans += _console(folder)
    # Without a journal, only the latest work shows when the evidence was gathered.
    end_s = max([end_s, 0.001, *(span.end_s for span in spans)])
    moments: list[Moment] = []
    with reader.reading("reboots and changes of the clock"):
        moments += reader.bounded(boots.moments())
    with reader.reading("panics and power off"):
        moments += reader.bounded(list(_panics(reader, boots)))
    continued_s = _continued(reader, boots)
    if continued_s is not None:
        # Until the guest's clock is set, the clock shows the time of the checkpoint. So all
        # journal entries can seem to be older than the continuation.
        continued_s = min(continued_s, end_s)
        moments.append(Moment(at_s=continued_s, words="continued from a checkpoint"))
    return Timeline(
        title=_plain(title or folder.name),
        # A machine may have ended after its evidence was gathered.
        end_s=max([end_s, *(moment.at_s for moment in moments)]),
        spans=tuple(_with_plain_words(with_critical_path(spans, since_s=continued_s or 0.0))),
        moments=tuple(moments),
        gaps=tuple(replace(gap, reason=_plain(gap.reason)) for gap in reader.gaps),
    )


def _with_plain_words(spans: Iterable[Span]) -> Iterator[Span]:
    # A unit may be the blocker of all other units, so convert each name only once.
    plain = functools.cache(_plain)
    for span in spans:
        yield replace(
            span,
            name=plain(span.name),
            detail=None if span.detail is None else _plain(span.detail),
            blockers=tuple(map(plain, span.blockers)),
        )


def _plain(text: str) -> str:
    return visible_line(text) or "(no name)"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0][:200]


def _journal(reader: _Reader) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    with reader.reading("journal"):
        packed = reader.folder / HISTORY / PACKED_JOURNAL
        if not packed.is_file():
            raise HarnessError(_why_no_history(reader.folder))
        unpacking = zlib.decompressobj(wbits=_GZIP)
        entries = parse_journal(unpacking.decompress(read_plain(packed), _JOURNAL_LIMIT))
        if not unpacking.eof:
            raise HarnessError(
                f"'{packed}' is truncated, or has more than {JOURNAL_MIB} MiB; the timeline shows only "
                "its beginning."
            )
        if not entries:
            raise HarnessError("The guest's journal was empty.")
    return entries


def _why_no_history(folder: Path) -> str:
    for reason in (folder / HISTORY / NOT_COLLECTED, folder / NOT_COLLECTED):
        if reason.is_file():
            return f"The guest could not be read: {_first_sentence(read_plain_text(reason))}"
    return "The history is gathered only if the test fails, or with '--evidence=always'."


def _resets(reader: _Reader) -> int:
    """Return how often the guest rebooted, according to QEMU's events."""
    return sum(event["name"] == "RESET" and _is_of_guest(event) for event in _host_events(reader))


def _is_of_guest(event: Mapping[str, object]) -> bool:
    data = event.get("data")
    return not isinstance(data, dict) or data.get("guest", True) is True


def _host_events(reader: _Reader) -> list[dict[str, object]]:
    kept = reader.folder / "host/qmp-events.json"
    try:
        return [
            dict(event) for event in parse_json(read_plain(kept, limit=JSON)) if "name" in event
        ]
    except (OSError, ValueError, TypeError, LimitError):
        return []


def _continued(reader: _Reader, boots: Boots) -> float | None:
    """Return the time at which this machine continued from a checkpoint, or None if the machine booted.

    QEMU reports when the virtual processors begin to run; if the machine boots, the virtual
    processors begin to run before the kernel starts.
    """
    for event in _host_events(reader):
        if event["name"] == "RESUME" and "at_s" in event:
            with contextlib.suppress(ValueError):
                at_s = boots.at_wall(float(str(event["at_s"])))
                # The guest's clock may be a little ahead of the host's clock.
                return at_s if at_s is not None and at_s > _BOOT_S else None
    return None


def _panics(reader: _Reader, boots: Boots) -> Iterator[Moment]:
    for event in _host_events(reader):
        if event["name"] in {"GUEST_PANICKED", "SHUTDOWN"} and "at_s" in event:
            at_s = boots.at_wall(float(str(event["at_s"])))
            if at_s is not None:
                words = "panic" if event["name"] == "GUEST_PANICKED" else "power off"
                yield Moment(at_s=at_s, words=words)


def _without_journal(reader: _Reader) -> Boots:
    """Return one boot with the start time from files of the kernel, for evidence without a journal."""
    try:
        booted_s = reader.node.booted_at_s
    except HarnessError:
        return Boots(all=())
    anchor = JournalEntry(boot="", monotonic_s=0.0, wall_s=booted_s, fields={})
    return Boots(all=(Boot(entries=[anchor], offset_s=0.0),))


def _end(reader: _Reader, boots: Boots) -> float:
    """Return the time at which the evidence was gathered."""
    if not boots.all:
        return 0.0
    last = boots.all[-1]
    known = last.entries[-1].monotonic_s
    with contextlib.suppress(HarnessError, OSError):
        text = reader.history.file(UPTIME)
        known = known if text is None else max(known, parse_uptime(text))
    return last.at(known)


def _units(reader: _Reader, boots: Boots, end_s: float) -> list[Span]:
    """Return the starts of units.

    Starts in the last boot are from systemd's timestamps. Starts in earlier boots are from the journal.
    """
    spans = [
        span
        for boot in boots.all[:-1]
        for span in starts_in_journal(boot, boot.at(boot.entries[-1].monotonic_s))
    ]
    if not (reader.folder / HISTORY / "commands" / UNIT_TIMES).is_file():
        if boots.all:
            spans += starts_in_journal(boots.all[-1], end_s)
        spans = reader.bounded(spans)
        reader.gaps.append(Gap(what="who waits for whom", reason=_why_no_history(reader.folder)))
        return spans
    history = reader.history
    units = reader.bounded([*parse_unit_times(history.answer_of(UNIT_TIMES))])
    began_s = parse_manager_times(history.answer_of(MANAGER_TIMES))
    jobs = parse_unit_jobs(history.answer_of(UNIT_JOBS))
    offset_s = boots.all[-1].offset_s if boots.all else 0.0
    end_s = max([end_s, *(offset_s + unit.ready_s for unit in units if unit.ready_s is not None)])
    spans += [
        span
        for unit in units
        if (span := start_of(unit, offset_s, end_s, has_job=unit.name in jobs)) is not None
    ]
    return with_blockers(
        reader.bounded(spans), units, began_s=offset_s + began_s, offset_s=offset_s
    )


def _steps(reader: _Reader, boots: Boots, end_s: float) -> list[Span]:
    """Return the provisioning steps from the provisioner's outcome.

    If there is no outcome yet, return the steps from the provisioner's events.
    """
    evidence = reader.node
    try:
        steps, starts = evidence.steps or (), evidence.step_starts
    except BadInputError:
        steps, starts = (), {}
    TIMELINE_ENTRIES.check(len(steps), f"'{reader.folder}'")
    spans = []
    for step in steps:
        at_s = boots.at_wall(starts[step.name]) if step.name in starts else None
        if at_s is not None and step.duration_s is not None and step.status != "skipped":
            spans.append(
                Span(
                    lane=Lane.STEPS,
                    name=step.name,
                    start_s=at_s,
                    end_s=at_s + max(0.0, step.duration_s),
                    state=_STATES.get(step.status or "", SpanState.DONE),
                    detail=step.detail,
                )
            )
    if steps and not starts and not spans:
        reader.gaps.append(
            Gap(
                what="provisioning steps",
                reason="The provisioner does not report when its steps began ('started').",
            )
        )
    if not spans:
        spans = list(_events(evidence, boots))
    runs = evidence.runs
    if runs and evidence.exit_code is None:
        start_s = max((span.end_s for span in spans), default=None)
        start_s = _provisioner_start(boots) if start_s is None else start_s
        if start_s is not None and start_s <= end_s:
            spans.append(
                Span(
                    lane=Lane.STEPS,
                    name="provisioner, step not ended",
                    start_s=start_s,
                    end_s=end_s,
                    state=SpanState.RUNNING,
                )
            )
    return spans


def _events(evidence: Evidence, boots: Boots) -> Iterator[Span]:
    """Yield the events that have a start and an end, in declared fields or in Azure's guest agent's fields."""
    declared = evidence.provisioner.outcome.events
    if declared is None:
        return
    is_timed = declared.started is not None and declared.ended is not None
    timed = declared if is_timed else replace(declared, started=_AZURE_BEGIN, ended=_AZURE_END)
    texts = evidence.matching(declared.path)
    TIMELINE_ENTRIES.check(len(texts), f"'{evidence.folder}'")
    for path, text in texts.items():
        # Events without declared times may have any form.
        with contextlib.nullcontext() if is_timed else contextlib.suppress(HarnessError):
            for name, began, ended in parse_timed_events(text, timed, path):
                at_s = boots.at_wall(began)
                if at_s is not None:
                    yield Span(
                        lane=Lane.STEPS,
                        name=name,
                        start_s=at_s,
                        end_s=at_s + max(0.0, ended - began),
                    )


def _provisioner_start(boots: Boots) -> float | None:
    for boot in boots.all:
        for entry in boot.entries:
            if (
                "-- run " in entry.fields.get("MESSAGE", "")
                and "provisioner" in entry.fields["MESSAGE"]
            ):
                return boot.at(entry.monotonic_s)
    return None


def _builds(reader: _Reader, boots: Boots, end_s: float) -> list[Span]:
    """Return DKMS's builds; a build lasts from the time in its log's second line to the log's last write."""
    try:
        ends = {
            path: found.modified_at_s
            for path, found in reader.history.paths.matching(*DKMS_LOGS).items()
        }
        logs = _texts(reader.history, DKMS_LOGS)
    except HarnessError:
        ends, logs = {}, _texts(reader.node, _NODE_DKMS_LOGS)
    spans = []
    for path, text in reader.bounded([*logs.items()]):
        span = build_of(path, text, ends.get(path), boots, end_s)
        if span is not None:
            spans.append(span)
            if path not in ends:
                reader.gaps.append(Gap(what=f"end of DKMS {span.name}", reason="Not gathered."))
    return spans


def _texts(evidence: Evidence, patterns: Sequence[str]) -> dict[str, str]:
    return {path: text for each in patterns for path, text in evidence.matching(each).items()}


def _console(folder: Path) -> Sequence[Span]:
    """Return the periods in which the serial console printed, for a machine that could not be read."""
    spans: list[Span] = []
    began = last = None
    line = ""
    for at_s, text in read_recording(folder / "host" / RECORDING):
        if last is not None and began is not None and at_s - last > _SILENCE_S:
            spans.append(_said(began, last, line))
            TIMELINE_ENTRIES.check(len(spans), f"'{folder}'")
            began = None
        began = at_s if began is None else began
        last = at_s
        printed = [each for each in map(str.strip, _CONTROL.sub("", text).splitlines()) if each]
        line = printed[-1] if printed else line
    if began is not None and last is not None:
        spans.append(_said(began, last, line))
    return spans


def _said(began: float, last: float, line: str) -> Span:
    return Span(
        lane=Lane.CONSOLE, name=line or "output", start_s=began, end_s=last, detail="output until"
    )
