"""The cache of cloud images: an image is fetched once for all processes, and verified before use."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.artifact_cache import DISK, KEY_DIGITS, DamagedError, now
from harness.artifact_cache.cache import ArtifactCache
from harness.artifact_cache.disk_space import FULL
from harness.artifact_cache.manifest import facts_of
from harness.errors import BadInputError, RequirementError
from harness.image import CloudImage, ImageFetchError
from harness.image.cloud.download import Downloader, Patience
from harness.image.cloud.fetch import Fetch, ListedImage, digest_file
from harness.image.cloud.lock_file import Lock, lock_path, read_lock, write_lock
from harness.image.formats.qcow2 import virtual_bytes, why_unusable
from harness.image.manifest import CLOUD_IMAGE_FORMAT, CloudImageManifest
from harness.progress import Progress, Stage, ignore_progress
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.artifact_cache import StagingFolder
    from harness.image.cloud.source import Algorithm, CloudImageRecipe, Digest, LocalImage
    from harness.progress import ProgressListener
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline


@dataclass(frozen=True, kw_only=True)
class FetchOptions:
    """Options of a fetch: no network, renewal of the lock file, and preferred mirrors."""

    is_offline: bool = False
    is_renewal: bool = False
    mirrors: Sequence[str] = ()


class CloudImageStore:
    """The cache of cloud images in one folder. Several processes may use the same folder."""

    def __init__(
        self, folder: Path, *, runner: Runner | None = None, patience: Patience | None = None
    ) -> None:
        self._folder = folder
        self._runner = LocalRunner() if runner is None else runner
        self._patience = patience
        self.cache = ArtifactCache(
            folder, manifests=CLOUD_IMAGE_FORMAT, leftovers=("partial", "refused")
        )

    def ensure(
        self,
        recipe: CloudImageRecipe,
        *,
        deadline: Deadline,
        options: FetchOptions | None = None,
        listener: ProgressListener = ignore_progress,
    ) -> CloudImage:
        """Return the recipe's image. Fetch and verify the image if the cache has no valid copy.

        The recipe's digest selects an image of the series. Without a digest, the lock file selects
        the image. Without a lock file too, the current image in the publisher's list is fetched,
        and the lock file is written. Raises ImageFetchError, RequirementError or BadInputError, and
        WaitTimeoutError at the deadline.
        """
        options = FetchOptions() if options is None else options
        wanted = recipe.pinned or (None if options.is_renewal else read_lock(recipe))
        damage = ""
        if wanted is not None and self._folder_of(recipe, wanted).exists():
            try:
                return self._use(recipe, wanted)
            except DamagedError as error:
                damage = f" {error}"
        if options.is_offline:
            raise _offline(recipe, wanted, damage)

        progress = Progress(recipe.name, listener)
        fetch = Fetch(
            recipe=recipe,
            mirrors=options.mirrors,
            downloader=Downloader(
                patience=self._patience,
                report=lambda message: progress.report(Stage.FETCH, message),
            ),
            runner=self._runner,
            deadline=deadline,
            progress=progress,
        )
        listed = fetch.read_lists(wanted)
        image = self.cache.store.ensure(
            self._folder_of(recipe, listed.digest),
            opened=lambda: self._use(recipe, listed.digest),
            fill=lambda staging: self._fill(staging, fetch, listed),
            progress=progress,
            deadline=deadline,
        )
        # The lists were fetched, so the end of this activity is reported even for a cached image.
        progress.report(Stage.ENDED, "it is in the cache")
        if recipe.pinned is None:
            lock = Lock(
                file=recipe.file.file,
                digest=str(listed.digest),
                signed_by=listed.signed_by,
                fetched=now(),
            )
            write_lock(recipe, lock, renew=options.is_renewal)
        return image

    def find(self, recipe: CloudImageRecipe) -> CloudImage | None:
        """Return the image that the recipe or its lock file selects, if the cache has a valid copy."""
        wanted = recipe.pinned or read_lock(recipe)
        if wanted is None or not self._folder_of(recipe, wanted).exists():
            return None
        try:
            return self._open(recipe, wanted)
        except DamagedError:
            return None

    def close(self) -> None:
        """Release the images that this store returned, so that garbage collection may remove them."""
        self.cache.close()

    def _folder_of(self, recipe: CloudImageRecipe, digest: Digest) -> Path:
        return self._folder / f"{recipe.name}-{digest.value[:KEY_DIGITS]}"

    def _use(self, recipe: CloudImageRecipe, digest: Digest) -> CloudImage:
        self.cache.use(self._folder_of(recipe, digest))
        return self._open(recipe, digest)

    def _open(self, recipe: CloudImageRecipe, digest: Digest) -> CloudImage:
        """Return a cached image; raises DamagedError if the image is damaged."""
        folder = self._folder_of(recipe, digest)
        manifest = CLOUD_IMAGE_FORMAT.check(folder, str(digest))
        return CloudImage(
            name=manifest.name,
            digest=manifest.digest,
            disk=folder / DISK,
            virtual_bytes=virtual_bytes(folder / DISK),
            driver=recipe.file.driver,
            firmware=recipe.file.firmware,
        )

    def _fill(self, staging: StagingFolder, fetch: Fetch, listed: ListedImage) -> None:
        """Write the verified image and its manifest."""
        part = (
            self.cache.store.hidden_folder("partial") / f"{listed.digest.value[:KEY_DIGITS]}.part"
        )
        try:
            url = fetch.download(listed, part, refused=self.cache.store.hidden_folder("refused"))
            part.rename(staging.content / DISK)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise RequirementError(
                f"The disk of '{part.parent}' became full while '{fetch.recipe.file.file}' was "
                "downloaded; free some space, or set XDG_CACHE_HOME to a folder on a larger disk. "
                "The partial file is kept, and the next download resumes it."
            ) from error
        manifest = CloudImageManifest(
            name=fetch.recipe.name,
            key=str(listed.digest),
            url=url,
            digest=str(listed.digest),
            signed_by=listed.signed_by,
            fetched=now(),
            files=facts_of(staging.content, [DISK]),
        )
        CLOUD_IMAGE_FORMAT.write(staging.content, manifest)


def _offline(recipe: CloudImageRecipe, wanted: Digest | None, damage: str) -> ImageFetchError:
    name, entry = recipe.name, recipe.folder / f"{recipe.name}.yaml"
    if wanted is None:
        return ImageFetchError(
            f"The image '{name}' is not in the cache, and without a network its version is "
            f"unknown: there is neither a 'digest' in '{entry}' nor a lock file "
            f"'{lock_path(recipe)}'. Run `harness image fetch` without --offline once, on a host with a network."
        )
    return ImageFetchError(
        f"The image '{name}' with the digest {wanted} is not in the cache, and can't be fetched "
        f"offline.{damage} Run `harness image fetch --image {recipe.word}` without --offline. On a host "
        "without a network, copy the image, its list of digests and the list's signature from another host into "
        "a folder, and name the folder by --mirror=file:///FOLDER."
    )


def open_local(local: LocalImage, algorithm: Algorithm) -> CloudImage:
    """Return the image at a local path; raises BadInputError if the file is not an image."""
    require_image(local)
    path, stat = local.path, local.path.stat()
    state = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return CloudImage(
        name=local.name,
        digest=str(_digest(path, algorithm, state)),
        disk=path.absolute(),
        virtual_bytes=virtual_bytes(path),
        driver=local.file.driver,
        firmware=local.file.firmware,
    )


@functools.lru_cache(maxsize=8)
def _digest(path: Path, algorithm: Algorithm, state: tuple[int, ...]) -> Digest:
    """Return the digest of a file. Cache the digest by `state`, since hashing takes seconds."""
    del state
    return digest_file(path, algorithm)


def require_image(local: LocalImage) -> None:
    """Raise BadInputError if there is no usable image at a local path."""
    try:
        problem = _problem_of_path(local.path)
        if problem is None and (why := why_unusable(local.path)) is not None:
            problem = f"The file {why}."
    except OSError as error:
        problem = f"The file cannot be read ({error.strerror})."
    if problem is not None:
        raise BadInputError(problem, source=str(local.path))


def _problem_of_path(path: Path) -> str | None:
    if path.is_dir():
        return "This is a folder; give the path of the image file in it."
    if not path.exists():
        return "This file does not exist."
    return None if path.is_file() else "This is not a regular file but a device, pipe or socket."
