"""A test's evidence as one file, packed and unpacked by the programs of this host."""

from __future__ import annotations

import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.evidence.archive import archive_of, opened, write_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence" / "t.py-test_a"
    for name, text in {
        "node/host/serial.log": "Linux",
        "node/checkpoint/machine.json": "{}",
        "node/checkpoint/memory.zst": "memory",
        "node/checkpoint/disk.qcow2": "disk",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_archive_lies_beside_the_folder_and_is_private(evidence: Path) -> None:
    archive = write_archive(evidence)

    assert archive == archive_of(evidence)
    assert archive.parent == evidence.parent
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert sorted(path.name for path in evidence.parent.iterdir()) == [evidence.name, archive.name]


@pytest.mark.parametrize("lacks", [None, "zstd"], ids=["preferred", "gzip"])
def test_archive_becomes_the_folder_again(
    evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str | None
) -> None:
    found = shutil.which
    monkeypatch.setattr("shutil.which", lambda name: None if name == lacks else found(name))
    archive = write_archive(evidence)
    shutil.rmtree(evidence)

    with opened(archive, tmp_path / "runs", has_machine=True) as folder:
        assert (folder / evidence.name / "node/host/serial.log").read_text() == "Linux"
        assert (folder / evidence.name / "node/checkpoint/memory.zst").read_text() == "memory"
    assert [path for path in (tmp_path / "runs").iterdir() if path.is_dir()] == []


def test_saved_machine_is_only_unpacked_where_it_is_needed(evidence: Path, tmp_path: Path) -> None:
    with opened(write_archive(evidence), tmp_path / "runs") as folder:
        names = {path.name for path in folder.rglob("*") if path.is_file()}

    assert "serial.log" in names
    assert not {"memory.zst", "disk.qcow2"} & names


def test_archive_of_an_earlier_failure_is_replaced(evidence: Path, tmp_path: Path) -> None:
    (evidence.parent / f"{evidence.name}.tar.gz").write_text("earlier")
    write_archive(evidence)
    (evidence / "node/host/serial.log").write_text("again")

    with opened(write_archive(evidence), tmp_path / "runs") as folder:
        assert (folder / evidence.name / "node/host/serial.log").read_text() == "again"
    assert len(list(evidence.parent.glob("*.tar.*"))) == 1


def test_folder_is_taken_as_it_is(evidence: Path, tmp_path: Path) -> None:
    with opened(evidence, tmp_path / "runs") as folder:
        assert folder == evidence


@pytest.mark.parametrize(
    ("name", "words"), [("t.tar.gz", "damaged"), ("t.zip", "neither"), ("absent", "neither")]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str, words: str) -> None:
    if name != "absent":
        (tmp_path / name).write_text("no archive")

    with pytest.raises(BadInputError, match=words), opened(tmp_path / name, tmp_path / "runs"):
        pass
