"""A user's own kernel, as Debian packages, or as a kernel image with its modules."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from harness.artifact_cache.manifest import fact_of
from harness.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SOURCE = "kernel"
_AR_MAGIC = b"!<arch>\ndebian-binary"
#: From Documentation/arch/x86/boot.rst: "HdrS" is at 0x202. The number at 0x20e is the offset of
#: the version's text from 0x200.
_HEADER_MAGIC, _HEADER_MAGIC_AT = b"HdrS", 0x202
_VERSION_POINTER_AT, _VERSION_FROM = 0x20E, 0x200
_VERSION_BYTES = 256
#: Links in a modules folder to the kernel's build tree, which does not exist on a node.
_BUILD_LINKS = ("build", "source")


@dataclass(frozen=True, kw_only=True)
class KernelPackages:
    """Debian packages with one kernel. dpkg installs the packages in the given order.

    The packages must include the kernel's headers if modules are built for the kernel, for example by
    DKMS. Raises BadInputError if a file is missing, or is not a package.
    """

    packages: tuple[Path, ...]

    def __post_init__(self) -> None:
        packages: object = self.packages
        if not isinstance(packages, (tuple, list)) or not packages:
            raise BadInputError(
                f"{packages!r} is not a list of Debian packages; write, for "
                "example, (Path('linux-image.deb'),).",
                source=_SOURCE,
                key="packages",
            )
        for index, package in enumerate(self.packages):
            key = f"packages[{index}]"
            _require_file(package, key)
            with package.open("rb") as file:
                if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
                    raise BadInputError(
                        f"The file '{package}' is not a Debian package.", source=_SOURCE, key=key
                    )

    def digest(self) -> str:
        """Return a digest of all installed files."""
        return _digest((package.name, package) for package in self.packages)


@dataclass(frozen=True, kw_only=True)
class KernelFiles:
    """A kernel as installed by `make bzImage modules_install`.

    `modules` is the folder `lib/modules/VERSION`, or the folder that contains `lib` (INSTALL_MOD_PATH).
    Without `initrd`, an initrd is made in the guest. Raises BadInputError if a file is missing, or
    if the modules are not for the kernel `vmlinuz`.
    """

    vmlinuz: Path
    modules: Path
    initrd: Path | None = None

    def __post_init__(self) -> None:
        _require_file(self.vmlinuz, "vmlinuz")
        if self.initrd is not None:
            _require_file(self.initrd, "initrd")
        folder = self.modules_folder
        if folder.name != self.version:
            raise BadInputError(
                f"'{self.vmlinuz}' is the kernel '{self.version}', so its modules are expected in a "
                f"folder of this name, but the given folder is '{folder}'.",
                source=_SOURCE,
                key="modules",
            )
        if not (folder / "kernel").is_dir():
            raise BadInputError(
                f"There is no folder '{folder / 'kernel'}' with the modules of the kernel "
                f"'{self.version}'; run `make modules_install`.",
                source=_SOURCE,
                key="modules",
            )

    @property
    def version(self) -> str:
        """Return the kernel's version from its header."""
        version = read_version(self.vmlinuz)
        if version is None:
            raise BadInputError(
                f"'{self.vmlinuz}' is not a bzImage of x86, so QEMU can't boot it.",
                source=_SOURCE,
                key="vmlinuz",
            )
        return version

    @property
    def modules_folder(self) -> Path:
        """Return the folder of this version's modules."""
        below = self.modules / "lib/modules" / self.version
        return below if below.is_dir() else self.modules

    def module_files(self) -> Iterator[tuple[str, Path]]:
        """Yield, sorted, the files and links below the modules' folder, with relative paths."""
        folder = self.modules_folder
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if name not in _BUILD_LINKS and (path.is_symlink() or path.is_file()):
                yield name, path

    def digest(self) -> str:
        """Return a digest of all installed files."""
        files = [("vmlinuz", self.vmlinuz), *self.module_files()]
        if self.initrd is not None:
            files.append(("initrd", self.initrd))
        return _digest(files)


OwnKernel: TypeAlias = KernelPackages | KernelFiles


def read_version(vmlinuz: Path) -> str | None:
    """Return the version in the header of a bzImage, or None if the file is not a bzImage."""
    with vmlinuz.open("rb") as file:
        header = file.read(_VERSION_POINTER_AT + 2)
        if header[_HEADER_MAGIC_AT:][: len(_HEADER_MAGIC)] != _HEADER_MAGIC:
            return None
        (pointer,) = struct.unpack_from("<H", header, _VERSION_POINTER_AT)
        file.seek(pointer + _VERSION_FROM)
        text = file.read(_VERSION_BYTES).partition(b"\0")[0].decode(errors="replace")
    words = text.split()
    return words[0] if pointer and words else None


def _require_file(path: object, key: str) -> None:
    if not isinstance(path, Path) or not path.is_file():
        raise BadInputError(f"There is no file '{path}'.", source=_SOURCE, key=key)


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, path in files:
        if path.is_symlink():
            one = hashlib.sha256(f"link {path.readlink()}".encode()).hexdigest()
        else:
            one = fact_of(path).sha256
        whole.update(f"{name}\0{one}\n".encode())
    return whole.hexdigest()
