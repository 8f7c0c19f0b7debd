"""Published folders, as both the image cache and the checkpoint cache use them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from harness.artifact_cache import (
    DamagedError,
    FileFact,
    GoneError,
    StagingFolder,
    allocated_bytes,
)
from harness.artifact_cache.manifest import fact_of
from harness.artifact_cache.store import ArtifactStore
from harness.errors import HarnessError
from harness.progress import Progress, Stage
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EDGES = [1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20]


@given(
    pieces=st.lists(
        st.tuples(st.sampled_from(EDGES), st.sampled_from([None, b"\0", b"x"])), max_size=5
    )
)
def test_digest_of_a_sparse_file_is_the_digest_of_its_content(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes | None]]
) -> None:
    path = tmp_path_factory.mktemp("sparse") / "file"
    with path.open("wb") as file:
        for size, fill in pieces:
            if fill is None:
                file.truncate(file.tell() + size)
                file.seek(size, 1)
            else:
                file.write(fill * size)
    content = path.read_bytes()

    fact = fact_of(path)

    path.unlink()
    assert fact == FileFact(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def test_cache_and_its_parents_are_private_under_any_umask(tmp_path: Path) -> None:
    cache = tmp_path / "gpu-node-harness" / "images"
    before = os.umask(0)
    try:
        made = ArtifactStore(cache, noun="image").hidden_folder("work")
    finally:
        os.umask(before)

    modes = [each.stat().st_mode & 0o777 for each in (made, cache, cache.parent)]
    assert modes == [0o700] * 3


def test_folder_removed_before_the_lock_is_taken_is_not_reported_as_damaged(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "store/one"
    folder.mkdir(parents=True)
    stages: list[Stage] = []

    def opened() -> str:
        if (folder / "content").exists():
            return "opened"
        if (tmp_path / "looked").exists():
            shutil.rmtree(folder)
        (tmp_path / "looked").touch()
        raise GoneError("gone")

    def fill(place: StagingFolder) -> None:
        (place.content / "content").touch()

    store = ArtifactStore(tmp_path / "store", noun="thing")
    result = store.ensure(
        folder,
        opened=opened,
        fill=fill,
        progress=Progress("one", lambda event: stages.append(event.stage)),
        deadline=Deadline.after(10),
    )

    assert result == "opened"
    assert stages == [Stage.PUBLISH, Stage.READY]
    assert store.published() == [folder]


def test_files_are_synced_before_publication_and_the_parent_folder_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are synced first, then the parent folder: a crash leaves all files or none."""
    folder = tmp_path / "store/one"
    synced: list[tuple[str, bool]] = []

    def sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((path.name, folder.exists()))

    def fill(place: StagingFolder) -> None:
        (place.content / "deep").mkdir()
        (place.content / "deep/content").write_text("x")

    monkeypatch.setattr(os, "fsync", sync)
    ArtifactStore(tmp_path / "store", noun="thing").ensure(
        folder,
        opened=lambda: None,
        fill=fill,
        progress=Progress("one", lambda _event: None),
        deadline=Deadline.after(10),
    )

    assert synced == [("content", False), ("store", True)]


def test_allocated_bytes_does_not_count_holes_in_sparse_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes take no space; a file that another process removes during the count is skipped."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/data").write_bytes(b"x" * (1 << 20))
    with (tmp_path / "hole").open("wb") as hole:
        hole.truncate(1 << 30)
    walk = os.walk

    def walk_late(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for folder, folders, files in walk(top):
            yield folder, folders, [*files, "gone"]

    monkeypatch.setattr(os, "walk", walk_late)

    assert 1 << 20 <= allocated_bytes(tmp_path) < 2 << 20
    assert allocated_bytes(tmp_path / "absent") == 0


def a_killed_makers_folder(store: Path, name: str) -> Path:
    """Make and return the folder that a process leaves if it is killed while it makes `name`."""
    left = store / ".work" / name
    (left / "scratch").mkdir(parents=True)
    (left / "scratch/half").write_text("half of it")
    return left


def ensure_one(
    store: ArtifactStore,
    *,
    name: str = "content",
    error: BaseException | None = None,
    stages: list[Stage] | None = None,
    cancelled: Callable[[], str | None] = lambda: None,
) -> None:
    def opened() -> None:
        if (store.folder / "one/damaged").exists():
            raise DamagedError("It is damaged.")

    def fill(place: StagingFolder) -> None:
        (place.content / name).touch()
        if error is not None:
            raise error

    seen = [] if stages is None else stages
    store.ensure(
        store.folder / "one",
        opened=opened,
        fill=fill,
        progress=Progress("one", lambda event: seen.append(event.stage)),
        deadline=Deadline.after(10),
        cancelled=cancelled,
    )


NO_CONTENT = HarnessError("There is no content.")


def test_damaged_folder_is_moved_away_under_the_removal_guard_and_made_again(
    tmp_path: Path,
) -> None:
    there: list[bool] = []

    @contextlib.contextmanager
    def guard(folder: Path, _deadline: Deadline) -> Iterator[None]:
        there.append((folder / "damaged").exists())
        yield
        there.append(folder.exists())

    (tmp_path / "one").mkdir()
    (tmp_path / "one/damaged").touch()

    ensure_one(ArtifactStore(tmp_path, noun="thing", removing=guard))

    assert there == [True, False]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["content"]
    assert list((tmp_path / ".work").iterdir()) == []


def test_leftovers_of_a_failed_attempt_are_not_published_by_the_next_attempt(
    tmp_path: Path,
) -> None:
    """The first attempt could not be cleaned up, and the same process tries again."""
    fails = [OSError(errno.EBUSY, "busy")]

    def clean(work: Path) -> None:
        if fails:
            raise fails.pop()
        shutil.rmtree(work)

    store = ArtifactStore(tmp_path, noun="thing", clean=clean)
    with pytest.raises(HarnessError, match="There is no content"):
        ensure_one(store, name="half", error=NO_CONTENT)
    ensure_one(store)

    assert [path.name for path in (tmp_path / "one").iterdir()] == ["content"]


def test_folder_is_not_made_after_the_run_was_cancelled(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="The run ends"):
        ensure_one(ArtifactStore(tmp_path, noun="thing"), cancelled=lambda: "The run ends.")

    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("error", [NO_CONTENT, KeyboardInterrupt()], ids=["error", "interrupted"])
def test_failed_or_interrupted_attempt_reports_ended_and_removes_its_holder_file(
    tmp_path: Path, error: BaseException
) -> None:
    stages: list[Stage] = []

    with pytest.raises(type(error)):
        ensure_one(ArtifactStore(tmp_path, noun="thing"), error=error, stages=stages)

    assert stages == [Stage.ENDED]
    assert list((tmp_path / ".locks").glob("*.holder")) == []


def test_artifact_is_made_despite_a_leftover_that_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work/stray").touch()

    ensure_one(ArtifactStore(tmp_path, noun="thing"))

    assert (tmp_path / "one/content").exists()


@pytest.mark.parametrize("is_made", [True, False])
def test_next_run_removes_all_leftovers_of_a_killed_run(tmp_path: Path, *, is_made: bool) -> None:
    """Leftovers are also removed if the killed run had already published its folder."""
    if is_made:
        ensure_one(ArtifactStore(tmp_path, noun="thing"))
    same, other = a_killed_makers_folder(tmp_path, "one"), a_killed_makers_folder(tmp_path, "two")
    doomed = a_killed_makers_folder(tmp_path, "three.0123abcd.doomed")
    (tmp_path / ".locks").mkdir(exist_ok=True)
    holder = tmp_path / ".locks/two.holder"
    holder.write_text('{"pid": 1, "since": "yesterday"}')

    ensure_one(ArtifactStore(tmp_path, noun="thing"))

    assert [each.exists() for each in (same, other, doomed, holder)] == [False] * 4
    assert (tmp_path / "one/content").exists()


def test_folder_that_another_process_makes_is_not_removed(tmp_path: Path) -> None:
    others = a_killed_makers_folder(tmp_path, "two")
    (tmp_path / ".locks").mkdir()
    holder = tmp_path / ".locks/two.holder"
    holder.touch()

    with FileLock(tmp_path / ".locks/two.lock"):
        ensure_one(ArtifactStore(tmp_path, noun="thing"))

    assert (others / "scratch/half").exists()
    assert holder.exists()


def test_releasing_the_lock_does_not_remove_the_holder_file_of_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = tmp_path / ".locks/one.holder"
    noted: list[str] = []
    release = FileLock.release

    def release_and_hold_elsewhere(lock: FileLock, force: bool = False) -> None:
        release(lock, force)
        if lock.lock_file.endswith("/one.lock") and not noted:
            noted.append(lock.lock_file)
            holder.touch()

    monkeypatch.setattr(FileLock, "release", release_and_hold_elsewhere)
    ensure_one(ArtifactStore(tmp_path, noun="thing"))

    assert noted
    assert holder.exists()


def test_error_from_making_a_folder_is_raised_even_if_the_clean_up_fails(
    tmp_path: Path,
) -> None:
    """Without free descriptors, for example, the removal fails too."""

    def clean(_work: Path) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with pytest.raises(HarnessError, match="There is no content"):
        ensure_one(ArtifactStore(tmp_path, noun="thing", clean=clean), error=NO_CONTENT)
    ensure_one(ArtifactStore(tmp_path / "other", noun="thing", clean=clean))

    assert (tmp_path / "other/one/content").exists()
