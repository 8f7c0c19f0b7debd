"""A test's evidence as one file, packed and unpacked by the programs of this host."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from harness.errors import BadInputError, HarnessError
from harness.evidence.archive import archive_of, opened, write_archive


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


def test_archive_is_beside_its_folder_and_only_the_owner_can_read_it(evidence: Path) -> None:
    archive = write_archive(evidence)

    assert archive == archive_of(evidence)
    assert archive.parent == evidence.parent
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert sorted(path.name for path in evidence.parent.iterdir()) == [evidence.name, archive.name]


@pytest.mark.parametrize("lacks", [None, "zstd"], ids=["preferred", "gzip"])
def test_archive_is_unpacked_into_the_same_folder(
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


def test_folder_that_a_killed_process_unpacked_is_removed_by_the_next_process(
    evidence: Path, tmp_path: Path
) -> None:
    left = tmp_path / "runs/bundle-0"
    left.mkdir(parents=True)
    (left / "lease").touch()

    with (
        opened(write_archive(evidence), tmp_path / "runs") as folder,
        opened(write_archive(evidence), tmp_path / "runs") as other,
    ):
        assert {folder, other} == {path for path in left.parent.iterdir() if path.is_dir()}


def test_saved_machine_is_unpacked_only_if_it_is_needed(evidence: Path, tmp_path: Path) -> None:
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


def test_archive_is_written_even_if_a_file_changes_while_it_is_packed(
    evidence: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tar` then exits with 1; for other errors, it exits with 2."""
    tar, real = tmp_path / "bin" / "tar", shutil.which("tar")
    tar.parent.mkdir()
    tar.touch(0o755)
    monkeypatch.setenv("PATH", f"{tar.parent}:{os.environ['PATH']}")

    tar.write_text(f'#!/bin/sh\n{real} "$@"\nexit 1\n')
    assert write_archive(evidence).is_file()
    tar.write_text(f'#!/bin/sh\n{real} "$@"\nexit 2\n')
    with pytest.raises(HarnessError, match="can't be made"):
        write_archive(evidence)


def test_folder_in_place_of_an_archive_is_used_directly(evidence: Path, tmp_path: Path) -> None:
    with opened(evidence, tmp_path / "runs") as folder:
        assert folder == evidence


def test_error_about_a_file_in_an_archive_names_the_archive(
    evidence: Path, tmp_path: Path
) -> None:
    """The folder in which the archive was unpacked is removed."""
    archive = write_archive(evidence)

    with (
        pytest.raises(BadInputError) as caught,
        opened(archive, tmp_path / "runs") as folder,
    ):
        raise BadInputError("It is empty.", source=str(folder / "node/x.json"))

    assert str(caught.value) == f"{archive}/node/x.json: It is empty."


@pytest.mark.parametrize(
    ("name", "words"),
    [("t.tar.gz", "damaged"), ("t.zip", "neither a folder"), ("absent", "neither a folder")],
)
def test_file_that_is_not_an_archive_is_refused(tmp_path: Path, name: str, words: str) -> None:
    if name != "absent":
        (tmp_path / name).write_text("no archive")

    with pytest.raises(BadInputError, match=words), opened(tmp_path / name, tmp_path / "runs"):
        pass


def test_archive_whose_checksum_is_wrong_is_refused(tmp_path: Path) -> None:
    """All files can be read; the decompressor reports the damage only at the end."""
    path = an_archive(tmp_path / "t.tar.gz", tarfile.TarInfo("t"))
    data = bytearray(path.read_bytes())
    data[-8] ^= 1
    path.write_bytes(data)

    with pytest.raises(BadInputError, match="damaged"), opened(path, tmp_path / "runs"):
        pass


@pytest.mark.parametrize("at", [slice(1536, 1544), slice(1536, None), slice(2048, None)])
def test_truncated_archive_is_refused(tmp_path: Path, at: slice) -> None:
    """The second header is damaged, or the archive is truncated before that header or before its end."""
    first = tarfile.TarInfo("t/first")
    first.size = 1024
    path = an_archive(tmp_path / "t.tar.gz", first, tarfile.TarInfo("t/second"))
    data = bytearray(gzip.decompress(path.read_bytes()))
    assert data[1536:1543] == b"t/secon"
    data[at] = b"damaged!" if at.stop else b""
    path.write_bytes(gzip.compress(data))

    with pytest.raises(BadInputError, match="damaged"), opened(path, tmp_path / "runs"):
        pass


def an_archive(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def a_member(name: str, kind: bytes = tarfile.REGTYPE, *, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def test_archive_name_with_a_colon_is_not_taken_for_a_remote_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_archive(tmp_path / "host:t.tar.gz", a_member("t/serial.log"))
    monkeypatch.chdir(tmp_path)

    with opened(Path("host:t.tar.gz"), tmp_path / "runs") as folder:
        assert (folder / "t/serial.log").is_file()
