"""Sources of evidence: nodes, machines, and evidence gathered before."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

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
    from harness.lab.machine import LabMachine
    from harness.lab.node import Node


@dataclass
class FakeNode:
    """A fake node, as far as its evidence needs one."""

    gathered: tuple[Evidence, ...] = ()
    fresh: Evidence | None = None
    folder: Path | None = None
    machine: object = None
    request: Any = field(default_factory=lambda: SimpleNamespace(name="node"))

    def collect_available(self) -> Evidence:
        assert self.fresh is not None, "What the test gathered is enough."
        return self.fresh


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add nothing to what was gathered; `test_failure_bundle` is about that."""
    monkeypatch.setattr(
        "harness.plugin.evidence_sources.completed", lambda _machine, folder, _error: folder
    )


def gather(folder: Path, node: FakeNode, error: BaseException | None = None) -> list[str]:
    for _ in NodeEvidenceSource(cast("Node", node)).gather(folder, error):
        pass
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))


def test_evidence_that_the_test_judged_is_kept(tmp_path: Path) -> None:
    node = FakeNode(
        gathered=(EvidenceFolder(tmp_path / "1").file("/judged.txt", "").evidence,),
        fresh=EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence,
    )

    assert gather(tmp_path / "kept/node", node) == ["files/judged.txt"]


def test_all_evidence_that_the_test_judged_is_kept_and_is_found_again(tmp_path: Path) -> None:
    """The latest is in the top folder; the failure may refer to an earlier one."""
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


def test_error_about_states_refers_to_their_kept_difference(tmp_path: Path) -> None:
    fresh = EvidenceFolder(tmp_path / "fresh").file("/a.txt", "").evidence
    (fresh.folder / "states").mkdir()
    (fresh.folder / "states" / "difference-1.txt").touch()
    node, kept = FakeNode(fresh=fresh, folder=tmp_path / "machine"), tmp_path / "kept"

    moved = dict(NodeEvidenceSource(cast("Node", node)).gather(kept, None))

    assert moved[tmp_path / "machine" / "states"] == kept / "states"
    assert (kept / "states" / "difference-1.txt").is_file()


@pytest.mark.parametrize(
    "end",
    [lambda _: None, lambda judged: ExpectationError("Wrong kernel.", evidence=judged.folder)],
    ids=["passed", "judged"],
)
def test_evidence_that_the_test_judged_is_enough(
    tmp_path: Path, end: Callable[[Evidence], BaseException | None]
) -> None:
    judged = EvidenceFolder(tmp_path / "1").file("/judged.txt", "").evidence

    files = gather(tmp_path / "kept/node", FakeNode(gathered=(judged,)), end(judged))

    assert files == ["files/judged.txt"]


@pytest.mark.parametrize(
    "error",
    [
        ExpectationError("Wrong kernel.", evidence=Path("/another")),
        HarnessError("It did not come back."),
    ],
    ids=["another-node", "broken"],
)
def test_evidence_is_gathered_again_if_the_error_does_not_refer_to_it(
    tmp_path: Path, error: BaseException
) -> None:
    """Evidence from before a reboot does not show its result."""
    node = FakeNode(
        gathered=(EvidenceFolder(tmp_path / "1").file("/judged.txt", "").evidence,),
        fresh=EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence,
    )

    files = gather(tmp_path / "kept/node", node, error)

    assert files == ["earlier-1/files/judged.txt", "files/fresh.txt"]


def test_evidence_is_gathered_if_the_test_gathered_none(tmp_path: Path) -> None:
    node = FakeNode(fresh=EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence)

    assert gather(tmp_path / "kept/node", node) == ["files/fresh.txt"]


def test_evidence_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept/node/files").mkdir(parents=True)
    (tmp_path / "kept/node/files/stale.txt").touch()
    node = FakeNode(fresh=EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence)

    assert gather(tmp_path / "kept/node", node) == ["files/fresh.txt"]


def test_machine_is_looked_at_when_its_test_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = EvidenceFolder(tmp_path / "2").file("/fresh.txt", "").evidence
    monkeypatch.setattr(
        "harness.plugin.evidence_sources.collect_available", lambda _machine: fresh
    )
    source = MachineEvidenceSource(cast("LabMachine", SimpleNamespace(name="clone1")))

    moved = dict(source.gather(tmp_path / "kept" / source.name, HarnessError("It hangs.")))

    assert moved == {fresh.folder: tmp_path / "kept/clone1"}
    assert (tmp_path / "kept/clone1/files/fresh.txt").is_file()


def test_evidence_that_was_gathered_once_is_copied_and_is_found_again(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "1").file("/judged.txt", "").evidence

    moved = dict(GatheredEvidenceSource("node", evidence).gather(tmp_path / "kept", None))

    assert moved == {evidence.folder: tmp_path / "kept"}
    assert (tmp_path / "kept/files/judged.txt").is_file()
    assert (evidence.folder / "files/judged.txt").is_file()
