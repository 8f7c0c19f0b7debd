"""The caches of images: shown, verified, and rid of what nobody needs."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

import pytest

from harness.image.manifest import KIND, STOCK_KIND
from suites.unit.image.test_store import Cache

if TYPE_CHECKING:
    from pathlib import Path

    from harness.image import Image
    from harness.published.removal import Removal

NOW = dt.datetime(2026, 8, 21, tzinfo=dt.timezone.utc)
MONTH = dt.timedelta(days=30)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def _age(image: Image, *, days: float) -> None:
    at = (NOW - dt.timedelta(days=days)).timestamp()
    os.utime(image.folder / "used", (at, at))


def _collect(cache: Cache, unused: dt.timedelta = MONTH) -> list[Removal]:
    return cache.store.cache.gc(unused, at=NOW)


def test_listing_shows_what_is_published(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    cache.store.close()
    _age(child, days=3)

    shown = {image.folder: image for image in cache.store.cache.ls()}

    assert set(shown) == {parent.folder, child.folder}
    assert shown[child.folder].parent == parent.folder.name
    assert shown[child.folder].last_used == NOW - dt.timedelta(days=3)
    assert not shown[child.folder].is_in_use
    assert shown[parent.folder].parent is None


def test_empty_cache_has_nothing_to_show_verify_or_remove(cache: Cache) -> None:
    assert cache.store.cache.ls() == []
    assert cache.store.cache.verify() == []
    assert _collect(cache) == []
    assert not cache.folder.exists()


def test_verification_names_the_image_that_changed(cache: Cache) -> None:
    sound = cache.ensure()
    damaged = cache.derive(sound, lambda _disk: None)
    damaged.disk.write_bytes(b"QFI\xfb overlaX")

    troubles = {image.folder: image.trouble for image in cache.store.cache.verify()}

    assert troubles[sound.folder] is None
    assert f"The image's file '{damaged.disk}' has the digest" in (troubles[damaged.folder] or "")


def test_verification_names_the_image_without_its_parent(cache: Cache) -> None:
    parent = cache.ensure()
    cache.derive(parent, lambda _disk: None)
    (parent.folder / "manifest.json").unlink()
    parent.folder.rename(parent.folder.with_name(".gone"))

    (child,) = cache.store.cache.verify()

    assert child.trouble == (
        f"The image in '{parent.folder}' has no readable manifest (No such file or directory)."
    )


def test_image_that_nobody_used_for_long_is_removed(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=31)

    (removal,) = _collect(cache)

    assert removal.path == image.folder
    assert removal.reason == "nobody used it for 30 days."
    assert not image.folder.exists()
    assert not any((cache.folder / ".work").iterdir())


def test_image_that_was_used_lately_stays(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=29)

    assert _collect(cache) == []
    assert image.folder.exists()


def test_opening_an_image_counts_as_use(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=31)

    cache.ensure()
    cache.store.close()

    (shown,) = cache.store.cache.ls()
    assert shown.last_used > NOW - dt.timedelta(days=31)


def test_looking_for_an_image_is_no_use(cache: Cache) -> None:
    assert cache.store.find(cache.recipe) is None
    image = cache.ensure()
    cache.store.close()
    _age(image, days=31)

    assert cache.store.find(cache.recipe) == image

    assert [removal.path for removal in _collect(cache)] == [image.folder]


def test_damaged_image_is_not_found(cache: Cache) -> None:
    os.truncate(cache.ensure().disk, 5)

    assert cache.store.find(cache.recipe) is None


def test_image_in_use_stays_however_old(cache: Cache) -> None:
    image = cache.ensure()
    _age(image, days=400)

    assert _collect(cache) == []
    assert cache.store.cache.ls()[0].is_in_use

    cache.store.close()
    assert [removal.path for removal in _collect(cache)] == [image.folder]


def test_parent_stays_for_as_long_as_an_image_lies_on_it(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    cache.store.close()
    _age(parent, days=400)
    _age(child, days=3)

    assert _collect(cache) == []

    _age(child, days=31)
    assert [removal.path for removal in _collect(cache)] == [child.folder, parent.folder]


def test_image_that_was_made_again_is_in_use_anew(cache: Cache) -> None:
    image = cache.ensure()
    os.truncate(image.disk, 5)
    cache.ensure()
    _age(image, days=400)

    assert _collect(cache) == []


def test_what_a_killed_maker_left_is_removed(cache: Cache) -> None:
    cache.ensure()
    left = cache.folder / ".work" / "node-killed"
    left.mkdir()
    (left / "half").write_bytes(b"half")

    (removal,) = _collect(cache)

    assert (removal.path, removal.reason) == (left, "its maker is dead.")
    assert not left.exists()


def test_kinds_do_not_take_each_others_manifests(cache: Cache) -> None:
    image = cache.ensure()

    with pytest.raises(Exception, match="is not sound"):
        STOCK_KIND.read(image.folder)
    assert KIND.read(image.folder).name == "node"
