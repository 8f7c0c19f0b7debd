"""Sources of evidence: nodes, machines, and evidence gathered before."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from harness.errors import ExpectationError, HarnessError
from harness.plugin.evidence_sources import (
    GatheredEvidenceSource,
    MachineEvidenceSource,
    NodeEvidenceSource,
)
from suites.unit.evidence.folders import EvidenceFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.evidence import Evidence
    from harness.lab.node import Node


@dataclass
class FakeNode:
    """A fake node with only the attributes that NodeEvidenceSource uses."""

    gathered: tuple[Evidence, ...] = ()
    fresh: Evidence | None = None
    folder: Path | None = None
    machine: object = None
    request: Any = field(default_factory=lambda: SimpleNamespace(name="node"))

    def collect_available(self) -> Evidence:
        assert self.fresh is not None, "No evidence is gathered in addition to the test's own."
        return self.fresh


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add no further files to the evidence; `test_failure_bundle` tests these files."""
    monkeypatch.setattr(
        "harness.plugin.evidence_sources.completed", lambda _machine, folder, _error: folder
    )


def gather(folder: Path, node: FakeNode, error: BaseException | None = None) -> list[str]:
    for _ in NodeEvidenceSource(cast("Node", node)).gather(folder, error):
        pass
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_each_evidence_folder_of_a_node_is_kept_and_the_new_paths_are_returned(
    tmp_path: Path,
) -> None:
    """The latest evidence is in the top folder, and earlier evidence in folders below."""
    names = ("first", "second", "third")
    node = FakeNode(
        gathered=tuple(
            EvidenceFolder(tmp_path / name).file(f"/{name}.txt", "").evidence for name in names
        )
    )
    kept = tmp_path / "kept/node"

    moved = dict(NodeEvidenceSource(cast("Node", node)).gather(kept, None))

    assert moved == {
        tmp_path / "first": kept / "earlier-1",
        tmp_path / "second": kept / "earlier-2",
        tmp_path / "third": kept,
    }
    for name in names:
        assert (moved[tmp_path / name] / f"files/{name}.txt").is_file()


@pytest.mark.parametrize("has_states", [True, False])
@pytest.mark.parametrize("kind", [NodeEvidenceSource, MachineEvidenceSource])
def test_difference_file_of_two_states_is_kept_with_the_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, *, has_states: bool
) -> None:
    fresh = EvidenceFolder(tmp_path / "fresh").file("/a.txt", "").evidence
    states = (fresh.folder / "states", tmp_path / "machine/states")
    for folder in states if has_states else states[1:]:
        folder.mkdir(parents=True)
        (folder / "difference-1.txt").touch()
    node, kept = FakeNode(fresh=fresh, folder=tmp_path / "machine"), tmp_path / "kept"
    monkeypatch.setattr("harness.plugin.evidence_sources.collect_available", lambda _: fresh)

    moved = dict(kind(node).gather(kept, None))

    expected = {tmp_path / "machine/states": kept / "states"} if has_states else {}
    assert moved == {fresh.folder: kept, **expected}
    assert (kept / "states/difference-1.txt").is_file() is has_states


def test_earlier_evidence_is_kept_if_gathering_fresh_evidence_fails(tmp_path: Path) -> None:
    class UnreachableNode(FakeNode):
        @override
        def collect_available(self) -> Evidence:
            raise OSError("No space left on device")

    folders = [EvidenceFolder(tmp_path / name).file(f"/{name}.txt", "") for name in "ab"]
    node = UnreachableNode(gathered=tuple(each.evidence for each in folders))
    kept = tmp_path / "kept/node"
    gathering = NodeEvidenceSource(cast("Node", node)).gather(kept, KeyError("x"))

    moved = dict(itertools.islice(gathering, 2))
    with pytest.raises(OSError, match="No space left"):
        next(gathering)

    assert moved == {tmp_path / "b": kept, tmp_path / "a": kept / "earlier-1"}
    assert (kept / "earlier-1/files/a.txt").is_file()


def test_fresh_evidence_is_not_gathered_if_the_test_passed_or_the_error_has_evidence(
    tmp_path: Path,
) -> None:
    rows: list[Callable[[Evidence], BaseException | None]] = [
        lambda _: None,
        lambda judged: ExpectationError("Wrong kernel.", evidence=judged.folder),
    ]
    for number, end in enumerate(rows):
        folder = tmp_path / str(number)
        judged, later = (
            EvidenceFolder(folder / name).file(f"/{name}.txt", "").evidence
            for name in ("judged", "later")
        )

        files = gather(folder / "kept/node", FakeNode(gathered=(judged, later)), end(judged))

        assert files == ["earlier-1/files/judged.txt", "files/later.txt"]


def test_fresh_evidence_is_gathered_if_the_error_refers_to_no_gathered_evidence(
    tmp_path: Path,
) -> None:
    """Evidence from before a reboot does not show the result of the reboot."""
    rows: list[BaseException] = [
        ExpectationError("Wrong kernel.", evidence=Path("/another")),
        HarnessError("It did not come back."),
    ]
    for number, error in enumerate(rows):
        folder = tmp_path / str(number)
        node = FakeNode(
            gathered=(EvidenceFolder(folder / "1").file("/judged.txt", "").evidence,),
            fresh=EvidenceFolder(folder / "2").file("/fresh.txt", "").evidence,
        )

        files = gather(folder / "kept/node", node, error)

        assert files == ["earlier-1/files/judged.txt", "files/fresh.txt"], error


def test_evidence_of_a_failed_test_replaces_the_evidence_of_an_earlier_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "kept/node/files").mkdir(parents=True)
    (tmp_path / "kept/node/files/stale.txt").touch()
    node = FakeNode(fresh=EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence)

    assert gather(tmp_path / "kept/node", node) == ["files/fresh.txt"]


def test_evidence_of_a_machine_is_completed_with_the_error_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed: list[tuple[object, Path, object]] = []

    def complete(machine: object, folder: Path, error: object) -> Path:
        completed.append((machine, folder, error))
        return folder

    fresh = EvidenceFolder(tmp_path / "fresh").file("/a.txt", "").evidence
    monkeypatch.setattr("harness.plugin.evidence_sources.completed", complete)
    monkeypatch.setattr("harness.plugin.evidence_sources.collect_available", lambda _: fresh)
    machine: Any = SimpleNamespace(name="clone1", folder=tmp_path / "clone1")
    source, error = MachineEvidenceSource(machine), HarnessError("x")
    place = tmp_path / "kept" / source.name

    assert dict(source.gather(place, error)) == {fresh.folder: place}

    assert source.name == "clone1"
    assert (place / "files/a.txt").is_file()
    assert completed == [(machine, place, error)]


def test_gathered_evidence_is_copied_and_the_new_folder_is_returned(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "1").file("/judged.txt", "").evidence

    moved = dict(GatheredEvidenceSource("node", evidence).gather(tmp_path / "kept", None))

    assert moved == {evidence.folder: tmp_path / "kept"}
    assert (tmp_path / "kept/files/judged.txt").is_file()
    assert (evidence.folder / "files/judged.txt").is_file()
