"""Locks and leased folders, which are free again when their holder dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from harness import lease
from harness.errors import HarnessError
from harness.lease import (
    hold,
    hold_shared,
    leased_folder,
    make_private_folder,
    sweep,
    temporary_folder,
    try_exclusive,
)
from harness.provisioning.wait import Deadline, WaitTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_private_folder_and_its_new_parents_are_closed_to_other_users(tmp_path: Path) -> None:
    folder = make_private_folder(tmp_path / "a" / "b")

    assert [_mode(each) for each in (folder, folder.parent)] == [0o700, 0o700]


def test_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    """A person may choose any folder for evidence, and '/tmp' must keep its mode."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o1777)

    make_private_folder(theirs)
    make_private_folder(theirs / "ours")

    assert _mode(theirs) == 0o1777


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_folder_that_cannot_be_created_is_reported_with_a_remedy(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(HarnessError, match=r"can't be created \(Not a dir.*XDG_CACHE_HOME"):
        make_private_folder(tmp_path / path)


def test_folder_that_another_process_makes_meanwhile_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    monkeypatch.setattr(Path, "exists", lambda path: path != folder)

    assert make_private_folder(folder) == folder


def test_leased_folder_is_private_and_is_removed_at_the_end_of_the_lease(tmp_path: Path) -> None:
    with leased_folder(tmp_path / "runs", prefix="run") as folder:
        (folder / "disk").write_text("x")
        mode = _mode(folder)

    assert mode == 0o700
    assert not folder.exists()


def test_leased_folder_is_removed_after_an_error(tmp_path: Path) -> None:
    kept: list[Path] = []

    def fail() -> None:
        with leased_folder(tmp_path, prefix="run") as folder:
            kept.append(folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not kept[0].exists()


def left_by_a_dead_run(parent: Path) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    (folder / "lease").touch()
    return folder


def test_folder_of_a_dead_run_is_swept(tmp_path: Path) -> None:
    folder = left_by_a_dead_run(tmp_path)

    assert sweep(tmp_path) == [folder]
    assert not folder.exists()


def test_temporary_folder_removes_leftovers_of_killed_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder("harness-x") as first:
        left = left_by_a_dead_run(first.parent)
        with temporary_folder("harness-x") as second:
            assert first.exists()
            assert first.parent == second.parent == tmp_path / f"harness-x-{os.geteuid()}"
            assert not left.exists()
    assert [path.name for path in first.parent.iterdir()] == [".gate"]


def test_two_leases_never_share_a_folder(tmp_path: Path) -> None:
    with (
        leased_folder(tmp_path, prefix="run") as first,
        leased_folder(tmp_path, prefix="run") as second,
    ):
        assert first != second


def test_sweep_of_a_missing_folder_finds_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == []


def test_sweep_does_not_touch_files_and_links(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "file").touch()
    (runs / "link").symlink_to(precious)

    assert sweep(runs) == []
    assert list(precious.iterdir()) == []
    (runs / "run-dead").mkdir()
    assert sweep(runs) == [runs / "run-dead"]
    assert sorted(path.name for path in runs.iterdir()) == [".gate", "file", "link"]
    assert list(precious.iterdir()) == []


def test_sweep_removes_other_folders_if_one_folder_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir = os.rmdir

    def refuse(path: Any, **options: Any) -> None:
        if Path(os.fspath(path)).name == "b":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        rmdir(path, **options)

    for name in "abc":
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "rmdir", refuse)

    assert sweep(tmp_path) == [tmp_path / "a", tmp_path / "c"]


def test_timeout_error_has_the_path_of_the_locked_gate_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_GATE_TIMEOUT_S", 0.0)
    gate = tmp_path / ".gate"

    with hold(gate, timeout_s=0, what="it"), pytest.raises(HarnessError) as caught:
        sweep(tmp_path)

    assert str(caught.value) == (
        f"Waited 0 s for the creation and removal of folders, which another process has locked with the file "
        f"'{gate}'; wait until that process ends, or end it (`fuser '{gate}'` prints its id)."
    )


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to("x")])
def test_lock_file_that_cannot_be_opened_is_reported_with_a_remedy(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / ".gate")

    with pytest.raises(
        HarnessError, match=r"The lock file '.*/\.gate' can't be opened \(.*\); let"
    ):
        sweep(tmp_path)


def test_sweep_skips_a_folder_without_permission(tmp_path: Path) -> None:
    # A folder in the lock's place is refused by the kernel to root, too.
    (tmp_path / "a" / "lease").mkdir(parents=True)
    (tmp_path / "b").mkdir()

    assert sweep(tmp_path) == [tmp_path / "b"]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Sweep after each new folder and before each lease, and return the removed folders."""
    mkdir = Path.mkdir
    gone: list[Path] = []

    def sweep_now(parent: Path) -> None:
        # It waits for nobody at the gate.
        with contextlib.suppress(HarnessError):
            gone.extend(sweep(parent))

    class OtherLock(filelock.FileLock):
        @override
        def acquire(self, *arguments: Any, **options: Any) -> Any:
            if Path(self.lock_file).name == "lease":
                assert options == {"timeout": 0}, "nobody waits for a lease behind the gate"
                sweep_now(Path(self.lock_file).parent.parent)
            return super().acquire(*arguments, **options)

    def make(folder: Path, *arguments: Any, **options: Any) -> None:
        is_new = folder.name.startswith("run-") and not folder.exists()
        mkdir(folder, *arguments, **options)
        if is_new:
            sweep_now(folder.parent)

    monkeypatch.setattr(lease, "_GATE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(lease, "FileLock", OtherLock)
    monkeypatch.setattr(Path, "mkdir", make)
    return gone


def test_folder_that_is_being_made_is_not_swept(tmp_path: Path, swept: list[Path]) -> None:
    with leased_folder(tmp_path, prefix="run") as folder:
        assert folder.is_dir()

    assert swept == []


def test_gate_file_can_be_locked_while_a_leased_folder_is_in_use(tmp_path: Path) -> None:
    with leased_folder(tmp_path, prefix="run"), hold(tmp_path / ".gate", timeout_s=0, what="it"):
        pass


@given(st.lists(st.sampled_from(["held", "abandoned", "released"]), max_size=6))
def test_sweep_removes_only_folders_without_a_holder(states: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as leases:
        parent = Path(name)
        held, free = set(), set()
        for state in states:
            if state == "held":
                held.add(leases.enter_context(leased_folder(parent, prefix="run")))
            elif state == "abandoned":
                free.add(left_by_a_dead_run(parent))
            else:
                with leased_folder(parent, prefix="run"):
                    pass

        assert set(sweep(parent)) == free
        assert all(folder.is_dir() for folder in held)


def test_lock_timeout_error_mentions_the_path_of_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with (
        hold(path, timeout_s=1, what="the template"),
        pytest.raises(HarnessError, match=rf"Waited 0 s for the template.*'{path}'"),
        hold(path, timeout_s=0, what="the template"),
    ):
        pass


def test_lock_is_free_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with contextlib.suppress(ZeroDivisionError), hold(path, timeout_s=1, what="x"):
        raise ZeroDivisionError

    with hold(path, timeout_s=0.01, what="x"):
        pass


def test_exclusive_lock_fails_while_a_shared_lock_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "used"
    path.touch()

    with hold_shared(path, deadline=Deadline.after(1)):
        with hold_shared(path, deadline=Deadline.after(1)), try_exclusive(path) as is_alone:
            assert not is_alone
        with try_exclusive(path) as is_alone:
            assert not is_alone
    with try_exclusive(path) as is_alone:
        assert is_alone


def test_waiting_for_a_shared_lock_ends_at_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "used"
    path.touch()
    opened = len(list(Path("/proc/self/fd").iterdir()))

    with (
        try_exclusive(path),
        pytest.raises(
            WaitTimeoutError, match=rf"for a shared lock on '{path}'.*is locked exclusively"
        ),
        hold_shared(path, deadline=Deadline.after(0)),
    ):
        pass

    assert len(list(Path("/proc/self/fd").iterdir())) == opened


def test_file_on_nfs_can_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NFS, a shared lock needs a file open for reading, and an exclusive lock one for writing."""
    path = tmp_path / "used"
    path.touch()
    lock = fcntl.flock
    ways = {fcntl.LOCK_SH: (os.O_RDONLY, os.O_RDWR), fcntl.LOCK_EX: (os.O_WRONLY, os.O_RDWR)}

    def lock_on_nfs(descriptor: int, how: int) -> None:
        opened = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
        if opened not in ways[how & ~fcntl.LOCK_NB]:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", lock_on_nfs)

    with try_exclusive(path) as is_alone:
        assert is_alone
    with hold_shared(path, deadline=Deadline.after(1)), try_exclusive(path) as is_alone:
        assert not is_alone


def test_missing_file_can_be_locked_exclusively_but_not_shared(tmp_path: Path) -> None:
    path = tmp_path / "used"

    with (
        try_exclusive(path) as is_alone,
        pytest.raises(FileNotFoundError),
        hold_shared(path, deadline=Deadline.after(1)),
    ):
        pass

    assert is_alone


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    new = path.with_name("new")
    new.touch()
    new.rename(path)


def _set_aside(path: Path) -> None:
    path.rename(path.with_name("doomed"))
    path.touch()


@pytest.mark.parametrize("change", [_remove, _replace, _set_aside])
def test_exclusive_lock_fails_if_the_file_is_removed_or_replaced_during_locking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "used"
    path.touch()
    lock = fcntl.flock

    def change_and_lock(descriptor: int, how: int) -> None:
        change(path)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", change_and_lock)

    with try_exclusive(path) as is_alone:
        assert not is_alone


@pytest.mark.usefixtures("fake_time")
def test_shared_lock_is_taken_on_the_new_file_if_the_file_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "used"
    path.touch()
    lock = fcntl.flock

    def replace_and_lock(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        _replace(path)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", replace_and_lock)

    with hold_shared(path, deadline=Deadline.after(5)), try_exclusive(path) as is_alone:
        assert not is_alone


@pytest.mark.usefixtures("fake_time")
def test_shared_lock_on_a_removed_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "used"
    path.touch()
    lock = fcntl.flock

    def remove_and_lock(descriptor: int, how: int) -> None:
        path.unlink(missing_ok=True)
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)

    with pytest.raises(FileNotFoundError), hold_shared(path, deadline=Deadline.after(5)):
        pass
