"""What evidence is had of: a node, a bare machine, a node that was looked at before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import EvidencedError
from harness.lab.gathering import salvage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.lab.machine import LabMachine
    from harness.lab.node import Node


@dataclass(frozen=True)
class NodeSource:
    """Evidence of a live node."""

    node: Node

    @property
    def name(self) -> str:
        return self.node.request.name

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Keep all that the test has gathered, the last on top.

        Where the error is not about any of that, the node is looked at once more: it may have
        changed since.
        """
        gathered = self.node.gathered
        if not gathered or not (error is None or _is_about(error, gathered)):
            gathered = (*gathered, self.node.salvage())
        *earlier, last = gathered
        yield last.folder, last.copy_to(folder)
        for number, one in enumerate(earlier, start=1):
            yield one.folder, one.copy_to(folder / f"earlier-{number}")


def _is_about(error: BaseException, gathered: Sequence[Evidence]) -> bool:
    return isinstance(error, EvidencedError) and error.evidence in {
        evidence.folder for evidence in gathered
    }


@dataclass(frozen=True)
class MachineSource:
    """Evidence of a live machine, of which no test gathers any itself."""

    machine: LabMachine

    @property
    def name(self) -> str:
        return self.machine.name

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Keep what can be had of it now."""
        del error
        evidence = salvage(self.machine)
        yield evidence.folder, evidence.copy_to(folder)


@dataclass(frozen=True)
class GatheredSource:
    """Evidence that was gathered before; it is kept as it is."""

    name: str
    evidence: Evidence

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Copy what was gathered."""
        del error
        yield self.evidence.folder, self.evidence.copy_to(folder)
