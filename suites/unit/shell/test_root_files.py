"""Files in the throw-away root."""

from __future__ import annotations

import contextlib
import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError, RequirementError
from harness.limits import SHELL_OUTPUT, LimitError
from harness.shell.sandbox import root_files
from harness.shell.sandbox.root_files import RootFiles

if TYPE_CHECKING:
    from collections.abc import Callable


def test_removing_an_absent_file_in_a_read_only_folder_raises_no_error() -> None:
    """In such a folder the kernel refuses every removal, even of a file that does not exist."""
    RootFiles(Path("/proc/self")).remove("/no-such-file")


def test_symbolic_link_to_a_missing_file_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")

    RootFiles(tmp_path).remove("/link")

    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Return a folder of the host, outside of the root."""
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("of the host")
    (host / "folder").mkdir()
    return host


@pytest.fixture
def files(tmp_path: Path, host: Path) -> RootFiles:
    """Return a root with links that would lead out of the root if Python followed them."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc" / "file").write_text("mine")
    (root / "absolute").symlink_to(host)
    (root / "relative").symlink_to("../host")
    (root / "to-file").symlink_to(host / "file")
    (root / "to-etc").symlink_to("/etc")
    (root / "magic").symlink_to(f"/proc/self/fd/{os.open(host, os.O_RDONLY | os.O_CLOEXEC)}")
    return RootFiles(root)


def test_no_path_refers_to_a_file_outside_of_the_root(files: RootFiles, host: Path) -> None:
    before = sorted(host.rglob("*"))
    for way in ("/absolute", "/relative", "/../host", "/to-etc/../../host", "/magic"):
        acts: tuple[Callable[[], None], ...] = (
            partial(files.write, f"{way}/new", b"x", 0o4755),
            partial(files.write, f"{way}/folder/new", b"x"),
            partial(files.make_folder, f"{way}/new-folder"),
            partial(files.link, f"{way}/link", "x"),
            partial(files.remove, f"{way}/file"),
            partial(files.remove_tree, f"{way}/folder"),
        )
        for act in acts:
            with contextlib.suppress(HarnessError):
                act()

        assert files.read(f"{way}/file") is None, way
        assert "file" not in files.names(way), way
        assert sorted(host.rglob("*")) == before, way
        assert (host / "file").read_text() == "of the host", way


def test_absolute_link_is_resolved_inside_the_throwaway_root(files: RootFiles, host: Path) -> None:
    files.write("/to-file", b"x", 0o600)

    assert (host / "file").read_text() == "of the host"
    assert (files.root / str(host).lstrip("/") / "file").read_bytes() == b"x"


def test_file_behind_two_links_is_written_into_the_folder_of_the_second_link(
    files: RootFiles,
) -> None:
    """The target of the second link is relative to the second link's folder."""
    files.link("/etc/first", "/opt/app/second")
    files.link("/opt/app/second", "file")

    files.write("/etc/first", b"x")

    assert (files.read("/opt/app/file"), files.names("/etc")) == (b"x", ["file", "first"])
    assert files.read("/etc/file") == b"mine"


def test_files_in_a_root_are_read_and_changed(files: RootFiles) -> None:
    files.write("/to-etc/new/config", b"a=1", 0o640)
    files.link("/etc/link", "new/config")
    files.make_folder("/srv/a/b")

    assert files.read("/etc/link") == b"a=1"
    assert files.is_file("/etc/link")
    assert files.is_folder("/srv/a")
    assert files.target("/etc/link") == "new/config"
    assert files.target("/etc/file") is None
    os.mkfifo(files.root / "pipe")
    assert (files.read("/pipe"), files.is_file("/pipe")) == (None, False)
    assert files.names("/etc") == ["file", "link", "new"]
    status = files.status("/etc/new/config")
    assert status is not None
    assert stat.S_IMODE(status.st_mode) == 0o640
    files.remove_tree("/to-etc/new")
    assert files.status("/etc/link") is None
    assert files.status("/etc/link", follow=False) is not None


def test_written_file_has_only_the_new_text(files: RootFiles) -> None:
    for data in (b"longer than the text of before", b"x", b""):
        files.write("/etc/file", b"a text of before", 0o640)

        files.write("/etc/file", data)

        assert files.read("/etc/file") == data


def test_write_to_a_path_that_is_not_a_file_is_refused(files: RootFiles) -> None:
    os.mkfifo(files.root / "pipe")

    for path in ("/etc", "/", "/etc/file/x", "/etc/a\0b", "etc/file", "/..", "/pipe"):
        with pytest.raises(HarnessError, match=r"can't be written|needs an absolute path"):
            files.write(path, b"x")


def test_write_to_a_file_of_the_kernel_is_refused(tmp_path: Path) -> None:
    """The write is refused if no writable copy covers the file."""
    (tmp_path / "proc").mkdir()
    files = RootFiles(Path("/proc/self"))

    with pytest.raises(HarnessError, match=r"it is a file of procfs"):
        files.write("/comm", b"x")


def test_reading_a_file_above_the_limit_raises_a_limit_error(
    files: RootFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHELL_OUTPUT.variable, "1")
    os.truncate(files.root / "etc" / "file", 1 << 40)

    with pytest.raises(LimitError, match=r"'/etc/file'.*the limit 'shell-output-mib'"):
        files.read("/etc/file")


def test_host_root_is_refused_as_throwaway_root() -> None:
    """Another process may have the PID of the root's process."""
    with pytest.raises(HarnessError, match="has ended"):
        RootFiles(Path("/proc/self/root")).write("/no-such/file", b"x")


def test_missing_system_call_is_named_in_the_error(
    files: RootFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_files, "_SYS_OPENAT2", 100_000)

    with pytest.raises(RequirementError, match="'openat2'"):
        files.read("/etc/file")


def test_impossible_path_is_named_in_the_error(files: RootFiles) -> None:
    for path in ("/a\0b", "/\ud800"):
        for act in (files.place, files.kernel_path, files.read):
            with pytest.raises(
                HarnessError, match=r"can't be (found|read) in the throw-away root"
            ):
                act(path)


def test_path_of_too_many_folders_is_reported(files: RootFiles) -> None:
    """Code under test can leave a link to such a path."""
    (files.root / "deep").symlink_to("/" + "a/" * 1500 + "x")

    with pytest.raises(
        HarnessError, match=r"^'/deep' can't be written .*: it has too many folders"
    ):
        files.write("/deep", b"x")


def test_method_place_returns_a_path_below_the_root(files: RootFiles) -> None:
    files.link("/etc/new/link", "/srv")
    files.link("/etc/near", "file")
    rows = {
        "/etc/file": "etc/file",
        "/to-etc/file": "etc/file",
        "/to-etc/../to-etc/new/x": "etc/new/x",
        "/../../etc/file": "etc/file",
        "/relative/x": "host/x",
        "/etc/new/link/x": "srv/x",
        "/etc/near": "etc/file",
    }

    assert {path: str(files.place(path).relative_to(files.root)) for path in rows} == rows


def test_loop_of_symbolic_links_is_reported(files: RootFiles) -> None:
    files.link("/one", "two")
    files.link("/two", "one")

    with pytest.raises(HarnessError, match="'/one' has too many symbolic links"):
        files.place("/one")


def test_kernel_path_is_faked_by_replacing_its_file_or_a_parent_directory(
    files: RootFiles,
) -> None:
    files.write("/proc/modules", b"")
    files.make_folder("/proc/driver")
    files.make_folder("/sys/module")
    files.link("/link", "/proc/modules")
    rows = {
        "/etc/file": None,
        "/etc/proc/modules": None,
        "/proc/modules": Path("/proc/modules"),
        "/link": Path("/proc/modules"),
        "/sys/module/nvidia/version": Path("/sys/module"),
        "/proc/driver/nvidia/version": Path("/proc/driver"),
    }

    assert {path: files.kernel_path(path) for path in rows} == rows


def test_path_that_cannot_be_faked_is_refused(files: RootFiles) -> None:
    files.make_folder("/sys/module")

    for path, why in (
        ("/proc/1/status", "this file of procfs belongs to a process"),
        ("/proc/self/status", "this file of procfs belongs to a process"),
        ("/proc/thread-self/status", "this file of procfs belongs to a process"),
        ("/sys/module", "the kernel provides no directory '/sys/module'"),
        ("/sys/absent/file", "the kernel provides no directory '/sys/absent'"),
        ("/proc/absent", "the kernel provides no directory '/proc/absent'"),
    ):
        with pytest.raises(HarnessError, match=f"'{path}' can't be faked: {why}"):
            files.kernel_path(path)
