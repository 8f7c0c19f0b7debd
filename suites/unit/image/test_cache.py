"""The caches of images: listing them, verifying them, and removing unused images."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from harness import lease
from harness.artifact_cache import manifest
from harness.image.manifest import CLOUD_IMAGE_FORMAT, IMAGE_FORMAT
from suites.unit.image.fake_store import Cache

if TYPE_CHECKING:
    from pathlib import Path

    from harness.artifact_cache import FileFact
    from harness.artifact_cache.removal import Removal
    from harness.image import Image

NOW = dt.datetime(2026, 8, 21, tzinfo=dt.timezone.utc)
MONTH = dt.timedelta(days=30)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def _age(image: Image, *, days: float) -> None:
    at = (NOW - dt.timedelta(days=days)).timestamp()
    os.utime(image.folder / "used", (at, at))


def _collect(cache: Cache, unused: dt.timedelta = MONTH) -> list[Removal]:
    return cache.store.cache.collect_unused(unused, at=NOW)


def test_listing_shows_published_images(cache: Cache) -> None:
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


def test_nothing_is_listed_or_verified_or_removed_in_an_empty_cache(cache: Cache) -> None:
    assert cache.store.cache.ls() == []
    assert cache.store.cache.verify() == []
    assert _collect(cache) == []
    assert not cache.folder.exists()


def test_verification_mentions_the_image_that_changed(cache: Cache) -> None:
    sound = cache.ensure()
    damaged = cache.derive(sound, lambda _disk: None)
    damaged.disk.write_bytes(b"QFI\xfb overlaX")

    damages = {image.folder: image.damage for image in cache.store.cache.verify()}

    assert damages[sound.folder] is None
    assert f"The image's file '{damaged.disk}' has the digest" in (damages[damaged.folder] or "")


def test_verification_reports_an_image_whose_parent_is_missing(cache: Cache) -> None:
    parent = cache.ensure()
    cache.derive(parent, lambda _disk: None)
    (parent.folder / "manifest.json").unlink()
    parent.folder.rename(parent.folder.with_name(".gone"))

    (child,) = cache.store.cache.verify()

    assert child.damage == (
        f"The image in '{child.folder}' is based on '{parent.folder}', which is missing."
    )


def test_image_that_was_not_used_for_a_long_time_is_removed(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=29.9)
    assert _collect(cache) == []

    _age(image, days=30)
    (removal,) = _collect(cache)

    assert removal.path == image.folder
    assert removal.reason == "it was not used for 30 days."
    assert not image.folder.exists()
    assert not any((cache.folder / ".work").iterdir())


def test_opening_an_image_updates_the_time_of_its_last_use(cache: Cache) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=31)

    cache.ensure()
    cache.store.close()

    (shown,) = cache.store.cache.ls()
    assert shown.last_used > NOW - dt.timedelta(days=31)


def test_finding_an_image_does_not_update_the_time_of_its_last_use(cache: Cache) -> None:
    assert cache.store.find(cache.recipe) is None
    image = cache.ensure()
    cache.store.close()
    _age(image, days=31)

    assert cache.store.find(cache.recipe) == image

    assert [removal.path for removal in _collect(cache)] == [image.folder]


def test_image_with_a_damaged_manifest_is_listed_by_the_name_and_key_of_its_folder(
    cache: Cache,
) -> None:
    folder = cache.folder / "debian-12-gpu-0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")

    (listed,) = cache.store.cache.ls()

    assert (listed.name, listed.key) == ("debian-12-gpu", "0123456789abcdef")
    assert listed.damage is not None


def test_find_returns_no_damaged_image(cache: Cache) -> None:
    os.truncate(cache.ensure().disk, 5)

    assert cache.store.find(cache.recipe) is None


def test_old_image_in_use_is_kept(cache: Cache) -> None:
    image = cache.ensure()
    _age(image, days=400)

    assert _collect(cache) == []
    assert cache.store.cache.ls()[0].is_in_use

    cache.store.close()
    assert [removal.path for removal in _collect(cache)] == [image.folder]


def test_parent_of_a_kept_image_is_kept(cache: Cache) -> None:
    parent = cache.ensure()
    child = cache.derive(parent, lambda _disk: None)
    cache.store.close()
    _age(parent, days=400)
    _age(child, days=3)

    assert _collect(cache) == []

    _age(child, days=31)
    assert [removal.path for removal in _collect(cache)] == [child.folder, parent.folder]


def test_removal_to_a_size_limit_keeps_images_in_use_and_their_parents_but_counts_their_sizes(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image in use was opened longest ago, so it would be removed first."""
    monkeypatch.setattr("harness.artifact_cache.cache.allocated_bytes", lambda _: 1 << 20)
    parent = cache.ensure()
    children = [cache.derive(parent, lambda _disk: None, payload=each) for each in "abc"]
    cache.store.close()
    cache.derive(parent, lambda _disk: None, payload="a")
    for days, image in enumerate([*children[::-1], parent], start=1):
        _age(image, days=days)
    _age(children[0], days=9)

    removals = cache.store.cache.collect_to_limit(2)

    assert [removal.path for removal in removals] == [children[1].folder, children[2].folder]
    assert cache.store.cache.collect_to_limit(0) == []
    cache.store.close()
    assert [removal.path for removal in cache.store.cache.collect_to_limit(1)] == [
        children[0].folder
    ]


def test_verification_leaves_out_an_image_that_is_removed_meanwhile(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = cache.ensure()
    other = cache.derive(image, lambda _disk: None)
    facts = manifest.fact_of

    def remove(path: Path) -> FileFact:
        if path == image.disk:
            shutil.rmtree(other.folder)
        return facts(path)

    monkeypatch.setattr(manifest, "fact_of", remove)

    assert [each.folder for each in cache.store.cache.verify()] == [image.folder]


def test_no_other_process_removes_or_publishes_images_during_a_removal(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = cache.ensure()
    cache.store.close()
    _age(image, days=400)
    is_held: list[bool] = []

    def look(_folder: Path) -> int:
        with lease.try_exclusive(cache.folder / ".locks/gate") as is_free:
            is_held.append(not is_free)
        return 0

    monkeypatch.setattr("harness.artifact_cache.cache.allocated_bytes", look)

    assert [removal.path for removal in _collect(cache)] == [image.folder]
    assert is_held == [True]


def test_image_is_removed_on_request_with_all_images_derived_from_it(cache: Cache) -> None:
    first = cache.ensure()
    second = cache.derive(first, lambda _disk: None)
    third = cache.derive(second, lambda _disk: None)
    fourth = cache.derive(third, lambda _disk: None, payload="two")
    cache.store.close()

    removals = cache.store.cache.remove([second.folder])

    assert [removal.path for removal in removals] == [fourth.folder, third.folder, second.folder]
    assert list((cache.folder / ".work").iterdir()) == []
    assert [image.folder for image in cache.store.cache.ls()] == [first.folder]


def test_rebuilt_image_is_in_use_and_not_removed(cache: Cache) -> None:
    image = cache.ensure()
    os.truncate(image.disk, 5)
    cache.ensure()
    _age(image, days=400)

    assert _collect(cache) == []


def test_staging_folder_of_a_killed_process_is_removed(cache: Cache) -> None:
    cache.ensure()
    left = cache.folder / ".work" / "node-killed"
    left.mkdir()
    (left / "half").write_bytes(b"half")

    (removal,) = _collect(cache)

    assert (removal.path, removal.reason) == (left, "the process that made it is dead.")
    assert not left.exists()


def test_image_manifest_cannot_be_read_as_a_cloud_image_manifest(cache: Cache) -> None:
    image = cache.ensure()

    with pytest.raises(Exception, match="is malformed"):
        CLOUD_IMAGE_FORMAT.read(image.folder)
    assert IMAGE_FORMAT.read(image.folder).name == "node"
