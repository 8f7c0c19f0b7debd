"""Files in another user's folder are read only if they are plain and within a size limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.foreign_files import last_bytes, open_plain, read_plain, read_plain_text
from harness.limits import Limit, LimitError, Unit

LIMIT = Limit(name="few-kib", default=1, unit=Unit.KIB, what="a file")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    file = tmp_path / "a/b/c"
    file.write_bytes(b"x\xff")
    opened = descriptors()

    assert read_plain(file, limit=LIMIT) == b"x\xff"
    assert read_plain(file, limit=LIMIT, below=tmp_path) == b"x\xff"
    assert read_plain_text(file) == "x\ufffd"
    assert last_bytes(file, 1) == b"\xff"
    assert last_bytes(file, 3) == b"x\xff"
    assert descriptors() == opened


def test_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    file.touch()
    os.truncate(file, 200 << 30)

    with pytest.raises(LimitError, match=r"sparse': a file: more than 1 KiB, .* 'few-kib'"):
        read_plain(file, limit=LIMIT)

    os.truncate(file, 1034)
    open_plain(file, limit=LIMIT, slack=10).close()
    with pytest.raises(LimitError):
        open_plain(file, limit=LIMIT, slack=9)


def test_file_of_unknown_size_is_read_only_up_to_the_limit() -> None:
    with pytest.raises(LimitError):
        read_plain(Path("/proc/self/maps"), limit=LIMIT)
    assert len(last_bytes(Path("/proc/self/maps"), 10)) == 10


@pytest.mark.parametrize("kind", ["link", "dangling", "fifo", "folder", "absent", "nul", "long"])
def test_path_that_is_not_a_plain_file_is_an_error(tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_text("s")
    path = tmp_path / kind
    match kind:
        case "link":
            path.symlink_to(tmp_path / "secret")
        case "dangling":
            path.symlink_to(tmp_path / "nothing")
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "nul":
            path = tmp_path / "a\0b"
        case "long":
            path = tmp_path / ("a" * 300)
        case _:
            pass

    opened = descriptors()
    for below in (None, tmp_path):
        with pytest.raises(OSError, match=r".+"):
            read_plain(path, below=below)
    with pytest.raises(OSError, match=r".+"):
        last_bytes(path, 1)
    assert descriptors() == opened


def test_no_symbolic_link_between_the_folder_and_the_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/s").write_text("s")
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    (evidence / "files").symlink_to(tmp_path / "secrets")

    with pytest.raises(OSError, match="files/s"):
        read_plain(evidence / "files/s", below=evidence)
    with pytest.raises(OSError, match="not a file of the folder"):
        read_plain(evidence / "../secrets/s", below=evidence)
