"""The difference between two snapshots of a node; pure.

A test takes a snapshot (`machine.channels.node_snapshot`) before and after an action, such as a
second boot or a repeated provisioning, and asserts on what changed. `StateDiff.render` prints the
difference for a failure message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.machine.channels.node_snapshot import (
        MountState,
        NodeSnapshot,
        PathState,
        PciState,
        UnitState,
    )

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Changes(Generic[T]):
    """Items of one kind that were added, removed or changed, by name."""

    added: Mapping[str, T]
    removed: Mapping[str, T]
    changed: Mapping[str, tuple[T, T]]

    @classmethod
    def between(cls, before: Mapping[str, T], after: Mapping[str, T]) -> Changes[T]:
        return cls(
            added={name: value for name, value in after.items() if name not in before},
            removed={name: value for name, value in before.items() if name not in after},
            changed={
                name: (value, after[name])
                for name, value in before.items()
                if name in after and after[name] != value
            },
        )

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)

    def render(self, kind: str) -> list[str]:
        """Render one line for each item, in the order of names."""
        lines = {
            **{name: f"+ {kind} {name}: {value}" for name, value in self.added.items()},
            **{name: f"- {kind} {name}: {value}" for name, value in self.removed.items()},
            **{
                name: f"~ {kind} {name}: {before} -> {after}"
                for name, (before, after) in self.changed.items()
            },
        }
        return [lines[name] for name in sorted(lines)]


@dataclass(frozen=True, kw_only=True)
class StateDiff:
    """What changed on a node; `units` is None if one of the snapshots has no units."""

    kernel: tuple[str, str] | None
    has_rebooted: bool
    modules: Changes[str]
    pci: Changes[PciState]
    mounts: Changes[tuple[MountState, ...]]
    units: Changes[UnitState] | None
    paths: Changes[PathState]

    @classmethod
    def between(cls, before: NodeSnapshot, after: NodeSnapshot) -> StateDiff:
        units = None
        if before.units is not None and after.units is not None:
            units = Changes.between(
                {unit.name: unit for unit in before.units},
                {unit.name: unit for unit in after.units},
            )
        return cls(
            kernel=None if before.kernel == after.kernel else (before.kernel, after.kernel),
            has_rebooted=before.boot_id != after.boot_id,
            modules=Changes.between(
                dict.fromkeys(before.modules, "loaded"), dict.fromkeys(after.modules, "loaded")
            ),
            pci=Changes.between(
                {function.slot: function for function in before.pci},
                {function.slot: function for function in after.pci},
            ),
            mounts=Changes.between(_by_target(before), _by_target(after)),
            units=units,
            paths=Changes.between(before.paths, after.paths),
        )

    @property
    def is_empty(self) -> bool:
        """Return whether nothing changed.

        Raises HarnessError where nothing else changed and the units are unknown.
        """
        parts = (self.modules, self.pci, self.mounts, self.paths, self.units or ())
        if self.kernel is not None or self.has_rebooted or any(parts):
            return False
        if self.units is None:
            raise HarnessError(
                "The units of the node are unknown in one of the snapshots, so it cannot be told "
                "whether they changed; 'units_trouble' of that snapshot says why."
            )
        return True

    def render(self) -> str:
        """Render one line for each change."""
        head = [] if self.kernel is None else [f"~ kernel: {self.kernel[0]} -> {self.kernel[1]}"]
        if self.has_rebooted:
            head.append("~ boot: the node has rebooted")
        return "\n".join(
            [
                *head,
                *self.modules.render("module"),
                *self.pci.render("PCI function"),
                *self.mounts.render("mount"),
                *([] if self.units is None else self.units.render("unit")),
                *self.paths.render("path"),
            ]
        )


def _by_target(state: NodeSnapshot) -> dict[str, tuple[MountState, ...]]:
    """Return the mounts of each target; there may be several, one over another."""
    found: dict[str, tuple[MountState, ...]] = {}
    for mount in state.mounts:
        found[mount.target] = (*found.get(mount.target, ()), mount)
    return found
