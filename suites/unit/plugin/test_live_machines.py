"""Which machines are saved and kept, and which commands to enter machines are printed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from harness.errors import BadInputError, HarnessError
from harness.machine.entrance.roster import Roster
from harness.plugin import _machine_shell, live_machines
from harness.plugin.evidence_sources import MachineEvidenceSource
from harness.plugin.live_machines import NOT_SAVED, is_to_be_saved, save_machine
from harness.plugin.report import Reporter
from harness.provisioning.wait import WaitTimeoutError
from harness.settings import FailureCheckpoint, MachineKeep, Settings

if TYPE_CHECKING:
    from harness.lab.machine import LabMachine
    from harness.lab.machine_bundle import MachineBundle


class FakeMachine:
    """A fake machine that can be saved."""

    name = "node"
    has_vm = True

    def __init__(self, refusal: Exception | None = None) -> None:
        self.folder = Path("/runs/node-3fa2b1")
        self._refusal = refusal

    def save_bundle(self, folder: Path, *, purpose: str) -> object:
        if self._refusal is not None:
            raise self._refusal
        return SimpleNamespace(folder=folder, size_mib=78.4, name="node", purpose=purpose)


def save(
    machine: FakeMachine, folder: Path, *, keep: MachineKeep, has_failed: bool = True
) -> object:
    settings = Settings(machine_keep=keep, evidence_folder=folder)
    evidence = folder / "test/node"
    return save_machine(
        cast("LabMachine", machine), evidence, settings, test="t.py::t", has_failed=has_failed
    )


def test_machine_is_saved_according_to_the_checkpoint_and_keep_settings() -> None:
    for checkpoint, keep, has_failed, expected in (
        (FailureCheckpoint.ON_FAILURE, MachineKeep.NONE, True, True),
        (FailureCheckpoint.ON_FAILURE, MachineKeep.NONE, False, False),
        (FailureCheckpoint.NEVER, MachineKeep.NONE, True, False),
        (FailureCheckpoint.NEVER, MachineKeep.FAILED, True, True),
        (FailureCheckpoint.NEVER, MachineKeep.ALL, False, True),
    ):
        settings = Settings(failure_checkpoint=checkpoint, machine_keep=keep)

        assert is_to_be_saved(settings, has_failed=has_failed) is expected


def test_older_saved_machines_above_the_size_limit_are_removed(tmp_path: Path) -> None:
    folders = [tmp_path / name / "node/checkpoint" for name in ("older", "test")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "machine.json").write_text("{}")
    settings = Settings(
        evidence_folder=tmp_path, failure_checkpoint_limit_mib=0, checkpoint_limit_mib=1000
    )

    machine, evidence = cast("LabMachine", FakeMachine()), folders[1].parent
    save_machine(machine, evidence, settings, test="t.py::t", has_failed=True)

    assert [folder.exists() for folder in folders] == [False, True]


def test_reason_why_a_machine_cannot_be_saved_is_written_to_a_file(tmp_path: Path) -> None:
    rows: list[type[Exception]] = [HarnessError, WaitTimeoutError, OSError]
    for kind in rows:
        saved = save(FakeMachine(kind("It hangs.")), tmp_path, keep=MachineKeep.ALL)

        assert saved == live_machines.SavedMachine(
            sentence="the machine could not be saved: It hangs."
        ), kind
        assert (tmp_path / "test/node/checkpoint" / NOT_SAVED).read_text() == "It hangs.\n", kind


def test_kept_machine_is_reported_with_the_command_to_enter_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(_bundle: MachineBundle, _evidence: Path, _settings: Settings) -> str:
        return "node-9"

    monkeypatch.setattr(live_machines, "hold", held)
    for keep, has_failed, is_kept in (
        (MachineKeep.FAILED, True, True),
        (MachineKeep.FAILED, False, False),
        (MachineKeep.ALL, False, True),
        (MachineKeep.NONE, True, False),
    ):
        saved = save(FakeMachine(), tmp_path, keep=keep, has_failed=has_failed)

        assert isinstance(saved, live_machines.SavedMachine)
        entry = "harness shell --machine node-9  # 4 h at most"
        assert saved.kept == (entry if is_kept else None), (keep, has_failed)


def test_error_is_reported_if_a_machine_cannot_be_kept_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise HarnessError("No memory is left.")

    monkeypatch.setattr(live_machines, "hold", refuse)

    saved = save(FakeMachine(), tmp_path, keep=MachineKeep.FAILED)

    assert isinstance(saved, live_machines.SavedMachine)
    assert saved.kept is None
    assert "the machine could not be kept running: No memory is left." in saved.sentence


def test_debugger_prints_the_command_to_enter_each_running_machine() -> None:
    lines: list[str] = []
    reporter = Reporter(Settings())
    terminal = SimpleNamespace(write_line=lines.append)
    config = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: terminal))

    reporter.pytest_enter_pdb(cast("pytest.Config", config))
    assert lines == []

    machines = [FakeMachine() for _ in range(3)]
    machines[1].has_vm = False
    machines[2].folder = Path("/runs/other-4")
    for machine in machines:
        reporter.add(MachineEvidenceSource(cast("LabMachine", machine)))
    reporter.pytest_enter_pdb(cast("pytest.Config", config))
    enter = "enter the machine, in another terminal: harness shell --machine"
    assert lines == [f"{enter} node-3fa2b1", f"{enter} other-4"]


def test_shell_command_with_an_unclosed_quotation_mark_is_refused() -> None:
    options = {"--machine-shell": "instead", "--machine-shell-command": "echo 'x"}
    config: Any = SimpleNamespace(getoption=lambda name, default=None: options.get(name, default))

    with pytest.raises(BadInputError, match=r"^--machine-shell-command: .*No closing quotation"):
        _machine_shell(config)


def test_control_characters_in_the_announcement_of_a_shell_are_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The id of a test contains the unescaped text of its parameters."""
    order: list[str] = []

    class Capture:
        def suspend(self, *, in_: bool) -> None:
            assert in_
            order.append("suspend")

        def resume(self) -> None:
            order.append("resume")

    def leave(_: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def run_in(_: object) -> NoReturn:
        order.append("shell")
        raise HarnessError("It said \x1b[2J.")

    monkeypatch.setattr(live_machines, "terminal_left", leave)
    monkeypatch.setattr(live_machines, "run_in", run_in)
    monkeypatch.setattr(live_machines, "roster_folder", lambda: tmp_path)
    monkeypatch.setattr(Roster, "find", lambda _, name: name)
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(getplugin=lambda _: Capture()))

    live_machines.open_shell(
        config, cast("LabMachine", FakeMachine()), "t.py::t[\x1b]0;x\x07] failed"
    )

    said = capsys.readouterr().err
    assert "t.py::t[\\x1b]0;x\\x07] failed: a shell in machine 'node'" in said
    assert said.endswith("It said \\x1b[2J.\n")
    assert order == ["suspend", "shell", "resume"]
