"""`harness ps`, `logs` and `gc`: what they print and end, with simulated machines."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from harness.cli import machines, main
from harness.cli.console_text import AS_BEFORE
from harness.evidence.retention import Bundle
from harness.machine.entrance.roster import RunningMachine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.fakes.clock import FakeClock

PRINTED = b"\x1b[32mok\x1b[0m \x1b]52;c;ZXZpbA==\x07\x1b[6n\x1b]0;owned\x07 caf\xc3\xa9\n"


class _Terminal(io.TextIOWrapper):
    is_terminal = True

    @override
    def isatty(self) -> bool:
        return self.is_terminal


def test_logs_command_removes_control_sequences_other_than_colours_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By other sequences, a guest could set the title or the clipboard, or type into the user's shell."""
    machine = SimpleNamespace(id="one", serial_log=tmp_path / "serial.log")
    roster = SimpleNamespace(find=lambda _: machine, machines=lambda: [machine])
    monkeypatch.setattr(machines, "Roster", lambda _: roster)
    for is_terminal, expected in (
        (True, b"\x1b[32mok\x1b[0m  caf\xc3\xa9\n" + AS_BEFORE.encode()),
        (False, PRINTED),
    ):
        log = tmp_path / "serial.log"
        # The two bytes of a character are read in two parts.
        before = b"x" * ((1 << 16) - PRINTED.index(b"\xc3") - 1)
        log.write_bytes(before + PRINTED)
        raw = io.BytesIO()
        terminal = _Terminal(raw, write_through=True)
        terminal.is_terminal = is_terminal
        monkeypatch.setattr("sys.stdout", terminal)

        assert main(["logs", "one"]) == 0, is_terminal

        assert raw.getvalue() == before + expected, is_terminal


def a_machine(name: str, **fields: Any) -> RunningMachine:
    usual = {"purpose": "a test", "process": 7, "since": 1000.0, "memory_mib": 2048}
    return RunningMachine(
        **{**usual, "id": name, "name": name, "folder": Path("/runs", name), **fields}
    )


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[RunningMachine]:
    """Return the machines of this user; a test may change them."""
    found: list[RunningMachine] = []
    monkeypatch.setattr(
        machines, "Roster", lambda _: SimpleNamespace(machines=lambda: list(found))
    )
    monkeypatch.setattr(machines, "roster_folder", lambda: Path("/roster"))
    monkeypatch.setattr(machines, "resident_mib", lambda _: 512)
    monkeypatch.setattr("time.time", lambda: 8201.0)
    return found


def test_ps_command_lists_machines_and_enter_commands_as_text_or_json(
    running: list[RunningMachine], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == "No machine runs.\n"
    running += [a_machine("one", gpus=("a", "b")), a_machine("two", since=8200.0, until=8320.0)]

    assert main(["ps"]) == 0

    header, one, two, _, enter = capsys.readouterr().out.splitlines()
    assert header.split() == ["MACHINE", "SINCE", "MIB", "GPUS", "KEPT", "FOR"]
    assert one.split("  ")[:1] == ["one"]
    assert "2 h ago" in one
    assert "512 of 2048" in one
    assert "a, b" in one
    assert one.endswith("  -     a test") or "  -  " in one
    assert "1 s ago" in two
    assert "for 119 s" in two
    assert (
        enter
        == "Enter a machine: harness shell --machine two, harness console two, harness ssh two"
    )
    assert main(["ps", "--json"]) == 0
    facts, _ = json.loads(capsys.readouterr().out)
    assert (facts["id"], facts["folder"], facts["resident_mib"]) == ("one", "/runs/one", 512)
    assert facts["enter"] == ["harness", "shell", "--machine", "one"]
    assert "is_granted" not in facts


def test_memory_of_a_machine_excludes_pages_shared_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text("VmRSS: 9000000 kB\nRssAnon: 1024 kB\nRssFile: 4096 kB\nRssShmem: 3072 kB\n")
    monkeypatch.setattr(machines, "Path", lambda place: {"/proc/9/status": status}[place])

    assert machines.resident_mib(a_machine("one", user=9)) == 4
    assert machines.resident_mib(a_machine("one")) == 0
    status.unlink()
    assert machines.resident_mib(a_machine("one", user=9)) == 0


@pytest.mark.parametrize("follow", [False, True])
def test_console_is_printed_until_its_machine_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    log = tmp_path / "serial.log"
    log.write_bytes(b"1")
    machine: Any = SimpleNamespace(id="one", serial_log=log)

    def looks() -> Iterator[list[object]]:
        yield [machine]
        log.write_bytes(b"12")
        yield [machine]
        # The console's last output must be read although the machine has ended.
        log.write_bytes(b"123")
        yield []

    answers = looks()
    roster: Any = SimpleNamespace(machines=lambda: next(answers))
    monkeypatch.setattr("harness.provisioning.wait.SystemClock.sleep", lambda *_: None)

    printed = b"".join(machines._chunks(roster, machine, follow=follow))

    assert printed == (b"123" if follow else b"1")


class Removing:
    """Records what `harness gc` ends and removes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, running: list[RunningMachine]) -> None:
        self.done: list[str] = []
        bundle = SimpleNamespace(
            name="old", made_s=0.0, size_bytes=3 << 20, remove=lambda: self.done.append("bundle")
        )
        monkeypatch.setattr("harness.lease.abandoned", lambda _: [Path("/runs/left")])
        monkeypatch.setattr("harness.lease.sweep", self._sweep)
        monkeypatch.setattr(machines, "_old_bundles", lambda _: [bundle])
        monkeypatch.setattr(machines, "_end", lambda each: self.done.append(each.id))
        running += [a_machine("busy"), a_machine("one", until=9.0), a_machine("two", until=9.0)]

    def _sweep(self, _folder: Path) -> list[Path]:
        self.done.append("folders")
        return [Path("/runs/left")]


@pytest.mark.parametrize(
    ("arguments", "done"),
    [([], ["one", "two", "folders", "bundle"]), (["two"], ["two"]), (["--dry-run"], [])],
)
def test_gc_command_ends_all_kept_machines_or_only_the_given_machine(
    running: list[RunningMachine],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    done: list[str],
) -> None:
    removing = Removing(monkeypatch, running)

    assert main(["gc", *arguments]) == 0

    assert removing.done == done


def test_gc_command_prints_each_removal_and_a_summary(
    running: list[RunningMachine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Removing(monkeypatch, running)

    assert main(["gc", "--evidence-dir=/evidence"]) == 0

    one, two, folder, bundle, last = capsys.readouterr().out.splitlines()
    assert one.startswith("kept machine 'one', until ")
    assert two.endswith("of a test")
    assert folder == "folder of a killed run: '/runs/left'"
    assert bundle.endswith("3 MiB: '/evidence/old'")
    assert last == "Ended 2 machines, and removed 1 folders and 1 bundles."


def test_gc_command_refuses_to_end_the_machine_of_a_running_test(
    running: list[RunningMachine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    removing = Removing(monkeypatch, running)

    assert main(["gc", "busy", "one"]) == 2

    assert (
        "There is no kept machine 'busy'; the kept machines are 'one', 'two'"
        in capsys.readouterr().err
    )
    assert removing.done == []


def test_gc_command_sends_sigterm_to_the_process_that_holds_a_kept_machine(
    running: list[RunningMachine], monkeypatch: pytest.MonkeyPatch, fake_time: FakeClock
) -> None:
    """Other kept machines of the same test continue to run."""
    asked: list[tuple[int, int]] = []
    running += [a_machine("one", process=7, user=9, until=9.0), a_machine("two")]
    monkeypatch.setattr("harness.lease.abandoned", lambda _: [])
    monkeypatch.setattr("harness.lease.sweep", lambda _: [])
    monkeypatch.setattr(machines, "_old_bundles", lambda _: [])

    def ask(process: int, number: int) -> None:
        asked.append((process, number))
        if len(asked) == 2:
            del running[0]
            raise ProcessLookupError

    monkeypatch.setattr("os.kill", ask)

    assert main(["gc"]) == 2
    assert fake_time.elapsed_s == pytest.approx(30, abs=1)
    assert main(["gc"]) == 0

    assert asked == [(7, signal.SIGTERM)] * 2


def test_bundles_beyond_age_or_size_limits_are_selected_for_removal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bundles = [
        Bundle(name=name, parts=(), made_s=86400.0 * days, size_bytes=1 << 20)
        for name, days in (("new", 10), ("old", 2))
    ]
    monkeypatch.setattr("harness.evidence.retention.bundles_in", lambda _: bundles)
    monkeypatch.setattr("time.time", lambda: 86400.0 * 10.5)
    limits: Any = SimpleNamespace(evidence_dir=tmp_path, bundle_limit_mib=100, bundle_limit_days=7)

    assert [each.name for each in machines._old_bundles(limits)] == ["old"]
