"""The cache of what was made of stock images: their kernels taken out, and their bakes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping  # noqa: TC003 - pydantic evaluates the annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.errors import HarnessError
from harness.image import (
    ImageDamagedError,
    ImageEvent,
    Stage,
    StockImage,
    StockKernel,
    ignore_events,
)
from harness.image.bootmenu import read_menu
from harness.image.cache import ImageCache
from harness.image.extract import Extractor, find_boot
from harness.image.manifest import DISK
from harness.image.qcow2 import read_header
from harness.image.versions import version_key
from harness.provisioning.command import LocalRunner
from harness.published import KEY_DIGITS, FileFact, now
from harness.published.kind import Kind, facts_of
from harness.published.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.image import ImageListener
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.published import Workplace

VERSION = 1
"""Raised whenever the same image would give other files."""


@dataclass(frozen=True, kw_only=True)
class DerivedManifest:
    """What was made of the stock image with the digest `made_of`.

    `kernels` are those taken out of it, with the command line that its boot loader gives each; a
    bake has none, and a `disk.qcow2`.
    """

    schema: Literal[1] = 1
    name: str
    key: str
    made_of: str
    made: str
    kernels: Mapping[str, tuple[str, ...]]
    parent: None = None
    files: Mapping[str, FileFact]


DERIVED_KIND = Kind(
    noun="image made of a stock image", shape=DerivedManifest, damaged=ImageDamagedError
)


class DerivedStore:
    """What was made of stock images, by their digests; many processes may use one store."""

    def __init__(self, folder: Path, *, runner: Runner | None = None) -> None:
        self._folder = folder
        self._runner = LocalRunner() if runner is None else runner
        self._shelf = Shelf(folder, noun="derived image")
        self.cache = ImageCache(folder, kind=DERIVED_KIND, shelf=self._shelf)

    def close(self) -> None:
        """Let go of what this store gave out: until then, nobody removes it."""
        self.cache.close()

    def kernels(
        self, image: StockImage, *, deadline: Deadline, listener: ImageListener = ignore_events
    ) -> tuple[StockKernel, ...]:
        """Return the kernels of an image's boot menu, the oldest first, taken out once.

        Raises HarnessError where its disk can't be read without booting it.
        """
        key = _key(image.digest, {"what": "kernels"})
        folder = self._place_of(f"{image.name}-kernels", key)

        def fill(place: Workplace) -> None:
            extractor = Extractor(
                disk=image.disk, work=place.work, deadline=deadline, runner=self._runner
            )
            lines = take_kernels(extractor, place.content)
            files = [
                f"{version}/{name}" for version in lines for name in ("vmlinuz", "initrd.img")
            ]
            self._write(place, image, key, lines, files)

        def opened() -> tuple[StockKernel, ...]:
            self.cache.use(folder)
            manifest = DERIVED_KIND.check(folder, key)
            return tuple(
                StockKernel(
                    version=version,
                    vmlinuz=folder / version / "vmlinuz",
                    initrd=folder / version / "initrd.img",
                    command_line=manifest.kernels[version],
                )
                for version in sorted(manifest.kernels, key=version_key)
            )

        def tell(stage: Stage, message: str) -> None:
            listener(ImageEvent(image=image.name, stage=stage, message=message))

        tell(Stage.CHECK, "looking for its kernels")
        return self._shelf.ensure(
            folder, name=image.name, opened=opened, fill=fill, tell=tell, deadline=deadline
        )

    def bake(
        self,
        image: StockImage,
        parts: Mapping[str, str],
        make: Callable[[Path], None],
        *,
        deadline: Deadline,
        listener: ImageListener = ignore_events,
    ) -> StockImage:
        """Return what `make` turns an image into, making it where it is not cached.

        `make` leaves a disk that stands alone at the path that it is given, and may leave other
        files beside it. `parts` name all that its result depends on beside the image.
        """
        key = _key(image.digest, {"what": "bake", **parts})
        folder = self._place_of(f"{image.name}-baked", key)

        def fill(place: Workplace) -> None:
            make(place.content / DISK)
            self._write(place, image, key, {}, [DISK])

        def opened() -> StockImage:
            self.cache.use(folder)
            manifest = DERIVED_KIND.check(folder, key)
            header = read_header(folder / DISK)
            if header is None:
                raise ImageDamagedError(
                    f"The disk '{folder / DISK}' does not begin as qcow2 does."
                )
            return StockImage(
                name=manifest.name,
                digest=f"sha256:{manifest.files[DISK].sha256}",
                disk=folder / DISK,
                virtual_bytes=header.virtual_bytes,
                driver=image.driver,
                firmware=image.firmware,
            )

        def tell(stage: Stage, message: str) -> None:
            listener(ImageEvent(image=image.name, stage=stage, message=message))

        return self._shelf.ensure(
            folder, name=image.name, opened=opened, fill=fill, tell=tell, deadline=deadline
        )

    def _place_of(self, name: str, key: str) -> Path:
        return self._folder / f"{name}-{key[:KEY_DIGITS]}"

    def _write(
        self,
        place: Workplace,
        image: StockImage,
        key: str,
        kernels: Mapping[str, tuple[str, ...]],
        files: list[str],
    ) -> None:
        DERIVED_KIND.write(
            place.content,
            DerivedManifest(
                name=image.name,
                key=key,
                made_of=image.digest,
                made=now(),
                kernels=kernels,
                files=facts_of(place.content, files),
            ),
        )


def take_kernels(extractor: Extractor, into: Path) -> dict[str, tuple[str, ...]]:
    """Copy each kernel of the boot menu and its initrd to a folder of its version.

    Returns their command lines. A kernel without an initrd beside it is left out.
    """
    system, boot = find_boot(extractor, extractor.partitions())
    menu = extractor.work / "grub.cfg"
    system.take(f"{boot}/grub", "grub.cfg", menu)
    entries = read_menu(menu.read_text(errors="replace"))
    there = system.files(boot or "/")
    taken = {}
    for version, entry in entries.items():
        names = (f"vmlinuz-{version}", f"initrd.img-{version}")
        if not all(name in there for name in names):
            continue
        folder = into / version
        folder.mkdir()
        for name, target in zip(names, ("vmlinuz", "initrd.img"), strict=True):
            system.take(boot, name, folder / target)
        taken[version] = entry.command_line
    if not taken:
        raise HarnessError(
            f"The boot menu of the image '{extractor.disk}' names no kernel that lies beside it "
            f"with its initrd: it has {', '.join(entries) or 'no entry'}. Boot it by firmware."
        )
    return taken


def _key(digest: str, parts: Mapping[str, str]) -> str:
    told = json.dumps({"version": VERSION, "made_of": digest, **parts}, sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()
