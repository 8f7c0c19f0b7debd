"""Files that other users put into a shared folder, and folders whose names they take first."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from harness import shared_folder
from harness.errors import RequirementError
from harness.limits import SHARED_FOLDER, LimitError
from harness.shared_folder import (
    StrangeFileError,
    create_folders,
    names_in,
    open_folder,
    opened_file,
    private_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_OTHER_USER = 65534
_OTHER_GROUP = 65533

pytestmark = pytest.mark.usefixtures("_no_umask_left")


@pytest.fixture
def _no_umask_left() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _content(path: Path, *, is_ours: bool = False) -> bytes:
    folder = open_folder(path.parent)
    try:
        with opened_file(folder, path, is_ours=is_ours) as file:
            return file.read()
    finally:
        os.close(folder)


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _hard_link(path: Path) -> None:
    (path.parent / "own").write_text("x")
    path.hardlink_to(path.parent / "own")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a FIFO"),
        (lambda path: path.symlink_to("/etc/passwd"), "a symbolic link"),
        (lambda path: path.symlink_to("absent"), "a symbolic link"),
        (lambda path: path.mkdir(), "a folder"),
        (_socket, "a socket"),
        (_hard_link, r"it has another name \(a hard link\)"),
        (_huge, "more than 64 KiB, which is the limit 'shared-file-kib'"),
    ],
)
def test_special_file_is_not_opened_and_the_error_names_its_path(
    tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    path = tmp_path / "file"
    make(path)

    with pytest.raises(StrangeFileError, match=rf"^'{path}' of user .* is not a file .*{kind}"):
        _content(path)

    assert path in tmp_path.iterdir()


def test_file_that_becomes_a_fifo_while_it_is_opened_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    regular = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda *_args, **_options: regular)

    with pytest.raises(StrangeFileError, match="a FIFO"):
        _content(path)


def test_file_that_is_removed_while_it_is_opened_is_treated_as_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch()
    state = os.fstat

    def removed(descriptor: int) -> os.stat_result:
        path.unlink(missing_ok=True)
        return state(descriptor)

    monkeypatch.setattr(os, "fstat", removed)

    with pytest.raises(FileNotFoundError):
        _content(path)


def test_regular_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 65536)

    assert _content(path, is_ours=True) == b"x" * 65536

    folder = open_folder(tmp_path)
    for mode, is_trusted in ((0o644, True), (0o664, False), (0o646, False)):
        path.chmod(mode)
        with opened_file(folder, path) as file:
            assert file.is_trusted is is_trusted
    os.close(folder)


def test_file_that_grows_after_it_was_opened_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    folder = open_folder(tmp_path)
    with opened_file(folder, path) as file:
        _huge(path)
        with pytest.raises(StrangeFileError, match="more than 64 KiB"):
            file.read()
    os.close(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("mode", "folder_user", "folder_group", "is_read"),
    [
        (0o2770, 0, _OTHER_GROUP, True),
        (0o2770, 0, 1, False),
        (0o755, 0, _OTHER_GROUP, False),
        (0o755, _OTHER_USER, 1, True),
    ],
)
def test_foreign_file_is_read_only_in_a_folder_of_its_user_or_group(
    tmp_path: Path, mode: int, folder_user: int, folder_group: int, *, is_read: bool
) -> None:
    path = tmp_path / "pool" / "file"
    path.parent.mkdir()
    path.touch()
    os.chown(path, _OTHER_USER, _OTHER_GROUP)
    os.chown(path.parent, folder_user, folder_group)
    path.parent.chmod(mode)

    if is_read:
        assert _content(path) == b""
        with pytest.raises(StrangeFileError, match="another user has replaced it"):
            _content(path, is_ours=True)
    else:
        with pytest.raises(StrangeFileError, match="its group is not the folder's group"):
            _content(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of root")
def test_file_of_root_is_read_unless_it_must_belong_to_this_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    assert _content(tmp_path / "file") == b""
    with pytest.raises(StrangeFileError, match="another user has replaced it"):
        _content(tmp_path / "file", is_ours=True)


def test_error_has_the_path_of_a_folder_with_too_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tmp_path)
    for name in "abc":
        (tmp_path / name).touch()
    monkeypatch.setenv(SHARED_FOLDER.variable, "3")
    assert sorted(names_in(folder, tmp_path)) == [*"abc"]

    monkeypatch.setenv(SHARED_FOLDER.variable, "2")
    with pytest.raises(LimitError, match=rf"^'{tmp_path}': .*'shared-folder-entries'"):
        names_in(folder, tmp_path)
    os.close(folder)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_private_folder_has_mode_0700_and_is_found_again(tmp_path: Path, umask: int) -> None:
    os.umask(umask)

    folder = private_folder(tmp_path, "machines")

    assert folder == tmp_path / f"machines-{os.geteuid()}"
    assert _mode(folder) == 0o700
    assert private_folder(tmp_path, "machines") == folder


def _others_folder(path: Path) -> None:
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, _OTHER_USER, _OTHER_GROUP)
    path.chmod(0o777)


def _folder_of_a_group(path: Path) -> None:
    path.mkdir()
    path.chmod(0o710)


@pytest.mark.parametrize(
    "squat",
    [
        _others_folder,
        _folder_of_a_group,
        lambda path: path.symlink_to(path.parent / "target"),
        lambda path: path.symlink_to("absent"),
        os.mkfifo,
        lambda path: path.touch(0o600),
    ],
    ids=["folder", "folder of a group", "symbolic link", "dangling link", "FIFO", "file"],
)
def test_folder_gets_another_name_if_another_user_took_its_name_first(
    tmp_path: Path, squat: Callable[[Path], None]
) -> None:
    taken = tmp_path / f"machines-{os.geteuid()}"
    (tmp_path / "target").mkdir(mode=0o700)
    squat(taken)

    folder = private_folder(tmp_path, "machines")
    (folder / "file").touch()

    assert folder.name.startswith(f"{taken.name}.")
    assert _mode(folder) == 0o700
    assert list((tmp_path / "target").iterdir()) == []
    assert private_folder(tmp_path, "machines") == folder, "another process finds it"


def test_private_folder_stays_the_same_after_its_first_name_is_free_again(tmp_path: Path) -> None:
    """Otherwise processes started before and after would not see each other."""
    taken = tmp_path / f"machines-{os.geteuid()}"
    taken.touch()
    folder = private_folder(tmp_path, "machines")
    folder.with_name(f"{folder.name}0").mkdir(mode=0o700)
    taken.unlink()

    assert private_folder(tmp_path, "machines") == folder


def test_processes_that_create_the_folder_simultaneously_get_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"machines-{os.geteuid()}").touch()
    seen: list[Path] = []
    create = shared_folder._created

    def interrupted(folder: Path) -> Path:
        if not seen and "." in folder.name:
            seen.append(folder)
            seen.append(private_folder(tmp_path, "machines"))
        return create(folder)

    monkeypatch.setattr(shared_folder, "_created", interrupted)
    first = private_folder(tmp_path, "machines")

    assert private_folder(tmp_path, "machines") == first


def test_folders_of_other_users_with_similar_names_are_not_used(
    tmp_path: Path,
) -> None:
    taken = tmp_path / f"machines-{os.geteuid()}"
    taken.touch()
    _others_folder(taken.with_name(f"{taken.name}.0"))
    taken.with_name(f"{taken.name}.1").symlink_to(tmp_path)

    folder = private_folder(tmp_path, "machines")

    assert _mode(folder) == 0o700
    assert not folder.is_symlink()


def test_error_has_the_path_of_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(RequirementError, match=r"'.*/absent/machines-\d+' can't be created"):
        private_folder(tmp_path / "absent", "machines")


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_created_folders_and_parents_have_mode_0700_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    os.umask(umask)

    create_folders(tmp_path / "a" / "b" / "c", 0o700)

    made = [tmp_path / "a", tmp_path / "a/b", tmp_path / "a/b/c"]
    assert [_mode(each) for each in made] == [0o700] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_folder_that_another_user_makes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    _others_folder(folder)
    monkeypatch.setattr(type(folder), "exists", lambda path: path != folder)

    with pytest.raises(PermissionError, match=r"user .* has made it"):
        create_folders(folder, 0o700)
    os.chown(folder, 0, 0)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    create_folders(folder, 0o700)
