"""Evidence from another host is read within limits, or refused with a sentence."""

from __future__ import annotations

import functools
import gzip
import json
import os
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import EvidencedError, HarnessError
from harness.evidence import Evidence, history
from harness.evidence.causes import find_cause, first_error_line
from harness.evidence.history import (
    parse_journal,
    parse_manager_times,
    parse_unit_times,
)
from harness.evidence.node_state import (
    parse_boot_time,
    parse_cdi_device_nodes,
    parse_cdi_devices,
    parse_modules,
    parse_stat,
)
from harness.evidence.reported_steps import inner_steps
from harness.gpu.trace_file import parse_trace
from harness.limits import LimitError
from harness.timeline.reading import read_timeline

if TYPE_CHECKING:
    from collections.abc import Callable

OUTCOME = "files/var/lib/gpu-node/outcome.json"
REQUESTED = '{"schema": 1, "commands": {}, "files": ["/**"], "paths": []}'
LENGTH = 200 << 30


def evidence_of(folder: Path, files: dict[str, str | bytes]) -> Evidence:
    for name, content in {"requested.json": REQUESTED, "unreadable.txt": "", **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Evidence(folder)


PROPERTIES = [name for name, value in vars(Evidence).items() if isinstance(value, property)]


def said_by(read: Callable[[], object]) -> str:
    """Return a value or a harness error as text; any other error would show users a traceback."""
    try:
        value = read()
        return repr(dict(value) if isinstance(value, Mapping) else value)
    except EvidencedError as error:
        assert len(str(error)) < 9000  # noqa: PT017 - either is right
        return str(error)


def read_everything(evidence: Evidence) -> str:
    """Read each property, text and picture of the evidence."""
    reads: list[Callable[[], object]] = [
        *(functools.partial(getattr, evidence, name) for name in PROPERTIES),
        lambda: evidence.output_of("journal"),
        lambda: evidence.is_command_absent("journal"),
        lambda: evidence.file("/var/lib/gpu-node/outcome.json"),
        lambda: evidence.files("/var/lib/gpu-node"),
        lambda: evidence.matching("/var/lib/gpu-node/*"),
        lambda: evidence.module_version_of(evidence.running_kernel),
        lambda: inner_steps(evidence),
        lambda: find_cause(evidence.folder),
        lambda: first_error_line(evidence.folder),
        lambda: read_timeline(evidence.folder),
    ]
    return "".join(map(said_by, reads))


def test_huge_sparse_file_in_the_evidence_is_never_read_completely(tmp_path: Path) -> None:
    """The files of the last row are read separately; each other file prevents later reads."""
    for number, names in enumerate(
        (
            ["requested.json"],
            ["unreadable.txt"],
            ["not-collected.txt"],
            ["provisioner.json"],
            ["history/not-collected.txt"],
            [
                *(
                    OUTCOME,
                    "stat.txt",
                    "commands/journal",
                    "files/proc/modules",
                    "host/serial.cast",
                ),
                *("host/qmp-events.json", "host/gpu0-trace.json", "history/journal.export.gz"),
                *("history/commands/unit-times", "files/var/lib/gpu-node/runs/1/outcome-before"),
            ],
        )
    ):
        folder = tmp_path / str(number)
        evidence = evidence_of(folder, {"commands/x": "", **dict.fromkeys(names, "")})
        for name in names:
            os.truncate(folder / name, LENGTH)

        assert read_everything(evidence), names


def test_error_for_a_file_that_is_too_long_mentions_the_limit(tmp_path: Path) -> None:
    evidence = evidence_of(tmp_path, {OUTCOME: ""})
    os.truncate(tmp_path / OUTCOME, LENGTH)

    with pytest.raises(LimitError, match=r"outcome\.json'.*'evidence-file-mib'"):
        _ = evidence.outcome


def test_link_in_evidence_does_not_read_a_file_of_this_host(tmp_path: Path) -> None:
    for number, kind in enumerate(("link", "folder-link", "fifo")):
        folder = tmp_path / str(number)
        secret = folder / "secret"
        (secret / "gpu-node").mkdir(parents=True)
        (secret / "gpu-node/outcome.json").write_text('{"secret": 1}')
        evidence = evidence_of(folder / "e", {"files/etc/x": ""})
        place = folder / "e" / OUTCOME
        if kind == "folder-link":
            place.parent.parent.parent.mkdir(parents=True)
            place.parent.parent.symlink_to(secret)
        else:
            place.parent.mkdir(parents=True)
            if kind == "link":
                place.symlink_to(secret / "gpu-node/outcome.json")
            else:
                os.mkfifo(place)

        said = read_everything(evidence)
        assert '"secret"' not in said, kind
        assert "{'secret'" not in said, kind


def test_malformed_or_hostile_outcome_raises_a_harness_error(tmp_path: Path) -> None:
    for text in (
        *("", "{", "[]", "null", "{}", '{"steps": 1}'),
        "[" * 100_000,
        '{"exit_code": ' + "9" * 5000 + "}",
        '{"exit_code": "' + "9" * 5000 + '"}',
        '{"exit_code": 1e999}',
        '{"exit_code": "0_0"}',
        '{"exit_code": "\u0660"}',
        '{"schema": 1, "exit_code": 0, "steps": [{"name": "x", "duration_s": 1e300, "status": "x"}]}',
        '{"schema": 1, "exit_code": 0, "steps": [{"name": "x", "duration_s": "'
        + "9" * 5000
        + '"}]}',
        '{"schema": 1, "exit_code": 0, "steps": [[[]]]}',
        "\0",
    ):
        evidence = evidence_of(tmp_path, {OUTCOME: text})

        with pytest.raises(HarnessError, match="has another format than the provisioner declares"):
            _ = evidence.outcome


def test_kernel_release_that_is_no_valid_file_name_raises_a_harness_error(tmp_path: Path) -> None:
    for kernel in ("6" * 237, "6" * 5000, "../../x", "6\0"):
        files: dict[str, str | bytes] = {
            "commands/uname-r": f"{kernel}\n",
            "commands/uname-r.exit-code": "0\n",
            f"commands/modinfo-{'6' * 237}": "modinfo: ERROR: Module nvidia not found.",
            f"commands/modinfo-{'6' * 237}.exit-code": "1\n",
        }
        evidence = evidence_of(tmp_path, files)

        with pytest.raises(HarnessError):
            evidence.module_version_of(evidence.running_kernel)


def test_malformed_exit_code_of_a_command_raises_a_harness_error(tmp_path: Path) -> None:
    for text in ("0_0", "\N{ARABIC-INDIC DIGIT ZERO}", "+0", "0x0", "9" * 5000):
        files: dict[str, str | bytes] = {"commands/x": "", "commands/x.exit-code": f"{text}\n"}
        evidence = evidence_of(tmp_path, files)

        with pytest.raises(HarnessError, match="exit code of 'x' was expected to be a number"):
            evidence.answer_of("x")


def test_impossible_number_or_structure_raises_a_harness_error() -> None:
    rows: list[tuple[Callable[[str], object], str]] = [
        (parse_stat, f"f 0644 {'9' * 5000} 1.0 /a\n"),
        (parse_stat, f"f {'7' * 5000} 1 1.0 /a\n"),
        (parse_stat, "f 0644 1 1.2.3 /a\n"),
        (parse_stat, f"f 0644 1 {'9' * 400} /a\n"),
        (parse_modules, f"nvidia 1 {'9' * 5000} -\n"),
        (parse_boot_time, f"btime {'9' * 5000}\n"),
        (parse_manager_times, "UserspaceTimestampMonotonic=" + "9" * 5000),
        (parse_unit_times, "InactiveExitTimestampMonotonic=" + "9" * 5000),
        (lambda text: parse_trace(text, "trace"), "[" * 100_000),
        (lambda text: parse_trace(text, "trace"), '{"accesses": 1e999}'),
        (lambda text: parse_trace(text, "trace"), "[]"),
    ]
    for parse, text in rows:
        with pytest.raises(HarnessError):
            parse(text)


def test_hostile_cdi_file_is_not_read_as_a_spec() -> None:
    for text in ("[" * 100_000, "kind: " + "9" * 5000, "a: &a [*a]", "\0", "- x"):
        assert parse_cdi_devices(text) is None, text[:9]
        assert parse_cdi_device_nodes(text) == set()


def test_damaged_record_of_the_requests_raises_a_harness_error(tmp_path: Path) -> None:
    rows: list[str | bytes] = ["[" * 100_000, '{"schema": 1, "files": 5}', b"\xff\xfe"]
    for text in rows:
        evidence = evidence_of(tmp_path, {"requested.json": text})

        with pytest.raises(HarnessError, match=r"requested\.json' has an unknown format"):
            evidence.file("/etc/x")


def test_damaged_journal_and_qmp_files_do_not_hide_other_evidence(tmp_path: Path) -> None:
    rows: list[dict[str, str | bytes]] = [
        {
            "history/journal.export.gz": gzip.compress(b"A" * 1000, mtime=0)[:20],
            "host/qmp-events.json": "[" * 100_000,
            "host/serial.cast": "[" * 100_000,
        },
        {
            "history/journal.export.gz": b"\x1f\x8b" + b"\xff" * 50,
            "host/qmp-events.json": '[{"name": "SHUTDOWN", "at_s": "' + "9" * 5000 + '"}]',
        },
    ]
    for number, files in enumerate(rows):
        folder = tmp_path / str(number)
        evidence = evidence_of(folder, {OUTCOME: "{}", "commands/x": "", **files})

        assert read_everything(evidence), files


def test_journal_of_millions_of_fields_takes_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the fix, 16 MiB of such a journal took 1 GiB."""
    stamps = b"_BOOT_ID=a\n__MONOTONIC_TIMESTAMP=1\n__REALTIME_TIMESTAMP=2\n"
    fields = b"".join(b"F%d=\n" % each for each in range(2_500))
    entries = (stamps + b"\n") * 60
    monkeypatch.setattr(history, "JOURNAL_ENTRIES", 20)

    tracemalloc.start()
    try:
        found = parse_journal(stamps + fields + b"\n" + entries)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(found) == 20
    assert len(found[0].fields) == 3
    assert peak < 1 << 18


def test_timeline_reports_a_gap_for_each_source_with_too_many_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step waits for other steps, so drawing takes quadratic time."""
    monkeypatch.setenv("HARNESS_LIMIT_TIMELINE_ENTRIES", "10")
    step = {"name": "s", "status": "ok", "duration_s": 1.0}
    outcome = {
        "exit_code": 0,
        "exit_name": "OK",
        "decision": {"action": "a", "reason": "r"},
        "steps": [{**step, "name": f"s{number}"} for number in range(11)],
    }
    stamps = ["InactiveExit", "ActiveEnter", "ActiveExit", "InactiveEnter"]
    unit = "ActiveState=active\nAfter=\n" + "".join(
        f"{each}TimestampMonotonic=1\n" for each in stamps
    )
    evidence_of(
        tmp_path,
        {
            OUTCOME: json.dumps(outcome),
            "commands/x": "",
            "history/requested.json": REQUESTED,
            "history/commands/unit-times": "\n".join(f"Id=u{each}\n{unit}" for each in range(11)),
            "history/commands/unit-times.exit-code": "0\n",
        },
    )

    gaps = {gap.what: gap.reason for gap in read_timeline(tmp_path).gaps}

    assert (
        "more than 10 entries, which is the limit 'timeline-entries'" in gaps["provisioning steps"]
    )
    assert "'timeline-entries'" in gaps["systemd units"]


def test_timeline_reports_a_gap_for_too_many_unit_starts_or_clock_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_TIMELINE_ENTRIES", "10")
    entries = "".join(
        f"_BOOT_ID=a\n__MONOTONIC_TIMESTAMP={number}\n__REALTIME_TIMESTAMP={number % 2}{number:012}\n"
        f"UNIT=u{number}.service\nMESSAGE_ID=7d4958e842da4a758f6c1cdc7b36dcc5\n\n"
        for number in range(12)
    )
    journal = gzip.compress(entries.encode())
    evidence_of(tmp_path, {"commands/x": "", "history/journal.export.gz": journal})

    timeline = read_timeline(tmp_path)

    gaps = {gap.what: gap.reason for gap in timeline.gaps}
    assert "'timeline-entries'" in gaps["systemd units"]
    assert "'timeline-entries'" in gaps["reboots and changes of the clock"]
    assert (timeline.spans, timeline.moments) == ((), ())


NAMES = st.sampled_from(
    [
        *(OUTCOME, "requested.json", "unreadable.txt", "provisioner.json", "stat.txt"),
        *("commands/journal", "commands/units", "files/proc/modules", "host/serial.cast"),
        *("host/qmp-events.json", "host/gpu0-trace.json", "history/commands/unit-times"),
        *("history/commands/unit-times.exit-code", "history/journal.export.gz"),
        *("files/proc/stat", "files/proc/cmdline", "history/files/proc/uptime"),
    ]
)
CONTENTS = st.one_of(
    st.binary(max_size=80),
    st.text(max_size=40).map(lambda text: text.encode(errors="surrogatepass")),
    st.sampled_from(
        [
            *(b'{"version": 2}\n[1, "o", "x"]\n', b'{"schema": 1}', b"9" * 5000, b"[" * 5000),
            *(b'[{"name": "RESET"}]', b"f 644 1 1.0 /a\n", b"btime 1\n", b"0\n", b"1e999"),
            gzip.compress(b"_BOOT_ID=a\n__MONOTONIC_TIMESTAMP=1\n__REALTIME_TIMESTAMP=2\n\n"),
            gzip.compress(b"MESSAGE\n" + b"\xff" * 8),
            b"Id=a\nActiveState=active\nAfter=\nInactiveExitTimestampMonotonic=9999999999999999\n",
        ]
    ),
)


@given(files=st.dictionaries(NAMES, CONTENTS, max_size=4))
def test_reading_arbitrary_evidence_raises_no_other_error_than_a_harness_error(
    files: dict[str, bytes],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        evidence = evidence_of(Path(place), {"commands/x": "", **files})

        assert read_everything(evidence)
