"""Pure functions that find the differences between two states of nodes."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from harness.errors import BadInputError
from harness.evidence.state import StateKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.evidence.state import NodeState, PathState, Unknown

#: Within this time before a state was taken, two changes of a file may have the same ctime.
_TICK_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class AllowedChanges:
    """The items that may differ between two states: glob patterns of names, by kind.

    `*` matches any text, including slashes. Allowed items may be added, removed, changed or
    unknown.
    """

    paths: Sequence[str] = ()
    device_nodes: Sequence[str] = ()
    units: Sequence[str] = ()
    modules: Sequence[str] = ()
    pci_functions: Sequence[str] = ()
    mounts: Sequence[str] = ()
    libraries: Sequence[str] = ()
    users: Sequence[str] = ()
    groups: Sequence[str] = ()
    packages: Sequence[str] = ()
    images: Sequence[str] = ()
    sysctls: Sequence[str] = ()
    ports: Sequence[str] = ()
    kernels: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            if isinstance(getattr(self, field.name), str):
                raise BadInputError(
                    "A list of patterns was expected, but this is a text.",
                    source="AllowedChanges",
                    key=field.name,
                )

    def __or__(self, other: AllowedChanges) -> AllowedChanges:
        """Return the patterns of this object and of `other`, for each kind."""
        return AllowedChanges(
            **{
                field.name: (*getattr(self, field.name), *getattr(other, field.name))
                for field in fields(self)
            }
        )

    def of(self, kind: StateKind) -> Sequence[str]:
        """Return the patterns of a kind."""
        patterns: Sequence[str] = getattr(self, kind.name.lower())
        return patterns

    def matcher(self, kind: StateKind) -> Callable[[str], object]:
        """Return a function that takes an item's name and returns whether this item of `kind` may differ."""
        patterns = [fnmatch.translate(pattern) for pattern in self.of(kind)]
        return re.compile("|".join(patterns) if patterns else r"(?!)").match


#: The changes that every node makes by itself.
CHANGES_AT_REST = AllowedChanges(
    paths=(
        "/var/log/*",
        # The random seed, and the times of the last runs of timers.
        "/var/lib/systemd/*",
        # ldconfig's cache of inodes and times of libraries; the list of libraries itself is
        # compared.
        "/var/cache/ldconfig/aux-cache",
        # Databases of containerd; the list of its images is compared.
        "/var/lib/containerd/io.containerd.*.db",
        "/tmp/systemd-private-*",  # noqa: S108 - nothing is written there
        "/var/tmp/systemd-private-*",  # noqa: S108
    ),
    units=(
        # Units of login sessions.
        *("*.scope", "user-*.slice", "user@*.service", "user-runtime-dir@*.service"),
        *("run-user-*.mount", "systemd-tmpfiles-clean.service"),
    ),
    mounts=("/run/user/*",),
)


#: The differences between any two nodes of one image: cloud-init makes these files for each instance.
CHANGES_OF_INSTANCES = AllowedChanges(
    paths=(
        *("/etc/ssh/ssh_host_*", "/root/.ssh/*", "/etc/machine-id", "/var/lib/dbus/machine-id"),
        *("/etc/hostname", "/etc/hosts", "/etc/netplan/*", "/etc/systemd/network/*"),
        *("/var/lib/cloud/*", "/etc/shadow-", "/dev/disk/by-uuid/*"),
    )
)


class Change(NamedTuple):
    """A difference between states; `before` is None for an added item, `after` for a removed item."""

    kind: StateKind
    name: str
    before: Mapping[str, str] | None
    after: Mapping[str, str] | None
    reason: str = ""

    def render(self) -> str:
        if self.before is None or self.after is None:
            item = self.after if self.before is None else self.before
            assert item is not None  # noqa: S101 - one of the two exists
            sign = "+" if self.before is None else "-"
            about = ", ".join(f"{key} {value}" for key, value in item.items())
            return f"{sign} {self.name}: {about}"
        changes = [
            f"{key} {self.before.get(key, 'none')} -> {self.after.get(key, 'none')}"
            for key in {**self.before, **self.after}
            if self.before.get(key) != self.after.get(key)
        ]
        return f"~ {self.name}: {', '.join([*changes, *([self.reason] if self.reason else [])])}"


@dataclass(frozen=True, kw_only=True)
class StateDiff:
    """The differences between two states, and both states' unknown parts, except items that may differ."""

    changes: tuple[Change, ...]
    unknown: tuple[Unknown, ...]

    @classmethod
    def between(cls, before: NodeState, after: NodeState, allow: AllowedChanges) -> StateDiff:
        changes: list[Change] = []
        unknown: list[Unknown] = []
        for kind in StateKind:
            is_allowed = allow.matcher(kind)
            found = (
                _path_changes(before, after)
                if kind is StateKind.PATHS
                else _item_changes(kind, before.of(kind), after.of(kind))
            )
            changes += sorted(
                (change for change in found if not is_allowed(change.name)),
                key=lambda change: change.name,
            )
            unknown += (
                each
                for each in (*before.unknown, *after.unknown)
                if each.kind is kind and not is_allowed(each.name)
            )
        return cls(changes=tuple(changes), unknown=tuple(dict.fromkeys(unknown)))

    def render(self, most: int | None = None) -> str:
        """Render the changes by kind, one line for each change, but at most `most` lines."""
        lines: list[str] = []
        for kind in StateKind:
            of_kind = [change.render() for change in self.changes if change.kind is kind]
            if of_kind:
                lines += [f"{kind.value} ({len(of_kind)}):", *(f"  {line}" for line in of_kind)]
        if most is not None and len(lines) > most:
            left = sum(line.startswith(" ") for line in lines[most - 1 :])
            lines = [*lines[: most - 1], f"… and {left} more"]
        return "\n".join(lines)


def _item_changes(
    kind: StateKind,
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
) -> Iterator[Change]:
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old != new:
            yield Change(kind, name, old, new)


def _path_changes(before: NodeState, after: NodeState) -> Iterator[Change]:
    certain_ns = before.taken_at_ns - _TICK_NS
    for path, new in after.paths.items():
        old = before.paths.get(path)
        if old is None:
            yield Change(StateKind.PATHS, path, None, new.to_item())
        elif old == new and (old.sha256 is not None or old.identity.ctime_ns < certain_ns):
            # A fast path for the most frequent case.
            continue
        elif (reason := _difference(old, new, certain_ns)) is not None:
            yield Change(StateKind.PATHS, path, *_comparable(old, new), reason)
    for path, old in before.paths.items():
        if path not in after.paths:
            yield Change(StateKind.PATHS, path, old.to_item(), None)


def _difference(old: PathState, new: PathState, certain_ns: int) -> str | None:
    """Return None if a path's states are equal, "" if attributes differ, or why the content may differ."""
    if old._replace(identity=new.identity, sha256=new.sha256) != new:
        return ""
    if old.kind != "f" or old.size == 0:
        return None
    if old.sha256 is not None and new.sha256 is not None:
        return "" if old.sha256 != new.sha256 else None
    if old.identity == new.identity and old.identity.ctime_ns < certain_ns:
        return None
    return "it was written, and its earlier content is not known"


def _comparable(old: PathState, new: PathState) -> tuple[dict[str, str], dict[str, str]]:
    """Return a path's attributes in both states; the digest is left out unless both states have a digest."""
    items = (old.to_item(), new.to_item())
    if old.sha256 is None or new.sha256 is None:
        for item in items:
            item.pop("sha256", None)
    return items
