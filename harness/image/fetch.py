"""One stock image being fetched: what a place's list says of it, and whether what it serves is that."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.image import ImageFetchError
from harness.image.lockfile import lock_path
from harness.image.qcow2 import why_unusable
from harness.image.signature import check_signature
from harness.image.source import Digest
from harness.image.sums import digest_of, read_sums
from harness.published import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.image.download import Downloader
    from harness.image.source import Algorithm, Stock
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.published import Teller

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Named:
    """What the list of one place says of the image."""

    digest: Digest
    place: str
    signed_by: str | None


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """Asks the places of a stock image in order, those in `mirrors` first."""

    stock: Stock
    mirrors: Sequence[str]
    downloader: Downloader
    runner: Runner
    deadline: Deadline
    tell: Teller

    def ask_list(self, wanted: Digest | None) -> Named:
        """Return what the first place with a sound list says, which must be what is `wanted`.

        Raises ImageFetchError with the trouble of each place, or BadInputError.
        """
        content = self.stock.file
        entry = self.stock.folder / f"{self.stock.name}.yaml"
        troubles = []
        has_moved_on = False
        for place in self.stock.places(self.mirrors):
            try:
                named = self._read_list(place)
            except ImageFetchError as error:
                troubles.append(str(error))
                continue
            if wanted is None or named.digest == wanted:
                return named
            if wanted.algorithm is not named.digest.algorithm:
                raise BadInputError(
                    f"The image is pinned by {wanted.algorithm.value}, but its list has "
                    f"{named.digest.algorithm.value}; give the digest that the list names.",
                    source=str(entry),
                    key="digest",
                )
            has_moved_on = True
            troubles.append(
                f"'{place}{content.file}' is {named.digest.short} by now, but {wanted.short} is "
                "wanted; the series has moved on."
            )
        if has_moved_on:
            renewal = (
                f"give another 'digest' in '{entry}'"
                if self.stock.pinned is not None
                else f"renew '{lock_path(self.stock)}' with --update"
            )
            troubles.append(f"Name a place that still has it with --mirror, or {renewal}.")
        raise ImageFetchError("\n".join(troubles))

    def _read_list(self, place: str) -> Named:
        content = self.stock.file
        url, text = self.downloader.read([f"{place}{content.sums.file}"], deadline=self.deadline)
        if content.signature is not None and self.stock.key_file is not None:
            _, signature = self.downloader.read(
                [f"{place}{content.signature.file}"], deadline=self.deadline
            )
            check_signature(
                text,
                signature,
                key=self.stock.key_file,
                fingerprint=content.signature.fingerprint,
                place=url,
                runner=self.runner,
            )
        digests = read_sums(
            text.decode(errors="replace"), algorithm=content.sums.algorithm, place=url
        )
        return Named(
            digest=digest_of(content.file, digests, place=url),
            place=place,
            signed_by=None if content.signature is None else content.signature.fingerprint,
        )

    def download(self, named: Named, part: Path, *, refused: Path) -> str:
        """Fill `part` from the first place that serves what its list names; return the URL.

        What does not match goes to the folder `refused`. Raises ImageFetchError.
        """
        preferred = (named.place, *self.mirrors)
        left = [f"{each}{self.stock.file.file}" for each in self.stock.places(preferred)]
        troubles: list[str] = []
        while left:
            was_begun = part.exists()
            self.tell(Stage.FETCH, f"fetching '{left[0]}' ({named.digest.short})")
            try:
                url = self.downloader.to_file(left, part, deadline=self.deadline)
            except ImageFetchError as error:
                raise ImageFetchError("\n".join([*troubles, str(error)])) from error
            found = digest_file(part, named.digest.algorithm)
            trouble = why_unusable(part)
            if found == named.digest and trouble is None:
                return url
            if found != named.digest and was_begun:
                part.unlink()
                self.tell(
                    Stage.REFUSED,
                    f"what was gone on with from '{url}' does not match; fetching it anew",
                )
                continue
            if found != named.digest:
                trouble = f"has the digest {found}, but its list names {named.digest}"
            aside = refused / f"{part.stem}-{found.value[:8]}.qcow2"
            shutil.move(part, aside)
            troubles.append(
                f"The image that '{url}' serves {trouble}. It is kept aside as '{aside}', and is "
                "never booted."
            )
            self.tell(Stage.REFUSED, troubles[-1])
            left = left[left.index(url) + 1 :]
        troubles.append(
            f"The image '{self.stock.name}' is not there; tell whoever runs that place, or name "
            "another one with --mirror."
        )
        raise ImageFetchError("\n".join(troubles))


def digest_file(path: Path, algorithm: Algorithm) -> Digest:
    """Read a file and return its digest."""
    digest = hashlib.new(algorithm.value)
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return Digest(algorithm=algorithm, value=digest.hexdigest())
