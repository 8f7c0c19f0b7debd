"""The cache of images: built once by many workers, published whole, verified before use."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import filelock

from harness.errors import HarnessError, RequirementError
from harness.image import (
    Image,
    ImageDamagedError,
    ImageEvent,
    Kernel,
    Stage,
    ignore_events,
)
from harness.image.build import MmdebstrapBuilder
from harness.image.manifest import (
    DISK,
    Manifest,
    ParentPin,
    check_digests,
    check_sizes,
    facts_of,
    is_stamped,
    read_manifest,
    write_manifest,
)
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from harness.image import ImageListener
    from harness.image.build import ImageBuilder
    from harness.image.catalogue import Recipe
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

QEMU_IMG_S = 60.0
"""Making an overlay writes 200 kB; a minute passes on a host whose disk is stuck."""

KEY_DIGITS = 16
"""Digits of a key that file names carry."""


class ImageStore:
    """Images below one folder, each published under its key by a rename.

    Many processes may use one store: a lock for each key, void when its holder dies, lets one
    build while the others wait and say for whom.
    """

    def __init__(
        self,
        folder: Path,
        *,
        builder: ImageBuilder | None = None,
        runner: Runner | None = None,
    ) -> None:
        self._folder = folder
        self._builder = MmdebstrapBuilder() if builder is None else builder
        self._runner = LocalRunner() if runner is None else runner

    def ensure(
        self,
        recipe: Recipe,
        *,
        deadline: Deadline,
        listener: ImageListener = ignore_events,
    ) -> Image:
        """Return the recipe's image, building it where the cache has no sound one.

        Raises RequirementError where the host lacks something, ImageBuildError where the build
        failed, HarnessError where another process holds the image beyond the deadline.
        """
        key = recipe.key(builder=self._builder.version)

        def fill(place: _Workplace) -> Manifest:
            built = self._builder.build(
                recipe,
                into=place.content,
                work=place.work,
                log=place.log,
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
                built=_now(),
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
        pinned = read_manifest(parent.folder)
        pin = ParentPin(
            folder=parent.folder.name, key=parent.key, disk_sha256=pinned.files[DISK].sha256
        )
        told = json.dumps({"parent": pin.disk_sha256, "parts": dict(key_parts)}, sort_keys=True)
        key = hashlib.sha256(told.encode()).hexdigest()

        def fill(place: _Workplace) -> Manifest:
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
                built=_now(),
                kernels=pinned.kernels,
                packages=pinned.packages,
                driver=pinned.driver,
                parent=pin,
                files=facts_of(place.content, [DISK]),
            )

        return self._ensure(parent.name, key, fill, listener=listener, deadline=deadline)

    def verify(self, image: Image) -> None:
        """Read every file of an image, and of its parents; raise ImageDamagedError."""
        manifest = read_manifest(image.folder)
        check_sizes(image.folder, manifest)
        check_digests(image.folder, manifest)
        if image.parent is not None and manifest.parent is not None:
            self.verify(image.parent)
            _check_pin(image.folder, image.parent.folder, manifest.parent)

    def create_overlay(self, backing: Path, at: Path) -> None:
        """Make an empty qcow2 at `at` over the qcow2 `backing`, which must not change any more.

        Raises HarnessError with qemu-img's own words.
        """
        result = self._runner.run(
            [
                "qemu-img",
                "create",
                "-q",
                *("-f", "qcow2"),
                *("-F", "qcow2"),
                *("-b", str(backing.resolve())),
                str(at),
            ],
            timeout_s=QEMU_IMG_S,
        )
        if not result.ok:
            raise HarnessError(
                f"Could not make an overlay of the disk '{backing}' at '{at}'.\n{result.render()}"
            )

    def _ensure(
        self,
        name: str,
        key: str,
        fill: Callable[[_Workplace], Manifest],
        *,
        listener: ImageListener,
        deadline: Deadline,
    ) -> Image:
        folder = self._folder / f"{name}-{key[:KEY_DIGITS]}"
        if folder.exists():
            try:
                return self._open(folder, key)
            except ImageDamagedError:
                # Perhaps another process is replacing it right now; the lock tells.
                pass
        with self._claim(folder.name, name, listener=listener, deadline=deadline):
            if folder.exists():
                try:
                    return self._open(folder, key)
                except ImageDamagedError as error:
                    listener(
                        ImageEvent(
                            image=name, stage=Stage.REFUSED, message=f"{error} It is made again."
                        )
                    )
                    self._remove(folder)
            place = self._workplace(folder.name)
            try:
                manifest = fill(place)
                listener(
                    ImageEvent(image=name, stage=Stage.PUBLISH, message=f"publishing '{folder}'")
                )
                self._publish(place.content, folder, manifest)
            finally:
                self._builder.clean(place.work)
            return self._open(folder, key)

    def _open(self, folder: Path, key: str) -> Image:
        """Return the published image; raises ImageDamagedError where it is not sound.

        Sizes are compared each time; digests when the files have not been read since the host
        booted, or look changed.
        """
        manifest = read_manifest(folder)
        if manifest.key != key:
            raise ImageDamagedError(
                f"The image in '{folder}' says that its key is '{manifest.key[:KEY_DIGITS]}'."
            )
        check_sizes(folder, manifest)
        if not is_stamped(folder, manifest):
            check_digests(folder, manifest)
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
        _check_pin(folder, there, pin)
        return parent

    def _publish(self, content: Path, folder: Path, manifest: Manifest) -> None:
        write_manifest(content, manifest)
        for path in content.rglob("*"):
            if path.is_file():
                _flush(path)
        content.rename(folder)
        _flush(folder.parent)

    def _workplace(self, name: str) -> _Workplace:
        work = self._private("work") / name
        if work.exists():
            # Its maker was killed: the lock that guards this folder is ours now.
            self._builder.clean(work)
        work.mkdir()
        return _Workplace(work=work, log=self._private("logs") / f"{name}.log")

    def _remove(self, folder: Path) -> None:
        """Take an image away in one step, so that nobody opens half of it."""
        doomed = self._private("work") / f"{folder.name}.refused"
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def _private(self, name: str) -> Path:
        folder = self._folder / f".{name}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise RequirementError(
                f"The image cache '{self._folder}' cannot be written ({error.strerror}); "
                "choose a folder of your own with enough space."
            ) from error
        return folder

    @contextmanager
    def _claim(
        self, name: str, image: str, *, listener: ImageListener, deadline: Deadline
    ) -> Iterator[None]:
        """Hold the lock of one key; while another holds it, say who."""
        locks = self._private("locks")
        lock = filelock.FileLock(str(locks / f"{name}.lock"))
        holder = locks / f"{name}.holder"
        told: set[str] = set()

        def look() -> Observation[bool]:
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                seen = _holder_of(holder)
                if seen not in told:
                    told.add(seen)
                    listener(
                        ImageEvent(
                            image=image,
                            stage=Stage.WAIT,
                            message=f"waiting for {seen}, which is making this image",
                        )
                    )
                return Observation(None, f"the lock '{lock.lock_file}' is held by {seen}")
            return Observation(True, "held")

        try:
            wait_for(f"the image '{image}'", look, deadline, interval_s=0.5)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} Wait for that process, or end it: its lock goes with it."
            ) from error
        try:
            holder.write_text(json.dumps({"pid": os.getpid(), "since": _now()}))
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


class _Workplace:
    """Where an image is put together before it is published."""

    def __init__(self, *, work: Path, log: Path) -> None:
        self.work = work
        self.log = log
        self.content = work / "content"
        self.content.mkdir()
        log.unlink(missing_ok=True)
        log.touch()


def _check_pin(folder: Path, parent: Path, pin: ParentPin) -> None:
    if read_manifest(parent).files[DISK].sha256 != pin.disk_sha256:
        raise ImageDamagedError(
            f"The image in '{folder}' lies on a disk that '{parent}' no longer holds: that image "
            "was built again."
        )


def _holder_of(path: Path) -> str:
    try:
        told = json.loads(path.read_text())
        return f"process {told['pid']} (since {told['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        # Between taking the lock and writing this file.
        return "another process"


def _flush(path: Path) -> None:
    """Bring a file or folder to the disk: after a crash a rename must not outlive its data."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _now() -> str:
    return dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
