"""The GPUs of a machine, as far as tests without QEMU can check them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.gpu.transport import Transport
from harness.machine.description.spec import Accelerator
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import a_lab_machine, machine_services

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.guest_channels import MachineServices


def _services(folder: Path, transport: Transport) -> MachineServices:
    return replace(machine_services(folder), transport=lambda: transport)


@pytest.mark.parametrize(
    ("cpus", "accelerator", "transport"),
    [
        (1, Accelerator.KVM, Transport.MPQEMU),
        (2, Accelerator.TCG, Transport.VFIO_USER),
        (2, Accelerator.KVM, Transport.VFIO_USER),
    ],
)
def test_machine_gets_a_gpu_if_its_number_of_vcpus_is_safe_for_the_transport(
    tmp_path: Path, cpus: int, accelerator: Accelerator, transport: Transport
) -> None:
    machine = a_lab_machine(
        tmp_path,
        services=_services(tmp_path, transport),
        cpus=cpus,
        accelerator=accelerator,
        aperture_mib=1 << 18,
    )

    server = machine.gpus.serve(a_model())

    assert machine.gpu("gpu0") is server.gpu
    machine.gpus.close()
    assert server.state.ending is not None
