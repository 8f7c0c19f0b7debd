"""Tests on nodes, as the vendor's team would write them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.api import GuestFile
from harness.lab.stand_ins import STAND_INS
from harness.provisioner import TEARDOWN
from suites.e2e.guest_script import shell

if TYPE_CHECKING:
    from harness.api import BootNode, GpuModel, NodeRequest

pytestmark = [
    pytest.mark.pin_image(reason="the provisioner is a vendor's own, for one distribution"),
    pytest.mark.nightly,
]

#: Keeps apt's lock like unattended-upgrades in a machine's first minutes, for six seconds.
_BUSY_APT = """
cat >/run/upgrades <<'END'
import fcntl, time
lock = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
open("/run/upgrades-began", "w").close()
time.sleep(6)
END
setsid python3 /run/upgrades >/dev/null 2>&1 </dev/null &
until [ -e /run/upgrades-began ]; do sleep 0.1; done
"""
_NO_STAGED_DRIVER = shell("rm -r /var/lib/halyard/gpu/state.d /var/cache/halyard/gpu")
_NO_LOADED_MODULE = shell("udevadm settle; rmmod nvidia")
_NO_TOOLS = shell("dpkg --remove halyard-gpu-tools")


def test_staged_driver_is_used(
    boot_node: BootNode, staged_node: NodeRequest, h100: GpuModel
) -> None:
    evidence = boot_node(replace(staged_node, gpus=[h100, h100])).evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, "reuse", reason="staged")
    expect.every_gpu_driven(evidence)
    expect.cdi_offers_gpus(evidence)
    for unit in ("containerd.service", "halyard-gpu-health.service", "kubelet.service"):
        expect.unit_state(evidence, unit, active="active")


def test_module_is_loaded_if_udev_has_not_loaded_it(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    """Udev normally loads the staged module for the GPU before provisioning begins."""
    evidence = boot_node(replace(gpu_node, before=[_NO_LOADED_MODULE])).evidence()

    expect.provisioned(evidence)
    expect.every_gpu_driven(evidence)


def test_later_boot_reuses_the_driver_of_the_first_boot(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    node = boot_node(gpu_node)
    node.provision("boot")

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.decided(evidence, "reuse", reason="converged")


def test_tools_are_installed_although_unattended_upgrades_hold_the_dpkg_lock(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    """The machine runs unattended-upgrades at the same time."""
    node = boot_node(replace(gpu_node, before=[_NO_TOOLS, shell(_BUSY_APT)]))

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.log_line(evidence, "installing halyard-gpu-tools")


def test_unreachable_mirror_has_its_own_exit_code(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    node = boot_node(replace(gpu_node, before=[_NO_STAGED_DRIVER, ["rm", "-r", "/srv/mirror"]]))

    expect.provisioned(node.evidence(), exit_code="fetch")


def test_installer_that_fails_ends_the_run(boot_node: BootNode, gpu_node: NodeRequest) -> None:
    node = boot_node(
        replace(gpu_node, before=[_NO_STAGED_DRIVER, shell("rm /lib/modules/*/build")])
    )

    expect.provisioned(node.evidence(), exit_code="installer")


def test_driver_that_does_not_answer_is_installed_again(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    """The node records that its driver did not answer.

    The node's first run was in the image pipeline.
    """
    settings = GuestFile(path=f"{STAND_INS}/nvidia-smi.env", content=b"exit 15\n")
    node = boot_node(replace(gpu_node, files=[settings]))
    node.provision("plan")

    evidence = node.evidence()

    expect.provisioned(evidence, exit_code="verify", run=2)
    expect.decided(evidence, "install", reason="unhealthy")


def test_teardown_leaves_the_machine_without_a_driver(
    boot_node: BootNode, gpu_node: NodeRequest
) -> None:
    node = boot_node(gpu_node)
    node.provision(TEARDOWN)

    evidence = node.evidence()

    expect.provisioned(evidence)
    expect.no_driver_artefact(evidence, allow=["/dev/nvidia*"])
