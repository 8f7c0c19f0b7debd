"""What the summary says about a failure whose cause is known, and about missing requirements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from harness.errors import MESSAGE_BYTES, EvidencedError, ExpectationError, HarnessError
from harness.plugin.failure_summary import note_reason, write_causes, write_missing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def why(error: EvidencedError) -> Sequence[str]:
    report: Any = SimpleNamespace(
        skipped=False, failed=True, user_properties=[], sections=[], longrepr=None
    )
    note_reason(report, error, [])
    return [value for name, value in report.user_properties if name == "cause"]


def test_failure_summary_shows_the_first_line_and_the_first_items_of_a_list() -> None:
    error = ExpectationError(
        "5 items differ:\npath (5):\n" + "\n".join(f"  + /{n}" for n in "abcde")
    )

    assert why(error) == ["5 items differ:", "  + /a", "  + /b", "  + /c"]
    assert why(ExpectationError("One line.\nAnother.\n")) == ["One line."]
    assert why(ExpectationError("2 differ:\n  + /a\n  + /a")) == ["2 differ:", "  + /a"]


def test_failure_summary_shows_the_command_but_not_its_stdout() -> None:
    error = HarnessError("It failed.\ncommand: x\nexit code: 1\nstdout: a\n  b\nstderr: c")

    silent = HarnessError("It failed.\ncommand: x\nexit code: 1\nstdout: a\nstderr: -.")

    assert why(error) == ["It failed.", "command: x", "stderr: c"]
    assert why(silent) == ["It failed.", "command: x"]


def test_failure_summary_limits_the_length_and_the_number_of_its_lines() -> None:
    error = HarnessError("x" * 50_000 + "".join(f"\nstderr: {n}" for n in range(100)))

    lines = why(error)

    assert len(lines) == 11
    assert max(map(len, lines)) <= MESSAGE_BYTES


def test_cause_in_the_error_is_shown_before_causes_in_the_evidence(tmp_path: Path) -> None:
    for node in ("a", "b"):
        (tmp_path / node / "host").mkdir(parents=True)
        (tmp_path / node / "commands").mkdir()
        (tmp_path / node / "commands/failed-units").write_text(f"{node}.service loaded failed\n")
        (tmp_path / node / "host/serial.log").write_text("Kernel panic - not syncing: VFS\n")
    crash = SimpleNamespace(message="It failed.")
    report: Any = SimpleNamespace(
        skipped=False,
        failed=True,
        user_properties=[],
        sections=[],
        longrepr=SimpleNamespace(reprcrash=crash),
    )

    note_reason(
        report,
        HarnessError("It failed.\ncp: No space left on device"),
        [tmp_path / node for node in "ab"],
    )

    named = "no space on the guest's disk: cp: No space left on device"
    assert crash.message == f"{named}\nIt failed."
    shown = [value for name, value in report.user_properties if name == "cause"]
    assert [shown[0], shown[2]] == [named, "kernel panic: Kernel panic - not syncing: VFS"]
    for node in "ab":
        assert any(each.startswith(f"unit '{node}.service' failed") for each in shown)


def test_each_missing_requirement_is_listed_once_unless_pytest_lists_skips() -> None:
    for chars in ("", "fE", "s", "a", "A"):
        skipped = [
            SimpleNamespace(user_properties=[("missing_requirement", reason), ("evidence", "/e")])
            for reason in ("no QEMU", "no keys", "no QEMU")
        ]
        lines: list[str] = []
        reporter: Any = SimpleNamespace(
            config=SimpleNamespace(option=SimpleNamespace(reportchars=chars)),
            stats={"skipped": [*skipped, SimpleNamespace()]},
            write_line=lines.append,
        )

        write_missing(reporter)

        is_listed = chars in {"", "fE"}
        assert lines == (["skipped 2: no QEMU", "skipped 1: no keys"] if is_listed else []), chars


def test_path_with_hyphens_is_not_wrapped_in_the_failure_summary() -> None:
    path = "/var/log/vendor/gpu-node-setup.log"
    cause = f"provisioner 'vendor' ended with 40 (nodes); its log '{path}' ends with:"
    report: Any = SimpleNamespace(nodeid="a.py::test_x", user_properties=[("cause", cause)])
    lines: list[str] = []
    reporter: Any = SimpleNamespace(write_line=lines.append)

    write_causes(reporter, [report])

    assert len(lines) == 3
    assert any(path in line for line in lines)
