"""What evidence is had of: a node, a bare machine, a node that was looked at before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.lab.gathering import salvage

if TYPE_CHECKING:
    from collections.abc import Mapping
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

    def gather(self, folder: Path) -> Mapping[Path, Path]:
        """Keep all that the test has judged, the last on top; where it got no so far, gather now."""
        *earlier, last = self.node.gathered or (self.node.salvage(),)
        moved = {last.folder: last.copy_to(folder)}
        for number, one in enumerate(earlier, start=1):
            moved[one.folder] = one.copy_to(folder / f"earlier-{number}")
        return moved


@dataclass(frozen=True)
class MachineSource:
    """Evidence of a live machine, of which no test gathers any itself."""

    machine: LabMachine

    @property
    def name(self) -> str:
        return self.machine.name

    def gather(self, folder: Path) -> Mapping[Path, Path]:
        """Keep what can be had of it now."""
        salvage(self.machine).copy_to(folder)
        return {}


@dataclass(frozen=True)
class GatheredSource:
    """Evidence that was gathered before; it is kept as it is."""

    name: str
    evidence: Evidence

    def gather(self, folder: Path) -> Mapping[Path, Path]:
        """Copy what was gathered."""
        return {self.evidence.folder: self.evidence.copy_to(folder)}
