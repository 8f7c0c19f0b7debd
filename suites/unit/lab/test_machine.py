"""A machine's GPUs, as far as no QEMU is needed to see them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.script import GpuScript
from harness.gpu.transport import Transport
from harness.lab.layers import node_spec
from harness.lab.machine import Equipment, LabMachine
from harness.machine.spec import Accelerator
from suites.unit.gpu.models import a_model
from suites.unit.lab.drivers import StuckDriver
from suites.unit.lab.test_node import an_equipment, an_image

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.spec import MachineSpec


def a_spec(folder: Path, *, cpus: int = 1, accelerator: Accelerator) -> MachineSpec:
    spec = node_spec(
        "node",
        image=an_image(),
        kernel=None,
        accelerator=accelerator,
        qemu="qemu-that-is-not-there",
        disk=folder / "disk.qcow2",
    )
    return replace(spec, cpus=cpus)


def test_two_vcpus_in_threads_of_their_own_get_no_mpqemu_gpu(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, cpus=2, accelerator=Accelerator.KVM)
    equipment = replace(an_equipment(tmp_path), driver=StuckDriver(has_threads=True))
    machine = LabMachine(spec, tmp_path, equipment)

    with pytest.raises(HarnessError, match=r"2 vCPUs.*'x-pci-proxy-dev' at once hang QEMU"):
        machine.hot_plug(a_model())


def _equipment(folder: Path, transport: Transport) -> Equipment:
    return replace(an_equipment(folder), transport=lambda: transport)


@pytest.mark.parametrize(
    ("cpus", "accelerator", "transport"),
    [
        (1, Accelerator.KVM, Transport.MPQEMU),
        (2, Accelerator.TCG, Transport.MPQEMU),
        (2, Accelerator.KVM, Transport.VFIO_USER),
    ],
)
def test_vcpus_that_do_no_harm_get_a_gpu(
    tmp_path: Path, cpus: int, accelerator: Accelerator, transport: Transport
) -> None:
    spec = replace(
        a_spec(tmp_path, cpus=cpus, accelerator=accelerator), root_port_aperture_mib=1 << 18
    )
    machine = LabMachine(spec, tmp_path, _equipment(tmp_path, transport))

    server = machine.gpus.serve(a_model())

    assert machine.gpu("gpu0") is server.gpu
    machine.gpus.close()
    assert server.state.ending is not None


def test_script_is_applied_before_the_gpu_is_plugged(tmp_path: Path) -> None:
    machine = LabMachine(
        a_spec(tmp_path, accelerator=Accelerator.TCG),
        tmp_path,
        an_equipment(tmp_path),
        gpu_scripts={"gpu1": GpuScript(is_dead=True)},
    )
    try:
        well, dead = (machine.gpus.serve(a_model()).gpu for _ in range(2))

        assert well.bar_read(0, 0, 4) == 0x180000A1
        assert dead.bar_read(0, 0, 4) == 0xFFFFFFFF
    finally:
        machine.gpus.close()


def test_gpu_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    machine = LabMachine(
        a_spec(tmp_path, accelerator=Accelerator.TCG), tmp_path, an_equipment(tmp_path)
    )

    with pytest.raises(HarnessError, match="no GPU 'gpu3', but none"):
        machine.gpu("gpu3")


def test_marks_reach_every_gpu(tmp_path: Path) -> None:
    machine = LabMachine(
        a_spec(tmp_path, accelerator=Accelerator.TCG), tmp_path, an_equipment(tmp_path)
    )
    try:
        machine.gpus.serve(a_model())
        machine.gpus.serve(a_model())

        machine.mark("now")

        assert all(trace.find_mark("now") for trace in machine.gpu_traces().values())
        assert list(machine.gpu_traces()) == ["gpu0", "gpu1"]
    finally:
        machine.gpus.close()
