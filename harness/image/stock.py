"""The cache of stock images: fetched once by many workers, and only what is vouched for."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError
from harness.image import ImageEvent, ImageFetchError, StockImage, ignore_events
from harness.image.cache import ImageCache
from harness.image.download import Downloader, Patience
from harness.image.fetch import Fetch, Named, digest_file
from harness.image.lockfile import Lock, lock_path, read_lock, write_lock
from harness.image.manifest import DISK, STOCK_KIND, StockManifest
from harness.image.qcow2 import read_header, why_unusable
from harness.provisioning.command import LocalRunner
from harness.published import KEY_DIGITS, DamagedError, Stage, now
from harness.published.kind import facts_of
from harness.published.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.image import ImageListener
    from harness.image.source import Algorithm, Digest, LocalImage, Stock
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline
    from harness.published import Workplace


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
        terms = Terms() if terms is None else terms
        wanted = stock.pinned or (None if terms.is_renewal else read_lock(stock))
        damage = ""
        if wanted is not None and self._place_of(stock, wanted).exists():
            try:
                return self._use(stock, wanted)
            except DamagedError as error:
                damage = f" {error}"
        if terms.is_offline:
            raise _offline(stock, wanted, damage)

        def tell(stage: Stage, message: str) -> None:
            listener(ImageEvent(image=stock.name, stage=stage, message=message))

        fetch = Fetch(
            stock=stock,
            mirrors=terms.mirrors,
            downloader=Downloader(
                patience=self._patience, tell=lambda message: tell(Stage.FETCH, message)
            ),
            runner=self._runner,
            deadline=deadline,
            tell=tell,
        )
        named = fetch.ask_list(wanted)
        image = self._shelf.ensure(
            self._place_of(stock, named.digest),
            name=stock.name,
            opened=lambda: self._use(stock, named.digest),
            fill=lambda place: self._fill(place, fetch, named),
            tell=tell,
            deadline=deadline,
        )
        if stock.pinned is None:
            lock = Lock(
                file=stock.file.file,
                digest=str(named.digest),
                signed_by=named.signed_by,
                fetched=now(),
            )
            write_lock(stock, lock, renew=terms.is_renewal)
        return image

    def find(self, stock: Stock) -> StockImage | None:
        """Return the image that the entry or its lock names, where the cache has it sound."""
        wanted = stock.pinned or read_lock(stock)
        if wanted is None or not self._place_of(stock, wanted).exists():
            return None
        try:
            return self._open(stock, wanted)
        except DamagedError:
            return None

    def close(self) -> None:
        """Let go of the images that this store gave out: until then, nobody removes them."""
        self.cache.close()

    def _place_of(self, stock: Stock, digest: Digest) -> Path:
        return self._folder / f"{stock.name}-{digest.value[:KEY_DIGITS]}"

    def _use(self, stock: Stock, digest: Digest) -> StockImage:
        self.cache.use(self._place_of(stock, digest))
        return self._open(stock, digest)

    def _open(self, stock: Stock, digest: Digest) -> StockImage:
        """Return a cached image; raises DamagedError where it is not sound."""
        folder = self._place_of(stock, digest)
        manifest = STOCK_KIND.check(folder, str(digest))
        header = read_header(folder / DISK)
        return StockImage(
            name=manifest.name,
            digest=manifest.digest,
            disk=folder / DISK,
            virtual_bytes=0 if header is None else header.virtual_bytes,
            driver=stock.file.driver,
            firmware=stock.file.firmware,
        )

    def _fill(self, place: Workplace, fetch: Fetch, named: Named) -> None:
        """Leave the verified image and its manifest."""
        part = self.cache.private("partial") / f"{named.digest.value[:KEY_DIGITS]}.part"
        try:
            url = fetch.download(named, part, refused=self.cache.private("refused"))
            part.rename(place.content / DISK)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            raise RequirementError(
                f"The disk of '{part.parent}' became full while '{fetch.stock.file.file}' was "
                "downloaded; free some, or set XDG_CACHE_HOME to a folder on a larger disk. What "
                "came is kept, and gone on with."
            ) from error
        manifest = StockManifest(
            name=fetch.stock.name,
            key=str(named.digest),
            url=url,
            digest=str(named.digest),
            signed_by=named.signed_by,
            fetched=now(),
            files=facts_of(place.content, [DISK]),
        )
        STOCK_KIND.write(place.content, manifest)


def _offline(stock: Stock, wanted: Digest | None, damage: str) -> ImageFetchError:
    name, entry = stock.name, stock.folder / f"{stock.name}.yaml"
    if wanted is None:
        return ImageFetchError(
            f"The image '{name}' is not in the cache, and offline nothing says which one of its "
            f"series is wanted: neither 'digest' in '{entry}' nor the lock file "
            f"'{lock_path(stock)}'. Fetch it once where there is a network."
        )
    return ImageFetchError(
        f"The image '{name}' with the digest {wanted} is not in the cache, and offline it can't "
        f"be fetched.{damage} Fetch it where there is a network: `harness image fetch --image "
        f"{name}`, there or with --mirror file:///… here."
    )


def open_local(local: LocalImage, algorithm: Algorithm) -> StockImage:
    """Return an image that lies where a person says; raises BadInputError where it is none."""
    path = local.path
    try:
        trouble = _why_not_a_file(path)
        if trouble is None and (why := why_unusable(path)) is not None:
            trouble = f"The file {why}."
        if trouble is not None:
            raise BadInputError(trouble, source=str(path))
        header = read_header(path)
        digest = digest_file(path, algorithm)
    except OSError as error:
        raise BadInputError(
            f"The file cannot be read ({error.strerror}).", source=str(path)
        ) from error
    return StockImage(
        name=local.name,
        digest=str(digest),
        disk=path.absolute(),
        virtual_bytes=0 if header is None else header.virtual_bytes,
    )


def _why_not_a_file(path: Path) -> str | None:
    if path.is_dir():
        return "This is a folder; name the image file in it."
    if not path.exists():
        return "There is no such file."
    return None if path.is_file() else "This is no file, but a device, pipe or socket."
