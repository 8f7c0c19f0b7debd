"""Machines that lose power during provisioning, and boot again from the same disk."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import HarnessError
from harness.provisioner.gpu_node import OUTCOME_PATH
from harness.settings import MachineStart
from suites.e2e.interruption.interrupt import (
    COMMIT_AND_LOSE_POWER,
    LOSE_POWER,
    SYNC_AND_LOSE_POWER,
    Interruption,
)
from suites.e2e.interruption.whole_run import COLD_BOOT, expect_as_whole_run
from suites.e2e.promises import promise

if TYPE_CHECKING:
    from harness.evidence.state import NodeState
    from harness.lab import Lab
    from harness.lab.node_request import NodeRequest


@promise(section="5", unit="suites/unit/provisioning/test_properties.py")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "act"),
    [
        pytest.param("ctr -n k8s.io run*", LOSE_POWER, id="install"),
        pytest.param("systemctl restart containerd", LOSE_POWER, id="containerd"),
        pytest.param("systemctl daemon-reload", COMMIT_AND_LOSE_POWER, id="names"),
        pytest.param("systemctl restart nvidia-modprobe", SYNC_AND_LOSE_POWER, id="synced"),
    ],
)
def test_next_boot_completes_the_provisioning_of_a_node_that_lost_power(
    lab: Lab, usual_request: NodeRequest, whole_run: NodeState, at: str, act: str
) -> None:
    """The node has the same state as after one complete run, whatever the first run wrote to the disk."""
    interruption = Interruption(at=at, act=act)
    # The test's own files must be on the disk, whatever the run syncs.
    request = replace(
        usual_request,
        files=[*usual_request.files, interruption.file],
        before=[*usual_request.before, ["sync"]],
    )
    with lab.boot(request) as node:
        with pytest.raises(HarnessError):
            node.wait_until_provisioned()
        node.machine.kill()
        disk = node.folder / "disk.qcow2"
        with lab.boot(usual_request, disk=disk, start=MachineStart.COLD) as again:
            outcome = again.guest.read_text(OUTCOME_PATH)
            # The image already has the record of its bake.
            assert outcome is None or json.loads(outcome)["command"] == "bake", (
                f"'{at}' was expected to end the run, but the run has left an outcome."
            )
            empty = again.guest.output_of(
                *("find", "/etc", "/opt/azure", "-newer", "/etc/machine-id"),
                *("-type", "f", "-size", "0"),
            )
            assert empty == "", f"Each file was expected to have its text, but not: {empty}"
            again.guest.output_of("rm", interruption.file.path)
            again.provision("boot")

            evidence = again.evidence()

            expect.provisioned(evidence)
            expect.decided(evidence, "install-skip-build", reason="ok")
            assert expect.step_of(evidence, "install-driver").status == "skipped"
            expect_as_whole_run(whole_run, again, allow=COLD_BOOT)
