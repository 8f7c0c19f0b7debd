"""Common causes in the logs of a node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.evidence.causes import CAUSES, explain, find_cause, find_causes, first_error_line
from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from pathlib import Path

    from harness.evidence.causes import Cause

#: A line of a real guest for each cause.
LINES = {
    "kernel panic": "[    4.71] Kernel panic - not syncing: VFS: Unable to mount root fs",
    "the root file system is not found": "ALERT!  /dev/vdz does not exist.  Dropping to a shell!",
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
    assert found.sentence() == f"{name}: {found.line}"
    assert found.remedy.startswith("remedy: ")
    assert explain(tmp_path, is_named=True) == []


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


#: What boots of sound nodes print, from their evidence.
SOUND = """\
kernel: Command line: root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 mitigations=off quiet
kernel: Kernel command line: root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 quiet
kernel: tsc: Unable to calibrate against PIT
kernel: tsc: Fast TSC calibration failed
kernel: nvidia: module verification failed: signature and/or required key missing - tainting kernel
dkms[321]: /usr/sbin/dkms: line 1134: echo: write error: Broken pipe
containerd[289]: time="2026-11-23T10:00:00.1Z" level=info msg="skip loading plugin \\"io.containerd.\
snapshotter.v1.aufs\\"..." error="aufs is not supported (modprobe aufs failed: exit status 1)"
containerd[289]: time="2026-11-23T10:00:00.2Z" level=warning msg="failed to load plugin io.containerd.\
snapshotter.v1.devmapper" error="devmapper not configured"
containerd[289]: time="2026-11-23T10:00:00.3Z" level=error msg="failed to load cni during init, please \
check CRI plugin status before setting up network for pods" error="cni config load failed"
install-driver skipped after 0.0 s: Only needed after failure of 'install-prebuilt-driver'.
cloud-init[401]: step install-driver skipped after 0.0 s: Only needed after failure of 'x'.
cc_rightscale_userdata.py[DEBUG]: Failed to get raw userdata in module rightscale_userdata
"""


@pytest.mark.parametrize("line", SOUND.splitlines())
def test_line_of_a_sound_boot_is_no_error(tmp_path: Path, line: str) -> None:
    write(tmp_path, "commands/journal", f"Nov 23 06:22:52.1 node {line}\n")
    assert first_error_line(tmp_path) is None

    real = 'containerd[289]: level=error msg="failed to recover state"'
    write(tmp_path, "commands/journal", f"{line}\n{real}\n")
    assert first_error_line(tmp_path) == real


def test_cause_in_the_text_of_an_error_is_named_once(tmp_path: Path) -> None:
    """What a command of a test printed is in its error alone."""
    write(tmp_path, "commands/journal", "Nov 23 06:22:52.1 node probe[9]: nothing is wrong\n")
    said = (
        "A command in machine 'node' failed.\n"
        "command: sh -c 'curl x\necho No space left on device'\n"
        "exit code: 6, after 0.1 s\n"
        "stdout: -\n"
        "stderr: curl: (6) Could not resolve host: x"
    )

    found = find_causes(said, [tmp_path])

    (one,) = found
    assert (one.source, one.line) == ("the error", "curl: (6) Could not resolve host: x")


def test_cause_of_an_error_has_the_line_of_the_evidence(tmp_path: Path) -> None:
    write(tmp_path, "host/serial.log", "validate-query failed: A GPU has fallen off the bus.\n")
    said = "Provisioning was expected to end with 0, but a GPU has fallen off the bus."

    (found,) = find_causes(said, [tmp_path])

    assert found.line == "validate-query failed: A GPU has fallen off the bus."


def test_each_evidence_folder_gives_its_own_cause(tmp_path: Path) -> None:
    causes = ("kernel panic", "the GPU is lost")
    folders = [tmp_path / str(number) for number, _ in enumerate(causes)]
    for folder, name in zip(folders, causes, strict=True):
        write(folder, "host/serial.log", LINES[name])

    assert [found.cause.name for found in find_causes("", folders)] == list(causes)


def test_cause_is_found_in_the_make_log_of_dkms(tmp_path: Path) -> None:
    name = "files/var/lib/dkms/nvidia/580.126.09/build/make.log"
    write(tmp_path, name, LINES["no space on the guest's disk"])

    found = find_cause(tmp_path)

    assert found is not None
    assert found.source == name


def test_unit_for_which_the_boot_waits_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        "commands/units",
        "storage.service loaded activating start start Storage\n"
        "cloud-init.service loaded inactive dead start Cloud-init\n"
        "ssh.service loaded active running OpenSSH\n",
    )

    assert explain(tmp_path) == ["unit 'storage.service' is still starting"]


def test_console_of_a_guest_that_hangs_is_quoted(tmp_path: Path) -> None:
    write(tmp_path, "host/serial.log", "Loading Linux\r\n[    1.2] Run /init as init process\r\n")
    assert explain(tmp_path) == []

    write(tmp_path, "not-collected.txt", "The agent did not answer.\n")
    assert explain(tmp_path) == [
        "the guest does not answer; its console ends with: Run /init as init process"
    ]


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


def write_outcome(folder: Path, *, error: str, detail: str) -> None:
    step = {"name": "build", "status": "failed", "duration_s": 1.0, "detail": detail}
    outcome = {"schema": 1, "exit_code": 84, "exit_name": "X", "error": error, "steps": [step]}
    write(folder, "files/var/lib/gpu-node/outcome.json", json.dumps(outcome))


def test_failed_step_is_named_with_its_detail(tmp_path: Path) -> None:
    write_outcome(tmp_path, error="Step 'build' failed. no compiler", detail="no compiler\nat all")
    assert explain(tmp_path)[0] == "step 'build' failed: no compiler"


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (
            CommandResult(argv=("ctr", "run"), exit_code=9, stdout="a\nb", stderr="c\nNVRM: d\n"),
            "exit code 9; stderr: NVRM: d; command: ctr run",
        ),
        (
            CommandResult(
                argv=("ctr",), exit_code=124, stdout="a\nb\n", stderr="", timed_out=True
            ),
            "exit code 124 (time limit); stdout: b; command: ctr",
        ),
        (
            CommandResult(argv=("ctr",), exit_code=1, stdout="", stderr=""),
            "exit code 1; command: ctr",
        ),
    ],
    ids=["stderr", "stdout", "silent"],
)
def test_failed_step_shows_exit_code_and_last_line_before_the_command(
    tmp_path: Path, result: CommandResult, line: str
) -> None:
    write_outcome(tmp_path, error="", detail=f"It is used up. {result.render()}")
    assert explain(tmp_path)[0] == f"step 'build' failed: It is used up. {line}"

    write_outcome(tmp_path, error="", detail=result.render())
    assert explain(tmp_path)[0] == f"step 'build' failed: {line}"


def test_error_of_provisioning_is_told_where_no_failed_step_told_it(tmp_path: Path) -> None:
    write_outcome(tmp_path, error="Step 'build' failed. no compiler", detail="no compiler")
    assert explain(tmp_path) == ["step 'build' failed: no compiler"]

    write_outcome(tmp_path, error="The run was terminated.", detail="no compiler")
    assert explain(tmp_path)[1:] == ["provisioning ended with 84: The run was terminated."]
