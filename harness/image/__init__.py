"""Images: what a node's disk is, and what happens while one is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

import pydantic

from harness.errors import HarnessError
from harness.published import DamagedError
from harness.published import Stage as Stage

if TYPE_CHECKING:
    from pathlib import Path


class ImageDamagedError(DamagedError):
    """An image in the cache is not what was published; it must not be booted."""


class ImageBuildError(HarnessError):
    """An image could not be built; the message ends with the log's tail and its path."""


class ImageFetchError(HarnessError):
    """A stock image could not be had, or is not the one that was to be fetched."""


@dataclass(frozen=True, kw_only=True)
class DriverImage:
    """The GPU driver's container image that a node image carries."""

    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")

    repository: Annotated[
        str, pydantic.Field(pattern=r"^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-][a-z0-9]+)*)+$")
    ]
    version: Annotated[str, pydantic.Field(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    sha: Annotated[str, pydantic.Field(pattern=r"^[0-9a-z]+$")]

    @property
    def tag(self) -> str:
        return f"{self.version}-{self.sha}"

    @property
    def reference(self) -> str:
        """Return the name under which containerd knows the image."""
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel installed in the image, with copies beside the disk for direct boot."""

    version: str
    vmlinuz: Path
    initrd: Path


@dataclass(frozen=True, kw_only=True)
class StockKernel(Kernel):
    """A kernel taken out of a stock image, with what the image's boot loader tells it."""

    command_line: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A published image: a disk to put overlays on, and the kernels that boot it.

    The root file system lies on the whole disk (`root=/dev/vda`). `disk` is never written; its
    key changes whenever anything that it was made of does.
    """

    name: str
    key: str
    folder: Path
    disk: Path
    kernels: tuple[Kernel, ...]
    driver: DriverImage | None
    parent: Image | None = None

    @property
    def newest_kernel(self) -> Kernel:
        return self.kernels[-1]

    @property
    def other_kernel(self) -> Kernel:
        """Return the newest kernel that is not the newest: what a mismatch test boots."""
        if len(self.kernels) < 2:
            raise HarnessError(
                f"The image '{self.name}' has only the kernel '{self.newest_kernel.version}', but "
                "a second one was asked for; set 'newest: 2' under 'kernels' in its recipe."
            )
        return self.kernels[-2]


@dataclass(frozen=True, kw_only=True)
class StockImage:
    """A distribution's image as it is: a partitioned disk with a boot loader of its own.

    `digest` is what its publisher's list says, `disk` is never written. `driver` is the one that
    a bake put in, where its entry names it, and `firmware` what it is booted by unless a test
    says otherwise: "bios" or "uefi".
    """

    name: str
    digest: str
    disk: Path
    virtual_bytes: int
    driver: DriverImage | None = None
    firmware: str = "bios"


@dataclass(frozen=True, kw_only=True)
class ImageEvent:
    """One thing that happened to an image, as a sentence for people."""

    image: str
    stage: Stage
    message: str


class ImageListener(Protocol):
    """Receives what happens; the caller prints, nobody here does."""

    def __call__(self, event: ImageEvent, /) -> None: ...


def ignore_events(_event: ImageEvent, /) -> None:
    """Listen to nothing."""
