"""Damaged checkpoints are refused, reported, and made again once nobody uses them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from harness import lease
from harness.artifact_cache.store import ArtifactStore
from harness.errors import HarnessError
from harness.image.formats.qcow2 import backing_name
from harness.progress import Stage
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.fakes.clock import FakeClock
from suites.unit.image.formats.small_qcow2 import qcow2_on
from suites.unit.machine.checkpoint.builders import RAM_BYTES, Cache, content_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def _truncate_memory(checkpoint: Checkpoint) -> None:
    os.truncate(checkpoint.ram, RAM_BYTES // 2)


def _flip_a_byte(checkpoint: Checkpoint) -> None:
    with checkpoint.ram.open("r+b") as ram:
        ram.seek(RAM_BYTES // 4)
        ram.write(b"M")


def _lose_the_state(checkpoint: Checkpoint) -> None:
    checkpoint.state.unlink()


def _cut_the_manifest(checkpoint: Checkpoint) -> None:
    os.truncate(checkpoint.folder / "manifest.json", 40)


def _lose_the_manifest(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "manifest.json").unlink()


def _lose_the_lock(checkpoint: Checkpoint) -> None:
    (checkpoint.folder / "used").unlink()


DAMAGES = [
    (_truncate_memory, r"ram' has 65536 bytes, but its manifest states 131072\."),
    (_flip_a_byte, r"ram' has the digest \w{16}…, but its manifest states \w{16}…\."),
    (_lose_the_state, r"state' is missing\."),
    (_cut_the_manifest, r"manifest\.json' is malformed: .*"),
    (_lose_the_manifest, r"has no readable manifest \(No such file or directory\)\."),
    (_lose_the_lock, r"has no file 'used'\."),
]


def test_damaged_checkpoint_is_reported_and_refused_and_made_again(cache: Cache) -> None:
    checkpoint = cache.have()
    for made, (damage, reason) in enumerate(DAMAGES, start=2):
        cache.events.clear()
        damage(checkpoint)
        (info,) = cache.store.verify()

        with cache.use() as checkpoint:
            assert content_of(checkpoint) == f"disk {made}"

        (sentence,) = cache.said(Stage.REFUSED)
        assert str(checkpoint.folder) in sentence
        assert info.damage is not None
        assert re.search(f"{reason}$", info.damage)
        assert sentence == f"{info.damage} The damaged checkpoint is made again."


def test_checkpoint_whose_manifest_has_another_key_is_refused(cache: Cache) -> None:
    checkpoint = cache.have()
    manifest = checkpoint.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(checkpoint.key, "f" * 64))

    cache.have()

    assert cache.made == 2
    assert "has the key 'ffffffffffffffff'" in cache.said(Stage.REFUSED)[0]


def test_checkpoint_whose_parent_is_missing_is_refused(cache: Cache) -> None:
    parent, _ = cache.have_two()
    shutil.rmtree(parent.folder)

    (info,) = cache.store.verify()
    with pytest.raises(HarnessError, match=r"booted-\w+' was removed\."):
        cache.have("baked", parent=parent)

    assert info.damage is not None
    assert info.damage.endswith(f"is based on '{parent.folder}', which is missing.")
    assert cache.said(Stage.REFUSED) == [f"{info.damage} The damaged checkpoint is made again."]


def test_child_checkpoint_is_made_again_if_its_parent_was_made_again(cache: Cache) -> None:
    parent, child = cache.have_two()
    _truncate_memory(parent)

    with cache.use("booted") as again, cache.use("baked", parent=again) as grown:
        assert again.folder == parent.folder
        assert grown.folder == child.folder
        assert content_of(grown) == "disk 4"

    first, second = cache.said(Stage.REFUSED)
    assert "has 65536 bytes" in first
    assert second == (
        f"The disk of the checkpoint in '{child.folder}' is based on an earlier disk of "
        f"'{parent.folder}'; the checkpoint in '{parent.folder}' was made again since, and has another disk. The damaged checkpoint is made again."
    )


def test_child_checkpoint_is_not_made_on_a_damaged_parent(cache: Cache) -> None:
    with cache.use("booted") as parent:
        _truncate_memory(parent)

        with (
            pytest.raises(HarnessError, match="has 65536 bytes"),
            cache.use("baked", parent=parent),
        ):
            pass

    assert cache.made == 1
    assert cache.names() == ["booted"]


def lying_on(name: str) -> Callable[[CheckpointPlace], None]:
    def write(place: CheckpointPlace) -> None:
        qcow2_on(place.disk, name)

    return write


def test_moved_checkpoint_cache_remains_valid(tmp_path: Path) -> None:
    old = Cache(tmp_path / "old")
    image = tmp_path / "old/images/debian/disk.qcow2"
    old.meanwhile = lying_on(str(image))
    old.have()
    (tmp_path / "old").rename(tmp_path / "new")

    new = Cache(tmp_path / "new")
    checkpoint = new.have()

    assert new.made == 0
    assert [info.damage for info in new.store.verify()] == [None]
    assert backing_name(checkpoint.disk) == "../../images/debian/disk.qcow2"


def test_moved_checkpoint_whose_disk_refers_to_a_file_outside_the_cache_is_made_again(
    tmp_path: Path,
) -> None:
    old = Cache(tmp_path / "old")
    old.meanwhile = lying_on("/elsewhere/disk.qcow2")
    checkpoint = old.have()
    (tmp_path / "new").mkdir()
    old.folder.rename(tmp_path / "new/checkpoints")

    new = Cache(tmp_path / "new")
    (info,) = new.store.verify()
    new.have()

    assert new.made == 1
    (sentence,) = new.said(Stage.REFUSED)
    assert f"can't be moved from '{checkpoint.folder}', where it was made" in sentence
    assert info.damage is not None
    assert sentence.startswith(info.damage)


def test_checkpoint_is_found_through_a_symbolic_link_to_the_cache(tmp_path: Path) -> None:
    """The disk has an absolute backing path, which stays valid because no file was moved."""
    cache = Cache(tmp_path)
    cache.meanwhile = lying_on("/elsewhere/disk.qcow2")
    checkpoint = cache.have()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/checkpoints").symlink_to(tmp_path / "checkpoints")

    linked = Cache(tmp_path / "elsewhere")

    assert linked.have().disk.samefile(checkpoint.disk)
    assert linked.made == 0


def test_damaged_checkpoint_in_use_is_not_replaced(cache: Cache) -> None:
    other = Cache(cache.folder.parent)
    with cache.use() as checkpoint:
        _truncate_memory(checkpoint)

        clock = FakeClock()
        with (
            pytest.raises(HarnessError, match=r"damaged but still in use.*`fuser '.*/used'`"),
            other.use(deadline=Deadline.after(100, clock)),
        ):
            pass

        assert 60 <= clock.elapsed_s < 61, "Who only found the damage has gone by then."
        assert checkpoint.ram.exists()
    assert content_of(other.have()) == "disk 1"
    assert other.made == 1


def test_damaged_ancestor_of_a_checkpoint_in_use_is_not_replaced(cache: Cache) -> None:
    """The disk of the held checkpoint is an overlay on the disks of its ancestors."""
    with cache.use("booted") as parent, cache.use("baked", parent=parent) as child:
        grandchild = cache.have("warm", parent=child)

    with cache.store.hold(grandchild, deadline=Deadline.after(60)):
        for name, damaged, below in (("baked", child, parent), ("booted", parent, None)):
            _truncate_memory(damaged)
            in_use = rf"'{damaged.folder}' is damaged but still in use.*'{damaged.folder}/used'`"
            with (
                pytest.raises(HarnessError, match=in_use),
                cache.use(name, parent=below, deadline=Deadline.after(1, FakeClock())),
            ):
                pass


def test_damaged_checkpoint_is_replaced_after_other_processes_have_released_it(
    cache: Cache,
) -> None:
    other = Cache(cache.folder.parent)
    with ExitStack() as reading:
        checkpoint = reading.enter_context(cache.use())
        _truncate_memory(checkpoint)

        with other.use(deadline=Deadline.after(100, FakeClock(on_sleep=reading.close))):
            assert other.made == 1


def test_damaged_checkpoint_cannot_be_used_while_it_is_replaced(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _truncate_memory(cache.have())
    move = ArtifactStore.move_to_trash
    shared: list[Path] = []

    def try_to_share(self: ArtifactStore, folder: Path) -> Path:
        deadline = Deadline.after(0, FakeClock())
        with (
            contextlib.suppress(WaitTimeoutError),
            lease.hold_shared(folder / "used", deadline=deadline),
        ):
            shared.append(folder)
        return move(self, folder)

    monkeypatch.setattr(ArtifactStore, "move_to_trash", try_to_share)

    cache.have()

    assert (cache.made, shared) == (2, [])


def test_damaged_checkpoint_can_be_removed_by_the_gc_command(cache: Cache) -> None:
    _cut_the_manifest(cache.have())
    (info,) = cache.store.ls()
    assert info.name == "booted"
    assert info.damage is not None

    cache.store.gc(0)

    assert cache.names() == []
