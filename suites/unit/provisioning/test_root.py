"""Files below a root."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.root import READ_LIMIT_BYTES, Root, UnreadableFileError, UnsafePathError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


@pytest.mark.parametrize("path", ["", "/", "//", "/.", "/./", "etc", "./etc", "/etc/..", "/../x"])
def test_path_that_could_mean_the_root_is_refused(root: Root, path: str) -> None:
    with pytest.raises(UnsafePathError) as refusal:
        root.remove(path)

    assert str(refusal.value) == (
        f"The path '{path}' is refused: expected an absolute path below '/' without '..'."
    )


def test_paths_lie_below_the_root(root: Root, tmp_path: Path) -> None:
    assert root.at("/etc/x") == tmp_path / "etc/x"
    assert root.at("//etc/x") == tmp_path / "etc/x"
    assert Root(Path("/")).at("/etc/x") == Path("/etc/x")


def test_written_text_is_read_back_with_its_mode(root: Root) -> None:
    root.write("/etc/deep/x", "é\n", mode=0o4755)

    assert root.read("/etc/deep/x") == "é\n"
    assert root.at("/etc/deep/x").stat().st_mode & 0o7777 == 0o4755


def test_written_file_is_readable_by_all_unless_told(root: Root) -> None:
    root.write("/x", "")

    assert root.at("/x").stat().st_mode & 0o7777 == 0o644


def test_failed_write_leaves_the_old_file_and_nothing_beside_it(root: Root) -> None:
    root.write("/etc/x", "old")

    with pytest.raises(UnicodeEncodeError):
        root.write("/etc/x", "\ud800")

    assert root.read("/etc/x") == "old"
    assert root.names("/etc") == ("x",)


def test_write_replaces_a_link_rather_than_what_it_points_to(root: Root) -> None:
    root.write("/kept", "kept")
    root.at("/link").symlink_to("kept")

    root.write("/link", "new")

    assert root.read("/kept") == "kept"
    assert root.read("/link") == "new"


def test_create_refuses_an_existing_name_and_leaves_no_litter(root: Root) -> None:
    assert root.create("/events/1.json", "one")
    assert not root.create("/events/1.json", "two")

    assert root.read("/events/1.json") == "one"
    assert root.names("/events") == ("1.json",)
    assert root.at("/events/1.json").stat().st_mode & 0o777 == 0o644
    assert root.create("/events/deeper/still/1.json", "three")


@pytest.mark.parametrize("method", [Root.write, Root.create], ids=["write", "create"])
def test_file_is_made_beside_its_target_and_nowhere_else(
    root: Root,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Callable[[Root, str, str], object],
) -> None:
    """A folder for temporary files may be on another disk, which no rename reaches."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))

    method(root, "/etc/x", "text")

    assert root.read("/etc/x") == "text"


@pytest.mark.parametrize("method", [Root.write, Root.create], ids=["write", "create"])
def test_first_error_is_the_one_that_is_told(
    root: Root, monkeypatch: pytest.MonkeyPatch, method: Callable[[Root, str, str], object]
) -> None:
    def fill_the_disk(_descriptor: int, _mode: int) -> None:
        root.remove("/below")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fchmod", fill_the_disk)

    with pytest.raises(OSError, match="No space left"):
        method(root, "/below/x", "text")


def test_file_that_is_being_created_is_hidden(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guest agent reads the folder of events at any moment."""
    seen: list[str] = []
    link = Path.hardlink_to

    def look_and_link(self: Path, target: Path) -> None:
        seen.extend(root.names("/events"))
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", look_and_link)

    assert root.create("/events/1.json", "one")

    (name,) = seen
    assert name.startswith(".")


def test_append_makes_folders_and_adds(root: Root) -> None:
    root.append("/var/log/a/b", "one\n")
    root.append("/var/log/a/b", "zwölf\n")

    assert root.read("/var/log/a/b") == "one\nzwölf\n"


def test_missing_file_reads_as_none(root: Root) -> None:
    assert root.read("/nothing") is None
    assert root.read_or_none("/nothing") is None
    assert root.read_or_empty("/nothing") == ""


def test_bytes_that_are_no_text_are_replaced(root: Root, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\xffb")

    assert root.read("/x") == "a\ufffdb"


def test_only_the_start_of_a_huge_file_is_read(root: Root) -> None:
    root.write("/x", "x" * (READ_LIMIT_BYTES + 1))

    assert len(root.read("/x") or "") == READ_LIMIT_BYTES


def test_folder_is_not_read_as_a_file(root: Root) -> None:
    root.make_directory("/folder")

    with pytest.raises(UnreadableFileError, match=r"^'/folder' is not a regular file\.$"):
        root.read("/folder")
    assert root.read_or_none("/folder") is None
    assert root.read_or_empty("/folder") == ""


def test_fifo_is_refused_without_waiting_for_a_writer(root: Root) -> None:
    os.mkfifo(root.at("/fifo"))

    with pytest.raises(UnreadableFileError, match=r"^'/fifo' is not a regular file\.$"):
        root.read("/fifo")


def test_link_that_goes_in_circles_is_unreadable(root: Root) -> None:
    root.at("/circle").symlink_to("circle")

    with pytest.raises(UnreadableFileError) as refusal:
        root.read("/circle")

    assert str(refusal.value) == ("'/circle' cannot be read: Too many levels of symbolic links.")


def test_file_that_the_disk_does_not_give_is_unreadable(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(5, "Input/output error")

    root.write("/x", "text")
    monkeypatch.setattr(os, "fdopen", refuse)

    with pytest.raises(UnreadableFileError, match=r"^'/x' cannot be read: Input/output error\.$"):
        root.read("/x")


def test_removing_a_link_leaves_what_it_points_to(root: Root) -> None:
    root.write("/kept/file", "")
    root.at("/link").symlink_to("kept")

    root.remove("/link")

    assert not root.exists("/link")
    assert root.exists("/kept/file")


def test_removing_takes_files_and_trees_and_forgives_nothing_there(root: Root) -> None:
    root.write("/tree/a/b", "")
    root.write("/file", "")

    for path in ("/tree", "/file", "/nothing"):
        root.remove(path)

    assert not root.exists("/tree")
    assert not root.exists("/file")


def test_dangling_link_exists(root: Root) -> None:
    root.at("/link").symlink_to("nowhere")

    assert root.exists("/link")
    assert not root.exists("/nowhere")


def test_link_tells_its_target_and_nothing_else_does(root: Root) -> None:
    root.make_directory("/a/b")
    root.make_directory("/a/b")
    root.at("/link").symlink_to("a/b")

    assert root.link_target("/link") == "a/b"
    assert root.link_target("/a") is None
    assert root.link_target("/nothing") is None


def test_folder_is_told_from_a_link_to_one(root: Root) -> None:
    root.make_directory("/folder")
    root.at("/link").symlink_to("folder")
    root.write("/file", "")

    assert root.is_directory("/folder")
    assert not root.is_directory("/link")
    assert not root.is_directory("/file")


def test_names_are_sorted_and_matched_by_pattern(root: Root) -> None:
    for name in ("nvidia.ko.xz", "nvidia-uvm.ko", "other.ko", "nvidia.txt"):
        root.write(f"/modules/{name}", "")

    assert root.names("/modules") == ("nvidia-uvm.ko", "nvidia.ko.xz", "nvidia.txt", "other.ko")
    assert root.matching("/modules", "nvidia*.ko*") == (
        "/modules/nvidia-uvm.ko",
        "/modules/nvidia.ko.xz",
    )
    assert root.names("/nothing") == ()
    assert root.matching("/nothing", "*") == ()
