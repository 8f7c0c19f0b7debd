"""Reads the modules in DKMS's tree from the tree's files, which the code under test may delete."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from harness.shell.fakes.arguments import check_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.shell.fakes.fake import Fake

TREE = "/var/lib/dkms"

#: bash sources `dkms.conf`, so a value may have single, double or no quotes.
_BUILT_NAME = re.compile(
    r"""^[ \t]*BUILT_MODULE_NAME(?:\[\d+\])?=(["']?)(?P<name>[\w.+-]+)\1[ \t]*(?:[#;].*)?$""",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A module's source below `/usr/src`.

    At first, the module is installed for the kernels `installed_for`.
    """

    name: str
    version: str
    builds: Sequence[str] = ()
    installed_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def built_names(self) -> Sequence[str]:
        return self.builds or (self.name,)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A module of DKMS's tree, for one kernel."""

    name: str
    version: str
    kernel: str
    arch: str
    built_names: Sequence[str] = field(default=())

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"

    @property
    def folder(self) -> str:
        return f"{TREE}/{self.name}/{self.version}"

    @property
    def built(self) -> str:
        return f"{self.folder}/{self.kernel}/{self.arch}"

    @property
    def link(self) -> str:
        return f"{TREE}/{self.name}/kernel-{self.kernel}-{self.arch}"

    @property
    def for_kernel(self) -> str:
        return f"{self.kernel} ({self.arch})"


class DkmsTree:
    """The modules in the DKMS tree of a fake, and the module sources that can be added to the tree."""

    def __init__(self, fake: Fake, sources: Iterable[Source], *, kernel: str, arch: str) -> None:
        self._fake = fake
        self._kernel = kernel
        self._arch = arch
        self.sources = {(source.name, source.version): source for source in sources}

    def target(self, name: str, version: str, kernel: str, arch: str | None = None) -> Target:
        source = self.sources.get((name, version))
        names = () if source is None else source.built_names
        if source is None:
            conf = self._fake.read_own_file(f"/usr/src/{name}-{version}/dkms.conf")
            names = (
                ()
                if conf is None
                else tuple(each["name"] for each in _BUILT_NAME.finditer(conf)) or (name,)
            )
        return Target(
            name=name, version=version, kernel=kernel, arch=arch or self._arch, built_names=names
        )

    def targets(self) -> list[Target]:
        """Return a target for each module of the tree, for the running kernel."""
        found: list[Target] = []
        for folder in self._fake.own_entries(TREE):
            for path in self._fake.own_entries(folder):
                if not path.rpartition("/")[2].startswith("kernel-"):
                    name, version = path.split("/")[-2:]
                    found.append(self.target(name, version, self._kernel))
        return found

    def built_targets(self, target: Target) -> list[Target]:
        found: list[Target] = []
        for kernel in self._fake.own_entries(target.folder):
            for arch in self._fake.own_entries(kernel):
                if self._fake.files(arch).is_folder(f"{arch}/module"):
                    *_, kernel_name, arch_name = arch.split("/")
                    found.append(self.target(target.name, target.version, kernel_name, arch_name))
        return found

    def is_added(self, target: Target) -> bool:
        source = f"{target.folder}/source"
        return self._fake.files(source).status(source, follow=False) is not None

    def is_built(self, target: Target) -> bool:
        return self._fake.files(target.built).is_folder(f"{target.built}/module")

    def is_installed(self, target: Target) -> bool:
        files = self._fake.files(target.link)
        version = files.target(target.link)
        if version is None:
            version = (files.read(target.link) or b"").decode(errors="replace")
        return version.partition("/")[0] == target.version

    def built_names(self, target: Target) -> list[str]:
        names = self._fake.files(target.built).names(f"{target.built}/module")
        return [PurePosixPath(name).stem for name in names]


def installed_in(kernel: str) -> str:
    return f"/lib/modules/{kernel}/updates/dkms"
