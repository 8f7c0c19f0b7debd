"""The disk space that a checkpoint needs, and the errors when the disk is full."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import store
from harness.errors import HarnessError, RequirementError
from suites.unit.machine.checkpoint.builders import MIB, PLENTY, Cache

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.checkpoint.store import CheckpointPlace


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_too_little_space_is_reported_with_figures_and_a_remedy(cache: Cache) -> None:
    for free_mib in (0, 2 * 1024 + 511):
        cache.free_bytes = free_mib * MIB

        with (
            pytest.raises(
                RequirementError,
                match=rf"2560 MiB of free space in '{cache.folder}'.* {free_mib} MiB are free.*harness checkpoints gc",
            ),
            cache.use(),
        ):
            pass

    assert cache.made == 0
    cache.free_bytes = (2 * 1024 + 512) * MIB
    cache.have()


def became_full(cache: Cache, *, left_mib: int) -> str:
    return (
        f"The disk of '{cache.folder}' became full while the checkpoint 'booted' was made (2560 MiB "
        f"are needed, {left_mib} MiB were left); free some space by `harness checkpoints gc --all`, or "
        "set XDG_CACHE_HOME to a folder on a larger disk."
    )


def test_failure_on_a_full_disk_is_attributed_to_the_disk(cache: Cache) -> None:
    def die(_place: CheckpointPlace) -> None:
        cache.free_bytes = 3 * MIB
        raise HarnessError("QEMU ended by the signal 7.")

    cache.meanwhile = die

    with pytest.raises(RequirementError) as caught, cache.use():
        pass

    assert str(caught.value) == became_full(cache, left_mib=3)


def test_full_disk_at_publication_is_reported(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_flush", fail)

    with pytest.raises(RequirementError) as caught, cache.use():
        pass

    assert str(caught.value) == became_full(cache, left_mib=PLENTY // MIB)
    assert cache.names() == []
    assert list((cache.folder / ".work").iterdir()) == []


def test_failure_while_the_disk_has_enough_space_keeps_its_message(cache: Cache) -> None:
    def fail(_place: CheckpointPlace) -> None:
        raise HarnessError("The guest hangs.")

    cache.meanwhile = fail

    with pytest.raises(HarnessError, match=r"^The guest hangs\.$"), cache.use():
        pass

    assert cache.names() == []
    assert list((cache.folder / ".work").iterdir()) == []
