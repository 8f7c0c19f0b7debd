"""Tests of the Fabric Manager, kubelet and other base units."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.evidence.units import unit_commands
from suites.e2e.any_provisioner import expect_run_ended_at
from suites.e2e.guest_script import shell
from suites.e2e.interruption.interrupt import DONE, FAIL, Interruption
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    BRIEF,
    FABRIC_MANAGER,
    FABRIC_MANAGER_PROGRAM,
    FAILS,
    HANGS,
    KUBELET,
    NO_SERVICES,
    SLOW,
    evidence_of,
    make_program,
    name_of,
    unit_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_boot.py"
DETECTOR = "node-problem-detector.service"
DETECTOR_PROGRAM = "/usr/bin/node-problem-detector"
MODPROBE = "nvidia-modprobe.service"
UNITS_OF_EACH_NODE = ("containerd.service", MODPROBE, KUBELET)
NEEDED: Mapping[str, object] = {"gpu_needs_fabric_manager": True}
FABRIC_MANAGER_EVENT = "AKS.CSE.nvidia-fabricmanager"
INSTALLED = unit_file(FABRIC_MANAGER, FABRIC_MANAGER_PROGRAM)
BEFORE = (NO_SERVICES, make_program(FABRIC_MANAGER_PROGRAM))


@promise(section="9", unit=UNIT)
def test_node_waits_for_a_fabric_manager_that_it_needs(start_validated: StartNode) -> None:
    """Without the Fabric Manager, GPUs of these sizes cannot communicate with each other."""
    node = start_validated(
        "needed",
        config=NEEDED,
        files=[INSTALLED],
        before=BEFORE,
        stand_ins={name_of(FABRIC_MANAGER): SLOW},
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_ready_before(evidence, FABRIC_MANAGER, KUBELET)
    expect.unit_enablement(evidence, FABRIC_MANAGER, "enabled")
    expect.events_recorded(evidence, FABRIC_MANAGER_EVENT)


@promise(section="9", unit=UNIT)
@pytest.mark.parametrize(
    ("stand_in", "is_installed"),
    [
        pytest.param(FAILS, True, id="failing"),
        pytest.param(HANGS, True, id="hanging"),
        pytest.param({}, False, id="absent"),
    ],
)
def test_needed_fabric_manager_that_never_starts_is_a_failure(
    start_validated: StartNode, stand_in: Mapping[str, str], *, is_installed: bool
) -> None:
    """The Fabric Manager is part of the driver, so the exit code is 84."""
    node = start_validated(
        "fails",
        config={**NEEDED, **BRIEF},
        files=[INSTALLED] if is_installed else [],
        before=BEFORE,
        stand_ins={name_of(FABRIC_MANAGER): stand_in} if is_installed else {},
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=84)
    expect.run_ended_at(evidence, "start-fabric-manager")
    expect.events_recorded(evidence, "AKS.CSE.nvidia-fabricmanager")
    assert evidence.shown_unit(KUBELET).started_us is None


@promise(section="9", unit=UNIT)
@pytest.mark.parametrize(
    "stand_in", [pytest.param({}, id="running"), pytest.param(FAILS, id="failed")]
)
def test_fabric_manager_that_is_not_needed_is_stopped(
    start_validated: StartNode, stand_in: Mapping[str, str]
) -> None:
    """Images contain the unit for all VM sizes.

    The run disables the unit and resets its failed state.
    """
    start = f"systemctl enable {FABRIC_MANAGER}; systemctl start {FABRIC_MANAGER} || true"
    node = start_validated(
        "unneeded",
        files=[INSTALLED],
        before=[*BEFORE, ["sh", "-euc", start]],
        stand_ins={name_of(FABRIC_MANAGER): stand_in},
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    assert evidence.shown_unit(FABRIC_MANAGER).active == "inactive"
    assert FABRIC_MANAGER not in evidence.failed_units
    expect.unit_enablement(evidence, FABRIC_MANAGER, "disabled")
    expect.events_recorded(evidence, FABRIC_MANAGER_EVENT)


@promise(section="5", unit=UNIT, any_provisioner=("failing",))
@pytest.mark.parametrize(
    ("stand_in", "active"),
    [pytest.param(FAILS, "failed", id="failing"), pytest.param(HANGS, "activating", id="hanging")],
)
def test_kubelet_that_never_starts_has_its_own_exit_code(
    start_validated: StartNode, stand_in: Mapping[str, str], active: str
) -> None:
    """A node without kubelet ends with exit code 4."""
    node = start_validated(
        "kubelet", config=BRIEF, before=[NO_SERVICES], stand_ins={"kubelet": stand_in}
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence, exit_code=4)
    expect_run_ended_at(evidence, "start-kubelet")
    expect.unit_state(evidence, KUBELET, active=active)
    left = node.guest.run("pgrep", "-fx", "systemctl restart kubelet").stdout.split()
    assert not left, f"The commands that took too long were expected to be killed, but {left} run."


@promise(section="5, steps 11, 14 and 16", unit="suites/unit/provisioning/test_driver.py")
def test_units_of_a_ready_node_are_enabled(start_node: StartNode) -> None:
    """The module is loaded before kubelet counts the GPUs, at this boot and at each later boot.

    A failure of `systemctl daemon-reload` is ignored.
    """
    node = start_node(
        "enabled",
        files=[Interruption(at="systemctl daemon-reload", act=FAIL).file],
        before=[NO_SERVICES, ["systemctl", "disable", *UNITS_OF_EACH_NODE]],
    )

    evidence = node.evidence(commands=unit_commands(*UNITS_OF_EACH_NODE))

    expect.provisioned(evidence)
    assert node.guest.read_text(DONE) is not None, "No command was 'systemctl daemon-reload'."
    for unit in UNITS_OF_EACH_NODE:
        expect.unit_state(evidence, unit, active="active")
        expect.unit_enablement(evidence, unit, "enabled")
    expect.unit_ready_before(evidence, MODPROBE, KUBELET)


@promise(section="5, step 12", unit="suites/unit/provisioning/test_driver.py")
@pytest.mark.parametrize(
    ("stand_in", "active"),
    [pytest.param({}, "active", id="running"), pytest.param(FAILS, "failed", id="failing")],
)
def test_node_problem_detector_is_restarted_after_the_driver_is_ready(
    start_node: StartNode, stand_in: Mapping[str, str], active: str
) -> None:
    """The detector looks for GPUs only at its start. A node without the detector gets ready too."""
    node = start_node(
        "detector",
        files=[unit_file(DETECTOR, DETECTOR_PROGRAM)],
        before=[NO_SERVICES, make_program(DETECTOR_PROGRAM)],
        stand_ins={name_of(DETECTOR): stand_in},
    )

    evidence = node.evidence(commands=unit_commands(DETECTOR, KUBELET))

    expect.provisioned(evidence)
    expect.unit_state(evidence, DETECTOR, active=active)
    expect.unit_state(evidence, KUBELET, active="active")


@promise(section="5, step 13", unit="suites/unit/provisioning/test_driver.py")
def test_node_runs_nvidia_smi_of_the_payload_if_path_has_no_nvidia_smi(
    start_validated: StartNode,
) -> None:
    """Some images have nvidia-smi only in the payload's folder."""
    move = "mkdir -p /usr/local/nvidia/bin; mv /usr/bin/nvidia-smi /usr/local/nvidia/bin/"
    node = start_validated("payload", before=[NO_SERVICES, shell(move)])

    evidence = node.result()

    expect.provisioned(evidence)
    assert expect.step_of(evidence, "validate-query").status == "done"
