"""Which checkpoints are removed, by their last use or on request, and which are kept."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness import lease
from harness.artifact_cache import GoneError
from harness.progress import Stage
from harness.provisioning.wait import Deadline
from suites.unit.machine.checkpoint.builders import Cache

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.machine.checkpoint.store import Checkpoint


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Cache:
    """Return a store with room for two of the checkpoints that are made."""
    cache = Cache(tmp_path, limit_mib=3)
    cache.blocks_mib = 1
    return cache


def last_used(checkpoint: Checkpoint, day: int) -> None:
    seconds = day * 86400
    os.utime(checkpoint.folder / "used", (seconds, seconds))


def test_least_recently_used_checkpoint_is_removed_first(small: Cache) -> None:
    one, two = small.have("one"), small.have("two")
    last_used(one, 2)
    last_used(two, 1)

    small.have("three")

    assert small.names() == ["one", "three"]
    (sentence,) = small.said(Stage.REMOVED)
    assert sentence == (
        f"'{two.folder}' was removed: it is not in use, and the cache was larger than its limit of 3 MiB."
    )
    assert list((small.folder / ".work").iterdir()) == []


def test_using_a_checkpoint_updates_the_time_of_its_last_use(small: Cache) -> None:
    one, two = small.have("one"), small.have("two")
    last_used(one, 1)
    last_used(two, 2)
    small.have("one")

    small.store.gc(2)

    assert small.names() == ["one"]


def test_checkpoint_in_use_and_its_parent_are_removed_only_after_their_release(
    cache: Cache,
) -> None:
    parent, child = cache.have_two()

    with cache.store.hold(child, deadline=Deadline.after(60)):
        assert cache.store.gc(limit_mib=0) == []

    assert [removal.path for removal in cache.store.gc(limit_mib=0)] == [
        child.folder,
        parent.folder,
    ]
    with (
        pytest.raises(GoneError, match="was removed"),
        cache.store.hold(child, deadline=Deadline.after(60)),
    ):
        pass


def test_checkpoint_in_use_is_kept(small: Cache) -> None:
    with small.use("one") as one:
        last_used(one, 1)
        small.have("two")
        small.have("three")

        assert small.names() == ["one", "three"]
        assert [info.is_in_use for info in small.store.ls()] == [True, False]
        assert small.store.gc(0)
        assert small.names() == ["one"]
        assert one.ram.exists()

    assert small.store.gc(0)
    assert small.names() == []


def test_parent_of_a_kept_checkpoint_is_kept(small: Cache) -> None:
    parent, child = small.have_two()
    last_used(parent, 1)
    last_used(child, 2)

    small.have("other")

    assert small.names() == ["booted", "other"]


def test_parent_of_a_checkpoint_in_use_is_kept(small: Cache) -> None:
    parent, child = small.have_two()

    with ExitStack() as using:
        with small.use("booted") as live:
            using.enter_context(small.use("baked", parent=live))
        last_used(parent, 1)

        assert small.store.gc(0) == []
        assert [info.is_in_use for info in small.store.ls()] == [True, True]

    removed = [removal.path for removal in small.store.gc(0)]
    assert removed == [child.folder, parent.folder]


def test_no_checkpoint_is_removed_within_the_size_limit_or_if_a_checkpoint_is_reused(
    small: Cache,
) -> None:
    small.have("one")
    small.have("two")

    assert small.store.gc() == []
    assert small.store.gc(100) == []
    Cache(small.folder.parent, limit_mib=1).have("two")

    assert small.names() == ["one", "two"]


def test_empty_store_has_nothing_to_list_or_verify_or_remove(cache: Cache) -> None:
    assert cache.store.ls() == []
    assert cache.store.verify() == []
    assert cache.store.gc(0) == []
    assert not cache.folder.exists()


def test_listing_shows_sizes_and_parents(small: Cache) -> None:
    parent, child = small.have_two()
    last_used(child, 1)

    first, second = small.store.ls()

    assert (first.name, first.key, first.parent) == ("baked", child.key, parent.folder.name)
    assert (second.name, second.parent) == ("booted", None)
    assert first.last_used.isoformat() == "1970-01-02T00:00:00+00:00"
    assert 1 <= first.size_mib < 2
    assert first.created is not None
    assert not first.is_in_use


def test_checkpoint_that_was_removed_before_it_was_locked_is_made_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is removed between its lookup and its shared lock."""
    evicting = Cache(cache.folder.parent)
    evicting.have()
    hold_shared = lease.hold_shared

    def evict_and_hold(path: Path, *, deadline: Deadline) -> AbstractContextManager[None]:
        monkeypatch.setattr(lease, "hold_shared", hold_shared)
        evicting.store.gc(0)
        return hold_shared(path, deadline=deadline)

    monkeypatch.setattr(lease, "hold_shared", evict_and_hold)

    with cache.use() as checkpoint:
        assert checkpoint.ram.is_file()

    assert cache.made == 1
    assert cache.said(Stage.REFUSED) == []


def test_removal_of_a_checkpoint_also_removes_its_descendants_unless_they_are_in_use(
    cache: Cache,
) -> None:
    parent, child = cache.have_two()

    with cache.use("other") as other:
        removals = cache.store.remove([parent.folder, other.folder])

    assert [(removal.path, removal.reason) for removal in removals] == [
        (
            child.folder,
            "the command names it, or names an image or checkpoint on which it is based.",
        ),
        (
            parent.folder,
            "the command names it, or names an image or checkpoint on which it is based.",
        ),
    ]
    assert cache.names() == ["other"]
    assert other.ram.exists()
