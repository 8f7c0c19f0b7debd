"""The cache of built images: an image is built once for all processes, and verified before use."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.artifact_cache import DISK, KEY_DIGITS, DamagedError, ParentPin, now
from harness.artifact_cache.cache import ArtifactCache
from harness.artifact_cache.manifest import facts_of
from harness.errors import HarnessError
from harness.foreign_files import last_bytes
from harness.image import CloudImageKernel, Image, Kernel
from harness.image.formats.kernel_versions import version_key
from harness.image.formats.qcow2 import is_qcow2, make_relative
from harness.image.manifest import IMAGE_FORMAT, Manifest, kernel_files
from harness.progress import Progress, Stage, ignore_progress
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from harness.artifact_cache import ArtifactSource, StagingFolder
    from harness.image import DriverImage
    from harness.image.build.builder import ImageBuilder
    from harness.image.catalogue import Recipe
    from harness.progress import ProgressListener
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.settings import LicenceId

_OVERLAYS = "overlays"
QEMU_IMG_S = 60.0
"""The time limit in seconds for making an overlay of 200 kB. Only a hanging disk takes longer."""


#: The last line of the log of a successful build.
_MADE = "made in {:.0f} s{}\n"
_ON_ANOTHER = " on another image"
_MADE_LINE = re.compile(rf"^made in (\d+) s({_ON_ANOTHER})?\n\Z", re.MULTILINE)
_MADE_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class BuildTime:
    """The time to make an image. `is_derived` says whether the image is based on another image."""

    name: str
    is_derived: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The kernels and the driver of a node image that was made from a cloud image."""

    kernels: Sequence[CloudImageKernel]
    driver: DriverImage | None


class ImageStore:
    """The cache of built images in one folder. Several processes may use the same folder."""

    def __init__(
        self,
        folder: Path,
        *,
        builder: ImageBuilder | None = None,
        runner: Runner | None = None,
        accepted_licences: Collection[LicenceId] = (),
        source: ArtifactSource | None = None,
    ) -> None:
        self._folder = folder
        self._accepted_licences = accepted_licences
        self._given_builder = builder
        self._runner = LocalRunner() if runner is None else runner
        self.cache = ArtifactCache(
            folder,
            manifests=IMAGE_FORMAT,
            clean=self._clean,
            leftovers=(_OVERLAYS,),
            source=source,
        )

    @functools.cached_property
    def _builder(self) -> ImageBuilder:
        if self._given_builder is not None:
            return self._given_builder
        # Few runs build images, so other runs save the time of this import.
        from harness.image.build.builder import MmdebstrapBuilder  # noqa: PLC0415

        return MmdebstrapBuilder()

    def _clean(self, work: Path) -> None:
        self._builder.clean(work)

    def ensure(
        self,
        recipe: Recipe,
        *,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
    ) -> Image:
        """Return the recipe's image. Build the image if the cache has no valid copy.

        Raises LicenceError if the licence is not accepted, even if the image is cached. Raises
        RequirementError if the host lacks something that a build needs, ImageBuildError if the
        build fails, and HarnessError if another process still locks the image at the deadline.
        """
        recipe.require_acceptance(self._accepted_licences)
        key = recipe.key(builder=self._builder.version)

        def fill(staging: StagingFolder, log: Path) -> Manifest:
            built = self._builder.build(
                recipe,
                into=staging.content,
                work=staging.work,
                log=log,
                listener=listener,
                deadline=deadline,
            )
            kernels = [file for version in built.kernels for file in kernel_files(version)]
            return Manifest(
                name=recipe.name,
                key=key,
                builder=self._builder.version,
                built=now(),
                kernels=built.kernels,
                packages=built.packages,
                driver=recipe.file.driver,
                files=facts_of(staging.content, [DISK, *kernels]),
            )

        return self._ensure(recipe.name, key, fill, listener=listener, deadline=deadline)

    def ensure_derived(
        self,
        parent: Image,
        key_parts: Mapping[str, str],
        make: Callable[[Path], None],
        *,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
    ) -> Image:
        """Return the image that `make` makes from `parent`. Call `make` only if the cache lacks the result.

        `make` gets the path of a new overlay on the parent's disk, runs a machine with the overlay
        and shuts the machine down cleanly. The overlay is then published. `key_parts` name
        everything on which the result depends in addition to the parent, such as a payload's
        digest. If `make` installs a kernel and writes `kernels/VERSION/vmlinuz` and `initrd.img`
        beside the disk, that kernel can be booted, and becomes the newest kernel of the image.
        """
        pinned = IMAGE_FORMAT.read(parent.folder)
        pin = ParentPin(
            folder=parent.folder.name, key=parent.key, disk_sha256=pinned.files[DISK].sha256
        )
        canonical = json.dumps(
            {"parent": pin.disk_sha256, "parts": dict(key_parts)}, sort_keys=True
        )
        key = hashlib.sha256(canonical.encode()).hexdigest()

        def fill(staging: StagingFolder, _log: Path) -> Manifest:
            disk = staging.content / DISK
            self.create_overlay(parent.disk, disk)
            Progress(parent.name, listener).report(Stage.BUILD, "making a derived image")
            make(disk)
            make_relative(disk, published=self._folder / staging.work.name)
            own = sorted(
                (path.name for path in staging.content.glob("kernels/*")), key=version_key
            )
            return Manifest(
                name=parent.name,
                key=key,
                builder=pinned.builder,
                built=now(),
                kernels=(*(kernel for kernel in pinned.kernels if kernel not in own), *own),
                command_lines=dict.fromkeys(own, newest.command_line)
                if isinstance(newest := parent.newest_kernel, CloudImageKernel)
                else {},
                packages=pinned.packages,
                driver=pinned.driver,
                parent=pin,
                files=facts_of(
                    staging.content,
                    [DISK, *(file for version in own for file in kernel_files(version))],
                ),
            )

        return self._ensure(parent.name, key, fill, listener=listener, deadline=deadline)

    def ensure_prepared(
        self,
        name: str,
        key_parts: Mapping[str, str],
        make: Callable[[Path], Prepared],
        *,
        deadline: Deadline,
        listener: ProgressListener = ignore_progress,
    ) -> Image:
        """Return the node image that `make` makes from a cloud image, or the cached image.

        `make` gets a path, and writes a disk without a backing file to this path. `key_parts` lists
        all inputs on which the result depends, such as the cloud image's digest.
        """
        key = hashlib.sha256(json.dumps(dict(key_parts), sort_keys=True).encode()).hexdigest()

        def fill(staging: StagingFolder, _log: Path) -> Manifest:
            prepared = make(staging.content / DISK)
            files = [DISK]
            for kernel in prepared.kernels:
                folder = staging.content / "kernels" / kernel.version
                folder.mkdir(parents=True)
                for source, file in ((kernel.vmlinuz, "vmlinuz"), (kernel.initrd, "initrd.img")):
                    shutil.copyfile(source, folder / file)
                    files.append(f"kernels/{kernel.version}/{file}")
            return Manifest(
                name=name,
                key=key,
                builder="prepared",
                built=now(),
                kernels=tuple(kernel.version for kernel in prepared.kernels),
                command_lines={each.version: each.command_line for each in prepared.kernels},
                packages={},
                driver=prepared.driver,
                files=facts_of(staging.content, files),
            )

        return self._ensure(name, key, fill, listener=listener, deadline=deadline)

    def find(self, recipe: Recipe) -> Image | None:
        """Return the recipe's image, or None if the cache has no valid copy."""
        key = recipe.key(builder=self._builder.version)
        folder = self._folder_of(recipe.name, key)
        if not folder.exists():
            return None
        try:
            return self._open(folder, key)
        except DamagedError:
            return None

    def build_times(self) -> list[BuildTime]:
        """Return the build times in the logs of this cache's images, the latest build last."""
        logs = list((self._folder / ".logs").glob("*.log"))
        found = []
        for log in sorted(logs, key=lambda log: log.stat().st_mtime):
            made = _MADE_LINE.search(last_bytes(log, _MADE_BYTES).decode(errors="replace"))
            if made is not None:
                name = log.stem[: -KEY_DIGITS - 1]
                found.append(
                    BuildTime(name=name, is_derived=made[2] is not None, seconds=float(made[1]))
                )
        return found

    def close(self) -> None:
        """Release the images that this store returned, so that garbage collection may remove them."""
        self.cache.close()

    def create_overlay(self, backing: Path, at: Path, *, size_gib: int | None = None) -> None:
        """Make an empty qcow2 overlay at `at` on the disk `backing`, which must not change afterwards.

        The overlay has the size of the backing disk, or `size_gib`. qemu-img makes the first
        overlay on a disk in 30 ms. Later overlays, also in later runs, are copies of the first
        overlay. Raises HarnessError with the output of qemu-img.
        """
        kept = None if size_gib is not None else self._kept_overlay(backing.resolve())
        if kept is not None:
            with contextlib.suppress(FileNotFoundError):
                at.write_bytes(kept.read_bytes())
                return
        result = self._runner.run(
            [
                "qemu-img",
                "create",
                "-q",
                *("-f", "qcow2"),
                *("-F", _format_of(backing)),
                *("-b", str(backing.resolve())),
                str(at),
                *(() if size_gib is None else (f"{size_gib}G",)),
            ],
            timeout_s=QEMU_IMG_S,
        )
        if not result.ok:
            raise HarnessError(
                f"Could not make an overlay on the disk '{backing}' at '{at}'.\n{result.render()}"
            )
        if kept is not None:
            new = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}")
            new.write_bytes(at.read_bytes())
            new.rename(kept)

    def _kept_overlay(self, disk: Path) -> Path | None:
        """Return the path of the stored empty overlay on this disk, or None if the disk is missing."""
        try:
            stat = disk.stat()
        except OSError:
            return None
        file = (str(disk), stat.st_ino, stat.st_size, stat.st_mtime_ns)
        name = hashlib.sha256(repr(file).encode()).hexdigest()
        return self.cache.store.hidden_folder(_OVERLAYS) / f"{name}.qcow2"

    def _ensure(
        self,
        name: str,
        key: str,
        fill: Callable[[StagingFolder, Path], Manifest],
        *,
        listener: ProgressListener,
        deadline: Deadline,
    ) -> Image:
        folder = self._folder_of(name, key)

        def fill_and_describe(staging: StagingFolder) -> None:
            log = self.cache.store.hidden_folder("logs") / f"{folder.name}.log"
            log.write_bytes(b"")
            begun = time.monotonic()
            manifest = fill(staging, log)
            IMAGE_FORMAT.write(staging.content, manifest)
            on_another = "" if manifest.parent is None else _ON_ANOTHER
            with log.open("a") as file:
                file.write(_MADE.format(time.monotonic() - begun, on_another))

        def opened() -> Image:
            # As long as this image is used, its parents stay in the cache.
            self.cache.use(folder)
            return self._open(folder, key)

        return self.cache.store.ensure(
            folder,
            opened=opened,
            fill=fill_and_describe,
            progress=Progress(name, listener),
            deadline=deadline,
        )

    def _folder_of(self, name: str, key: str) -> Path:
        return self._folder / f"{name}-{key[:KEY_DIGITS]}"

    def _open(self, folder: Path, key: str) -> Image:
        """Return a published image; raises ImageDamagedError if the image is damaged."""
        manifest = IMAGE_FORMAT.check(folder, key)
        parent = None if manifest.parent is None else self._open_parent(folder, manifest.parent)
        kernels = {} if parent is None else {kernel.version: kernel for kernel in parent.kernels}
        for version in manifest.kernels:
            if parent is None or kernel_files(version)[0] in manifest.files:
                # The image's own kernel comes last, and replaces the parent's kernel of the same
                # version.
                kernels.pop(version, None)
                kernels[version] = _kernel(folder, manifest, version)
        return Image(
            name=manifest.name,
            key=manifest.key,
            folder=folder,
            disk=folder / DISK,
            kernels=tuple(kernels.values()),
            driver=manifest.driver,
            parent=parent,
        )

    def _open_parent(self, folder: Path, pin: ParentPin) -> Image:
        there = self._folder / pin.folder
        parent = self._open(there, pin.key)
        IMAGE_FORMAT.check_pin(folder, there, pin)
        return parent


def _kernel(folder: Path, manifest: Manifest, version: str) -> Kernel:
    vmlinuz, initrd = (folder / file for file in kernel_files(version))
    if version not in manifest.command_lines:
        return Kernel(version=version, vmlinuz=vmlinuz, initrd=initrd)
    return CloudImageKernel(
        version=version,
        vmlinuz=vmlinuz,
        initrd=initrd,
        command_line=manifest.command_lines[version],
    )


def _format_of(disk: Path) -> str:
    """Return the format of a disk that may be raw. qemu-img reports a missing disk."""
    return "raw" if disk.is_file() and not is_qcow2(disk) else "qcow2"
