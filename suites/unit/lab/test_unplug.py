"""A GPU is unplugged only where nobody in the guest uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.lab.machine import LabMachine
from harness.machine.channels.guest import USERS, Guest
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.unit.lab.builders import a_lab_machine

if TYPE_CHECKING:
    from pathlib import Path

JOB = "812\t/dev/nvidia0\ttrain\n813\t/dev/nvidia0\tsh\n"


def test_gpu_in_use_stays_and_its_users_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_lab_machine(tmp_path)
    runner = ScriptedRunner().expect(["sh", "-c", USERS, "users", "/dev/nvidia[0-9]*"], stdout=JOB)
    monkeypatch.setattr(LabMachine, "guest", Guest("node", runner))

    with runner, pytest.raises(HarnessError) as refused:
        machine.hot_unplug("gpu0")

    assert str(refused.value) == (
        "GPU 'gpu0' of machine 'node' is not unplugged, since a GPU is in use in the guest: "
        "'sh' (PID 813) has '/dev/nvidia0' open; 'train' (PID 812) has '/dev/nvidia0' open. "
        "End that first, or pass `in_use=True`."
    )
