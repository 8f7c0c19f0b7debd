"""What was published with an image, and whether the files still are that."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from harness.image import DriverImage, ImageDamagedError
from harness.image.qcow2 import is_qcow2
from harness.published import FileFact, ParentPin  # noqa: TC001 - pydantic evaluates them
from harness.published.kind import Kind

if TYPE_CHECKING:
    from pathlib import Path

DISK = "disk.qcow2"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an image is; `kernels` go from the oldest to the newest."""

    schema: Literal[1] = 1
    name: str
    key: str
    builder: str
    built: str
    kernels: tuple[str, ...]
    packages: Mapping[str, str]
    driver: DriverImage | None
    parent: ParentPin | None = None
    files: Mapping[str, FileFact]


@dataclass(frozen=True, kw_only=True)
class StockManifest:
    """What a stock image is; `digest` and `signed_by` are those of its publisher's list."""

    schema: Literal[1] = 1
    name: str
    key: str
    url: str
    digest: str
    signed_by: str | None
    fetched: str
    parent: None = None
    files: Mapping[str, FileFact]


class ImageKind(Kind[Manifest]):
    """An image is a published folder whose disk begins as qcow2 does."""

    @override
    def check_sizes(self, folder: Path, manifest: Manifest) -> None:
        super().check_sizes(folder, manifest)
        disk = folder / DISK
        if not is_qcow2(disk):
            raise ImageDamagedError(f"The image's disk '{disk}' does not begin as qcow2 does.")


KIND = ImageKind(noun="image", shape=Manifest, damaged=ImageDamagedError)

STOCK_KIND = Kind(noun="stock image", shape=StockManifest, damaged=ImageDamagedError)
