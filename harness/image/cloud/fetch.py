"""Fetches one cloud image: reads the publisher's lists, downloads the file, checks its digest."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.image import ImageFetchError
from harness.image.cloud.digest_lists import digest_of, read_sums
from harness.image.cloud.lock_file import lock_path
from harness.image.cloud.signature import check_signature
from harness.image.cloud.source import Digest
from harness.image.formats.qcow2 import why_unusable
from harness.progress import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.image.cloud.download import Downloader
    from harness.image.cloud.source import Algorithm, CloudImageRecipe, Sums
    from harness.progress import Progress
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ListedImage:
    """The entry of an image in the digest list at one location."""

    digest: Digest
    location: str
    signed_by: str | None


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Tries the locations of a cloud image in order, `mirrors` first."""

    recipe: CloudImageRecipe
    mirrors: Sequence[str]
    downloader: Downloader
    runner: Runner
    deadline: Deadline
    progress: Progress

    def read_lists(self, wanted: Digest | None) -> ListedImage:
        """Return the image of the first location whose valid list has the `wanted` digest.

        Raises ImageFetchError with the error of each location, or BadInputError.
        """
        content = self.recipe.file
        entry = self.recipe.folder / f"{self.recipe.name}.yaml"
        errors = []
        is_replaced = False
        for location in self.recipe.locations(self.mirrors):
            if content.sums is None:
                return ListedImage(digest=_pinned(self.recipe), location=location, signed_by=None)
            try:
                listed = self._read_list(location, content.sums)
            except ImageFetchError as error:
                errors.append(str(error))
                continue
            if wanted is None or listed.digest == wanted:
                return listed
            if wanted.algorithm is not listed.digest.algorithm:
                raise BadInputError(
                    f"The image is pinned by a {wanted.algorithm.value} digest, but the publisher's list has "
                    f"a {listed.digest.algorithm.value} digest; pin the image by the digest in the list.",
                    source=str(entry),
                    key="digest",
                )
            is_replaced = True
            errors.append(
                f"'{location}{content.file}' now has the digest {listed.digest.short}, but "
                f"{wanted.short} is needed; the publisher has replaced the image."
            )
        if is_replaced:
            renewal = (
                f"change 'digest' in '{entry}'"
                if self.recipe.pinned is not None
                else f"renew '{lock_path(self.recipe)}' with --update"
            )
            errors.append(
                f"Use --mirror to name a location that still has the image, or {renewal}."
            )
        raise ImageFetchError("\n".join(errors))

    def _read_list(self, location: str, sums: Sums) -> ListedImage:
        content = self.recipe.file
        url, text = self.downloader.read([f"{location}{sums.file}"], deadline=self.deadline)
        if content.signature is not None and self.recipe.key_file is not None:
            _, signature = self.downloader.read(
                [f"{location}{content.signature.file}"], deadline=self.deadline
            )
            check_signature(
                text,
                signature,
                key=self.recipe.key_file,
                fingerprint=content.signature.fingerprint,
                url=url,
                runner=self.runner,
            )
        digests = read_sums(text.decode(errors="replace"), algorithm=sums.algorithm, url=url)
        return ListedImage(
            digest=digest_of(content.file, digests, url=url),
            location=location,
            signed_by=None if content.signature is None else content.signature.fingerprint,
        )

    def download(self, listed: ListedImage, part: Path, *, refused: Path) -> str:
        """Download the image to `part`, from the first location with the listed digest. Return the URL.

        If `part` is a partial file, the download continues it. A file with another digest is moved
        to the folder `refused`. Raises ImageFetchError.
        """
        preferred = (listed.location, *self.mirrors)
        left = [f"{each}{self.recipe.file.file}" for each in self.recipe.locations(preferred)]
        errors: list[str] = []
        while left:
            is_resumed = part.exists()
            self.progress.report(Stage.FETCH, f"fetching '{left[0]}' ({listed.digest.short})")
            try:
                url = self.downloader.to_file(left, part, deadline=self.deadline)
            except ImageFetchError as error:
                raise ImageFetchError("\n".join([*errors, str(error)])) from error
            found = digest_file(part, listed.digest.algorithm)
            problem = why_unusable(part)
            if found == listed.digest and problem is None:
                return url
            if found != listed.digest and is_resumed:
                part.unlink()
                self.progress.report(
                    Stage.REFUSED,
                    f"the resumed download of '{url}' has the wrong digest; fetching the whole file",
                )
                continue
            if found != listed.digest:
                problem = f"has the digest {found}, but " + (
                    f"{listed.digest} is needed"
                    if self.recipe.file.sums is None
                    else f"the publisher's list has {listed.digest}"
                )
            refused_file = refused / f"{part.stem}-{found.value[:8]}.qcow2"
            shutil.move(part, refused_file)
            errors.append(
                f"The image at '{url}' {problem}. The file was moved to '{refused_file}', and is never booted."
            )
            self.progress.report(Stage.REFUSED, errors[-1])
            left = left[left.index(url) + 1 :]
        errors.append(
            f"No location has the right image '{self.recipe.name}'; report this to the publisher, or "
            "name another location with --mirror."
        )
        raise ImageFetchError("\n".join(errors))


def _pinned(recipe: CloudImageRecipe) -> Digest:
    """Return the pinned digest of an image that has no digest list. The catalogue requires this digest."""
    if recipe.pinned is None:
        raise BadInputError(
            "A recipe without 'sums' needs this key to verify the file; add this key or 'sums'.",
            source=str(recipe.folder / f"{recipe.name}.yaml"),
            key="digest",
        )
    return recipe.pinned


def digest_file(path: Path, algorithm: Algorithm) -> Digest:
    digest = hashlib.new(algorithm.value)
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return Digest(algorithm=algorithm, value=digest.hexdigest())
