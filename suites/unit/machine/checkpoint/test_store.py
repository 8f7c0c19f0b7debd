"""Checkpoints are made once, by one process, and are shared while they are in use."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import pytest

from harness import lease
from harness.artifact_cache import manifest, store
from harness.errors import BadInputError, HarnessError, RequirementError
from harness.machine.checkpoint.manifest import CHECKPOINT_FORMAT
from harness.machine.checkpoint.store import key_of
from harness.progress import Stage
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.checkpoint.builders import (
    FACTS,
    MIB,
    PLENTY,
    RAM_BYTES,
    Cache,
    content_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from harness.artifact_cache import FileFact
    from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace
    from harness.progress import Progress


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_checkpoint_is_made_once_and_leaves_no_temporary_files(cache: Cache) -> None:
    with cache.use() as first, cache.use() as second:
        assert first == second
        assert content_of(first) == "disk 1"
        assert first.name == "booted"
        assert first.state.read_text() == "state 1"
        assert first.ram.stat().st_size == RAM_BYTES
        assert first.facts == FACTS
        assert first.parent is None

    assert cache.made == 1
    assert cache.copy.copied == ["ram"]
    assert list((cache.folder / ".work").iterdir()) == []
    assert not list((cache.folder / ".locks").glob("*.holder"))
    assert {path.name for path in first.folder.iterdir()} == {
        *("disk.qcow2", "manifest.json", "ram", "state", "used", "verified.json")
    }


def test_manifest_records_the_inputs_of_a_checkpoint(cache: Cache) -> None:
    parent, child = cache.have_two()

    written = CHECKPOINT_FORMAT.read(child.folder)

    assert child.key == key_of("baked", {"image": "one"}, parent)
    assert written.parts == {"image": "one"}
    assert written.facts == FACTS
    assert written.parent is not None
    assert written.parent.key == parent.key
    assert written.parent.disk_sha256 == manifest.fact_of(parent.disk).sha256
    assert sorted(written.files) == ["disk.qcow2", "ram", "state"]
    assert 0 < written.allocated_bytes < RAM_BYTES


def test_each_file_of_a_new_checkpoint_is_read_once(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither publication nor a later use reads the memory file again."""
    read: list[str] = []
    fact_of = manifest.fact_of

    def note(path: Path) -> FileFact:
        read.append(path.name)
        return fact_of(path)

    monkeypatch.setattr(manifest, "fact_of", note)

    cache.have()
    cache.have()

    assert sorted(read) == ["disk.qcow2", "ram", "state"]


def test_all_files_except_the_memory_are_synced(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(store, "_flush", lambda path: flushed.append(path.name))

    cache.have()

    assert {"manifest.json", "verified.json", "disk.qcow2", "state"} <= {*flushed}
    assert "ram" not in flushed
    assert flushed[-1] == cache.folder.name


def test_published_checkpoint_is_protected_until_its_first_use(
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


def test_key_and_folder_of_a_checkpoint_depend_on_its_name_and_parts_and_parent(
    cache: Cache,
) -> None:
    """The order of parts does not matter."""
    parts = {"a": 1, "b": [2, {"c": None}]}
    with cache.use() as one, cache.use(parts={"image": "two"}) as two:
        assert (content_of(one), content_of(two)) == ("disk 1", "disk 2")
        keys = {
            key_of("booted", parts, None),
            key_of("other", parts, None),
            key_of("booted", {**parts, "cpus": 2}, None),
            key_of("booted", parts, one),
            key_of("booted", parts, two),
        }

    assert len(keys) == 5
    assert key_of("booted", dict(reversed(parts.items())), None) in keys


def test_parts_of_a_checkpoint_key_that_are_not_json_are_refused(cache: Cache) -> None:
    for part, refusal in ((Path("/"), TypeError), (float("nan"), ValueError)):
        with pytest.raises(refusal, match="not JSON"), cache.use(parts={"image": part}):
            pass


def test_invalid_checkpoint_name_is_refused(cache: Cache) -> None:
    for name in ("", "../up", "UP"):
        with (
            pytest.raises(BadInputError, match=rf"'{name}' is not a checkpoint name"),
            cache.use(name),
        ):
            pass


def test_parent_checkpoint_from_another_store_is_refused(cache: Cache, tmp_path: Path) -> None:
    foreign = Cache(tmp_path / "other").have()

    with (
        pytest.raises(
            BadInputError,
            match=rf"key 'parent': .*'{foreign.folder}', which is not in the store '{cache.folder}'",
        ),
        cache.use("baked", parent=foreign),
    ):
        pass


def test_folders_and_files_of_checkpoints_are_private(cache: Cache) -> None:
    scratch: list[int] = []
    cache.meanwhile = lambda place: scratch.append(stat.S_IMODE(place.folder.stat().st_mode))
    parent, child = cache.have_two()
    assert scratch == [0o700, 0o700]

    for checkpoint in (parent, child):
        assert stat.S_IMODE(checkpoint.folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(p.stat().st_mode) for p in checkpoint.folder.iterdir()} == {0o600}
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700


def test_checkpoint_is_made_even_if_the_cp_command_does_not_start(cache: Cache) -> None:
    cache.copy.leaves = None

    with cache.use(deadline=Deadline.after(30, FakeClock())) as checkpoint:
        assert checkpoint.ram.stat().st_size == RAM_BYTES
    assert cache.copy.copied == ["ram"]
    assert cache.copy.limits_s == [30]


def test_checkpoint_that_another_process_holds_exclusively_is_awaited_until_the_deadline(
    cache: Cache,
) -> None:
    used = cache.have().folder / "used"

    with (
        lease.try_exclusive(used),
        pytest.raises(HarnessError, match=rf"Waited 1\.0 s .*'{used}' is locked exclusively"),
        cache.use(deadline=Deadline.after(1, FakeClock())),
    ):
        pass


@dataclass
class CopyingSource:
    """A source that copies artifacts from another store, and records the offered artifacts."""

    folder: Path
    asked: list[Mapping[str, object]] = field(default_factory=list)
    offered: list[str] = field(default_factory=list)

    def fetch(
        self,
        name: str,
        into: Path,
        *,
        inputs: Mapping[str, object],
        progress: Progress,
        deadline: Deadline,
    ) -> bool:
        del progress, deadline
        self.asked.append(inputs)
        if not (self.folder / name).exists():
            return False
        shutil.copytree(self.folder / name, into, dirs_exist_ok=True)
        return True

    def offer(self, folder: Path, *, progress: Progress) -> None:
        del progress
        self.offered.append(folder.name)


def test_checkpoint_that_another_host_has_is_copied_instead_of_made(tmp_path: Path) -> None:
    other = Cache(tmp_path / "other")
    other.have()
    source = CopyingSource(other.folder)
    cache = Cache(tmp_path, source=source)

    there, here = cache.have("booted"), cache.have("baked")

    assert (content_of(there), content_of(here)) == ("disk 1", "disk 1")
    assert cache.made == 1
    assert source.asked == [{"image": "one"}, {"image": "one"}]
    assert source.offered == [here.folder.name]


def test_four_simultaneous_users_make_a_checkpoint_once(tmp_path: Path) -> None:
    ready = threading.Barrier(4, timeout=30)
    never = threading.Event()
    got: list[tuple[Checkpoint, int]] = []

    def take() -> None:
        cache = Cache(tmp_path)
        ready.wait()
        # The maker itself may wait for a process that looks up the checkpoint, so each sleep is short.
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


def void(_value: object) -> None:
    return


def test_parent_and_child_checkpoint_can_be_made_while_another_checkpoint_is_made(
    cache: Cache,
) -> None:
    inner: list[Checkpoint] = []

    def nest(_place: CheckpointPlace) -> None:
        cache.meanwhile = void
        with cache.use("booted") as parent, cache.use("baked", parent=parent) as child:
            inner.extend([parent, child])

    cache.meanwhile = nest
    with cache.use("outer"):
        assert cache.names() == ["baked", "booted", "outer"]
    assert inner[1].parent == inner[0]


def test_wait_for_a_checkpoint_reports_the_making_process_and_ends_at_the_deadline(
    tmp_path: Path,
) -> None:
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


def test_wait_for_a_checkpoint_that_another_process_makes_can_be_cancelled(
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


def test_gc_removes_the_work_folders_of_a_killed_process(cache: Cache) -> None:
    checkpoint = cache.have()
    work = cache.folder / ".work" / checkpoint.folder.name
    doomed = cache.folder / ".work/booted-0.abcd.doomed"
    for folder in (work / "content", doomed):
        folder.mkdir(parents=True)
    (work / "content/ram").write_bytes(b"half" * (MIB // 4))
    shutil.rmtree(checkpoint.folder)

    removals = cache.store.gc()

    assert {(removal.path, removal.size_mib) for removal in removals} == {(work, 1), (doomed, 0)}
    assert not work.exists()
    assert not doomed.exists()


def test_missing_file_of_a_new_checkpoint_is_refused(cache: Cache) -> None:
    for name in ("ram", "state", "disk.qcow2"):
        cache.meanwhile = lambda place, name=name: (place.ram.parent / name).unlink()  # type: ignore[misc]
        with pytest.raises(HarnessError, match=rf"'booted' wrote no file '{name}'"), cache.use():
            pass


def test_disk_full_error_of_the_caller_is_raised_unchanged(cache: Cache) -> None:
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
