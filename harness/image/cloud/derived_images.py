"""The cache of data derived from cloud images: extracted kernels, and baked images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from typing_extensions import override

from harness.artifact_cache import DISK, KEY_DIGITS, FileFact, now
from harness.artifact_cache.cache import ArtifactCache
from harness.artifact_cache.manifest import ManifestFormat, facts_of
from harness.errors import HarnessError
from harness.image import CloudImage, CloudImageKernel, ImageDamagedError
from harness.image.formats.boot_menu import read_menu
from harness.image.formats.extraction import Extractor, find_boot
from harness.image.formats.kernel_versions import version_key
from harness.image.formats.qcow2 import read_header
from harness.progress import Progress, Stage, ignore_progress
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource, StagingFolder
    from harness.progress import ProgressListener
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

VERSION = 1
"""Increase this number after a code change that changes the files derived from a cloud image."""


@dataclass(frozen=True, kw_only=True)
class DerivedManifest:
    """The manifest of data that was derived from the cloud image with the digest `made_of`.

    `kernels` lists the extracted kernels, each with its command line from the image's boot loader.
    A baked image has a `disk.qcow2`, and no kernels.
    """

    schema: Literal[1] = 1
    name: str
    key: str
    made_of: str
    made: str
    kernels: Mapping[str, tuple[str, ...]]
    parent: None = None
    files: Mapping[str, FileFact]

    @property
    def created(self) -> str:
        return self.made


class _DerivedFormat(ManifestFormat[DerivedManifest]):
    """The format of derived data: extracted kernels, or a disk."""

    @override
    def required_files(self, manifest: DerivedManifest) -> Sequence[str]:
        return _kernel_files(manifest.kernels) or (DISK,)


DERIVED_FORMAT = _DerivedFormat(
    noun="derived image", manifest=DerivedManifest, damaged=ImageDamagedError
)


class DerivedStore:
    """The cache of data derived from cloud images. Several processes may use the same folder."""

    def __init__(
        self,
        folder: Path,
        *,
        runner: Runner | None = None,
        source: ArtifactSource | None = None,
    ) -> None:
        self._folder = folder
        self._runner = LocalRunner() if runner is None else runner
        self.cache = ArtifactCache(folder, manifests=DERIVED_FORMAT, source=source)

    def close(self) -> None:
        """Release the data that this store returned, so that garbage collection may remove the data."""
        self.cache.close()

    def kernels(
        self,
        image: CloudImage,
        *,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
    ) -> tuple[CloudImageKernel, ...]:
        """Return the kernels in an image's boot menu, the oldest first. Extract each kernel only once.

        Raises HarnessError if the boot menu can't be read, or if it lists no usable kernel.
        """
        key = _key(image.digest, {"what": "kernels"})
        folder = self._folder_of(f"{image.name}-kernels", key)

        def fill(staging: StagingFolder) -> None:
            extractor = Extractor(
                disk=image.disk, work=staging.work, deadline=deadline, runner=self._runner
            )
            lines = extract_kernels(extractor, staging.content)
            self._write(staging, image, key, lines, _kernel_files(lines))

        def opened() -> tuple[CloudImageKernel, ...]:
            self.cache.use(folder)
            manifest = DERIVED_FORMAT.check(folder, key)
            return tuple(
                CloudImageKernel(
                    version=version,
                    vmlinuz=folder / version / "vmlinuz",
                    initrd=folder / version / "initrd.img",
                    command_line=manifest.kernels[version],
                )
                for version in sorted(manifest.kernels, key=version_key)
            )

        progress = Progress(image.name, listener)
        progress.report(Stage.CHECK, "looking for its kernels")
        return self.cache.store.ensure(
            folder, opened=opened, fill=fill, progress=progress, deadline=deadline
        )

    def bake(
        self,
        image: CloudImage,
        parts: Mapping[str, str],
        make: Callable[[Path], None],
        *,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
    ) -> CloudImage:
        """Return the image that `make` makes from `image`. Call `make` only if the cache lacks the result.

        `make` gets a path, writes a disk without a backing file to this path, and may write other
        files beside the disk. `parts` lists all inputs, other than `image`, on which the result
        depends.
        """
        key = _key(image.digest, {"what": "bake", **parts})
        folder = self._folder_of(f"{image.name}-baked", key)

        def fill(staging: StagingFolder) -> None:
            make(staging.content / DISK)
            self._write(staging, image, key, {}, [DISK])

        def opened() -> CloudImage:
            self.cache.use(folder)
            manifest = DERIVED_FORMAT.check(folder, key)
            header = read_header(folder / DISK)
            if header is None:
                raise ImageDamagedError(f"The disk '{folder / DISK}' is not a qcow2 file.")
            return CloudImage(
                name=manifest.name,
                digest=f"sha256:{manifest.files[DISK].sha256}",
                disk=folder / DISK,
                virtual_bytes=header.virtual_bytes,
                driver=image.driver,
                firmware=image.firmware,
            )

        return self.cache.store.ensure(
            folder,
            opened=opened,
            fill=fill,
            progress=Progress(image.name, listener),
            deadline=deadline,
        )

    def _folder_of(self, name: str, key: str) -> Path:
        return self._folder / f"{name}-{key[:KEY_DIGITS]}"

    def _write(
        self,
        staging: StagingFolder,
        image: CloudImage,
        key: str,
        kernels: Mapping[str, tuple[str, ...]],
        files: Iterable[str],
    ) -> None:
        DERIVED_FORMAT.write(
            staging.content,
            DerivedManifest(
                name=image.name,
                key=key,
                made_of=image.digest,
                made=now(),
                kernels=kernels,
                files=facts_of(staging.content, files),
            ),
        )


def extract_kernels(extractor: Extractor, into: Path) -> dict[str, tuple[str, ...]]:
    """Copy each kernel of the boot menu, with its initrd, to a folder named after its version.

    Leave out a kernel whose file or initrd is missing. Return the kernels' command lines by version.
    """
    system, boot = find_boot(extractor, extractor.partitions())
    menu = extractor.work / "grub.cfg"
    system.take(f"{boot}/grub", "grub.cfg", menu)
    entries = read_menu(menu.read_text(errors="replace"))
    there = system.files(boot or "/")
    extracted = {}
    for version, entry in entries.items():
        names = (f"vmlinuz-{version}", f"initrd.img-{version}")
        if not all(name in there for name in names):
            continue
        folder = into / version
        folder.mkdir()
        for name, target in zip(names, ("vmlinuz", "initrd.img"), strict=True):
            system.take(boot, name, folder / target)
        extracted[version] = entry.command_line
    if not extracted:
        found = f"its entries are {', '.join(entries)}" if entries else "it has no entry"
        raise HarnessError(
            f"The boot menu of the image '{extractor.disk}' has no kernel whose file and initrd exist: "
            f"{found}. Boot the image by firmware."
        )
    return extracted


def _kernel_files(versions: Iterable[str]) -> Sequence[str]:
    return [f"{version}/{name}" for version in versions for name in ("vmlinuz", "initrd.img")]


def _key(digest: str, parts: Mapping[str, str]) -> str:
    canonical = json.dumps({"version": VERSION, "made_of": digest, **parts}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
