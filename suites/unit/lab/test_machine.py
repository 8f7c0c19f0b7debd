"""The GPUs of a machine: the behaviour that can be tested without QEMU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu.catalogue import find_model
from harness.gpu.script import GpuScript
from harness.gpu.serving import serve_gpu
from harness.machine.description.spec import MemoryFile
from harness.settings import GpuEmulation
from suites.unit.gpu.models import a_model
from suites.unit.lab.builders import a_lab_machine

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu.server import DeviceServer


def test_machine_with_two_vcpu_threads_refuses_an_mpqemu_gpu(tmp_path: Path) -> None:
    machine = a_lab_machine(tmp_path, cpus=2)

    with pytest.raises(HarnessError, match=r"QEMU hangs if two vCPUs use one 'x-pci-proxy-dev'"):
        machine.hot_plug(a_model())


def test_fault_script_is_applied_before_its_gpu_is_plugged(tmp_path: Path) -> None:
    machine = a_lab_machine(
        tmp_path,
        gpu_scripts={"gpu1": GpuScript(is_dead=True)},
    )
    try:
        well, dead = (machine.gpus.serve(a_model()).gpu for _ in range(2))

        assert well.bar_read(0, 0, 4) == 0x180000A1
        assert dead.bar_read(0, 0, 4) == 0xFFFFFFFF
    finally:
        machine.gpus.close()


def test_error_for_a_missing_gpu_shows_the_present_gpus(tmp_path: Path) -> None:
    machine = a_lab_machine(tmp_path)

    with pytest.raises(HarnessError, match="no GPU 'gpu3'; it has none"):
        machine.gpu("gpu3")


def test_mark_is_written_to_the_trace_of_every_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []

    def serve(*words: Any, number: int, **options: Any) -> DeviceServer[Any]:
        numbers.append(number)
        return serve_gpu(*words, number=number, **options)

    monkeypatch.setattr("harness.gpu.serving.serve_gpu", serve)
    machine = a_lab_machine(tmp_path)
    try:
        machine.gpus.serve(a_model())
        machine.gpus.serve(a_model())

        machine.mark("now")

        assert all(trace.find_mark("now") for trace in machine.gpu_traces().values())
        assert list(machine.gpu_traces()) == ["gpu0", "gpu1"]
        assert numbers == [1, 2]
    finally:
        machine.gpus.close()


def test_gsp_gpu_over_mpqemu_is_refused_in_a_clone_with_private_memory(
    tmp_path: Path,
) -> None:
    """A shared mapping would write to the memory file of the template."""
    memory = MemoryFile(path=tmp_path / "ram", is_private=True)
    machine = a_lab_machine(tmp_path, memory_file=memory)

    with pytest.raises(RequirementError, match=r"is private.*--machine-start=cold.*qemu sid"):
        machine.hot_plug(find_model("t4-16gb").emulated_as(GpuEmulation.GSP))
    machine.gpus.serve(find_model("t4-16gb"))
    machine.gpus.close()
