"""Checkpoints: made once, shared while in use, refused when damaged, evicted when unused."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import pytest

from harness import lease
from harness.artifact_cache import GoneError, manifest, store
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.image.formats.qcow2 import backing_name
from harness.machine.checkpoint.manifest import CHECKPOINT_FORMAT
from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace, CheckpointStore
from harness.progress import ProgressEvent, Stage
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.image.formats.small_qcow2 import qcow2_on
from suites.unit.machine.fake_copy import FakeCopy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from harness.artifact_cache import FileFact

MIB = 1 << 20
PLENTY = 1 << 40
FACTS = {"qemu": "7.2.22"}


class Cache:
    """A store in a temporary folder, a maker that counts, and what the store said.

    Each checkpoint made takes `blocks_mib` on the disk; `meanwhile` happens within the maker.
    """

    def __init__(self, top: Path, *, limit_mib: int = 1000, free_bytes: int = PLENTY) -> None:
        self.folder = top / "checkpoints"
        self.free_bytes = free_bytes
        self.copy = FakeCopy()
        self.events: list[ProgressEvent] = []
        self.made = 0
        self.blocks_mib = 0
        self.meanwhile: Callable[[CheckpointPlace], None] = lambda _place: None
        self.cancelled: Callable[[], str | None] = lambda: None
        self.store = CheckpointStore(
            self.folder,
            limit_mib=limit_mib,
            free_bytes=lambda _folder: self.free_bytes,
            runner=self.copy,
        )

    def use(
        self,
        name: str = "booted",
        parts: Mapping[str, object] | None = None,
        *,
        parent: Checkpoint | None = None,
        deadline: Deadline | None = None,
    ) -> AbstractContextManager[Checkpoint]:
        return self.store.use(
            name,
            {"image": "one"} if parts is None else parts,
            self._make,
            memory_mib=1024,
            parent=parent,
            deadline=deadline or Deadline.after(60),
            listener=self.events.append,
            cancelled=self.cancelled,
        )

    def have(self, name: str = "booted", *, parent: Checkpoint | None = None) -> Checkpoint:
        """Make it where need be, and use it no longer."""
        with self.use(name, parent=parent) as checkpoint:
            return checkpoint

    def have_two(self) -> tuple[Checkpoint, Checkpoint]:
        """Make one and another on top of it, and use them no longer."""
        with self.use("booted") as parent:
            return parent, self.have("baked", parent=parent)

    def _make(self, place: CheckpointPlace) -> Mapping[str, str]:
        self.made += 1
        with place.ram.open("wb") as ram:
            ram.truncate(2 * MIB)
            ram.seek(MIB // 2)
            ram.write(f"memory {self.made}".encode() + b"\1" * (self.blocks_mib * MIB))
        place.state.write_text(f"state {self.made}")
        place.disk.write_text(f"disk {self.made}")
        (place.folder / "console.log").write_text("scratch")
        self.meanwhile(place)
        return FACTS

    def said(self, stage: Stage) -> list[str]:
        return [event.message for event in self.events if event.stage is stage]

    def names(self) -> list[str]:
        return [info.name for info in self.store.ls()]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def content_of(checkpoint: Checkpoint) -> str:
    return checkpoint.disk.read_text()


def test_checkpoint_is_made_once(cache: Cache) -> None:
    with cache.use() as first, cache.use() as second:
        assert first == second
        assert content_of(first) == "disk 1"
        assert first.state.read_text() == "state 1"
        assert first.ram.stat().st_size == 2 * MIB
        assert first.facts == FACTS
        assert first.parent is None

    assert cache.made == 1
    assert cache.copy.copied == ["ram"]
    assert not list(cache.folder.rglob("*.sparse"))


def test_manifest_records_the_inputs_of_a_checkpoint(cache: Cache) -> None:
    parent, child = cache.have_two()

    written = CHECKPOINT_FORMAT.read(child.folder)

    assert written.parts == {"image": "one"}
    assert written.facts == FACTS
    assert written.parent is not None
    assert written.parent.key == parent.key
    assert written.parent.disk_sha256 == manifest.fact_of(parent.disk).sha256
    assert sorted(written.files) == ["disk.qcow2", "ram", "state"]
    assert 0 < written.allocated_bytes < MIB


def test_what_was_made_is_read_once(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither publication nor a later use reads a gibibyte that was just read."""
    read: list[str] = []
    fact_of = manifest.fact_of

    def note(path: Path) -> FileFact:
        read.append(path.name)
        return fact_of(path)

    monkeypatch.setattr(manifest, "fact_of", note)

    cache.have()
    cache.have()

    assert sorted(read) == ["disk.qcow2", "ram", "state"]


def test_all_but_the_memory_is_brought_to_the_disk(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(store, "_flush", lambda path: flushed.append(path.name))

    cache.have()

    assert {"manifest.json", "verified.json", "disk.qcow2", "state"} <= {*flushed}
    assert "ram" not in flushed
    assert flushed[-1] == cache.folder.name


def test_nothing_is_evicted_between_publication_and_first_use(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[bool] = []
    hold_shared = lease.hold_shared

    def try_gate(path: Path, *, deadline: Deadline) -> AbstractContextManager[None]:
        gate = filelock.FileLock(cache.folder / ".locks/gate")
        try:
            gate.acquire(blocking=False)
        except filelock.Timeout:
            gates.append(False)
        else:
            gate.release()
            gates.append(True)
        return hold_shared(path, deadline=deadline)

    monkeypatch.setattr(lease, "hold_shared", try_gate)

    cache.have()
    cache.have()

    assert gates == [False, True]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("booted", {"image": "two"}), ("booted", {"image": "one", "cpus": 2}), ("other", None)],
)
def test_other_parts_give_another_folder(
    cache: Cache, name: str, parts: Mapping[str, object] | None
) -> None:
    with cache.use() as first, cache.use(name, parts) as second:
        assert first.folder != second.folder
        assert (content_of(first), content_of(second)) == ("disk 1", "disk 2")


def test_order_of_parts_does_not_matter(cache: Cache) -> None:
    with (
        cache.use(parts={"a": 1, "b": [2, {"c": None}]}) as first,
        cache.use(parts={"b": [2, {"c": None}], "a": 1}) as second,
    ):
        assert first == second


def test_key_of_a_child_covers_its_parents_key(cache: Cache) -> None:
    with (
        cache.use(parts={"image": "one"}) as one,
        cache.use(parts={"image": "two"}) as two,
        cache.use("baked", parent=one) as first,
        cache.use("baked", parent=two) as second,
        cache.use("baked") as third,
    ):
        assert len({first.key, second.key, third.key}) == 3
        assert first.parent == one
        assert second.parent == two


def test_parts_have_to_be_data(cache: Cache) -> None:
    with pytest.raises(TypeError), cache.use(parts={"image": Path("/")}):
        pass


@pytest.mark.parametrize("name", ["", "../up", "UP", ".hidden", "a b"])
def test_invalid_checkpoint_name_is_refused(cache: Cache, name: str) -> None:
    with pytest.raises(BadInputError, match="is not a checkpoint name"), cache.use(name):
        pass


def test_parent_of_another_store_is_refused(cache: Cache, tmp_path: Path) -> None:
    foreign = Cache(tmp_path / "other").have()

    with (
        pytest.raises(BadInputError, match="is not in the store"),
        cache.use("baked", parent=foreign),
    ):
        pass


def test_everything_is_private(cache: Cache) -> None:
    parent, child = cache.have_two()

    for checkpoint in (parent, child):
        assert stat.S_IMODE(checkpoint.folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(p.stat().st_mode) for p in checkpoint.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def test_nothing_but_the_checkpoint_remains(cache: Cache) -> None:
    checkpoint = cache.have()

    assert list((cache.folder / ".work").iterdir()) == []
    assert not list((cache.folder / ".locks").glob("*.holder"))
    assert sorted(path.name for path in checkpoint.folder.iterdir()) == [
        "disk.qcow2",
        "manifest.json",
        "ram",
        "state",
        "used",
        "verified.json",
    ]


def test_four_at_once_make_it_once(tmp_path: Path) -> None:
    ready = threading.Barrier(4, timeout=30)
    never = threading.Event()
    got: list[tuple[Checkpoint, int]] = []

    def take() -> None:
        cache = Cache(tmp_path)
        ready.wait()
        # The maker may have to wait too, for one who looks: no sleep may last until it has made it.
        with cache.use(
            deadline=Deadline.after(600, FakeClock(on_sleep=lambda: never.wait(0.01)))
        ) as one:
            got.append((one, cache.made))
            ready.wait()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(got) == 4
    assert len({checkpoint.key for checkpoint, _ in got}) == 1
    assert sum(count for _, count in got) == 1


def test_two_that_are_not_the_same_are_made_at_once(tmp_path: Path) -> None:
    both = threading.Barrier(2, timeout=10)
    got: list[Checkpoint] = []

    def take(image: str) -> None:
        cache = Cache(tmp_path)
        cache.meanwhile = lambda _place: void(both.wait())
        with cache.use(parts={"image": image}) as checkpoint:
            got.append(checkpoint)

    threads = [threading.Thread(target=take, args=(image,)) for image in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len({checkpoint.folder for checkpoint in got}) == 2


def void(_value: object) -> None:
    return


def test_parent_can_be_made_within_the_maker_of_another(cache: Cache) -> None:
    inner: list[Checkpoint] = []

    def nest(_place: CheckpointPlace) -> None:
        cache.meanwhile = void
        with cache.use("booted") as parent, cache.use("baked", parent=parent) as child:
            inner.extend([parent, child])

    cache.meanwhile = nest
    with cache.use("outer"):
        assert cache.names() == ["baked", "booted", "outer"]
    assert inner[1].parent == inner[0]


def test_waiting_process_says_for_whom_and_gives_up_at_its_deadline(tmp_path: Path) -> None:
    making, waiting = Cache(tmp_path), Cache(tmp_path, free_bytes=0)

    def try_meanwhile(_place: CheckpointPlace) -> None:
        with (
            pytest.raises(HarnessError, match=r"Waited .* s for the checkpoint 'booted'"),
            waiting.use(deadline=Deadline.after(3, FakeClock())),
        ):
            pass

    making.meanwhile = try_meanwhile
    making.have()

    assert waiting.made == 0
    (sentence,) = waiting.said(Stage.WAIT)
    assert sentence.startswith(f"waiting for process {os.getpid()} (since 2")
    assert sentence.endswith("which is making this checkpoint")


def test_wait_for_another_maker_ends_when_the_checkpoint_is_not_wanted_any_more(
    tmp_path: Path,
) -> None:
    making, waiting = Cache(tmp_path), Cache(tmp_path)
    reasons: list[str] = []
    clock = FakeClock(on_sleep=lambda: reasons.append("Nobody wants it."))

    def try_meanwhile(_place: CheckpointPlace) -> None:
        waiting.cancelled = lambda: reasons[0] if reasons else None
        with (
            pytest.raises(HarnessError, match=r"^Nobody wants it\.$"),
            waiting.use(deadline=Deadline.after(3600, clock)),
        ):
            pass

    making.meanwhile = try_meanwhile
    making.have()

    assert len(waiting.said(Stage.WAIT)) == 1


def test_cancelled_checkpoint_is_not_made(cache: Cache) -> None:
    cache.cancelled = lambda: "Nobody wants it."

    with pytest.raises(HarnessError, match=r"^Nobody wants it\.$"), cache.use():
        pass

    assert cache.made == 0


def half_made(cache: Cache) -> Path:
    """Leave what a maker that was killed leaves: its workplace, and a lock nobody holds."""
    checkpoint = cache.have()
    work = cache.folder / ".work" / checkpoint.folder.name
    (work / "content").mkdir(parents=True)
    (work / "content/ram").write_bytes(b"half" * MIB)
    shutil.rmtree(checkpoint.folder)
    return work


def test_killed_maker_is_followed_by_the_next(cache: Cache) -> None:
    work = half_made(cache)

    with cache.use() as checkpoint:
        assert content_of(checkpoint) == "disk 2"

    assert not work.exists()


def test_leavings_of_a_killed_maker_are_collected(cache: Cache) -> None:
    work = half_made(cache)
    doomed = cache.folder / ".work/booted-0.abcd.doomed"
    doomed.mkdir()

    removals = cache.store.gc()

    assert {(removal.path, removal.size_mib) for removal in removals} == {(work, 4), (doomed, 0)}
    assert not work.exists()
    assert not doomed.exists()


def test_staging_folder_of_a_running_process_is_kept(cache: Cache) -> None:
    def collect(place: CheckpointPlace) -> None:
        assert Cache(cache.folder.parent).store.gc(0) == []
        assert place.ram.exists()

    cache.meanwhile = collect

    assert content_of(cache.have()) == "disk 1"


def _truncate_memory(checkpoint: Checkpoint) -> None:
    os.truncate(checkpoint.ram, MIB)


def _flip_a_byte(checkpoint: Checkpoint) -> None:
    with checkpoint.ram.open("r+b") as ram:
        ram.seek(MIB // 2)
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
    (_truncate_memory, r"ram' has 1048576 bytes, but 2097152 were published\."),
    (_flip_a_byte, r"ram' has the digest \w{16}…, but \w{16}… was published\."),
    (_lose_the_state, r"state' is missing\."),
    (_cut_the_manifest, r"manifest\.json' is malformed: .*"),
    (_lose_the_manifest, r"has no readable manifest \(No such file or directory\)\."),
    (_lose_the_lock, r"has no file 'used'\."),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_damaged_checkpoint_is_refused_and_made_again(
    cache: Cache, damage: Callable[[Checkpoint], None], reason: str
) -> None:
    damage(cache.have())

    with cache.use() as checkpoint:
        assert content_of(checkpoint) == "disk 2"

    (sentence,) = cache.said(Stage.REFUSED)
    assert str(checkpoint.folder) in sentence
    assert re.search(f"{reason} It is made again.$", sentence)
    assert cache.made == 2


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_verification_reports_the_damage(
    cache: Cache, damage: Callable[[Checkpoint], None], reason: str
) -> None:
    checkpoint = cache.have()
    assert [info.damage for info in cache.store.verify()] == [None]

    damage(checkpoint)

    (info,) = cache.store.verify()
    assert info.damage is not None
    assert re.search(f"{reason}$", info.damage)


def test_everything_is_read_again_after_a_boot_of_the_host(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = cache.have()
    _flip_a_byte(checkpoint)
    stamp = manifest.stat_fingerprint(
        checkpoint.folder, CHECKPOINT_FORMAT.read(checkpoint.folder).files
    )
    manifest.write_stamp(checkpoint.folder, stamp)
    assert cache.have() == checkpoint, "The stamp says that nothing has changed."

    (tmp_path / "boot_id").write_text("another boot\n")
    monkeypatch.setattr(manifest, "BOOT_ID", tmp_path / "boot_id")

    assert content_of(cache.have()) == "disk 2"
    assert "has the digest" in cache.said(Stage.REFUSED)[0]


def test_checkpoint_under_a_foreign_name_is_refused(cache: Cache) -> None:
    checkpoint = cache.have()
    manifest = checkpoint.folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace(checkpoint.key, "f" * 64))

    cache.have()

    assert cache.made == 2
    assert "has the key 'ffffffffffffffff'" in cache.said(Stage.REFUSED)[0]


def test_child_without_its_parent_is_refused(cache: Cache) -> None:
    parent, _ = cache.have_two()
    shutil.rmtree(parent.folder)

    (info,) = cache.store.verify()
    with pytest.raises(HarnessError, match=r"booted-\w+' was removed\."):
        cache.have("baked", parent=parent)

    assert info.damage is not None
    assert info.damage.endswith(f"lies on '{parent.folder}', which is missing.")
    assert cache.said(Stage.REFUSED) == [f"{info.damage} It is made again."]


def test_child_follows_a_parent_that_was_made_again(cache: Cache) -> None:
    parent, child = cache.have_two()
    _truncate_memory(parent)

    with cache.use("booted") as again, cache.use("baked", parent=again) as grown:
        assert again.folder == parent.folder
        assert grown.folder == child.folder
        assert content_of(grown) == "disk 4"

    first, second = cache.said(Stage.REFUSED)
    assert "has 1048576 bytes" in first
    assert f"lies on a disk that '{parent.folder}' no longer has" in second


def test_nothing_is_made_on_a_damaged_parent(cache: Cache) -> None:
    with cache.use("booted") as parent:
        _truncate_memory(parent)

        with (
            pytest.raises(HarnessError, match="has 1048576 bytes"),
            cache.use("baked", parent=parent),
        ):
            pass

    assert cache.made == 1
    assert cache.names() == ["booted"]


def lying_on(name: str) -> Callable[[CheckpointPlace], None]:
    def write(place: CheckpointPlace) -> None:
        qcow2_on(place.disk, name)

    return write


def test_moved_cache_is_used(tmp_path: Path) -> None:
    old = Cache(tmp_path / "old")
    image = tmp_path / "old/images/debian/disk.qcow2"
    old.meanwhile = lying_on(str(image))
    old.have()
    (tmp_path / "old").rename(tmp_path / "new")

    new = Cache(tmp_path / "new")
    checkpoint = new.have()

    assert new.made == 0
    assert backing_name(checkpoint.disk) == "../../images/debian/disk.qcow2"


def test_moved_cache_whose_disks_lie_on_files_outside_is_made_again(tmp_path: Path) -> None:
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
    assert f"was made in '{checkpoint.folder}', and its disk refers to files there." in sentence
    assert info.damage is not None
    assert sentence.startswith(info.damage)


def test_cache_may_be_reached_through_a_link(tmp_path: Path) -> None:
    Cache(tmp_path).have()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/checkpoints").symlink_to(tmp_path / "checkpoints")

    linked = Cache(tmp_path / "elsewhere")

    assert content_of(linked.have()) == "disk 1"
    assert linked.made == 0


def test_damaged_checkpoint_in_use_is_not_replaced(cache: Cache) -> None:
    other = Cache(cache.folder.parent)
    with cache.use() as checkpoint:
        _truncate_memory(checkpoint)

        with (
            pytest.raises(HarnessError, match=r"damaged but still in use.*`fuser '.*/used'`"),
            other.use(deadline=Deadline.after(100, FakeClock())),
        ):
            pass

        assert checkpoint.ram.exists()
    assert content_of(other.have()) == "disk 1"
    assert other.made == 1


def test_processes_that_only_found_the_damage_are_waited_for(cache: Cache) -> None:
    other = Cache(cache.folder.parent)
    with ExitStack() as reading:
        checkpoint = reading.enter_context(cache.use())
        _truncate_memory(checkpoint)

        with other.use(deadline=Deadline.after(100, FakeClock(on_sleep=reading.close))):
            assert other.made == 1


@pytest.mark.parametrize("free_mib", [0, 2 * 1024 + 511])
def test_too_little_space_is_reported_with_figures_and_a_remedy(
    cache: Cache, free_mib: int
) -> None:
    cache.free_bytes = free_mib * MIB

    with pytest.raises(RequirementError) as refusal, cache.use():
        pass

    assert str(refusal.value) == (
        f"The checkpoint 'booted' needs 2560 MiB free in '{cache.folder}' while it is made, but "
        f"{free_mib} MiB are free; free some by `harness checkpoints gc --all`, or set "
        "XDG_CACHE_HOME to a folder on a larger disk."
    )
    assert cache.made == 0


def test_just_enough_space_is_enough(cache: Cache) -> None:
    cache.free_bytes = (2 * 1024 + 512) * MIB

    cache.have()


def _no_space(_place: CheckpointPlace) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _wrapped(place: CheckpointPlace) -> None:
    try:
        _no_space(place)
    except OSError as error:
        raise HarnessError("The machine died.") from error


@pytest.mark.parametrize("fail", [_no_space, _wrapped])
def test_disk_that_becomes_full_leaves_nothing_half_made(
    cache: Cache, fail: Callable[[CheckpointPlace], None]
) -> None:
    cache.meanwhile = fail

    with pytest.raises(RequirementError, match=r"became full.*2560 MiB.*gc --all"), cache.use():
        pass

    assert cache.names() == []
    assert list((cache.folder / ".work").iterdir()) == []


def test_failure_on_a_full_disk_is_attributed_to_the_disk(cache: Cache) -> None:
    def die(_place: CheckpointPlace) -> None:
        cache.free_bytes = 3 * MIB
        raise HarnessError("QEMU ended by the signal 7.")

    cache.meanwhile = die

    with pytest.raises(RequirementError, match=r"became full.*3 MiB were left"), cache.use():
        pass


def test_full_disk_at_publication_is_reported(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store, "_flush", fail)

    with pytest.raises(RequirementError, match="became full"), cache.use():
        pass

    assert cache.names() == []
    assert list((cache.folder / ".work").iterdir()) == []


def test_failure_with_enough_space_is_unchanged(cache: Cache) -> None:
    def fail(_place: CheckpointPlace) -> None:
        raise HarnessError("The guest hangs.")

    cache.meanwhile = fail

    with pytest.raises(HarnessError, match=r"^The guest hangs\.$"), cache.use():
        pass

    assert cache.names() == []
    assert list((cache.folder / ".work").iterdir()) == []


def test_missing_file_of_a_new_checkpoint_is_refused(cache: Cache) -> None:
    cache.meanwhile = lambda place: place.state.unlink()

    with pytest.raises(HarnessError, match="'booted' wrote no file 'state'"), cache.use():
        pass


def test_failure_of_the_caller_is_not_attributed_to_the_store(cache: Cache) -> None:
    cache.free_bytes = PLENTY

    with pytest.raises(OSError, match="No space"), cache.use():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert not cache.store.ls()[0].is_in_use


def test_unwritable_cache_is_reported_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    with (
        pytest.raises(RequirementError, match="set XDG_CACHE_HOME to a writable folder"),
        Cache(tmp_path / "file").use(),
    ):
        pass


@pytest.fixture
def small(tmp_path: Path) -> Cache:
    """Return a store with room for two of the checkpoints that are made."""
    cache = Cache(tmp_path, limit_mib=5)
    cache.blocks_mib = 2
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
    assert sentence == (f"'{two.folder}' was removed: it is not in use, and the limit is 5 MiB.")
    assert list((small.folder / ".work").iterdir()) == []


def test_use_counts_as_use(small: Cache) -> None:
    one, two = small.have("one"), small.have("two")
    last_used(one, 1)
    last_used(two, 2)
    small.have("one")

    small.have("three")

    assert small.names() == ["one", "three"]


def test_hold_counts_as_use(small: Cache) -> None:
    one, two = small.have("one"), small.have("two")
    last_used(one, 1)
    last_used(two, 2)
    with small.store.hold(one, deadline=Deadline.after(60)):
        pass

    small.have("three")

    assert small.names() == ["one", "three"]


def test_held_checkpoint_and_its_parent_are_kept(cache: Cache) -> None:
    parent, child = cache.have_two()

    with cache.store.hold(child, deadline=Deadline.after(60)):
        assert cache.store.gc(limit_mib=0) == []

    assert [removal.path for removal in cache.store.gc(limit_mib=0)] == [
        child.folder,
        parent.folder,
    ]


def test_checkpoint_that_was_removed_can_not_be_held(cache: Cache) -> None:
    _, child = cache.have_two()
    cache.store.gc(limit_mib=0)

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


def test_nothing_is_removed_within_the_limit(small: Cache) -> None:
    small.have("one")
    small.have("two")

    assert small.store.gc() == []
    assert small.store.gc(100) == []
    assert small.names() == ["one", "two"]


def test_empty_store_lists_verifies_and_removes_nothing(cache: Cache) -> None:
    assert cache.store.ls() == []
    assert cache.store.verify() == []
    assert cache.store.gc(0) == []
    assert not cache.folder.exists()


def test_damaged_checkpoint_can_be_collected(cache: Cache) -> None:
    _cut_the_manifest(cache.have())
    (info,) = cache.store.ls()
    assert info.name == "booted"
    assert info.damage is not None

    cache.store.gc(0)

    assert cache.names() == []


def test_listing_shows_sizes_and_parents(small: Cache) -> None:
    parent, child = small.have_two()
    last_used(child, 1)

    first, second = small.store.ls()

    assert (first.name, first.key, first.parent) == ("baked", child.key, parent.folder.name)
    assert (second.name, second.parent) == ("booted", None)
    assert first.last_used.isoformat() == "1970-01-02T00:00:00+00:00"
    assert 2 <= first.size_mib < 3
    assert first.created is not None
    assert not first.is_in_use


def test_checkpoint_removed_at_the_last_moment_is_made_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is there when it is looked for, and gone when it is to be shared."""
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
