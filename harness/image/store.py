"""The cache of images: built once by many workers, published whole, verified before use."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.image import Image, ImageEvent, Kernel, ignore_events
from harness.image.build import MmdebstrapBuilder
from harness.image.cache import ImageCache
from harness.image.manifest import DISK, KIND, Manifest
from harness.provisioning.command import LocalRunner
from harness.published import KEY_DIGITS, DamagedError, ParentPin, Stage, now
from harness.published.kind import facts_of
from harness.published.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from harness.image import ImageListener
    from harness.image.build import ImageBuilder
    from harness.image.catalogue import Recipe
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.published import Workplace

QEMU_IMG_S = 60.0
"""Making an overlay writes 200 kB; a minute passes on a host whose disk is stuck."""


class ImageStore:
    """Images below one folder, each published under its key; many processes may use one store."""

    def __init__(
        self,
        folder: Path,
        *,
        builder: ImageBuilder | None = None,
        runner: Runner | None = None,
        accepted_licences: Collection[str] = (),
    ) -> None:
        self._folder = folder
        self._accepted_licences = accepted_licences
        self._builder = MmdebstrapBuilder() if builder is None else builder
        self._runner = LocalRunner() if runner is None else runner
        self._blanks: dict[Path, bytes] = {}
        self._shelf = Shelf(folder, noun="image", clean=self._builder.clean)
        self.cache = ImageCache(folder, kind=KIND, shelf=self._shelf)

    def ensure(
        self,
        recipe: Recipe,
        *,
        deadline: Deadline,
        listener: ImageListener = ignore_events,
    ) -> Image:
        """Return the recipe's image, building it where the cache has no sound one.

        Raises LicenceError where its licence was not accepted, also for a cached image;
        RequirementError where the host lacks something, ImageBuildError where the build failed,
        HarnessError where another process holds the image beyond the deadline.
        """
        recipe.require_acceptance(self._accepted_licences)
        key = recipe.key(builder=self._builder.version)

        def fill(place: Workplace, log: Path) -> Manifest:
            built = self._builder.build(
                recipe,
                into=place.content,
                work=place.work,
                log=log,
                listener=listener,
                deadline=deadline,
            )
            kernels = [
                f"kernels/{version}/{name}"
                for version in built.kernels
                for name in ("vmlinuz", "initrd.img")
            ]
            return Manifest(
                name=recipe.name,
                key=key,
                builder=self._builder.version,
                built=now(),
                kernels=built.kernels,
                packages=built.packages,
                driver=recipe.file.driver,
                files=facts_of(place.content, [DISK, *kernels]),
            )

        return self._ensure(recipe.name, key, fill, listener=listener, deadline=deadline)

    def ensure_derived(
        self,
        parent: Image,
        key_parts: Mapping[str, str],
        make: Callable[[Path], None],
        *,
        deadline: Deadline,
        listener: ImageListener = ignore_events,
    ) -> Image:
        """Return the image that `make` turns `parent` into, making it where it is not cached.

        `make` receives the path of a fresh overlay on the parent's disk, runs a machine on it
        and shuts that down cleanly; what it leaves there is published. `key_parts` name all that
        its result depends on beside the parent, such as a payload's digest. Kernels are the
        parent's: a `make` that installs another one must not count on booting it directly.
        """
        pinned = KIND.read(parent.folder)
        pin = ParentPin(
            folder=parent.folder.name, key=parent.key, disk_sha256=pinned.files[DISK].sha256
        )
        told = json.dumps({"parent": pin.disk_sha256, "parts": dict(key_parts)}, sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()

        def fill(place: Workplace, _log: Path) -> Manifest:
            disk = place.content / DISK
            self.create_overlay(parent.disk, disk)
            listener(
                ImageEvent(image=parent.name, stage=Stage.BUILD, message="making a derived image")
            )
            make(disk)
            return Manifest(
                name=parent.name,
                key=key,
                builder=pinned.builder,
                built=now(),
                kernels=pinned.kernels,
                packages=pinned.packages,
                driver=pinned.driver,
                parent=pin,
                files=facts_of(place.content, [DISK]),
            )

        return self._ensure(parent.name, key, fill, listener=listener, deadline=deadline)

    def find(self, recipe: Recipe) -> Image | None:
        """Return the recipe's image where the cache has it sound."""
        key = recipe.key(builder=self._builder.version)
        folder = self._place_of(recipe.name, key)
        if not folder.exists():
            return None
        try:
            return self._open(folder, key)
        except DamagedError:
            return None

    def close(self) -> None:
        """Let go of the images that this store gave out: until then, nobody removes them."""
        self.cache.close()

    def verify(self, image: Image) -> None:
        """Read every file of an image, and of its parents; raise ImageDamagedError."""
        manifest = KIND.read(image.folder)
        KIND.check_sizes(image.folder, manifest)
        KIND.check_digests(image.folder, manifest)
        if image.parent is not None and manifest.parent is not None:
            self.verify(image.parent)
            KIND.check_pin(image.folder, image.parent.folder, manifest.parent, disk=DISK)

    def create_overlay(self, backing: Path, at: Path, *, size_gib: int | None = None) -> None:
        """Make an empty qcow2 at `at` over the qcow2 `backing`, which must not change any more.

        It is as large as the disk below, or `size_gib`.

        The first one over a disk takes qemu-img 30 ms; the others are copies of its 200 kB.
        Raises HarnessError with qemu-img's own words.
        """
        disk = backing.resolve()
        blank = None if size_gib is not None else self._blanks.get(disk)
        if blank is not None:
            at.write_bytes(blank)
            return
        result = self._runner.run(
            [
                "qemu-img",
                "create",
                "-q",
                *("-f", "qcow2"),
                *("-F", "qcow2"),
                *("-b", str(backing.resolve())),
                str(at),
                *(() if size_gib is None else (f"{size_gib}G",)),
            ],
            timeout_s=QEMU_IMG_S,
        )
        if not result.ok:
            raise HarnessError(
                f"Could not make an overlay of the disk '{backing}' at '{at}'.\n{result.render()}"
            )
        if size_gib is None:
            self._blanks[disk] = at.read_bytes()

    def _ensure(
        self,
        name: str,
        key: str,
        fill: Callable[[Workplace, Path], Manifest],
        *,
        listener: ImageListener,
        deadline: Deadline,
    ) -> Image:
        folder = self._place_of(name, key)

        def fill_and_describe(place: Workplace) -> None:
            log = self._shelf.private("logs") / f"{folder.name}.log"
            log.unlink(missing_ok=True)
            log.touch()
            KIND.write(place.content, fill(place, log))

        def tell(stage: Stage, message: str) -> None:
            listener(ImageEvent(image=name, stage=stage, message=message))

        def opened() -> Image:
            # What it lies on stays too, for as long as it does.
            self.cache.use(folder)
            return self._open(folder, key)

        return self._shelf.ensure(
            folder,
            name=name,
            opened=opened,
            fill=fill_and_describe,
            tell=tell,
            deadline=deadline,
        )

    def _place_of(self, name: str, key: str) -> Path:
        return self._folder / f"{name}-{key[:KEY_DIGITS]}"

    def _open(self, folder: Path, key: str) -> Image:
        """Return the published image; raises ImageDamagedError where it is not sound."""
        manifest = KIND.check(folder, key)
        parent = None if manifest.parent is None else self._open_parent(folder, manifest.parent)
        kernels = (
            parent.kernels
            if parent is not None
            else tuple(
                Kernel(
                    version=version,
                    vmlinuz=folder / "kernels" / version / "vmlinuz",
                    initrd=folder / "kernels" / version / "initrd.img",
                )
                for version in manifest.kernels
            )
        )
        return Image(
            name=manifest.name,
            key=manifest.key,
            folder=folder,
            disk=folder / DISK,
            kernels=kernels,
            driver=manifest.driver,
            parent=parent,
        )

    def _open_parent(self, folder: Path, pin: ParentPin) -> Image:
        there = self._folder / pin.folder
        parent = self._open(there, pin.key)
        KIND.check_pin(folder, there, pin, disk=DISK)
        return parent
