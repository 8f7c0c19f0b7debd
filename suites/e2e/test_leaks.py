"""Whatever becomes of a test run, its machines end with it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for

if TYPE_CHECKING:
    from harness.image import Image
    from harness.lab import Lab
    from harness.provisioning.command import ChildProcess

START_S = 120.0
END_S = 20.0

#: A run in the middle of an e2e test: its machine boots, and it waits for what never comes.
BUSY_RUN = """
from harness.lab.node import NodeRequest
from harness.provisioning.wait import Deadline

def test_waits(boot_node, node_image):
    node = boot_node(NodeRequest(name="busy", image=node_image, command=None), wait=False)
    print("folder", node.folder, flush=True)
    node.machine.console.wait_for("this is never printed", Deadline.after(600), what="it")
"""

SHORT_RUN = """
from harness.lab.node import NodeRequest

def test_boots(boot_node, node_image):
    node = boot_node(NodeRequest(name="next", image=node_image, command=None), wait=False)
    assert node.machine.is_running
"""

REPOSITORY = Path(__file__).parents[2]


def pytest_argv(lab: Lab, test: Path) -> list[str]:
    """Return the command that runs one test file as a user would, in this repository."""
    return [
        sys.executable,
        "-m",
        "pytest",
        str(test),
        f"--rootdir={REPOSITORY}",
        f"--config-file={REPOSITORY / 'pyproject.toml'}",
        *("-p", "fixtures.machines"),
        *("-p", "no:cacheprovider"),
        "-s",
        *("-n", "0"),
        f"--accelerator={lab.accelerator.accelerator.accel}",
        f"--image={lab.settings.image}",
    ]


def machines_of(pid: int) -> list[int]:
    """Return the QEMU processes whose parent is, or was, the process `pid`'s session."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            argv = (folder / "cmdline").read_bytes().split(b"\0")
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if b"qemu-system" in argv[0] and f"HARNESS_LEAK_TEST={pid}".encode() in environment:
            found.append(int(folder.name))
    return found


@pytest.fixture
def busy_test(tmp_path: Path) -> Path:
    test = tmp_path / "test_busy.py"
    test.write_text(BUSY_RUN)
    return test


def start_busy_run(lab: Lab, test: Path) -> tuple[ChildProcess, int]:
    """Start a run, wait until its machine runs, and return it with the machine's process."""
    mark = os.getpid()
    with (test.parent / "output.txt").open("wb") as output:
        run = spawn(
            pytest_argv(lab, test),
            stdout=output,
            stderr=output,
            env={"HARNESS_LEAK_TEST": str(mark)},
            cwd=REPOSITORY,
        )

    def look() -> Observation[int]:
        machines = machines_of(mark)
        said = (test.parent / "output.txt").read_text()[-2000:]
        assert run.poll() is None, f"The run ended before its machine started: {said}"
        return Observation(machines[0] if machines else None, f"no machine; it said: {said}")

    return run, wait_for("the run's machine", look, Deadline.after(START_S))


def wait_until_gone(machine: int) -> None:
    """Wait until a process has ended."""

    def look() -> Observation[bool]:
        return Observation(None if Path(f"/proc/{machine}").exists() else True, "it still runs")

    wait_for(f"the end of QEMU process {machine}", look, Deadline.after(END_S))


def run_folders(lab: Lab) -> set[Path]:
    return {path for path in lab.settings.runs_folder.iterdir() if path.is_dir()}


def test_killed_run_leaves_no_machine_and_does_not_disturb_next(
    lab: Lab, node_image: Image, busy_test: Path
) -> None:
    """Nobody gets to clean up after `kill -9`; the kernel ends QEMU, the next run the files."""
    before = run_folders(lab)
    run, machine = start_busy_run(lab, busy_test)
    abandoned = run_folders(lab) - before

    run.send_signal(signal.SIGKILL)
    run.wait()

    wait_until_gone(machine)
    assert abandoned & run_folders(lab), "The killed run was expected to leave its folder."
    short = busy_test.with_name("test_next.py")
    short.write_text(SHORT_RUN)
    following = LocalRunner().run(pytest_argv(lab, short), timeout_s=START_S)
    assert following.ok, following.render()
    assert not abandoned & run_folders(lab), "The next run was expected to sweep the folder."
    assert node_image.disk.exists()


def test_interrupted_run_leaves_nothing(lab: Lab, busy_test: Path) -> None:
    """Ctrl-C ends the machine and removes the run's folder, at once."""
    before = run_folders(lab)
    run, machine = start_busy_run(lab, busy_test)
    folders = run_folders(lab) - before

    run.send_signal(signal.SIGINT)

    wait_until_gone(machine)

    def look() -> Observation[int]:
        return Observation(run.poll(), "the run has not ended")

    wait_for("the end of the interrupted run", look, Deadline.after(END_S))
    assert not folders & run_folders(lab)
