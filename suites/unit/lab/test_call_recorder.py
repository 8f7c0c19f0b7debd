"""The log of a call recorder in a machine, and the programs that it replaces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, HarnessError
from harness.evidence.node_state import FILE_LIMIT_KIB
from harness.lab.call_recorder import CALLS, CallRecorder, RecordedCall, parse_calls
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from pathlib import Path

LOG = (
    "B\x1f7\x1fdkms\x1fadd\x1fa b\x1e\nB\x1f8\x1fmodprobe\x1e\nE\x1f8\x1f1\x1e\nE\x1f7\x1f0\x1e\n"
)


def test_recorded_calls_have_their_exit_codes_and_are_in_the_order_of_their_start() -> None:
    assert parse_calls(f"{LOG}B\x1f7\x1fdkms\x1f\n\x1e\n") == [
        RecordedCall(argv=("dkms", "add", "a b"), exit_code=0),
        RecordedCall(argv=("modprobe",), exit_code=1),
        RecordedCall(argv=("dkms", "\n"), exit_code=None),
    ]


def test_exit_code_is_assigned_to_the_latest_call_with_the_same_process_id() -> None:
    """A killed call logs no end, and its process id may be reused; a second end is ignored."""
    log = "B\x1f7\x1fa\x1e\nB\x1f7\x1fb\x1e\nE\x1f7\x1f3\x1e\nE\x1f7\x1f4\x1e\n"

    assert [call.exit_code for call in parse_calls(log)] == [None, 3]


def test_parsing_a_text_that_is_not_a_call_log_returns_no_calls() -> None:
    for text in ("", "E\x1f7\x1f0\x1e\n", "x\n"):
        assert parse_calls(text) == [], text


def test_missing_or_truncated_call_log_is_an_error(tmp_path: Path) -> None:
    recorder = CallRecorder(["dkms"])

    with pytest.raises(HarnessError, match="may still exist in the guest"):
        recorder.calls(EvidenceFolder(tmp_path).evidence)
    assert recorder.calls(EvidenceFolder(tmp_path).file(CALLS, LOG).evidence)[1].exit_code == 1
    cut = EvidenceFolder(tmp_path).file(CALLS, LOG.ljust(FILE_LIMIT_KIB << 10))
    with pytest.raises(HarnessError, match=r"the rest of .* is unknown"):
        recorder.calls(cut.evidence)


def test_each_recorded_command_has_an_executable_in_usr_local_sbin() -> None:
    files = CallRecorder(["dkms", "modprobe"]).files

    assert [(file.path, file.mode) for file in files] == [
        ("/usr/local/sbin/dkms", 0o755),
        ("/usr/local/sbin/modprobe", 0o755),
    ]


def test_call_recorder_without_a_list_of_commands_is_refused() -> None:
    """A string in place of a list would make each letter a command."""
    rows: list[str | list[str]] = ["dkms", []]
    for commands in rows:
        with pytest.raises(BadInputError, match="A list of commands was expected"):
            CallRecorder(commands)


def test_invalid_command_name_is_refused() -> None:
    accepted = []
    for name in ("", "/usr/bin/dkms", "x;y"):
        with contextlib.suppress(BadInputError):
            accepted.append(CallRecorder(["dkms", name]))

    assert accepted == []
