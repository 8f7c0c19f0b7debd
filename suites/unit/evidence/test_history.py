"""The history of a node: systemd's timestamps, and the journal's export format."""

from __future__ import annotations

import struct

import pytest

from harness.errors import HarnessError
from harness.evidence.history import (
    JOURNAL,
    JOURNAL_ENTRIES,
    JOURNAL_MIB,
    history_request,
    parse_journal,
    parse_manager_times,
    parse_packages,
    parse_unit_times,
    parse_uptime,
)
from harness.evidence.request import guest_request

#: Output of `systemctl show` of systemd 252: a oneshot unit, a failed unit, a starting unit,
#: and a target, which is active at once.
ONESHOT = """\
Result=success
Id=e2scrub_reap.service
After=system.slice -.mount systemd-journald.socket
ActiveState=inactive
InactiveExitTimestampMonotonic=31415926
ActiveEnterTimestampMonotonic=0
ActiveExitTimestampMonotonic=0
InactiveEnterTimestampMonotonic=32415926
"""
FAILED = """\
Result=exit-code
Id=containerd.service
After=network.target
ActiveState=failed
InactiveExitTimestampMonotonic=50000000
ActiveEnterTimestampMonotonic=20000000
ActiveExitTimestampMonotonic=49000000
InactiveEnterTimestampMonotonic=51500000
"""
STARTING = """\
Result=success
Id=cloud-final.service
After=cloud-config.service
ActiveState=activating
InactiveExitTimestampMonotonic=107100000
ActiveEnterTimestampMonotonic=0
ActiveExitTimestampMonotonic=0
InactiveEnterTimestampMonotonic=0
"""
TARGET = """\
Result=success
Id=basic.target
After=sysinit.target
ActiveState=active
InactiveExitTimestampMonotonic=30000000
ActiveEnterTimestampMonotonic=30000000
ActiveExitTimestampMonotonic=0
InactiveEnterTimestampMonotonic=0
"""
ENTRY = b"__REALTIME_TIMESTAMP=1795413142500000\n__MONOTONIC_TIMESTAMP=142500000\n_BOOT_ID=ab\n"


def test_unit_start_and_ready_times_are_read_from_systemctl_show() -> None:
    units = parse_unit_times(f"{ONESHOT}\n{FAILED}\n{STARTING}\n{TARGET}")

    assert [(unit.started_s, unit.ready_s) for unit in units] == [
        (31.415926, 32.415926),
        (50.0, 51.5),
        (107.1, None),
        (30.0, 30.0),
    ]
    assert units[1].result == "exit-code"
    assert units[2].after == {"cloud-config.service"}


def test_malformed_unit_is_refused() -> None:
    with pytest.raises(HarnessError, match="unknown format"):
        parse_unit_times("Id=a.service\nActiveState=active\n")


def test_start_of_userspace_and_uptime_are_read() -> None:
    assert parse_manager_times("UserspaceTimestampMonotonic=12685000\n") == 12.685
    assert parse_uptime("281.46 512.00\n") == 281.46
    with pytest.raises(HarnessError, match="unknown format"):
        parse_uptime("")


def test_output_of_systemctl_without_a_start_time_is_refused() -> None:
    for text in ("", "UserspaceTimestampMonotonic=\n", "Failed to connect\n"):
        with pytest.raises(HarnessError, match="printed no start time of systemd"):
            parse_manager_times(text)


def test_journal_entry_contains_fields_with_line_breaks_but_no_unused_fields() -> None:
    long = b"first\n\nMESSAGE_ID=no field\n"
    content = ENTRY + b"MESSAGE\n" + struct.pack("<Q", len(long)) + long + b"\nUNIT=a.service\n"

    (entry,) = parse_journal(content + b"MESSAGE_ID=b\nSYSLOG_IDENTIFIER=c\n_PID=7\n\n\n")

    assert (entry.boot, entry.monotonic_s, entry.wall_s) == ("ab", 142.5, 1795413142.5)
    read = {"MESSAGE": long.decode(), "UNIT": "a.service", "MESSAGE_ID": "b"}
    assert {**read, "SYSLOG_IDENTIFIER": "c"}.items() <= entry.fields.items()
    assert "_PID" not in entry.fields


def test_truncated_journal_entries_are_skipped() -> None:
    """The size limit keeps only the last bytes of the journal."""
    whole = ENTRY + b"MESSAGE=whole\n\n"
    cut = b"IMESTAMP=17\nMESSAGE=cut\n\n"

    entries = parse_journal(cut + whole + ENTRY + b"MESSAGE\n" + struct.pack("<Q", 900) + b"x")

    assert [entry.fields.get("MESSAGE") for entry in entries] == ["whole", None]


def test_journal_command_limits_the_number_of_entries_and_bytes() -> None:
    words = " ".join(history_request().commands[JOURNAL])

    assert f"-n {JOURNAL_ENTRIES}" in words
    assert f"tail -c {JOURNAL_MIB}M" in words


def test_history_commands_and_evidence_commands_have_different_names() -> None:
    """A test may add the commands of the history to its evidence."""
    assert not set(history_request().commands) & set(guest_request(()).commands)


def test_versions_of_packages_are_read() -> None:
    text = "adduser\t3.134\nlinux-image-6.1.0-56-cloud-amd64\t6.1.140-1\nremoved\t\n"

    assert parse_packages(text) == {
        "adduser": "3.134",
        "linux-image-6.1.0-56-cloud-amd64": "6.1.140-1",
    }
