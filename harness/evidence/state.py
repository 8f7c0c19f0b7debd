"""The state of a whole node at one moment, as values that can be compared."""

from __future__ import annotations

import enum
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class StateKind(enum.Enum):
    """The kinds of items in a node's state; the value is the noun for one item."""

    PATHS = "path"
    DEVICE_NODES = "device node"
    UNITS = "unit"
    MODULES = "kernel module"
    PCI_FUNCTIONS = "PCI function"
    MOUNTS = "mount"
    LIBRARIES = "library of the linker's cache"
    USERS = "user"
    GROUPS = "group"
    PACKAGES = "package"
    IMAGES = "container image"
    SYSCTLS = "sysctl"
    PORTS = "listening port"
    KERNELS = "running kernel"


class FileIdentity(NamedTuple):
    """Facts that change with a file's content: equal identities mean equal contents.

    `file_system` is needed since each file system has its own inode numbers.
    """

    file_system: str
    inode: int
    mtime_ns: int
    ctime_ns: int


class PathState(NamedTuple):
    """The state of one path.

    `kind` is the letter for the type of file that `ls -l` prints, but `f` for a regular file.
    `sha256` is None if the content was not read; then `identity` shows whether the content has
    changed.
    """

    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    identity: FileIdentity
    target: str | None = None
    device: str | None = None
    capabilities: str | None = None
    attributes: str = ""
    """The letters of `lsattr`: `i` for immutable, `a` for append-only."""
    xattrs: tuple[tuple[str, str], ...] = ()
    """All other extended attributes, such as ACLs, with their values in hexadecimal digits."""
    sha256: str | None = None

    def to_item(self) -> dict[str, str]:
        """Return the attributes to compare, by name; the digest is included only if the content was read."""
        size = str(self.size) if self.kind == "f" else None
        found = {
            "kind": self.kind,
            "mode": f"{self.mode:04o}",
            "owner": f"{self.uid}:{self.gid}",
            "size": size,
            "target": self.target,
            "number": self.device,
            "capabilities": self.capabilities,
            "attributes": self.attributes or None,
            **{f"xattr {name}": value for name, value in self.xattrs},
            "sha256": None if self.sha256 is None else self.sha256[:16],
        }
        return {name: value for name, value in found.items() if value is not None}


class Unknown(NamedTuple):
    """A part of the state that could not be read, and the reason; a `name` `*` means the whole kind."""

    kind: StateKind
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeState:
    """The state of a node; `expect.unchanged` compares two states.

    `items` has, for each kind except paths, the attributes of each item by the item's name. Times
    are times of the node's clock.
    """

    node: str
    taken_at_ns: int
    boot_id: str
    paths: Mapping[str, PathState] = field(repr=False)
    items: Mapping[StateKind, Mapping[str, Mapping[str, str]]] = field(repr=False)
    unknown: tuple[Unknown, ...] = ()
    folder: Path | None = field(default=None, repr=False)
    """The folder into which differences from this state are written."""

    def of(self, kind: StateKind) -> Mapping[str, Mapping[str, str]]:
        """Return the items of a kind by name, each with its attributes."""
        if kind is StateKind.PATHS:
            return {path: state.to_item() for path, state in self.paths.items()}
        return self.items.get(kind, {})


def letter_of(mode: int) -> str:
    """Return the kind of a file for `PathState`, from the mode in the file's inode."""
    letter = stat.filemode(mode)[0]
    return "f" if letter == "-" else letter
