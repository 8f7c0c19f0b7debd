"""Reservations that several users of a host share; the broker's tests have only one user."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from harness.errors import HarnessError, RequirementError
from harness.reservation_folder import ReservationFolder, Sharing, ahead_of, one_line


@dataclasses.dataclass(frozen=True)
class Note:
    who: str
    process: int = 1
    is_granted: bool = True

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def parse(text: str) -> Note:
    return Note(**json.loads(text))


def shared(folder: Path) -> ReservationFolder[Note]:
    return ReservationFolder(folder, parse, owner="pool", sharing=Sharing.GROUP)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pool"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


def test_missing_folder_is_created_with_mode_2770(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)

    with shared(tmp_path / "above" / "pool").enter(Note("a")):
        assert (tmp_path / "above" / "pool").stat().st_mode & 0o7777 == 0o2770


def test_ordinary_user_creates_no_folder_in_a_world_writable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in '/run/lock' that one user creates would be closed to all other users."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with (
        pytest.raises(RequirementError, match="as root, run `install -d -m 2770 -g GROUP"),
        shared(tmp_path / "pool").enter(Note("a")),
    ):
        pass

    assert not (tmp_path / "pool").exists()


def test_reservation_file_is_readable_by_the_group_whatever_the_umask(folder: Path) -> None:
    old = os.umask(0o077)
    try:
        with shared(folder).enter(Note("a")) as name:
            assert (folder / name).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (0o2777, "its mode lets everybody change it: 2777"),
        (0o2772, "its mode lets everybody change it: 2772"),
        (0o770, "its mode 770 lacks the setgid bit"),
    ],
)
def test_folder_with_an_unsuitable_mode_is_refused(folder: Path, mode: int, why: str) -> None:
    folder.chmod(mode)
    opened = len([*Path("/proc/self/fd").iterdir()])

    with pytest.raises(RequirementError, match=why), shared(folder).enter(Note("a")):
        pass
    assert len([*Path("/proc/self/fd").iterdir()]) == opened


@pytest.mark.usefixtures("fake_time")
def test_lock_is_released_although_a_child_process_inherited_its_descriptor(
    folder: Path,
) -> None:
    with shared(folder).open() as book:
        child = os.dup(book.descriptor)

    with shared(folder).enter(Note("a")) as name:
        assert (folder / name).exists()
    os.close(child)


def test_entry_is_replaced_and_a_failed_write_leaves_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with shared(folder).enter(Note("a long name")) as name:
        with shared(folder).open() as book:
            book.write(name, Note("b"))
            assert [note.who for _, note in book.entries()] == ["b"]
        monkeypatch.setattr(os, "pwrite", full)
        with (
            pytest.raises(HarnessError, match="'c' can't be written"),
            shared(folder).enter(Note("c")),
        ):
            pass
        assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize("mode", [0o2770, 0o755])
def test_folder_that_only_its_group_or_owner_can_change_is_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)

    with shared(folder).enter(Note("a")), shared(folder).open() as book:
        assert [note.who for _, note in book.entries()] == ["a"]


def test_folder_of_another_ordinary_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(folder, 1234, -1)
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with (
        pytest.raises(
            RequirementError, match=r"must belong to root or to you.*belongs to user 1234"
        ),
        shared(folder).enter(Note("a")),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders of root")
def test_folder_of_root_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with shared(folder).open() as book:
        assert book.entries() == []


def test_folder_that_this_user_may_not_write_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_, **_options: False)

    with (
        pytest.raises(RequirementError, match=r"but user \d+ may not write there"),
        shared(folder).enter(Note("a")),
    ):
        pass


def test_symbolic_link_in_place_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)

    with (
        pytest.raises(RequirementError, match="it is a link or no folder"),
        shared(tmp_path / "link").enter(Note("a")),
    ):
        pass


def test_reservations_are_sorted_numerically(
    folder: Path,
) -> None:
    (folder / "999999998-00000000").touch()

    with (
        shared(folder).enter(Note("a")),
        shared(folder).enter(Note("b")),
        shared(folder).enter(Note("c")),
        shared(folder).open() as book,
    ):
        assert [note.who for _, note in book.entries()] == ["a", "b", "c"]


def test_leftover_entry_with_the_highest_number_does_not_block_a_new_entry(folder: Path) -> None:
    (folder / "999999999999999-00000000").touch()

    with shared(folder).enter(Note("a")) as name:
        assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.usefixtures("fake_time")
def test_folder_that_is_removed_during_locking_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "pool"
    lock = fcntl.flock

    def remove_and_lock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        folder.rmdir()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)

    with shared(folder).enter(Note("a")) as name:
        assert (folder / name).exists()


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.EBADF, r"can't be locked \(Bad file descriptor\), as on many network file systems"),
        (errno.ENOLCK, r"can't be locked \(No locks available\), as on many network file systems"),
        (errno.EAGAIN, "has locked the new reservation|another process holds it"),
    ],
)
@pytest.mark.usefixtures("fake_time")
def test_folder_in_which_no_file_can_be_locked_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str, *, is_folder: bool
) -> None:
    lock = fcntl.flock

    def refuse(descriptor: int, how: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode) == is_folder and how & fcntl.LOCK_EX:
            raise OSError(number, os.strerror(number))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr("harness.reservation_folder._LOCK_S", 0.05)

    with pytest.raises(HarnessError, match=why), shared(folder).enter(Note("a")):
        pass

    assert list(folder.iterdir()) == []


def test_reservation_file_in_use_that_cannot_be_parsed_is_an_error(folder: Path) -> None:
    with shared(folder).enter(Note("a")) as name:
        (folder / name).write_text("{}")
        with (
            pytest.raises(HarnessError, match="can't be parsed"),
            shared(folder).open() as book,
        ):
            book.entries()


def test_other_files_of_the_folder_are_not_reservations(folder: Path) -> None:
    (folder / "drivers-0000:65:00.0.json").write_text("{}")

    with shared(folder).open() as book:
        assert book.entries() == []
    assert (folder / "drivers-0000:65:00.0.json").exists()


def test_process_that_holds_a_reservation_is_served_before_earlier_processes() -> None:
    entries = [
        ("000000001-0", Note("held", process=9)),
        ("000000002-0", Note("first", process=1, is_granted=False)),
        ("000000003-0", Note("holder", process=9, is_granted=False)),
    ]

    assert ahead_of("000000003-0", entries) == []
    assert [note.who for note in ahead_of("000000002-0", entries)] == ["holder"]


def test_name_of_a_holder_is_shortened_to_one_line() -> None:
    assert one_line("a\nb\x1b[0m") == "a?b?[0m"
    assert len(one_line("x" * 500)) == 80
