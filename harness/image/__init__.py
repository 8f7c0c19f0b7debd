"""Images from which machines boot, and the errors for images that can't be made or used."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar

import pydantic
from typing_extensions import override

from harness.artifact_cache import DamagedError
from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path


class ImageDamagedError(DamagedError):
    """An image in the cache has changed since its publication, so it must not be booted."""


class ImageBuildError(HarnessError):
    """An image could not be built. The message contains the path and the last lines of the log."""


class ImageFetchError(HarnessError):
    """A cloud image could not be fetched, or the fetched file has a wrong digest."""


@dataclass(frozen=True, kw_only=True)
class DriverImage:
    """The container image that contains the GPU driver. A node image contains this container image."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = {"extra": "forbid"}

    repository: Annotated[
        str, pydantic.Field(pattern=r"^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-][a-z0-9]+)*)+$")
    ]
    """The name of the container image, without a tag."""
    version: Annotated[str, pydantic.Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    """The driver's version, the first half of the tag."""
    sha: Annotated[str, pydantic.Field(pattern=r"^[0-9a-z]+$")]
    """The second half of the tag."""

    @property
    def tag(self) -> str:
        return f"{self.version}-{self.sha}"

    @property
    def reference(self) -> str:
        """Return the image's name in containerd."""
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel of an image, with copies of the kernel's files outside the disk for direct boot."""

    version: str
    vmlinuz: Path
    initrd: Path


@dataclass(frozen=True, kw_only=True)
class CloudImageKernel(Kernel):
    """A kernel extracted from a cloud image, with the command line of the image's boot loader."""

    command_line: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A published image: the disk on which overlays are based, and the kernels in it.

    The root file system occupies the whole disk (`root=/dev/vda`). Nothing writes to `disk`. The
    key changes if an input of the build changes.
    """

    name: str
    key: str
    folder: Path
    disk: Path
    kernels: tuple[Kernel, ...]
    driver: DriverImage | None
    parent: Image | None = None

    @override
    def __repr__(self) -> str:
        """Return a short text, since pytest prints the arguments of each test that fails."""
        return f"Image({self.name!r}, key={self.key[:8]!r})"

    @property
    def newest_kernel(self) -> Kernel:
        return self.kernels[-1]

    @property
    def other_kernel(self) -> Kernel:
        """Return the second newest kernel."""
        if len(self.kernels) < 2:
            remedy = (
                "install another kernel in the image"
                if isinstance(self.newest_kernel, CloudImageKernel)
                else "set 'newest: 2' under 'kernels' in its recipe"
            )
            raise HarnessError(
                f"The image '{self.name}' has only the kernel '{self.newest_kernel.version}', but "
                f"a second kernel is needed; {remedy}."
            )
        return self.kernels[-2]


class FirmwareType(Enum):
    """The firmware that boots a disk. Each value is the firmware's name in recipes."""

    BIOS = "bios"
    UEFI = "uefi"


@dataclass(frozen=True, kw_only=True)
class CloudImage:
    """A distribution's unmodified image: a partitioned disk with its own boot loader.

    `digest` is the digest in the publisher's list. Nothing writes to `disk`. `driver` is the
    driver image that a bake added, if the recipe names a driver image. `firmware` boots the image,
    unless a test chooses another firmware.
    """

    name: str
    digest: str
    disk: Path
    virtual_bytes: int
    driver: DriverImage | None = None
    firmware: FirmwareType = FirmwareType.BIOS
