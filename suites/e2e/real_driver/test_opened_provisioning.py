"""Provisioning of nodes whose driver opens the GPU: fast path, another kernel, removal, several GPUs.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.lab.node import NodeRequest
from harness.provisioner.gpu_node import METADATA_CACHE
from suites.e2e.real_driver.conftest import LOAD_S, OPEN_S
from suites.e2e.real_driver.decisions import SKIP_DRIVER, decision_of

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_HOLD_DEVICE = "exec 3<>/dev/nvidia0; echo held; exec sleep 3600"


def test_prebaked_driver_opens_the_gpu_and_is_torn_down(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> None:
    """Nothing is compiled; and once the node is to have no driver, nothing of it stays."""
    assert opened_gpu_image.driver is not None
    version = opened_gpu_image.driver.version
    kernel = opened_gpu_image.newest_kernel.version
    node = boot_node(NodeRequest(name="opened-fast", image=opened_gpu_image, gpus=[a100]))

    driven = node.evidence()

    expect.cloud_init_clean(driven)
    expect.provisioned(driven)
    expect.decided(driven, action="install-skip-build", reason="ok")
    expect.module_built_for(driven, kernel, version=version)
    expect.module_built_before_boot(driven, kernel)
    expect.driver_installed(driven)
    expect.gpu_bound(driven, device="20b0")
    expect.gpus_refused(driven)
    listed = node.guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)
    assert listed.startswith(f"GPU 0: {a100.title} (UUID: GPU-00000000-0000-4000-8000-")

    node.guest.write_text(METADATA_CACHE, SKIP_DRIVER)
    node.provision("boot").check("Provisioning of a node that has opted out")

    stripped = node.evidence()
    expect.gpus_on_bus(stripped, "20b0")
    expect.gpus_driven(stripped)
    expect.no_driver_artefact(stripped)
    expect.no_record(stripped)
    assert decision_of(stripped) == ("teardown", "opted_out")


def test_driver_of_another_kernel_opens_nothing(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> None:
    other = opened_gpu_image.other_kernel
    node = boot_node(
        NodeRequest(
            name="opened-mismatch",
            image=opened_gpu_image,
            kernel=other,
            gpus=[a100],
            command=None,
        )
    )

    query = node.guest.run("nvidia-smi", timeout_s=OPEN_S)
    planned = node.provision("plan").check("plan").stdout

    evidence = node.evidence()
    expect.kernel_running(evidence, other.version)
    expect.no_module_for(evidence, other.version)
    expect.gpus_driven(evidence)
    assert query.exit_code == 9
    assert "couldn't communicate with the NVIDIA driver" in query.stdout
    assert "install-driver" in planned
    assert decision_of(evidence) == ("install", "kernel")


def test_driver_that_a_program_uses_stays_and_the_teardown_says_so(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel
) -> None:
    node = boot_node(NodeRequest(name="opened-held", image=opened_gpu_image, gpus=[a100]))
    guest = node.guest
    guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S)
    unit = ("systemd-run", "--unit=holder", "sh", "-c", _HOLD_DEVICE)
    guest.output_of(*unit)
    guest.output_of(
        "sh", "-c", "until ls -l /proc/[0-9]*/fd 2>/dev/null | grep /dev/nvidia0; do :; done"
    )

    guest.write_text(METADATA_CACHE, SKIP_DRIVER)
    node.provision("boot")

    evidence = node.evidence()
    assert "nvidia" in evidence.loaded_modules
    assert "status=cleaned" not in (evidence.file("/var/log/azure/cluster-provision.log") or "")
    guest.output_of("systemctl", "stop", "holder")
    node.provision("boot").check("Provisioning after the program has ended")
    expect.no_driver_artefact(node.evidence())


def test_four_gpus_have_names_uuids_and_places_of_their_own(
    boot_node: BootNode, opened_gpu_image: Image, a100: GpuModel, h100: GpuModel
) -> None:
    models = [a100, h100, a100, h100]
    node = boot_node(
        NodeRequest(name="opened-four", image=opened_gpu_image, command=None, gpus=models)
    )
    node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)

    rows = [
        row.split(", ")
        for row in node.guest.output_of(
            "nvidia-smi",
            "--query-gpu=name,uuid,pci.bus_id",
            "--format=csv,noheader",
            timeout_s=2 * OPEN_S,
        ).splitlines()
    ]

    assert [row[0] for row in rows] == [model.title for model in models]
    assert len({row[1] for row in rows}) == len(models)
    assert [row[2] for row in rows] == [f"00000000:{bus:02X}:00.0" for bus in range(2, 6)]
