"""Folders are packed into blobs and are unpacked without a change."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING

import pytest

from harness.artifact_cache import FileFact
from harness.limits import STORE_OTHER_FILES, STORE_OTHER_MIB, Limit, LimitError
from harness.shared_store import StoreError, packing
from harness.shared_store.answers import FILE_TYPE
from harness.shared_store.packing import DataBudget, pack, unpack_file, unpack_rest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: The number of bytes that one read returns in these tests.
CHUNK = 1 << 16
NOISE = random.Random(1).randbytes(CHUNK + 100)  # noqa: S311 - no secret
CONTENTS = {
    "empty": b"",
    "byte": b"x",
    "zeros of a memory file": bytes(2 * CHUNK),
    "data of a memory file": NOISE,
    "a byte more": bytes(2 * CHUNK) + b"x",
    "ends with a hole": NOISE[:20_000] + bytes(2 * CHUNK - 20_000),
    "data amid holes": bytes(CHUNK + 500) + NOISE[:100] + bytes(CHUNK),
    "like another": b"x",
}


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_CHUNK", CHUNK)


def fact_of(content: bytes) -> FileFact:
    return FileFact(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def a_folder(folder: Path) -> dict[str, bytes]:
    """Make a published folder; return all its files, with the files that its manifest lacks."""
    files = {f"{number}/disk": content for number, content in enumerate(CONTENTS.values())}
    others = {"evidence/console.log": b"booted", "evidence/used": b""}
    for name, content in {**files, **others, "used": b"", "verified.json": b"{}"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    # If the link was followed, a file of this host would be pushed.
    (folder / "evidence/link").symlink_to(folder / "0/disk")
    facts = {name: vars(fact_of(content)) for name, content in files.items()}
    (folder / "manifest.json").write_text(json.dumps({"files": facts}))
    return {**files, **others}


def test_packed_folder_is_unpacked_unchanged(tmp_path: Path) -> None:
    folder, work, into = (tmp_path / each for each in ("x", "work", "into"))
    for each in (folder, work, into):
        each.mkdir()
    files = a_folder(folder)
    budget = DataBudget("x", packed_bytes=1)

    digests = []
    for packed in pack(folder, work):
        digests.append(packed.digest)
        if packed.media_type == FILE_TYPE:
            content = files[packed.title]
            unpack_file(packed.path, into / packed.title, fact_of(content), "x", budget)
        else:
            unpack_rest(packed.path, into, "x", [each for each in files if "disk" in each])

    found = {
        path.relative_to(into).as_posix(): path.read_bytes()
        for path in into.rglob("*")
        if path.is_file()
    }
    assert found == files
    assert {(into / each).stat().st_mode & 0o777 for each in files} == {0o600}
    assert list(work.iterdir()) == []
    # Another host with the same files makes the same blobs.
    assert [packed.digest for packed in pack(folder, work)] == digests


@pytest.mark.parametrize("name", ["byte", "data of a memory file", "ends with a hole"])
@pytest.mark.parametrize("change", ["shorter", "longer", "other"])
def test_blob_whose_content_differs_from_the_manifest_is_refused(
    tmp_path: Path, name: str, change: str
) -> None:
    """The size and the first bytes of the wrong content may be right."""
    content = CONTENTS[name]
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "disk").write_bytes(content)
    (folder / "manifest.json").write_text(json.dumps({"files": {"disk": vars(fact_of(content))}}))
    (packed,) = _kept(folder, tmp_path)
    wanted = {
        "shorter": content + b"\0",
        "longer": content[:-1],
        "other": content[:-1] + b"y",
    }[change]

    with pytest.raises(StoreError, match="The file 'disk' of 'x' differs from its manifest"):
        unpack_file(packed, tmp_path / "to/disk", fact_of(wanted), "x", DataBudget("x", 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda blob: blob[:-1], "ends before"),
        (lambda blob: blob[:-8], "ends before"),
        (lambda blob: blob + b"x", "goes on after"),
    ],
)
def test_truncated_blob_and_blob_with_extra_bytes_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[bytes], bytes],
    why: str,
) -> None:
    """A gzip file ends with a checksum and a size of four bytes each."""
    a_folder(tmp_path / "x")
    (packed, *_) = _kept(tmp_path / "x", tmp_path)
    blob = packed.read_bytes()
    packed.write_bytes(change(blob))

    for chunk in (CHUNK, len(blob)):
        monkeypatch.setattr(packing, "_CHUNK", chunk)
        with pytest.raises(StoreError, match=f"{why} the end of the file"):
            unpack_file(packed, tmp_path / "to", fact_of(b""), "x", DataBudget("x", 1))


def _kept(folder: Path, to: Path) -> list[Path]:
    """Return copies of a folder's blobs, because `pack` removes each blob."""
    kept = []
    for number, packed in enumerate(pack(folder, to)):
        kept.append(to / f"kept-{number}")
        kept[-1].write_bytes(packed.path.read_bytes())
    return kept


def test_file_that_differs_from_its_manifest_is_not_packed(tmp_path: Path) -> None:
    name = "6/disk"
    folder = tmp_path / "x"
    folder.mkdir()
    a_folder(folder)
    (folder / name).write_bytes(b"changed")

    with pytest.raises(StoreError, match=f"{name}' is damaged and is not pushed"):
        list(pack(folder, tmp_path))


@pytest.mark.parametrize(("limit", "size"), [(STORE_OTHER_FILES, 0), (STORE_OTHER_MIB, 600 << 10)])
def test_unlisted_files_whose_total_size_exceeds_a_limit_are_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Limit, size: int
) -> None:
    """Each file is within the limit, but their sum exceeds it."""
    monkeypatch.setenv(limit.variable, "1")
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / "manifest.json").write_text('{"files": {}}')

    with pytest.raises(LimitError, match=limit.name):
        list(pack(tmp_path, tmp_path))
