"""Sources of evidence: a live node, a live machine, earlier evidence, a registry's log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import EvidencedError
from harness.lab.evidence_collection import collect_available
from harness.lab.guest_channels import STATES
from harness.plugin.failure_bundle import completed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.lab.machine import LabMachine
    from harness.lab.node import Node
    from harness.registry import RegistryLog


@dataclass(frozen=True)
class NodeEvidenceSource:
    """Evidence of a live node."""

    node: Node

    @property
    def name(self) -> str:
        return self.node.request.name

    @property
    def machine(self) -> LabMachine:
        """Return the node's machine, which ends with the test."""
        return self.node.machine

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Keep all evidence that the test has gathered, the latest evidence directly in `folder`.

        If `error` names no folder of the gathered evidence, evidence is gathered again, because the
        node may have changed. If gathering again fails, the earlier evidence is kept, and then the
        exception is raised.
        """
        gathered, failed = self.node.gathered, None
        if not gathered or not (error is None or _is_about(error, gathered)):
            try:
                gathered = (*gathered, self.node.collect_available())
            except Exception as raised:
                if not gathered:
                    raise
                failed = raised
        *earlier, last = gathered
        yield last.folder, completed(self.machine, last.copy_to(folder), error)
        if (folder / STATES).is_dir():
            yield self.node.folder / STATES, folder / STATES
        for number, one in enumerate(earlier, start=1):
            yield one.folder, one.copy_to(folder / f"earlier-{number}")
        if failed is not None:
            raise failed


def _is_about(error: BaseException, gathered: Sequence[Evidence]) -> bool:
    return isinstance(error, EvidencedError) and error.evidence in {
        evidence.folder for evidence in gathered
    }


@dataclass(frozen=True)
class MachineEvidenceSource:
    """Evidence of a live machine that is not a node; tests of such a machine gather no evidence."""

    machine: LabMachine

    @property
    def name(self) -> str:
        return self.machine.name

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Gather the evidence that is available at this moment, and keep it in `folder`."""
        evidence = collect_available(self.machine)
        yield evidence.folder, completed(self.machine, evidence.copy_to(folder), error)
        if (folder / STATES).is_dir():
            yield self.machine.folder / STATES, folder / STATES


@dataclass(frozen=True)
class GatheredEvidenceSource:
    """Evidence that was gathered before, and is kept unchanged."""

    name: str
    evidence: Evidence

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Copy the evidence into `folder`."""
        del error
        yield self.evidence.folder, self.evidence.copy_to(folder)


@dataclass(frozen=True)
class RegistryLogSource:
    """The requests that reached a registry of the test."""

    log: RegistryLog
    name: str = "registry"

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Write the registry's log into `folder`."""
        del error
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests.txt").write_text(self.log.render(), encoding="utf-8")
        yield folder, folder
