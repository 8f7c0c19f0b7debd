"""Common causes in the logs of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.evidence.causes import CAUSES, explain, find_cause, first_error_line

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.causes import Cause

#: A line of a real guest for each cause.
LINES = {
    "kernel panic": "[    4.71] Kernel panic - not syncing: VFS: Unable to mount root fs",
    "no space on the guest's disk": "cp: error writing '/opt/x': No space left on device",
    "the guest ran out of memory": "[  61.0] Out of memory: Killed process 812 (cc1) total-vm:1",
    "dpkg is locked by another process": "E: Could not get lock /var/lib/dpkg/lock-frontend. It is "
    "held by process 391 (apt-get)",
    "the kernel's headers are missing": "Error! Your kernel headers for kernel 6.1.0-56 cannot be "
    "found at /lib/modules/6.1.0-56/build",
    "the guest's clock is wrong": "curl: (60) SSL certificate problem: certificate is not yet valid",
    "a name can't be resolved": "curl: (6) Could not resolve host: mcr.microsoft.com",
    "cloud-init can't read its user-data": "util.py[WARNING]: Failed loading yaml blob. Invalid format",
    "systemd went into emergency mode": "You are in emergency mode. After logging in, type",
    "the GPU is lost": "NVRM: Xid (PCI:0000:02:00): 79, pid=7, GPU has fallen off the bus.",
}


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_cause_is_named_with_its_line_and_a_remedy(tmp_path: Path, cause: Cause) -> None:
    name = cause.name
    write(tmp_path, "host/serial.log", f"[    1.0] all is well\r\n{LINES[name]}\r\n")

    found = find_cause(tmp_path)

    assert found is not None
    assert (found.cause.name, found.source) == (name, "host/serial.log")
    assert found.line in LINES[name]
    first, remedy = explain(tmp_path)[:2]
    assert first == f"{name}: {found.line}"
    assert remedy.startswith("remedy: ")


def test_sound_node_has_no_cause(tmp_path: Path) -> None:
    write(tmp_path, "commands/journal", "Nov 23 06:22:52.1 node systemd[1]: Reached target x.\n")

    assert find_cause(tmp_path) is None
    assert explain(tmp_path) == []


def test_first_error_of_the_guest_is_shown_where_nothing_else_is_known(tmp_path: Path) -> None:
    journal = (
        "Nov 23 06:22:52.1 node kernel: EXT4-fs (vda): re-mounted. Opts: errors=remount-ro\n"
        "Nov 23 06:22:53.1 node mount[9]: mount: /x: unknown filesystem type; mount failed\n"
        "Nov 23 06:22:54.1 node x[9]: a later error\n"
    )
    write(tmp_path, "commands/journal", journal)

    line = "mount[9]: mount: /x: unknown filesystem type; mount failed"
    assert first_error_line(tmp_path) == line
    assert explain(tmp_path) == [f"the guest's first error: {line}"]


def test_failed_unit_is_named_with_what_it_said_last(tmp_path: Path) -> None:
    write(tmp_path, "commands/failed-units", "nvidia-modprobe.service loaded failed failed Load\n")
    write(
        tmp_path,
        "commands/journal",
        "Nov 23 06:22:52.1 node nvidia-modprobe[9]: modprobe: FATAL: Module nvidia not found\n"
        "Nov 23 06:22:53.1 node systemd[1]: nvidia-modprobe.service: Failed with result 'exit'.\n",
    )

    said = "nvidia-modprobe[9]: modprobe: FATAL: Module nvidia not found"
    assert explain(tmp_path) == [f"unit 'nvidia-modprobe.service' failed: {said}"]


def test_failed_step_is_named_with_its_detail(tmp_path: Path) -> None:
    write(
        tmp_path,
        "files/var/lib/gpu-node/outcome.json",
        '{"schema": 1, "exit_code": 84, "exit_name": "X", "error": "dkms failed", "steps": '
        '[{"name": "build", "status": "failed", "duration_s": 1.0, "detail": "no compiler"}]}',
    )

    assert "step 'build' failed: no compiler" in explain(tmp_path)
