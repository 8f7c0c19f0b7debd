"""The evidence of a machine that answers, is unreachable, or never ran."""

from __future__ import annotations

import errno
import gzip
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from harness.errors import BadInputError, HarnessError
from harness.evidence import TRACE_SUFFIX, Evidence
from harness.evidence.causes import explain
from harness.evidence.history import HISTORY, JOURNAL, PACKED_JOURNAL, history_request
from harness.evidence.request import AdditionalEvidence, result_request
from harness.gpu.trace import IncidentKind, TraceRecorder
from harness.lab import evidence_collection
from harness.machine.channels.console_recording import RECORDING
from harness.machine.channels.event_log import QmpEvent
from harness.provisioner import EvidenceDeclaration, Provisioner
from harness.provisioning.wait import SYSTEM_CLOCK, WaitTimeoutError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.request import EvidenceRequest
    from harness.lab.machine import LabMachine


def a_machine(
    folder: Path, *, has_vm: bool = True, is_hanging: bool = False, busy: str = ""
) -> LabMachine:
    """Return a fake machine with only the attributes that the collection of evidence uses."""

    def require_answer() -> None:
        if is_hanging:
            raise HarnessError("The agent of machine 'node' did not answer a ping in time.")

    folder.mkdir()
    (folder / "serial.log").write_text("Linux version 6.1")
    vm = SimpleNamespace(
        logs={"serial.log": folder / "serial.log"},
        events=(QmpEvent(name="RESET", at_s=1.0),),
    )
    kernels: dict[tuple[object, ...], str] = {("ls", "/lib/modules"): "6.1.0-55\n6.1.0-56\n"}
    guest = SimpleNamespace(output_of=lambda *argv: kernels[argv])
    machine = SimpleNamespace(
        folder=folder,
        has_vm=has_vm,
        vm=vm,
        guest=guest,
        agent="the agent",
        gpu_traces=dict,
        require_answer=require_answer,
        busy_host=lambda: busy,
        time_stretch=lambda: 4.0,
    )
    return cast("LabMachine", machine)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[EvidenceRequest]:
    """Let guests answer, and return the evidence requests that they received."""
    requests: list[EvidenceRequest] = []

    def answer(
        agent: object, request: EvidenceRequest, folder: Path, *, stretch: float
    ) -> Evidence:
        assert (agent, stretch) == ("the agent", 4.0)
        requests.append(request)
        (folder / "commands").mkdir(parents=True)
        if JOURNAL in request.commands:
            (folder / "commands" / JOURNAL).write_bytes(b"MESSAGE=x\n\n")
        return Evidence(folder)

    monkeypatch.setattr(evidence_collection, "collect_guest", answer)
    return requests


def test_kernels_are_listed_by_the_guest_if_the_caller_gives_no_kernels(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    machine = a_machine(tmp_path / "node")
    rows: list[list[str] | None] = [["6.1.0-56"], None]
    for kernels in rows:
        evidence = evidence_collection.collect_available(machine, kernels=kernels)

        modules = [name for name in asked[-1].commands if name.startswith("modinfo-")]
        known = kernels or ["6.1.0-55", "6.1.0-56"]
        assert modules == [f"modinfo-{kernel}" for kernel in known]
        assert (evidence.folder / "host/serial.log").read_text() == "Linux version 6.1"
        assert json.loads((evidence.folder / "host/qmp-events.json").read_text()) == [
            {"name": "RESET", "at_s": 1.0, "data": {}}
        ]
    # Each call of `collect_available` makes a new folder.
    assert len(list(machine.folder.glob("evidence-*"))) == 2


def test_unreachable_machine_leaves_evidence_of_the_host_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise HarnessError("The agent of machine 'node' said nothing in time.")

    monkeypatch.setattr(evidence_collection, "collect_guest", refuse)

    evidence = evidence_collection.collect_available(a_machine(tmp_path / "node"))

    names = {path.name for path in evidence.folder.rglob("*") if path.is_file()}
    assert names == {"serial.log", "qmp-events.json", "manifest.json", "not-collected.txt"}
    reason = (evidence.folder / "not-collected.txt").read_text()
    assert reason == "The agent of machine 'node' said nothing in time.\n"


def test_evidence_of_a_hanging_guest_is_collected_from_the_host_only(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    """The agent of a hanging guest may never answer, and the time limit of a boot is many minutes."""
    machine = a_machine(tmp_path / "node", is_hanging=True)

    evidence = evidence_collection.collect_available(machine)

    assert asked == []
    assert (evidence.folder / "host/serial.log").is_file()
    assert "did not answer a ping" in (evidence.folder / "not-collected.txt").read_text()


def test_host_evidence_of_a_machine_that_ran_is_complete(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    assert evidence_collection.try_save_host_evidence(a_machine(tmp_path / "node"), kept) == kept

    assert (kept / "host/qmp-events.json").is_file()
    # The machine has no recording of its console, so the manifest does not list a missing recording.
    assert json.loads((kept / "manifest.json").read_text())["missing"] == []


def test_findings_mention_that_the_busy_host_kept_the_machine_waiting(
    tmp_path: Path,
) -> None:
    for number, busy in enumerate(("", "the host's other work kept the machine waiting")):
        folder = tmp_path / str(number)
        folder.mkdir()
        evidence_collection.save_host_evidence(
            a_machine(folder / "node", busy=busy), folder / "kept"
        )

        assert explain(folder / "kept") == ([busy] if busy else []), busy


def test_host_evidence_contains_the_differences_between_states(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "machine")
    (machine.folder / "states").mkdir()
    (machine.folder / "states" / "difference-1.txt").write_text("path (1):\n")

    evidence_collection.save_host_evidence(machine, tmp_path / "kept")
    # A test that fails gathers the evidence a second time.
    evidence_collection.save_host_evidence(machine, tmp_path / "kept")

    kept = tmp_path / "kept" / "states" / "difference-1.txt"
    assert kept.read_text() == "path (1):\n"
    assert "states/difference-1.txt" in (tmp_path / "kept" / "manifest.json").read_text()


def test_host_evidence_of_a_machine_that_never_ran_has_its_logs_but_no_disk(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    machine = a_machine(tmp_path / "node", has_vm=False)
    for name in ("disk.qcow2", "domain.xml"):
        (machine.folder / name).touch()

    assert evidence_collection.try_save_host_evidence(machine, kept) == kept

    assert sorted(path.name for path in (kept / "host").iterdir()) == ["domain.xml", "serial.log"]


def test_no_evidence_folder_is_made_for_a_machine_without_a_vm_and_without_a_serial_log(
    tmp_path: Path,
) -> None:
    machine = a_machine(tmp_path / "node", has_vm=False)
    (machine.folder / "serial.log").unlink()

    assert evidence_collection.try_save_host_evidence(machine, tmp_path / "kept") is None

    assert not (tmp_path / "kept").exists()


def test_host_evidence_that_cannot_be_written_raises_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Exception] = [
        OSError(errno.ENOSPC, "No space left on device"),
        HarnessError("It is a file."),
    ]
    for number, error in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()

        def refuse(*_: object, error: Exception = error, **__: object) -> NoReturn:
            raise error

        monkeypatch.setattr(evidence_collection, "keep_host_files", refuse)

        assert (
            evidence_collection.try_save_host_evidence(a_machine(folder / "node"), folder / "kept")
            is None
        )


def test_history_replaces_an_earlier_history_and_has_a_compressed_journal(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    history = tmp_path / HISTORY
    history.mkdir()
    (history / "old").touch()

    evidence_collection.collect_history(a_machine(tmp_path / "machine"), tmp_path)

    assert asked == [history_request()]
    assert not (history / "old").exists()
    assert gzip.decompress((history / PACKED_JOURNAL).read_bytes()) == b"MESSAGE=x\n\n"
    assert not (history / "commands" / JOURNAL).exists()


def test_history_folder_contains_the_reason_if_the_history_cannot_be_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [HarnessError("It is gone."), WaitTimeoutError("Too late."), OSError("No space.")]
    reasons = [f"{error}\n" for error in errors]
    machine, found = a_machine(tmp_path / "machine"), []

    def refuse(*_: object, **__: object) -> NoReturn:
        raise errors.pop(0)

    monkeypatch.setattr(evidence_collection, "collect_guest", refuse)
    while errors:
        evidence_collection.collect_history(machine, tmp_path)
        found.append((tmp_path / HISTORY / "not-collected.txt").read_text())

    assert found == reasons


def test_history_is_not_gathered_if_the_evidence_could_not_be_gathered(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    """Gathering the history would take the whole time limit again."""
    (tmp_path / "not-collected.txt").write_text("It hangs.\n")

    evidence_collection.collect_history(a_machine(tmp_path / "machine"), tmp_path)

    assert asked == []
    assert (tmp_path / HISTORY / "not-collected.txt").read_text() == "It hangs.\n"


MINE = Provisioner(
    name="mine",
    run=["/opt/mine"],
    evidence=EvidenceDeclaration(commands={"mine": ["my-status"]}),
)


def test_result_evidence_contains_the_declaration_of_the_provisioner(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    machine, kept = a_machine(tmp_path / "machine"), tmp_path / "kept"

    evidence = evidence_collection.collect_result(machine, kept, provisioner=MINE)

    assert asked == [result_request(MINE)]
    assert evidence.folder == kept
    assert evidence.provisioner.name == "mine"


def test_evidence_commands_of_the_provisioner_and_of_the_test_are_collected(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    additional = AdditionalEvidence(commands={"links": ["ip", "link"]})

    evidence = evidence_collection.collect_available(
        a_machine(tmp_path / "node"), kernels=[], provisioner=MINE, additional=additional
    )

    (request,) = asked
    assert {"mine", "links"} <= set(request.commands)
    assert evidence.provisioner.name == "mine"


def test_evidence_command_with_a_duplicate_name_is_refused_before_anything_is_collected(
    tmp_path: Path, asked: list[EvidenceRequest]
) -> None:
    """The refusal does not depend on an answer of the guest."""
    additional = AdditionalEvidence(commands={"mine": ["other"]})

    with pytest.raises(BadInputError, match="mine"):
        evidence_collection.collect(
            a_machine(tmp_path / "node"),
            tmp_path / "kept",
            provisioner=MINE,
            additional=additional,
        )

    assert asked == []
    assert not (tmp_path / "kept").exists()


def test_host_evidence_contains_gpu_traces_and_the_console_recording(tmp_path: Path) -> None:
    machine = a_machine(tmp_path / "machine")
    recorder = TraceRecorder(SYSTEM_CLOCK)
    recorder.incident(IncidentKind.MARK, "now")
    trace = recorder.snapshot()
    cast("SimpleNamespace", machine).gpu_traces = lambda: {"gpu0": trace, "gpu1": trace}
    (machine.folder / RECORDING).write_text("a recording")

    evidence_collection.save_host_evidence(machine, tmp_path / "kept")

    host = tmp_path / "kept/host"
    assert (host / RECORDING).read_text() == "a recording"
    assert "now" in (host / "gpu0-trace.txt").read_text()
    assert {path.name for path in host.glob("gpu*")} == {
        *("gpu0-trace.txt", f"gpu0{TRACE_SUFFIX}"),
        *("gpu1-trace.txt", f"gpu1{TRACE_SUFFIX}"),
    }
