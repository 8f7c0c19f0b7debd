"""Published folders: what images and checkpoints have in common."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.provisioning.wait import Deadline
from harness.published import FileFact, GoneError, Stage, Workplace, allocated_bytes
from harness.published.kind import fact_of
from harness.published.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

EDGES = [1, 4095, 4096, 4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20]


@settings(max_examples=25, deadline=None)
@given(
    pieces=st.lists(
        st.tuples(st.sampled_from(EDGES), st.sampled_from([None, b"\0", b"x"])), max_size=5
    )
)
def test_digest_of_a_sparse_file_is_that_of_its_content(
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


def test_folder_that_is_gone_once_its_lock_is_held_is_made_without_a_word(tmp_path: Path) -> None:
    folder = tmp_path / "shelf/one"
    folder.mkdir(parents=True)
    told: list[Stage] = []

    def opened() -> str:
        if (folder / "content").exists():
            return "opened"
        if (tmp_path / "looked").exists():
            shutil.rmtree(folder)
        (tmp_path / "looked").touch()
        raise GoneError("gone")

    def fill(place: Workplace) -> None:
        (place.content / "content").touch()

    shelf = Shelf(tmp_path / "shelf", noun="thing")
    got = shelf.ensure(
        folder,
        name="one",
        opened=opened,
        fill=fill,
        tell=lambda stage, _message: told.append(stage),
        deadline=Deadline.after(10),
    )

    assert got == "opened"
    assert told == [Stage.PUBLISH]
    assert shelf.published() == [folder]


def test_space_counts_blocks_and_not_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Holes take none; a file that another process renames away meanwhile does no harm."""
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
