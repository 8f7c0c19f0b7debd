"""What is kept of a machine that answers, of one beyond reach, of one that never ran."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from harness.errors import HarnessError
from harness.evidence import Evidence
from harness.lab import gathering
from harness.machine.eventlog import QmpEvent

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.request import Request
    from harness.lab.machine import LabMachine


def a_machine(folder: Path, *, has_vm: bool = True) -> LabMachine:
    """Return as much of a machine as its evidence needs, with a console."""
    folder.mkdir()
    (folder / "serial.log").write_text("Linux version 6.1")
    vm = SimpleNamespace(
        logs={"serial.log": folder / "serial.log"},
        events=(QmpEvent(name="RESET", at_s=1.0),),
    )
    guest = SimpleNamespace(output_of=lambda *_: "6.1.0-55\n6.1.0-56\n")
    machine = SimpleNamespace(
        folder=folder, has_vm=has_vm, vm=vm, guest=guest, agent=None, gpu_traces=dict
    )
    return cast("LabMachine", machine)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Let guests answer, and return what they were asked for."""
    requests: list[Request] = []

    def answer(_agent: object, request: Request, folder: Path) -> Evidence:
        requests.append(request)
        (folder / "commands").mkdir()
        return Evidence(folder)

    monkeypatch.setattr(gathering, "collect_guest", answer)
    return requests


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no guest answer."""

    def refuse(*_: object) -> NoReturn:
        raise HarnessError("The agent of machine 'node' said nothing in time.")

    monkeypatch.setattr(gathering, "collect_guest", refuse)


@pytest.mark.parametrize("kernels", [["6.1.0-56"], None])
def test_guest_is_asked_for_its_kernels_where_nobody_knows_them(
    tmp_path: Path, asked: list[Request], kernels: list[str] | None
) -> None:
    evidence = gathering.salvage(a_machine(tmp_path / "node"), kernels=kernels)

    (request,) = asked
    modules = [name for name in request.commands if name.startswith("modinfo-")]
    known = kernels or ["6.1.0-55", "6.1.0-56"]
    assert modules == [f"modinfo-{kernel}" for kernel in known]
    assert (evidence.folder / "host/serial.log").read_text() == "Linux version 6.1"
    assert json.loads((evidence.folder / "host/qmp-events.json").read_text()) == [
        {"name": "RESET", "at_s": 1.0, "data": {}}
    ]


def test_each_look_has_a_folder_of_its_own(tmp_path: Path, asked: list[Request]) -> None:
    machine = a_machine(tmp_path / "node")

    folders = {gathering.salvage(machine).folder for _ in range(2)}

    assert {folder.parent for folder in folders} == {machine.folder}
    assert len(folders) == len(asked) == 2


def test_machine_beyond_reach_leaves_the_hosts_side_and_the_reason(
    tmp_path: Path, silence: None
) -> None:
    del silence

    evidence = gathering.salvage(a_machine(tmp_path / "node"))

    names = {path.name for path in evidence.folder.rglob("*") if path.is_file()}
    assert names == {"serial.log", "qmp-events.json", "manifest.json", "not-collected.txt"}
    reason = (evidence.folder / "not-collected.txt").read_text()
    assert reason == "The agent of machine 'node' said nothing in time.\n"


def test_machine_that_ran_leaves_what_the_host_knows(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    assert gathering.keep_remains(a_machine(tmp_path / "node"), kept) == kept

    assert (kept / "host/qmp-events.json").is_file()


def test_machine_that_never_ran_leaves_what_was_printed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    machine = a_machine(tmp_path / "node", has_vm=False)
    (machine.folder / "disk.qcow2").touch()

    assert gathering.keep_remains(machine, kept) == kept

    assert sorted(path.name for path in (kept / "host").iterdir()) == ["serial.log"]


def test_machine_that_left_nothing_is_not_said_to_have(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "node", has_vm=False)
    (machine.folder / "serial.log").unlink()

    assert gathering.keep_remains(machine, tmp_path / "kept") is None

    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "trouble", [OSError(errno.ENOSPC, "No space left on device"), HarnessError("It is a file.")]
)
def test_place_that_cannot_be_written_hides_no_other_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise trouble

    monkeypatch.setattr(gathering, "keep_host_files", refuse)

    assert gathering.keep_remains(a_machine(tmp_path / "node"), tmp_path / "kept") is None
