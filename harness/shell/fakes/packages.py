"""A stateful fake of dpkg, dpkg-query, apt-get and apt-mark, with Debian packages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.shell.fakes.apt import Apt
from harness.shell.fakes.arguments import checks_arguments
from harness.shell.fakes.dpkg import Dpkg
from harness.shell.fakes.fake import Fake
from harness.shell.fakes.package_state import Package, PackageState, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from harness.shell.fakes.fake import Handler


class Packages(Fake):
    """A fake of dpkg, dpkg-query, apt-get and apt-mark.

    `installed` lists the packages that the node has at first, and `repository` lists the packages
    that apt-get can install. `archives` maps the paths of `.deb` files to their packages. If
    `has_lists` is false, apt-get finds no package before `apt-get update`.
    """

    @checks_arguments
    def __init__(
        self,
        *,
        installed: Iterable[Package] = (),
        repository: Iterable[Package] = (),
        archives: Mapping[str, Package] | None = None,
        has_lists: bool = True,
        architecture: str = "amd64",
    ) -> None:
        super().__init__()
        self._state = PackageState(self, installed, repository, architecture)
        self._state.has_lists = has_lists
        known = dict(archives or {})
        self._apt = Apt(self._state, known)
        self._dpkg = Dpkg(self._state, known, architecture)

    @property
    @override
    def commands(self) -> Mapping[str, Handler]:
        return {
            "apt-get": self._apt.get,
            "apt-mark": self._apt.mark,
            "dpkg": self._dpkg.dpkg,
            "dpkg-query": self._dpkg.query,
        }

    def version(self, name: str) -> str | None:
        """Return a package's version, or None if the package is not installed."""
        entry = self._state.entries.get(name)
        return (
            entry.package.version
            if entry is not None and entry.status is Status.INSTALLED
            else None
        )

    def is_installed(self, name: str) -> bool:
        return self.version(name) is not None

    def is_held(self, name: str) -> bool:
        entry = self._state.entries.get(name)
        return entry is not None and entry.is_held

    def lock(self, attempts: float = math.inf) -> None:
        """Make the next `attempts` attempts to take dpkg's lock fail, as if another process held the lock."""
        self._state.lock_attempts = attempts

    def unlock(self) -> None:
        self._state.lock_attempts = 0
