"""Which processes of a guest have a device open."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.guest import USERS, Guest
from harness.provisioning.command import LocalRunner
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has a file open."""
    (tmp_path / "nvidia0").touch()
    script = f"f = open({str(tmp_path / 'nvidia0')!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_process_is_named_with_the_file(job: subprocess.Popen[str], tmp_path: Path) -> None:
    users = Guest("node", LocalRunner()).users_of(f"{tmp_path}/nvidia[0-9]*")

    (name,) = users
    assert f"(PID {job.pid}) has '{tmp_path}/nvidia0' open" in name
    assert name.startswith("'python")


def test_other_files_do_not_count(job: subprocess.Popen[str], tmp_path: Path) -> None:
    assert job.pid != os.getpid()
    assert Guest("node", LocalRunner()).users_of(f"{tmp_path}/nvidia[1-9]") == []


def test_guest_that_can_not_tell_is_not_taken_for_idle() -> None:
    with (
        ScriptedRunner().expect(
            ["sh", "-c", USERS, "users", "/dev/nvidia[0-9]*"],
            exit_code=1,
            stderr="there is no 'find' in the guest",
        ) as runner,
        pytest.raises(HarnessError, match="no 'find'"),
    ):
        Guest("node", runner).users_of("/dev/nvidia[0-9]*")
