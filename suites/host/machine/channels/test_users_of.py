"""The list of processes in a guest that have a device open."""

from __future__ import annotations

import os
from pathlib import Path

from harness.machine.channels.guest import Guest
from harness.provisioning.command import LocalRunner


def test_list_of_users_has_each_process_with_its_open_file(tmp_path: Path) -> None:
    name = Path("/proc/self/comm").read_text().strip()
    with (tmp_path / "nvidia0").open("w"), (tmp_path / "nvidiactl").open("w"):
        users = Guest("node", LocalRunner()).users_of(f"{tmp_path}/nvidia[0-9]*")

    assert users == [f"'{name}' (PID {os.getpid()}) has '{tmp_path}/nvidia0' open"]


def test_list_of_users_is_empty_for_a_file_that_no_process_has_open(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()

    assert Guest("node", LocalRunner()).users_of(f"{tmp_path}/nvidia[0-9]*") == []
