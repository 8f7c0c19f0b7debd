"""Provisioning of nodes whose driver opens the GPU: a removal while a program uses the GPU, and four GPUs.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.provisioner.gpu_node import METADATA_CACHE
from suites.e2e.real_driver.conftest import OPEN_S
from suites.e2e.real_driver.decisions import SKIP_DRIVER

if TYPE_CHECKING:
    from harness.gpu import GpuModel
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_HOLD_DEVICE = "exec 3<>/dev/nvidia0; echo held; exec sleep 3600"


def test_teardown_reports_and_keeps_a_driver_that_a_program_uses(
    node_with_driver: NodeWithDriver, a100: GpuModel
) -> None:
    node = node_with_driver(a100)
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


def test_each_of_four_gpus_has_its_model_name_and_its_own_uuid_and_pci_address(
    node_with_driver: NodeWithDriver, a100: GpuModel, h100: GpuModel
) -> None:
    models = [a100, h100, a100, h100]
    node = node_with_driver(*models)

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
