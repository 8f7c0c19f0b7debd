"""What the processes of one user reserve of this host, as entries of a reservation folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from harness.foreign_json import parse_json
from harness.reservation_folder import ReservationFolder
from harness.shared_folder import private_folder

#: The same for every run of a user: TMPDIR and XDG_RUNTIME_DIR differ between a login and a job.
_SHARED = Path("/tmp")  # noqa: S108 - a folder below it is used only if it is ours alone


def host_folder() -> Path:
    """Return the folder of this user's reservations; it is created if missing."""
    return private_folder(_SHARED, "gpu-node-harness")


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a machine needs of the host, QEMU's own use included."""

    memory_mib: int
    cpus: int
    ports: int = 0

    def __post_init__(self) -> None:
        if min(self.memory_mib, self.cpus, self.ports) < 0:
            raise ValueError(f"A demand can't be negative: {self}")

    @override
    def __str__(self) -> str:
        cpus = f"{self.cpus} vCPU{'' if self.cpus == 1 else 's'}"
        ports = f" and {self.ports} port{'' if self.ports == 1 else 's'}"
        return f"{self.memory_mib} MiB on {cpus}{ports if self.ports else ''}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A reservation, or a demand that waits for one (`is_granted` is false)."""

    who: str
    process: int
    demand: Demand
    is_granted: bool = False
    ports: tuple[int, ...] = ()
    #: The process that uses the memory, where it is known.
    user: int | None = None

    @override
    def __str__(self) -> str:
        return f"'{self.who}' of process {self.process} ({self.demand})"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Raise ValueError, KeyError or TypeError where `text` is no entry."""
        fields = parse_json(text)
        user = fields["user"]
        return cls(
            who=str(fields["who"]),
            process=int(fields["process"]),
            demand=Demand(**{key: int(value) for key, value in fields["demand"].items()}),
            is_granted=bool(fields["is_granted"]),
            ports=tuple(int(port) for port in fields["ports"]),
            user=None if user is None else int(user),
        )


def reservations_in(folder: Path) -> ReservationFolder[Entry]:
    """Return the reservations in `folder`."""
    return ReservationFolder(folder, Entry.from_json, owner="broker")
