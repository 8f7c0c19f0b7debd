"""Files of a node below a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from harness.provisioning.node_files import (
    READ_LIMIT_BYTES,
    NodeFiles,
    UnreadableFileError,
    UnsafePathError,
)


@pytest.fixture
def files(tmp_path: Path) -> NodeFiles:
    return NodeFiles(tmp_path)


def test_path_that_is_empty_or_relative_or_the_root_or_leads_to_a_parent_is_refused(
    files: NodeFiles,
) -> None:
    for path in ("", "/", "/./", "etc", "/etc/..", "/../x"):
        with pytest.raises(UnsafePathError, match=f"^The path '{path}' is refused: "):
            files.remove(path)


def test_node_paths_are_resolved_below_the_root_folder(files: NodeFiles, tmp_path: Path) -> None:
    assert files.at("//etc/x") == tmp_path / "etc/x"
    assert NodeFiles(Path("/")).at("/etc/x") == Path("/etc/x")
    for path in ("/etc/..x", "/...", "/etc/./x"):
        assert files.at(path) == tmp_path / path.lstrip("/")


def test_written_text_is_read_back_with_its_mode(files: NodeFiles) -> None:
    longest = "ä" * 127
    files.write(f"/etc/deep/{longest}", "é\n", mode=0o4755)
    files.write("/etc/deep/y", "")

    assert files.read(f"/etc/deep/{longest}") == "é\n"
    assert files.at(f"/etc/deep/{longest}").stat().st_mode & 0o7777 == 0o4755
    assert files.at("/etc/deep/y").stat().st_mode & 0o7777 == 0o644


def test_new_text_is_synced_before_it_replaces_the_file(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """chown(2) may clear mode bits, and a rename may reach the disk before the text."""
    taken: list[object] = []
    files.write("/etc/x", "old", mode=0o4640)
    status = list(files.at("/etc/x").stat())
    status[4:6] = [1000, 2000]
    real_rename, real_fsync, real_chmod, real_stat = Path.rename, os.fsync, os.fchmod, Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        now = real_stat(path, follow_symlinks=follow_symlinks)
        return os.stat_result(status) if path.name == "x" else now

    def rename(path: Path, target: Path) -> Path:
        taken.append(("rename", target))
        return real_rename(path, target)

    def fsync(descriptor: int) -> None:
        now = os.fstat(descriptor)
        taken.append(("fsync", now.st_size, now.st_mode & 0o7777))
        real_fsync(descriptor)

    def chmod(descriptor: int, mode: int) -> None:
        taken.append(("chmod", mode))
        real_chmod(descriptor, mode)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr("os.fchown", lambda _, user, group: taken.append(("chown", user, group)))
    monkeypatch.setattr("os.fchmod", chmod)
    monkeypatch.setattr("os.fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)

    files.rewrite("/etc/x", "longer", check=lambda _: taken.append("check"))

    assert taken == [
        ("chown", 1000, 2000),
        ("chmod", 0o4640),
        ("fsync", 6, 0o4640),
        "check",
        ("rename", files.at("/etc/x")),
    ]


def test_new_file_is_synced_completely_and_its_owner_is_not_changed(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    monkeypatch.setattr("os.fchown", lambda *_: taken.append("chown"))
    monkeypatch.setattr("os.fsync", lambda descriptor: taken.append(os.fstat(descriptor).st_size))

    files.write("/etc/x", "text", mode=0o600)

    assert taken == [4]


@pytest.mark.parametrize(("is_there", "is_absolute"), [(True, False), (False, True)])
def test_rewriting_a_symbolic_link_writes_its_target(
    tmp_path: Path, *, is_there: bool, is_absolute: bool
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "mounted").symlink_to("disk")
    files = NodeFiles(tmp_path / "mounted")
    files.make_directory("/opt/etc")
    files.make_directory("/etc/x")
    if is_there:
        files.write("/opt/etc/y.toml", "old", mode=0o600)
    files.at("/opt/link.toml").symlink_to("etc/y.toml")
    target = str(files.at("/opt/link.toml")) if is_absolute else "../../opt/link.toml"
    files.at("/etc/x/y.toml").symlink_to(target)
    checked: list[str] = []

    files.rewrite("/etc/x/y.toml", "new", check=checked.append)

    assert files.link_target("/etc/x/y.toml") == target
    assert files.link_target("/opt/link.toml") == "etc/y.toml"
    assert (files.read("/opt/etc/y.toml"), files.read("/etc/x/y.toml")) == ("new", "new")
    assert files.at("/opt/etc/y.toml").stat().st_mode & 0o777 == (0o600 if is_there else 0o644)
    assert files.names("/etc/x") == files.names("/opt/etc") == ("y.toml",)
    assert [path.rpartition("/")[0] for path in checked] == ["/opt/etc"]


def test_rewrite_of_a_symbolic_link_with_an_unwritable_target_is_refused(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "top")
    files.make_directory("/etc")
    (tmp_path / "top-most").write_text("theirs")
    for target, said in (
        ("loop", "Too many levels of symbolic links"),
        ("/dev/null", "leads to no regular file"),
        (".", "leads to no regular file"),
        ("absent/y", "whose folder does not exist"),
        ("../../top-most", "is not followed: it leads to '.*top-most', out of '"),
    ):
        files.remove("/etc/loop")
        files.at("/etc/loop").symlink_to(target)

        with pytest.raises((OSError, UnsafePathError), match=said):
            files.rewrite("/etc/loop", "new")

        assert files.link_target("/etc/loop") == target
        assert (tmp_path / "top-most").read_text() == "theirs"
        assert files.names("/etc") == ("loop",)


def test_write_removes_leftovers_of_a_killed_write_of_the_same_file(files: NodeFiles) -> None:
    """Power may be lost between the temporary file and its rename."""
    others = (".x1.opphn_c1", ".x[1]-opphn_c1", ".x[1].opphn_c12", ".y[1].opphn_c1")
    for name in (".x[1].opphn_c1", *others):
        files.create(f"/etc/{name}", "half")

    files.write("/etc/x[1]", "text")

    assert files.names("/etc") == (*others, "x[1]")


def test_write_does_not_remove_temporary_files_of_another_process(files: NodeFiles) -> None:
    files.create("/etc/.x.opphn_c1", "half")
    descriptor = os.open(files.at("/etc"), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)

    files.write("/etc/x", "text")

    assert sorted(files.names("/etc")) == [".x.opphn_c1", "x"]
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)


def test_folder_is_locked_while_a_file_is_written(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, another process could take the temporary file for a leftover."""
    rename = Path.rename

    def try_to_lock_and_rename(self: Path, target: Path) -> Path:
        descriptor = os.open(self.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(descriptor)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", try_to_lock_and_rename)

    files.write("/etc/x", "text")

    assert files.names("/etc") == ("x",)


def test_write_replaces_a_symbolic_link_rather_than_its_target(files: NodeFiles) -> None:
    """A masked unit is a link to a device."""
    files.write("/kept", "kept")
    os.mkfifo(files.at("/fifo"))
    files.make_directory("/folder")
    for target in ("kept", "fifo", "folder", "nowhere", "link"):
        files.remove("/link")
        files.at("/link").symlink_to(target)

        files.write("/link", "new")

        assert (files.read("/link"), files.link_target("/link")) == ("new", None), target
    assert files.read("/kept") == "kept"
    assert files.at("/fifo").is_fifo()
    assert files.names("/folder") == ()
    assert not files.exists("/nowhere")


def test_creating_a_file_that_exists_is_refused_and_leaves_no_temporary_file(
    files: NodeFiles,
) -> None:
    """A dangling link stands for a file that another process creates after the check."""
    assert files.create("/events/1.json", "one")
    files.at("/events/2.json").symlink_to("nowhere")

    assert not files.create("/events/1.json", "two")
    assert not files.create("/events/2.json", "two")

    assert files.read("/events/1.json") == "one"
    assert files.link_target("/events/2.json") == "nowhere"
    assert files.names("/events") == ("1.json", "2.json")
    assert files.at("/events/1.json").stat().st_mode & 0o777 == 0o644
    assert files.create("/events/deeper/still/1.json", "three")


def test_temporary_file_is_made_in_the_folder_of_the_written_file(
    files: NodeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for temporary files may be on another disk, and a rename cannot cross disks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    files.write("/etc/x", "text")
    assert files.create("/etc/y", "text")

    assert files.read("/etc/x") == files.read("/etc/y") == "text"


def test_error_of_the_write_is_raised_even_if_its_temporary_file_has_vanished(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_the_disk(_descriptor: int, _mode: int) -> None:
        files.remove("/below")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", fill_the_disk)

    for method in (files.write, files.create):
        with pytest.raises(OSError, match="No space left"):
            method("/below/x", "text")


def test_file_has_a_hidden_name_until_it_is_created_completely(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Azure guest agent may read the event folder at any time."""
    seen: list[str] = []
    link = Path.hardlink_to

    def look_and_link(self: Path, target: Path) -> None:
        seen.extend(files.names("/events"))
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", look_and_link)

    assert files.create("/events/1.json", "one")

    (name,) = seen
    assert name.startswith(".")


def test_appending_text_to_a_file_makes_missing_folders(files: NodeFiles) -> None:
    files.append("/var/log/a/b", "one\n")
    files.append("/var/log/a/b", "zwölf\n")

    assert files.read("/var/log/a/b") == "one\nzwölf\n"


def test_missing_file_is_read_as_none_and_a_folder_is_not_read_as_a_file(
    files: NodeFiles,
) -> None:
    files.make_directory("/folder")

    assert files.read("/nothing") is None
    with pytest.raises(UnreadableFileError, match=r"^'/folder' is not a regular file\.$"):
        files.read("/folder")
    for path in ("/nothing", "/folder"):
        assert files.read_or_none(path) is None
        assert files.read_or_empty(path) == ""


def test_undecodable_bytes_are_replaced_on_read_but_preserved_on_rewrite(
    files: NodeFiles,
) -> None:
    place = files.at("/x")
    place.write_bytes(b"# M\xfcller\r\nA=\xc3\xa9\n")
    assert files.read("/x") == "# M\ufffdller\r\nA=\xe9\n"

    text = files.read_whole("/x")
    assert text is not None
    files.rewrite("/x", text.replace("A=", "B="))
    files.append("/log", text)

    assert place.read_bytes() == b"# M\xfcller\r\nB=\xc3\xa9\n"
    assert files.read("/log") == "# M\\udcfcller\r\nA=\xe9\n"
    assert files.read_whole("/missing") is None
    place.write_bytes(b"\xef\xbb\xbfa")
    assert files.read("/x") == "a", "as jq reads the metadata"
    assert files.read_whole("/x") == "\ufeffa"


def test_read_of_a_huge_file_is_truncated_and_a_read_of_its_whole_text_is_refused(
    files: NodeFiles,
) -> None:
    files.write("/x", "x" * READ_LIMIT_BYTES)
    assert len(files.read_whole("/x") or "") == READ_LIMIT_BYTES
    files.append("/x", "x")

    assert len(files.read("/x") or "") == READ_LIMIT_BYTES
    with pytest.raises(UnreadableFileError, match=r"^'/x' has more than 1048576 bytes"):
        files.read_whole("/x")


def test_read_and_write_of_a_fifo_are_refused_without_blocking(files: NodeFiles) -> None:
    os.mkfifo(files.at("/fifo"))
    files.write("/x", "text")
    open_before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(UnreadableFileError, match=r"^'/fifo' is not a regular file\.$"):
        files.read("/fifo")
    assert files.read("/x") == "text"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    for write in (files.write, files.rewrite):
        with pytest.raises(OSError, match="no regular file"):
            write("/fifo", "text")
    assert files.at("/fifo").is_fifo()


def test_file_is_read_through_a_link_but_a_dangling_link_counts_as_a_missing_file(
    files: NodeFiles,
) -> None:
    files.write("/kept", "text")
    for name, target in (("link", "kept"), ("dangling", "nowhere"), ("circle", "circle")):
        files.at(f"/{name}").symlink_to(target)

    assert files.read("/link") == "text"
    assert files.read("/dangling") is None
    assert not files.is_directory("/dangling")
    for path, why in (("/circle", "Too many levels of symbolic"), ("/kept/x", "Not a directory")):
        with pytest.raises(UnreadableFileError, match=rf"^'{path}' cannot be read: {why}"):
            files.read(path)


def test_file_that_cannot_be_opened_raises_an_unreadable_file_error(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    files.write("/x", "text")
    for call in ("fdopen", "open"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, refuse)
            with pytest.raises(UnreadableFileError) as failure:
                files.read("/x")

        assert str(failure.value) == "'/x' cannot be read: Input/output error."


def test_removal_deletes_files_and_trees_but_not_the_targets_of_their_links(
    files: NodeFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write("/kept/file", "")
    files.write("/tree/a/b", "")
    files.at("/tree/link").symlink_to("../kept")
    files.at("/tree/gone").symlink_to("nowhere")
    files.at("/link").symlink_to("kept")
    files.write("/file", "")

    for path in ("/tree", "/file", "/link", "/nothing"):
        files.remove(path)
        assert not files.exists(path)
    assert files.exists("/kept/file")

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    files.make_directory("/mounted")
    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(OSError, match="busy"):
        files.remove("/mounted")


def test_link_is_distinguished_from_its_target(files: NodeFiles) -> None:
    for _ in range(2):
        files.make_directory("/a/b")
    files.write("/file", "")
    files.at("/link").symlink_to("a/b")
    files.at("/dangling").symlink_to("nowhere")

    assert files.exists("/dangling")
    assert not files.exists("/nowhere")
    assert files.link_target("/link") == "a/b"
    assert files.link_target("/a") is None
    assert files.link_target("/nothing") is None
    assert files.is_directory("/a")
    assert not files.is_directory("/link")
    assert not files.is_directory("/file")


def test_names_are_sorted_and_matched_by_pattern(files: NodeFiles) -> None:
    names = ("Other.ko", "nvidia-uvm.ko", "nvidia.ko.xz", "nvidia.txt")
    for name in reversed(names):
        files.write(f"/modules/{name}", "")

    assert files.names("/modules") == names
    assert files.matching("/modules", "[n]vidia*.ko*") == (
        "/modules/nvidia-uvm.ko",
        "/modules/nvidia.ko.xz",
    )
    assert files.matching("/modules", "other*") == ()
    for nothing in ("/nothing", "/modules/Other.ko"):
        assert files.names(nothing) == ()


def test_newer_file_is_recognised_by_modification_time(files: NodeFiles) -> None:
    for name, seconds in (("old", 1000), ("new", 1000.5)):
        files.write(f"/{name}", "")
        os.utime(files.at(f"/{name}"), (seconds, seconds))

    assert files.is_newer("/new", "/old")
    assert not files.is_newer("/old", "/new")
    assert not files.is_newer("/new", "/new")
    assert not files.is_newer("/new", "/absent")
    assert not files.is_newer("/absent", "/new")


def test_symbolic_link_is_as_new_as_its_target(files: NodeFiles) -> None:
    """Daemons read the file, whenever the link to it was made."""
    for name, seconds in (("old", 1000), ("between", 2000), ("new", 3000)):
        files.write(f"/{name}", "")
        os.utime(files.at(f"/{name}"), (seconds, seconds))
    for target, made in (("new", 1500), ("old", 2500)):
        link = files.at(f"/link-to-{target}")
        link.symlink_to(target)
        os.utime(link, (made, made), follow_symlinks=False)

    assert files.is_newer("/link-to-new", "/between")
    assert not files.is_newer("/between", "/link-to-new")
    assert files.is_newer("/between", "/link-to-old")
    assert not files.is_newer("/link-to-old", "/between")


def test_new_text_is_checked_in_a_temporary_file_before_it_replaces_the_file(
    files: NodeFiles,
) -> None:
    for name, old in (("new", None), ("old", "old")):
        path = f"/etc/{name}/y.toml"
        if old is not None:
            files.write(path, old, mode=0o640)
        seen: list[tuple[str, str | None, str | None]] = []

        def check(
            temporary: str,
            path: str = path,
            seen: list[tuple[str, str | None, str | None]] = seen,
        ) -> None:
            folder = temporary.rpartition("/")[0]
            seen.append((folder, files.read(temporary), files.read(path)))

        files.rewrite(path, "new", check=check)

        assert seen == [(f"/etc/{name}", "new", old)]
        assert files.read(path) == "new"
        assert files.at(path).stat().st_mode & 0o7777 == (0o644 if old is None else 0o640)


def test_refused_text_leaves_the_file_unchanged_and_no_temporary_file(files: NodeFiles) -> None:
    files.write("/etc/x/y.toml", "old")

    def check(_: str) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        files.rewrite("/etc/x/y.toml", "new", check=check)

    assert files.read("/etc/x/y.toml") == "old"
    assert files.names("/etc/x") == ("y.toml",)


def test_removal_of_empty_folders_keeps_full_folders_and_files(files: NodeFiles) -> None:
    files.make_directory("/empty/inner")
    files.write("/full/file", "")
    files.write("/file", "")

    for path in ("/empty/inner", "/full", "/file", "/nothing"):
        files.remove_empty_folder(path)

    assert not files.exists("/empty/inner")
    assert files.exists("/empty")
    assert files.exists("/full/file")
    assert files.exists("/file")
