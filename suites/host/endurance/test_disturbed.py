"""A campaign finds each kind of broken promise, in operations that break one promise each."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.wait import Deadline
from suites.endurance import disturbed, surroundings
from suites.endurance.disturbed import Disturber, Running
from suites.endurance.operations import Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MARK = "HARNESS_ENDURANCE_TEST"
#: PF_KTHREAD of the kernel, in the ninth field of /proc/PID/stat.
_KERNEL_THREAD = 0x00200000
_REPOSITORY = Path(__file__).parents[3]
_TRACEBACK = 'Traceback (most recent call last):\n  File "'


def _environment(process: Path) -> bytes:
    """Return the environment of a process; wait while it is empty, as during execve."""
    deadline = Deadline.after(1.0)
    while not (found := (process / "environ").read_bytes()):
        _, _, fields = (process / "stat").read_text().rpartition(")")
        state, flags = fields.split()[0], int(fields.split()[6])
        if state == "Z" or flags & _KERNEL_THREAD or deadline.has_passed():
            break
    return found


def _marked() -> dict[int, str]:
    """Return the command lines of this test's processes, which have a mark in their environment."""
    mark = f"{_MARK}={os.getpid()}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in _environment(folder).split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode()
    return found


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(disturbed, "processes", _marked)
    # Mounts and sockets of other programs do not count either.
    monkeypatch.setattr(surroundings, "_lines", lambda _file: [])
    monkeypatch.setattr(disturbed, "_GRACE_S", 0.5)
    monkeypatch.setattr(disturbed, "_LEAST_S", 10.0)
    monkeypatch.setattr(disturbed, "_PATIENCE", 0.0)
    yield
    for pid in _marked():
        os.kill(pid, signal.SIGKILL)


def tried(folder: Path, script: str, *, must_pass: bool = False) -> list[str]:
    """Run a script twice, the second time with the file 'disturbed', and return the broken promises."""
    place = folder / "place"
    place.mkdir()
    flag = folder / "disturbed"
    operation = Operation(argv=("sh", "-c", script, "sh", str(flag)), cwd=place)
    disturber = Disturber({"it": operation}, [place], {_MARK: str(os.getpid())})
    disturber._usual("it")
    flag.touch()

    def disturb(running: Running) -> Callable[[], None]:
        # The process may have ended already.
        assert running.process.pid in running.pids() or running.process.wait(10) is not None
        return flag.unlink

    return disturber.disturbed("it", 0.0, disturb, must_pass=must_pass)


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        ("echo fine", []),
        ("test ! -e $1 || { echo 'it: No space left.'; exit 2; }", []),
        ("test ! -e $1 || kill -KILL $$", []),
        # The shell checks for the file itself; only `sleep` runs in the background.
        ("test ! -e $1 || { setsid sleep 60 & }", ["it: processes are left"]),
        ("test ! -e $1 || touch half-written", ["it: the next run leaves ['1 x file"]),
        ("test ! -e $1 || touch half; test -e $1 || rm -f half", []),
        ("test ! -e $1 || exec sleep 60", ["it: it does not end within"]),
        ("test ! -e $1 || exit 2", ["it: it ends with 2 and prints nothing"]),
        (
            f"test ! -e $1 || {{ echo '{_TRACEBACK}{_REPOSITORY}/harness/cli'; exit 1; }}",
            ["it: it ends with 1 and a traceback"],
        ),
        # A traceback that shows only frames of pytest or its plugins.
        (f"test ! -e $1 || {{ echo '{_TRACEBACK}/usr/lib/python3/xdist'; exit 1; }}", []),
        (
            "if test -e $1; then touch ../broken; elif test -e ../broken; then exit 2; fi",
            ["it: the next run ends with 2"],
        ),
    ],
)
def test_each_kind_of_endurance_violation_is_found(
    tmp_path: Path, script: str, broken: list[str]
) -> None:
    found = tried(tmp_path, script)

    assert len(found) == len(broken), found
    assert all(each.startswith(start) for each, start in zip(found, broken, strict=True)), found
    assert str(_REPOSITORY) not in str(found)


def test_failed_operation_that_must_pass_is_reported_even_if_it_prints_a_message(
    tmp_path: Path,
) -> None:
    script = "test ! -e $1 || { echo 'it: I was stopped.'; exit 2; }"

    (found,) = tried(tmp_path, script, must_pass=True)

    assert found.startswith("it: it ends with 2: it: I was stopped.")
