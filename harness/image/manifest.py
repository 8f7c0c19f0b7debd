"""The manifests of built images and cloud images, and the checks that only images need."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from harness.artifact_cache import DISK, FileFact, ParentPin
from harness.artifact_cache.manifest import ManifestFormat
from harness.image import DriverImage, ImageDamagedError
from harness.image.formats.qcow2 import is_qcow2

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def kernel_files(version: str) -> tuple[str, str]:
    """Return the paths of a kernel and its initrd in an image's folder."""
    return f"kernels/{version}/vmlinuz", f"kernels/{version}/initrd.img"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The facts about a built image. `kernels` lists the oldest kernel first.

    `command_lines` lists kernel command lines if the image was made from a cloud image.
    """

    schema: Literal[1] = 1
    name: str
    key: str
    builder: str
    built: str
    kernels: tuple[str, ...]
    command_lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    packages: Mapping[str, str]
    driver: DriverImage | None
    parent: ParentPin | None = None
    files: Mapping[str, FileFact]

    @property
    def created(self) -> str:
        return self.built


@dataclass(frozen=True, kw_only=True)
class CloudImageManifest:
    """The facts about a cloud image. `digest` is from the list that the key `signed_by` signed."""

    schema: Literal[1] = 1
    name: str
    key: str
    url: str
    digest: str
    signed_by: str | None
    fetched: str
    parent: None = None
    files: Mapping[str, FileFact]

    @property
    def created(self) -> str:
        return self.fetched


class _ImageFormat(ManifestFormat[Manifest]):
    """The format of built images, whose disks are qcow2."""

    @override
    def required_files(self, manifest: Manifest) -> Sequence[str]:
        """Return the disk, and the files of all kernels that the parent's image does not have."""
        kernels = (kernel_files(version) for version in manifest.kernels)
        return (
            DISK,
            *(
                name
                for files in kernels
                if manifest.parent is None or files[0] in manifest.files
                for name in files
            ),
        )

    @override
    def check_structure(self, folder: Path, manifest: Manifest) -> None:
        super().check_structure(folder, manifest)
        disk = folder / DISK
        if not is_qcow2(disk):
            raise ImageDamagedError(f"The image's disk '{disk}' is not a qcow2 file.")


IMAGE_FORMAT = _ImageFormat(noun="image", manifest=Manifest, damaged=ImageDamagedError)

CLOUD_IMAGE_FORMAT = ManifestFormat(
    noun="cloud image", manifest=CloudImageManifest, damaged=ImageDamagedError
)
