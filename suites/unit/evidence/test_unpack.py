"""An archive from another person is unpacked within its folder, or refused with a sentence."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from harness.artifact_cache import allocated_bytes
from harness.errors import BadInputError, HarnessError
from harness.evidence.archive import unpack
from harness.limits import LimitError

_MIB = 1 << 20


def tar_of(*members: tuple[str, bytes], form: int = tarfile.GNU_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def unpacked(
    content: bytes, folder: Path, *, limit_bytes: int = _MIB, has_machine: bool = True
) -> dict[str, bytes]:
    unpack(
        io.BytesIO(content),
        folder,
        source="t.tar",
        limit_bytes=limit_bytes,
        has_machine=has_machine,
    )
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_of_an_archive_are_unpacked(tmp_path: Path) -> None:
    for number, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        folder = tmp_path / str(number)
        folder.mkdir()
        members = {"t/a": b"1", "t/" + "long/" * 19 + "b": b"2" * 1000, "t/c": b""}
        if form != tarfile.USTAR_FORMAT:
            members["t/" + "n" * 200] = b"3"

        assert unpacked(tar_of(*members.items(), form=form), folder) == members, form


def test_empty_folders_of_an_archive_are_created(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("t", "t/empty"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)

    assert unpacked(packed.getvalue(), tmp_path) == {}
    assert (tmp_path / "t/empty").stat().st_mode & 0o777 == 0o700


def test_memory_and_disk_of_a_saved_machine_are_not_unpacked(tmp_path: Path) -> None:
    content = tar_of(
        ("t/n/checkpoint/memory.zst", b"m"),
        ("t/n/checkpoint/disk.qcow2", b"d"),
        ("t/n/checkpoint/machine.json", b"{}"),
    )

    assert unpacked(content, tmp_path, has_machine=False) == {"t/n/checkpoint/machine.json": b"{}"}


def test_error_mentions_the_archive_that_exceeds_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        (tar_of(("t/a", bytes(2 * _MIB))), "'archive-mib'.*ARCHIVE_MIB"),
        (tar_of(*[(f"t/{each}", bytes(_MIB // 4)) for each in range(5)]), "'archive-mib'"),
        # Each file takes a block of the disk.
        (tar_of(*[(f"t/{each}", b"x") for each in range(257)]), "'archive-mib'"),
        (tar_of(("d/" * 200 + "a", b"")), "'path-levels'"),
        (sparse_tar(200 << 30), "'archive-mib'"),
        (tar_of(*[(f"t/{each}", b"") for each in range(101)]), "'archive-entries'"),
    ]
    for number, (content, words) in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        if "entries" in words:
            monkeypatch.setenv("HARNESS_LIMIT_ARCHIVE_ENTRIES", "100")

        with pytest.raises(LimitError, match=f"^t.tar.*{words}"):
            unpacked(content, folder)

        # A folder takes no space on a file system in memory, and one block on a disk.
        assert allocated_bytes(folder) <= _MIB, words


def sparse_tar(size: int, data: bytes = b"") -> bytes:
    """Return an archive of a sparse file with `data` at its end, as `tar --sparse` writes it."""
    member = tarfile.TarInfo("t/sparse")
    member.type = tarfile.GNUTYPE_SPARSE
    member.size = len(data)
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386 : 386 + 24] = (
        b"%011o %011o " % (size - len(data), len(data))
        if size < 1 << 33
        else (b"\x80" + (size - len(data)).to_bytes(11, "big") + b"%011o " % len(data))
    )
    header[483:495] = b"%011o " % size if size < 1 << 33 else b"\x80" + size.to_bytes(11, "big")
    header[148:156] = b"        "
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + data.ljust(-(-len(data) // 512) * 512, b"\0") + bytes(1024)


def test_sparse_file_stays_sparse(tmp_path: Path) -> None:
    content = sparse_tar(4 * _MIB, b"end") + tar_of()

    assert unpacked(content, tmp_path, limit_bytes=8 * _MIB) == {
        "t/sparse": bytes(4 * _MIB - 3) + b"end"
    }
    assert os.stat(tmp_path / "t/sparse").st_blocks * 512 < _MIB  # noqa: PTH116


def test_tar_header_over_4_mib_is_refused_without_reading_it(tmp_path: Path) -> None:
    for number, kind in enumerate((tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE)):
        header = tarfile.TarInfo("x")
        header.type, header.size = kind, 1 << 40

        class Endless(io.RawIOBase):
            head = tar_of(("t/a", b"x"))[:1024] + header.tobuf(tarfile.GNU_FORMAT)
            asked = 0

            @override
            def read(self, size: int = -1) -> bytes:
                self.asked += size
                assert self.asked < 8 * _MIB
                head, self.head = self.head[:size], self.head[size:]
                return head + b"x" * (size - len(head))

        with pytest.raises(BadInputError, match="a header has more than 4 MiB"):
            unpack(Endless(), tmp_path / str(number), source="t.tar", limit_bytes=1 << 50)  # type: ignore[arg-type]


def extended(records: bytes, kind: bytes = tarfile.XHDTYPE) -> bytes:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, len(records)
    padding = bytes(-len(records) % 512)
    return header.tobuf(tarfile.GNU_FORMAT) + records + padding + tar_of(("t/a", b"x"))


def test_error_for_an_invalid_archive_says_why_the_archive_is_invalid(tmp_path: Path) -> None:
    for number, (content, words) in enumerate(
        (
            (tar_of(("../a", b"x")), "leads out of its folder"),
            (tar_of(("/a", b"x")), "leads out of its folder"),
            (tar_of(("t/../../a", b"x")), "leads out of its folder"),
            (tar_of(("t/b/..", b"x")), "leads out of its folder"),
            (tar_of(("t/a", b"x"), ("t/a", b"y")), "twice"),
            (tar_of(("t/a", b"x"), ("t/a/b", b"y")), "can't be unpacked"),
            (tar_of(("t/" + "n" * 300, b"x")), "can't be unpacked"),
            (tar_of(("t/\x1b[2J", b"x"), ("t/\x1b[2J", b"x")), r"'t/\\x1b\[2J' twice"),
            (b"no archive", "can't be unpacked"),
            (b"", "can't be unpacked"),
            (tar_of(("t/a", bytes(600)))[:700], "can't be unpacked"),
            (extended(b"2 2 2 a=b\n"), "an extended header is damaged"),
            (extended(b"8 a=1234\n"), "an extended header is damaged"),
            (extended(b"310 comment=" + b"1" * 297 + b"\n"), "a very long number"),
            (extended(b"6 a=b\n", tarfile.XGLTYPE), "a header that applies to all files"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(BadInputError, match=words):
            unpacked(content, folder)


def test_links_and_fifos_and_devices_in_an_archive_are_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE):
        member = tarfile.TarInfo("t/l")
        member.type, member.linkname = kind, "/etc/hostname"

        with pytest.raises(BadInputError, match="neither a file nor a folder"):
            unpacked(member.tobuf() + bytes(1024), tmp_path)
        assert not (tmp_path / "t/l").exists(), kind


PARTS = st.one_of(
    st.binary(max_size=600),
    st.builds(
        lambda name, kind, size, link, content: (
            header_of(name, kind, size, link) + content.ljust(-(-len(content) // 512) * 512, b"\0")
        ),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
        | st.just("t/a"),
        st.sampled_from(
            [*(b"0", b"1", b"2", b"3", b"5", b"6", b"7", b"L", b"K", b"S", b"x", b"g", b"X", b"D")]
        ),
        st.integers(0, 1 << 33) | st.integers(0, 600),
        st.sampled_from(["", "/etc", "t/a"]),
        st.binary(max_size=600)
        | st.sampled_from(
            [b"30 GNU.sparse.size=9999999999\n", b"19 path=../escape\n", b"9" * 600]
        ),
    ),
)


def header_of(name: str, kind: bytes, size: int, link: str) -> bytes:
    member = tarfile.TarInfo(name.encode()[:90].decode(errors="ignore"))
    member.type, member.size, member.linkname = kind, size, link
    return member.tobuf(tarfile.GNU_FORMAT, errors="surrogateescape")


@given(
    parts=st.lists(PARTS, max_size=6),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=6),
    resum=st.booleans(),
)
def test_any_archive_is_unpacked_within_its_folder_or_refused(
    parts: list[bytes], changes: list[tuple[int, int]], *, resum: bool
) -> None:
    content = bytearray(b"".join(parts) + bytes(1024))
    for at, byte in changes:
        if at < len(content):
            content[at] = byte
    if resum:
        for at in range(0, len(content) - 511, 512):
            block = content[at : at + 512]
            block[148:156] = b"        "
            content[at + 148 : at + 156] = b"%06o\0 " % sum(block)
    place = Path(tempfile.mkdtemp())
    try:
        folder = place / "folder"
        folder.mkdir()
        try:
            unpack(io.BytesIO(bytes(content)), folder, source="t.tar", limit_bytes=_MIB)
        except HarnessError as error:
            assert len(str(error)) < 9000  # noqa: PT017 - either is right
        assert [path.name for path in place.iterdir()] == ["folder"]
        for path in folder.rglob("*"):
            assert not path.is_symlink()
            assert path.is_file() or path.is_dir()
            assert path.stat().st_blocks * 512 <= 2 * _MIB
    finally:
        shutil.rmtree(place)
