"""The state of a node at one moment, as its guest agent reports it; pure."""

from __future__ import annotations

from dataclasses import dataclass

import pydantic

from harness.errors import HarnessError


@dataclass(frozen=True, kw_only=True)
class PciState:
    """A PCI function; ids are hexadecimal digits, `driver` the kernel module bound to it."""

    slot: str
    vendor: str
    device: str
    class_code: str
    driver: str | None


@dataclass(frozen=True, kw_only=True)
class MountState:
    """A mounted file system."""

    source: str
    target: str
    kind: str
    options: str


@dataclass(frozen=True, kw_only=True)
class UnitState:
    """A unit of systemd, by the four columns of `systemctl list-units`."""

    name: str
    load: str
    active: str
    sub: str


@dataclass(frozen=True, kw_only=True)
class PathState:
    """What lies at a path; `kind` is `f`, or the letter of `ls -l`, or `?` with its `trouble`."""

    kind: str
    mode: int
    size: int
    mtime_ns: int
    sha256: str | None = None
    target: str | None = None
    trouble: str | None = None


@dataclass(frozen=True, kw_only=True)
class NodeSnapshot:
    """A node's state. `units` is None where systemd did not answer; `units_trouble` says why.

    `paths` holds what the requested patterns matched; `has_more_paths` means that they matched more
    than the agent was willing to list.
    """

    kernel: str
    boot_id: str
    modules: tuple[str, ...]
    pci: tuple[PciState, ...]
    mounts: tuple[MountState, ...]
    units: tuple[UnitState, ...] | None
    units_trouble: str | None = None
    paths: dict[str, PathState]
    has_more_paths: bool = False

    @classmethod
    def from_json(cls, content: bytes) -> NodeSnapshot:
        """Parse what the agent sends; raises HarnessError at anything else."""
        try:
            return _PARSER.validate_json(content)
        except pydantic.ValidationError as error:
            raise HarnessError(f"A node's state has an unknown form: {error}.") from error


_PARSER = pydantic.TypeAdapter(NodeSnapshot)
