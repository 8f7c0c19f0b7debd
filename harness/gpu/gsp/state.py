"""The GSP's state of its GPU: the model's facts, and changes by the driver or by a test."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.gpu import Bars, GpuModel, GspFacts
    from harness.gpu.gsp.chips import Chip
    from harness.gpu.gsp.layouts import Layouts
    from harness.gpu.gsp.page_tables import Directory
    from harness.gpu.trace import IncidentKind

#: The beginning of all invented UUIDs; no UUID of a real GPU begins like this.
_INVENTED: Final = "00000000-0000-4000-8000-"

#: The maximum number of stored root directories; a GPU has at most a few hundred channels.
MOST_ROOTS: Final = 4096
#: The maximum number of stored handles of MIG GPU instances.
MOST_SUBSCRIPTIONS: Final = 4096

MIB: Final = 1 << 20


def invented_uuid(number: int) -> UUID:
    """Return a UUID that clearly belongs to no real GPU."""
    return UUID(f"{_INVENTED}{number:012x}")


@dataclass(kw_only=True)
class MemoryErrors:
    """The memory errors that the driver reports: ECC errors, and remapped rows."""

    corrected: int = 0
    """Single-bit errors since the driver was loaded."""
    uncorrected: int = 0
    """Double-bit errors since the driver was loaded."""
    rows_after_corrected: int = 0
    """Rows remapped after single-bit errors; at most 512 rows can be remapped in total."""
    rows_after_uncorrected: int = 0
    is_remapping_pending: bool = False
    """Whether a row is remapped at the next reset."""
    has_remapping_failed: bool = False


@dataclass(kw_only=True)
class Readings:
    """The readings of the GPU's sensors, all invented; a test may change them."""

    temperature_c: int = 33
    power_w: float = 65.0


@dataclass(frozen=True, kw_only=True)
class ComputeInstance:
    """A MIG compute instance: its GPCs and size (NV2080_CTRL_GPU_PARTITION_FLAG_COMPUTE_SIZE)."""

    size: int
    first: int
    """The first GPC of the compute instance, counted from the first GPC of the GPU instance."""
    gpcs: int
    shared_engines: int


@dataclass(frozen=True, kw_only=True)
class GpuInstance:
    """A MIG GPU instance: its profile's flag, and its first and last memory slice."""

    flag: int
    first: int
    last: int
    compute: dict[int, ComputeInstance] = field(default_factory=dict)
    """The compute instances in this GPU instance, by id."""


@dataclass(kw_only=True)
class GpuState:
    """A GPU's state in its GSP. `bar_address` returns the address that the guest gave to a BAR."""

    model: GpuModel
    facts: GspFacts
    chip: Chip
    bars: Bars
    number: int
    """The GPU's number in its machine; invented UUIDs and handles contain this number."""
    bar_address: Callable[[int], int | None]
    model_folders: tuple[Path, ...] = ()
    """The user's folders of GPU models, which may have data of driver releases."""
    roots: dict[tuple[int, int], Directory] = field(default_factory=dict)
    """The root directory of each virtual address space, by client and object."""
    memory_errors: MemoryErrors = field(default_factory=MemoryErrors)
    readings: Readings = field(default_factory=Readings)
    is_mig_enabled: bool = False
    instances: dict[int, GpuInstance] = field(default_factory=dict)
    """MIG GPU instances by id."""
    subscriptions: dict[tuple[int, int], int] = field(default_factory=dict)
    """The GPU instance that each object represents, by client and object."""
    layouts: Layouts | None = None
    """The layouts of the driver's release; None until the driver has reported its release."""

    unknown_commands: Counter[int] = field(default_factory=Counter)
    """How often the driver called each command that its headers do not name."""
    note: Callable[[IncidentKind, str], None] = lambda _kind, _words: None
    """Adds an event to the GPU's trace; the GPU sets this function."""

    @property
    def uuid(self) -> UUID:
        return invented_uuid(self.number)

    @property
    def serial(self) -> str:
        """Return a serial number that clearly belongs to no real GPU."""
        return f"1{self.number:012d}"

    @property
    def can_have_mig(self) -> bool:
        return self.model.has_mig and self.chip.has_mig

    @property
    def memory_bytes(self) -> int:
        return self.facts.memory_mib * MIB

    @property
    def bar1_root(self) -> int:
        """Return the address of BAR 1's root directory, beyond the end of the memory."""
        return self.memory_bytes + 0x10000

    @property
    def bar2_root(self) -> int:
        return self.memory_bytes + 0x20000

    def add_root(self, client: int, handle: int, root: Directory) -> None:
        """Store the root directory of an address space; at the limit, drop the oldest root directory."""
        self.roots.pop((client, handle), None)
        if len(self.roots) >= MOST_ROOTS:
            del self.roots[next(iter(self.roots))]
        self.roots[client, handle] = root

    def subscribe(self, client: int, handle: int, number: int) -> None:
        """Store which GPU instance an object represents; at the limit, drop the oldest entry."""
        self.subscriptions.pop((client, handle), None)
        if len(self.subscriptions) >= MOST_SUBSCRIPTIONS:
            del self.subscriptions[next(iter(self.subscriptions))]
        self.subscriptions[client, handle] = number

    def instance_of(self, client: int) -> int | None:
        """Return the GPU instance in which a client works: the last instance that it opened."""
        own = [number for (owner, _), number in self.subscriptions.items() if owner == client]
        return own[-1] if own else None

    def find_root(self, client: int, handle: int) -> Directory | None:
        """Return the root directory of an address space.

        If it is unknown, return the client's last root directory, else the last root directory of
        any client.
        """
        found = self.roots.get((client, handle))
        if found is not None:
            return found
        of_client = [root for (owner, _), root in self.roots.items() if owner == client]
        return next(iter(reversed(of_client or list(self.roots.values()))), None)
