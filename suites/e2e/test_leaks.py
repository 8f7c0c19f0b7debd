"""However a test run ends, its machines end with the run."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.inner import END_S, START_S, busy_run, pytest_argv, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab import Lab
    from suites.e2e.inner import OwnCache

pytestmark = [
    pytest.mark.pin_image(reason="what may be left is the harness's"),
    pytest.mark.vm_driver(
        "qemu", reason="suites/e2e/libvirt shows that domains end with their run"
    ),
]

#: An e2e test whose machine boots, and which then waits for output that never appears.
BUSY_RUN = """
from harness.lab.node_request import NodeRequest
from harness.provisioning.wait import Deadline

def test_waits(boot_node, node_image):
    node = boot_node(NodeRequest(name="busy", image=node_image, command=None), wait=False)
    print("folder", node.folder, flush=True)
    node.machine.vm.console.wait_for("this is never printed", Deadline.after(600), what="it")
"""

SHORT_RUN = """
from harness.lab.node_request import NodeRequest

def test_boots(boot_node, node_image):
    node = boot_node(NodeRequest(name="next", image=node_image, command=None), wait=False)
    assert node.machine.vm.is_running
"""


@pytest.fixture
def busy_test(tmp_path: Path) -> Path:
    test = tmp_path / "test_busy.py"
    test.write_text(BUSY_RUN)
    return test


def test_killed_run_leaves_no_machine_and_does_not_disturb_the_next_run(
    lab: Lab, own_cache: OwnCache, busy_test: Path
) -> None:
    """After `kill -9`, the kernel ends QEMU, and the next run removes the files."""
    with busy_run(lab, own_cache, busy_test) as (run, machines):
        abandoned = own_cache.run_folders()

        run.send_signal(signal.SIGKILL)

        wait_until_gone(machines, of=os.getpid())
    assert abandoned == own_cache.run_folders(), "The killed run was expected to leave its folder."
    short = busy_test.with_name("test_next.py")
    short.write_text(SHORT_RUN)
    following = LocalRunner().run(
        pytest_argv(lab, short), timeout_s=START_S, env=own_cache.environment
    )
    assert following.ok, following.render()
    assert not own_cache.run_folders(), "The next run was expected to sweep the folder."


def test_interrupted_run_leaves_no_machine_and_no_folder(
    lab: Lab, own_cache: OwnCache, busy_test: Path
) -> None:
    """Ctrl-C ends the machine and removes the folder of the run at once."""
    with busy_run(lab, own_cache, busy_test) as (run, machines):
        run.send_signal(signal.SIGINT)

        wait_until_gone(machines, of=os.getpid())

        def poll() -> Observation[int]:
            return Observation(run.poll(), "the run has not ended")

        wait_for("the end of the interrupted run", poll, Deadline.after(END_S))
    assert not own_cache.run_folders()
