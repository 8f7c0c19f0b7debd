"""Tests of nodes that partition their GPU: the partitioning unit, the profile, and the reboot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.cloudinit import GuestFile
from harness.gpu.script import GpuScript
from suites.e2e.promises import promise
from suites.e2e.services.units import (
    DRA,
    DRA_PROGRAM,
    FABRIC_MANAGER,
    FABRIC_MANAGER_PROGRAM,
    KUBELET,
    MIG,
    NO_SERVICES,
    PLUGIN,
    SLOW,
    evidence_of,
    expect_property,
    make_program,
    name_of,
    smi_settings,
    unit_file,
)

if TYPE_CHECKING:
    from harness.api import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.lab.node import Node
    from suites.e2e.conftest import StartNode

UNIT = "suites/unit/provisioning/test_mig.py"
CALLS = "/run/smi-calls"
#: The stand-in for nvidia-smi writes its arguments to a file.
WRITE_CALLS = smi_settings(f'echo "$*" >>{CALLS}')
ASKED = "/run/shutdown-asked"
#: Replaces `shutdown`: the machine keeps running for the evidence, and the active units are
#: listed.
NO_SHUTDOWN = GuestFile(
    path="/usr/local/sbin/shutdown",
    content=(
        f'#!/bin/sh\nexec >>{ASKED}\necho "$*"\n'
        f"systemctl list-units --plain --no-legend --state=active {KUBELET} {PLUGIN} {DRA}\n"
    ).encode(),
    mode=0o755,
)


def partitionings(node: Node) -> list[str]:
    """Return the arguments of the nvidia-smi calls that change a GPU."""
    return [line for line in node.guest.output_of("cat", CALLS).splitlines() if "mig " in line]


@promise(section="8", unit=UNIT)
@pytest.mark.parametrize(
    ("profile", "instances"),
    [
        pytest.param("MIG1g", "19,19,19,19,19,19,19", id="MIG1g"),
        pytest.param("MIG2g", "14,14,14", id="MIG2g"),
        pytest.param("MIG3g", "9,9", id="MIG3g"),
        pytest.param("MIG4g", "5", id="MIG4g"),
        pytest.param("MIG7g", "0", id="MIG7g"),
    ],
)
def test_mig_unit_partitions_the_gpu_by_the_configured_profile(
    start_validated: StartNode, profile: str, instances: str
) -> None:
    """MIG is enabled first; GPU instances are created before their compute instances."""
    node = start_validated(
        "mig",
        config={"gpu_instance_profile": profile},
        files=[WRITE_CALLS, NO_SHUTDOWN],
        before=[NO_SERVICES],
    )
    asked = partitionings(node)

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_state(evidence, MIG, active="active")
    expect.unit_enablement(evidence, MIG, "enabled")
    assert asked == ["-mig 1", f"mig -cgi {instances}", "mig -cci"]
    assert not node.guest.run("test", "-e", ASKED).ok, "The GPU is in MIG mode; no reboot is due."


@promise(section="8", unit=UNIT)
def test_mig_profile_that_does_not_exist_changes_no_gpu(start_validated: StartNode) -> None:
    """The unit fails with a reason; the node stays up for repair."""
    node = start_validated(
        "no-profile",
        config={"gpu_instance_profile": "MIG5g"},
        files=[WRITE_CALLS, NO_SHUTDOWN],
        before=[NO_SERVICES],
    )
    asked = partitionings(node)
    journal = node.guest.output_of("journalctl", "--unit", MIG, "--output", "cat")
    assert not node.guest.run("test", "-e", ASKED).ok, "No reboot makes the profile known."

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_state(evidence, MIG, active="failed")
    expect_property(node, MIG, "ExecMainStatus", "1")
    expect.unit_state(evidence, KUBELET, active="active")
    assert "'MIG5g' is not a valid GPU instance profile" in journal
    assert asked == []


@promise(section="8", unit=UNIT)
@pytest.mark.parametrize(
    ("mode", "owner", "count"),
    [
        pytest.param("enable_managed_gpu", PLUGIN, 1, id="device plugin"),
        pytest.param("enable_managed_gpu_dra", DRA, 1, id="DRA"),
        pytest.param("enable_managed_gpu", PLUGIN, 2, id="second of two GPUs"),
    ],
)
def test_node_whose_gpu_needs_a_reset_reboots_at_the_end_of_the_run(
    start_validated: StartNode, h100: GpuModel, mode: str, owner: str, count: int
) -> None:
    """MIG mode is pending, so the GPU cannot be partitioned; the unit runs after the reboot."""
    node = start_validated(
        "pending",
        gpus=[h100] * count,
        config={mode: True, "gpu_instance_profile": "MIG3g", "nvidia_mig_strategy": "Single"},
        files=[NO_SHUTDOWN, unit_file(DRA, DRA_PROGRAM)],
        before=[make_program(DRA_PROGRAM)],
        gpu_scripts={f"gpu{count - 1}": GpuScript(mig_needs_reset=True)},
    )
    asked, *active = node.guest.output_of("cat", ASKED).splitlines()

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.log_line(evidence, "mig-partition did not partition the GPU yet")
    expect.unit_state(evidence, MIG, active="failed")
    expect.unit_enablement(evidence, MIG, "enabled")
    assert asked == "-r 1"
    units = [line.split()[0] for line in active]
    assert sorted(units) == sorted([KUBELET, owner]), (
        f"'{KUBELET}' and '{owner}' were expected to be active before the reboot, but {units} were."
    )


@promise(section="8", unit=UNIT)
@pytest.mark.parametrize(
    "is_beside_one_with_mig", [False, True], ids=["alone", "beside one with MIG"]
)
def test_gpu_that_has_no_mig_causes_no_reboot(
    start_validated: StartNode,
    gpu_catalogue: Catalogue,
    h100: GpuModel,
    *,
    is_beside_one_with_mig: bool,
) -> None:
    """An L4 has no MIG mode, so a node that reboots to set the mode would reboot at each boot."""
    without = gpu_catalogue.get("l4-24gb")
    node = start_validated(
        "no-mig",
        gpus=[h100, without] if is_beside_one_with_mig else [without],
        config={"gpu_instance_profile": "MIG3g"},
        files=[NO_SHUTDOWN],
        before=[NO_SERVICES],
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    assert not node.guest.run("test", "-e", ASKED).ok, "A reboot was scheduled that cannot help."
    assert "All GPUs that have MIG are in MIG mode." in evidence.log


@promise(section="9", unit="suites/unit/provisioning/test_boot.py")
def test_gpu_is_partitioned_after_the_fabric_manager_is_ready(start_validated: StartNode) -> None:
    """The Fabric Manager sets up the links between GPUs, which must happen before partitioning."""
    node = start_validated(
        "fabric",
        config={"gpu_instance_profile": "MIG7g", "gpu_needs_fabric_manager": True},
        files=[NO_SHUTDOWN, unit_file(FABRIC_MANAGER, FABRIC_MANAGER_PROGRAM)],
        before=[NO_SERVICES, make_program(FABRIC_MANAGER_PROGRAM)],
        stand_ins={name_of(FABRIC_MANAGER): SLOW},
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_ready_before(evidence, FABRIC_MANAGER, MIG)


@promise(section="8", unit=UNIT)
def test_kubelet_starts_after_a_slow_gpu_is_partitioned(start_validated: StartNode) -> None:
    """The device plugin counts devices at its start, and partitioning may be slow."""
    slow = smi_settings('case "$*" in "mig -cci") sleep 10;; esac')
    node = start_validated(
        "slow-mig",
        config={"gpu_instance_profile": "MIG3g"},
        files=[slow, NO_SHUTDOWN],
        before=[NO_SERVICES],
    )

    evidence = evidence_of(node)

    expect.provisioned(evidence)
    expect.unit_state(evidence, MIG, active="active")
    expect.unit_ready_before(evidence, MIG, KUBELET)
