"""Only one worker makes a saved state, even if an earlier worker was killed while it made the state."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.e2e.inner import REPOSITORY, machines_of, pytest_argv, wait_until_gone

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab import Lab
    from suites.e2e.inner import OwnCache

pytestmark = [
    pytest.mark.pin_image(reason="whoever makes a saved state is the harness"),
    pytest.mark.vm_driver(
        "qemu", reason="the run to be killed is known by its QEMU, which libvirt starts elsewhere"
    ),
]

START_S = 120.0
RUN_S = 600.0

RUN = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_answers(clone, node_booted, number):
    assert clone(node_booted).guest.output_of("echo", "hello") == "hello"
"""


def test_workers_make_a_saved_state_once_after_an_earlier_worker_was_killed(
    lab: Lab, own_cache: OwnCache, tmp_path: Path
) -> None:
    """The partial state of the killed worker is not used.

    Only one other worker makes the state again.
    """
    test = tmp_path / "test_run.py"
    test.write_text(RUN)
    killed = spawn(pytest_argv(lab, test), env=own_cache.environment, cwd=REPOSITORY)

    def poll() -> Observation[list[int]]:
        machines = machines_of(os.getpid())
        assert killed.poll() is None, "The run ended before it made a machine."
        return Observation(machines or None, "no machine")

    try:
        machines = wait_for("the machine of the saved state", poll, Deadline.after(START_S))
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    wait_until_gone(machines, of=os.getpid())

    run = LocalRunner().run(
        pytest_argv(lab, test, workers=2), timeout_s=RUN_S, env=own_cache.environment
    )

    assert run.ok, run.render()
    assert "4 passed" in run.stdout
    made = [line for line in run.stderr.splitlines() if line.endswith("build: making it")]
    assert len(made) == 1, run.stderr
    names = sorted(path.name for path in own_cache.checkpoints().iterdir() if path.name[0] != ".")
    assert len(names) == 1, names
