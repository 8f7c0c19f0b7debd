"""However a run ends, it leaves no process or folder of its shells."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from harness.shell.spec.project import ScratchFolder
from suites.host.shell.running import REPOSITORY

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_PATIENCE_S = 40.0


def _processes_with(mark: str) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            argv = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if argv[:2] == [b"sleep", mark.encode()]:
            found.append(int(folder.name))
    return found


def _wait_until(what: str, mark: str, *, is_running: bool) -> None:
    def poll() -> Observation[bool]:
        seen = _processes_with(mark)
        return Observation(True if bool(seen) is is_running else None, f"processes {seen}")

    wait_for(what, poll, Deadline.after(_PATIENCE_S), interval_s=0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_signal_that_ends_the_run_also_ends_its_shells(
    project: SpecProject, number: signal.Signals
) -> None:
    mark = f"8{os.getpid()}{number.value}"
    project.write(
        "long_spec.sh",
        f"It 'takes long'\nlinger() {{ setsid sleep {mark} & sleep {mark}; }}\n"
        "When call linger\nThe status should be success\nEnd\n",
    )
    run = spawn(
        [
            *("env", "--default-signal=INT", sys.executable, "-m", "pytest"),
            *("-p", "harness.plugin.specs.hooks", "-p", "no:xdist", "-q"),
            *("--shell-sandbox=throwaway", f"--rootdir={project.root}", str(project.root)),
        ],
        env={"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    try:
        _wait_until("the code under test", mark, is_running=True)
        run.send_signal(number)
        _wait_until("the end of the code under test", mark, is_running=False)
    finally:
        end(run, grace_s=_PATIENCE_S)


def test_folder_of_a_killed_run_is_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"harness-shells-{os.geteuid()}" / "run-left"
    left.mkdir(parents=True)
    left.parent.chmod(0o700)
    (left / "work").touch()

    scratch = ScratchFolder()

    assert not left.exists()
    assert scratch.path.is_dir()
    scratch.close()
    assert not scratch.path.exists()


def test_temporary_folder_that_other_users_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / f"harness-shells-{os.geteuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)

    scratch = ScratchFolder()

    assert not scratch.path.is_relative_to(theirs)
    assert list(theirs.iterdir()) == []
    scratch.close()
