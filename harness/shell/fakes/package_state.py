"""The packages of a node (dpkg's database), and the packages of the node's repository (apt's lists)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from harness.shell.fakes.arguments import check_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from harness.shell.fakes.fake import Fake

LOCK = "/var/lib/dpkg/lock-frontend"
#: A name may end with an architecture, as in `python3:any` (deb-control(5)).
_DEPENDENCY = re.compile(
    r"(?P<name>[^ (:]+)(?::[^ (]+)?(?: \((?P<relation>>=|<=|=|>>|<<) (?P<version>\S+)\))?"
)


class Status(Enum):
    """A package's state in dpkg's database."""

    INSTALLED = "installed"
    UNPACKED = "unpacked"
    CONFIG_FILES = "config-files"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A version of a package.

    `depends` lists dependencies in the form of a control file, such as `libc6 (>= 2.36)`, but
    without alternatives (`a | b`). `files` maps the paths of the package's files to their texts;
    `configuration` does the same for configuration files.
    """

    name: str
    version: str
    depends: Sequence[str] = ()
    architecture: str = "amd64"
    description: str = "package of a test"
    files: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def file_name(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"


@dataclass(kw_only=True)
class Entry:
    """A package in dpkg's database."""

    package: Package
    status: Status
    is_held: bool = False
    is_automatic: bool = False

    @property
    def wanted(self) -> str:
        if self.status is Status.CONFIG_FILES:
            return "deinstall"
        return "hold" if self.is_held else "install"


class PackageState:
    """The installed packages, and the packages in the repository."""

    def __init__(
        self,
        fake: Fake,
        installed: Iterable[Package],
        repository: Iterable[Package],
        architecture: str = "amd64",
    ) -> None:
        self._fake = fake
        self._own = {architecture, "all", "any", "native"}
        self.entries = {
            package.name: Entry(package=package, status=Status.INSTALLED) for package in installed
        }
        self.repository = list(repository)
        self.has_lists = True
        self.lock_attempts: float = 0

    def is_locked(self) -> bool:
        """Return whether another process holds dpkg's lock; a call counts as an attempt to take the lock."""
        is_held = self.lock_attempts > 0
        self.lock_attempts -= is_held
        return is_held

    def plain(self, word: str) -> str:
        """Return a package's name, without `:ARCH` if ARCH is the node's architecture."""
        name, _, architecture = word.partition(":")
        return name if architecture in self._own else word

    def status(self, name: str) -> Status | None:
        entry = self.entries.get(name)
        return None if entry is None else entry.status

    def offered(self, name: str, version: str | None = None) -> Package | None:
        """Return the package in apt's lists with the given version; without `version`, return the newest."""
        found = [
            package
            for package in self.repository
            if package.name == name and version in {None, package.version}
        ]
        newest = max(found, key=lambda package: version_key(package.version), default=None)
        return newest if self.has_lists else None

    def unmet(self, package: Package, besides: Iterable[Package] = ()) -> list[str]:
        """Return a package's dependencies that neither installed packages nor `besides` meet."""
        there = [
            entry.package for entry in self.entries.values() if entry.status is Status.INSTALLED
        ]
        return [
            dependency
            for dependency in package.depends
            if not any(is_met_by(dependency, other) for other in [*besides, *there])
        ]

    def dependents(self, names: Iterable[str]) -> list[str]:
        """Return the packages that depend on one of `names`, directly or indirectly."""
        found = set(names)
        for _ in range(len(self.entries)):
            found |= {
                entry.package.name
                for entry in self.entries.values()
                if entry.status is not Status.CONFIG_FILES
                and any(dependency_name(needed) in found for needed in entry.package.depends)
            }
        return sorted(found - set(names))

    def unneeded(self, removed: Iterable[str] = ()) -> list[str]:
        """Return the automatically installed packages that no package outside of `removed` needs."""
        gone = set(removed)
        installed = {
            name: entry
            for name, entry in self.entries.items()
            if entry.status is not Status.CONFIG_FILES and name not in gone
        }
        needed = {name for name, entry in installed.items() if not entry.is_automatic}
        for _ in range(len(installed)):
            needed |= {
                dependency_name(dependency)
                for name in needed
                if name in installed
                for dependency in installed[name].package.depends
            }
        return sorted(set(installed) - needed)

    def unpack(self, package: Package, *, is_automatic: bool) -> None:
        """Write a package's files; `configure` later puts new configuration files in place."""
        known = self.entries.get(package.name)
        is_automatic = is_automatic if known is None else known.is_automatic and is_automatic
        if known is None or known.status is Status.CONFIG_FILES:
            known = None
        self.entries[package.name] = Entry(
            package=package,
            status=Status.UNPACKED,
            is_automatic=is_automatic,
            is_held=known is not None and known.is_held,
        )
        self._write(package.files)
        for path, text in package.configuration.items():
            self._write({f"{path}.dpkg-new": text})

    def configure(self, name: str) -> None:
        entry = self.entries[name]
        entry.status = Status.INSTALLED
        for path, text in entry.package.configuration.items():
            files = self._fake.files(path)
            files.remove(f"{path}.dpkg-new")
            if files.status(path) is None:
                self._write({path: text})

    def remove(self, name: str, *, is_purge: bool) -> None:
        """Remove a package's files; remove its configuration only with `is_purge`."""
        entry = self.entries[name]
        entry.status = Status.CONFIG_FILES
        self._delete(entry.package.files)
        if is_purge or not entry.package.configuration:
            self._delete(entry.package.configuration)
            del self.entries[name]

    def _write(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            self._fake.write_file(path, text)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._fake.files(path).remove(path)


def dependency_name(dependency: str) -> str:
    return dependency.partition(" ")[0].partition(":")[0]


def is_met_by(dependency: str, package: Package) -> bool:
    """Return whether a package meets a dependency. Raises ValueError for an invalid dependency."""
    found = _DEPENDENCY.fullmatch(dependency)
    if found is None:
        raise ValueError(f"The fake can't read the dependency '{dependency}'.")
    if found["name"] != package.name:
        return False
    if found["relation"] is None:
        return True
    has, wanted = version_key(package.version), version_key(found["version"])
    return {
        ">=": has >= wanted,
        "<=": has <= wanted,
        "=": has == wanted,
        ">>": has > wanted,
        "<<": has < wanted,
    }[found["relation"]]


def version_key(version: str) -> tuple[object, ...]:
    """Return the sort key of a Debian version (deb-version(7))."""
    epoch, colon, rest = version.partition(":")
    rest = rest if colon else version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, "0"
    return (int(epoch) if colon else 0, tuple(_parts(upstream)), tuple(_parts(revision)))


def _parts(text: str) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield, for each part without digits, its sort keys and the number after the part."""
    for letters, number in re.findall(r"(\D*)(\d*)", text):
        order = tuple(-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in letters)
        yield (*order, 0), int(number or 0)
