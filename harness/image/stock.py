"""The cache of stock images: fetched once by many workers, and only what is vouched for."""

from __future__ import annotations

import errno
import hashlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError
from harness.image import ImageEvent, ImageFetchError, StockImage, ignore_events
from harness.image.cache import ImageCache
from harness.image.download import Downloader, Patience
from harness.image.lockfile import Lock, lock_path, read_lock, write_lock
from harness.image.manifest import DISK, STOCK_KIND, StockManifest
from harness.image.qcow2 import read_header, why_not_alone
from harness.image.signature import check_signature
from harness.image.source import Digest
from harness.image.sums import digest_of, read_sums
from harness.provisioning.command import LocalRunner
from harness.published import KEY_DIGITS, DamagedError, Stage, now
from harness.published.kind import facts_of
from harness.published.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.image import ImageListener
    from harness.image.source import Algorithm, LocalImage, Stock
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.published import Workplace

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How an image may be had: from the network, renewed, and from which places first."""

    is_offline: bool = False
    is_renewal: bool = False
    mirrors: Sequence[str] = ()


class StockStore:
    """Stock images below one folder, by digest; many processes may use one store."""

    def __init__(
        self, folder: Path, *, runner: Runner | None = None, patience: Patience | None = None
    ) -> None:
        self._folder = folder
        self._runner = LocalRunner() if runner is None else runner
        self._patience = patience
        self._shelf = Shelf(folder, noun="stock image")
        self.cache = ImageCache(
            folder, kind=STOCK_KIND, shelf=self._shelf, leavings=("partial", "refused")
        )

    def ensure(
        self,
        stock: Stock,
        *,
        deadline: Deadline,
        terms: Terms | None = None,
        listener: ImageListener = ignore_events,
    ) -> StockImage:
        """Return the image, fetched and verified where the cache has no sound one.

        Which one of its series it is says its entry's digest, else its lock file; where there is
        neither, it is the one that the list names now, and the lock file is written. Raises
        ImageFetchError, RequirementError, BadInputError, or WaitTimeoutError at the deadline.
        """
        fetch = _Fetch(
            store=self,
            shelf=self._shelf,
            runner=self._runner,
            stock=stock,
            terms=Terms() if terms is None else terms,
            deadline=deadline,
            listener=listener,
            downloader=Downloader(
                patience=self._patience,
                tell=lambda message: listener(
                    ImageEvent(image=stock.name, stage=Stage.FETCH, message=message)
                ),
            ),
        )
        return fetch.run()

    def find(self, stock: Stock) -> StockImage | None:
        """Return the image that the entry or its lock names, where the cache has it sound."""
        wanted = stock.pinned or read_lock(stock)
        if wanted is None or not self.place_of(stock, wanted).exists():
            return None
        try:
            return self.open(stock, wanted)
        except DamagedError:
            return None

    def place_of(self, stock: Stock, digest: Digest) -> Path:
        """Return the folder of the image with this digest."""
        return self._folder / f"{stock.name}-{digest.value[:KEY_DIGITS]}"

    def open(self, stock: Stock, digest: Digest) -> StockImage:
        """Return a cached image; raises DamagedError where it is not sound."""
        folder = self.place_of(stock, digest)
        self.cache.use(folder)
        manifest = STOCK_KIND.check(folder, str(digest))
        header = read_header(folder / DISK)
        return StockImage(
            name=manifest.name,
            digest=manifest.digest,
            disk=folder / DISK,
            virtual_bytes=0 if header is None else header.virtual_bytes,
        )

    def close(self) -> None:
        """Let go of the images that this store gave out."""
        self.cache.close()


@dataclass(frozen=True, kw_only=True)
class _Named:
    """What a place's list says of the image."""

    digest: Digest
    place: str
    signed_by: str | None


@dataclass(frozen=True, kw_only=True)
class _Fetch:
    """One image being fetched."""

    store: StockStore
    shelf: Shelf
    runner: Runner
    stock: Stock
    terms: Terms
    deadline: Deadline
    listener: ImageListener
    downloader: Downloader

    def run(self) -> StockImage:
        locked = None if self.terms.is_renewal else read_lock(self.stock)
        wanted = self.stock.pinned or locked
        damage = ""
        if wanted is not None and self.store.place_of(self.stock, wanted).exists():
            try:
                return self.store.open(self.stock, wanted)
            except DamagedError as error:
                damage = f" {error}"
        if self.terms.is_offline:
            raise self._offline(wanted, damage)
        named = self._ask_list(wanted)
        image = self.shelf.ensure(
            self.store.place_of(self.stock, named.digest),
            name=self.stock.name,
            opened=lambda: self.store.open(self.stock, named.digest),
            fill=lambda place: self._fill(place, named),
            tell=self._tell,
            deadline=self.deadline,
        )
        if self.stock.pinned is None:
            lock = Lock(
                file=self.stock.file.file,
                digest=str(named.digest),
                signed_by=named.signed_by,
                fetched=now(),
            )
            write_lock(self.stock, lock, renew=self.terms.is_renewal)
        return image

    def _offline(self, wanted: Digest | None, damage: str) -> ImageFetchError:
        name, path = self.stock.name, self.stock.folder / f"{self.stock.name}.yaml"
        if wanted is None:
            return ImageFetchError(
                f"The image '{name}' is not in the cache, and offline nothing says which one of "
                f"its series is wanted: neither 'digest' in '{path}' nor the lock file "
                f"'{lock_path(self.stock)}'. Fetch it once where there is a network."
            )
        return ImageFetchError(
            f"The image '{name}' with the digest {wanted} is not in the cache, and offline it "
            f"can't be fetched.{damage} Fetch it where there is a network: `harness image fetch "
            f"--image {name}`, there or with --mirror file:///… here."
        )

    def _ask_list(self, wanted: Digest | None) -> _Named:
        """Return what the first place with a sound list says, which must be what is wanted."""
        content = self.stock.file
        troubles = []
        for place in self.stock.places(self.terms.mirrors):
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
                    source=str(self.stock.folder / f"{self.stock.name}.yaml"),
                    key="digest",
                )
            troubles.append(
                f"'{place}{content.file}' is {named.digest.short} by now, but {wanted.short} is "
                "wanted; the series has moved on."
            )
        remedy = (
            f" Name a place that still has it with --mirror, or renew '{lock_path(self.stock)}' "
            "with --update."
            if wanted is not None and self.stock.pinned is None
            else ""
        )
        raise ImageFetchError("\n".join(troubles) + remedy)

    def _read_list(self, place: str) -> _Named:
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
        return _Named(
            digest=digest_of(content.file, digests, place=url),
            place=place,
            signed_by=None if content.signature is None else content.signature.fingerprint,
        )

    def _fill(self, place: Workplace, named: _Named) -> None:
        """Leave the verified image and its manifest; what does not match is kept aside."""
        part = self.store.cache.private("partial") / f"{named.digest.value[:KEY_DIGITS]}.part"
        preferred = (named.place, *self.terms.mirrors)
        urls = [f"{each}{self.stock.file.file}" for each in self.stock.places(preferred)]
        try:
            url = self._download(urls, part, named.digest)
            disk = place.content / DISK
            part.rename(disk)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise RequirementError(
                f"The disk of '{part.parent}' became full while '{self.stock.file.file}' was "
                "downloaded; free some, or set XDG_CACHE_HOME to a folder on a larger disk. What "
                "came is kept, and gone on with."
            ) from error
        manifest = StockManifest(
            name=self.stock.name,
            key=str(named.digest),
            url=url,
            digest=str(named.digest),
            signed_by=named.signed_by,
            fetched=now(),
            files=facts_of(place.content, [DISK]),
        )
        STOCK_KIND.write(place.content, manifest)

    def _download(self, urls: Sequence[str], part: Path, wanted: Digest) -> str:
        """Fill `part` from the first place that serves what is wanted, and return its URL."""
        left = list(urls)
        troubles = []
        while left:
            was_begun = part.exists()
            self._tell(Stage.FETCH, f"fetching '{left[0]}' ({wanted.short})")
            url = self.downloader.to_file(left, part, deadline=self.deadline)
            found = digest_file(part, wanted.algorithm)
            trouble = why_not_alone(part)
            if found == wanted and trouble is None:
                return url
            if found != wanted and was_begun:
                part.unlink()
                self._tell(
                    Stage.REFUSED,
                    f"what was gone on with from '{url}' does not match; fetching it anew",
                )
                continue
            aside = self.store.cache.private("refused") / f"{part.stem}-{found.value[:8]}.qcow2"
            shutil.move(part, aside)
            why = (
                f"has the digest {found}, but its list names {wanted}"
                if found != wanted
                else trouble
            )
            troubles.append(
                f"The image that '{url}' serves {why}. It is kept aside as '{aside}', and is never "
                "booted."
            )
            self._tell(Stage.REFUSED, troubles[-1])
            left = left[left.index(url) + 1 :]
        raise ImageFetchError(
            "\n".join(troubles) + f" The image '{self.stock.name}' is not there; tell whoever "
            "runs that place, or name another one with --mirror."
        )

    def _tell(self, stage: Stage, message: str) -> None:
        self.listener(ImageEvent(image=self.stock.name, stage=stage, message=message))


def digest_file(path: Path, algorithm: Algorithm) -> Digest:
    """Read a file and return its digest."""
    digest = hashlib.new(algorithm.value)
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return Digest(algorithm=algorithm, value=digest.hexdigest())


def open_local(local: LocalImage, algorithm: Algorithm) -> StockImage:
    """Return an image that lies where a person says; raises BadInputError where it is none."""
    if not local.path.is_file():
        raise BadInputError("There is no such file.", source=str(local.path))
    trouble = why_not_alone(local.path)
    if trouble is not None:
        raise BadInputError(f"The file {trouble}.", source=str(local.path))
    header = read_header(local.path)
    return StockImage(
        name=local.name,
        digest=str(digest_file(local.path, algorithm)),
        disk=local.path.absolute(),
        virtual_bytes=0 if header is None else header.virtual_bytes,
    )
