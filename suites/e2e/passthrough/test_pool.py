"""The pool leases GPUs of a host by the kernel's own VFIO, and returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.passthrough import VFIO_DRIVER
from harness.gpu.trace import IncidentKind
from suites.e2e.passthrough.conftest import DRIVER
from suites.e2e.passthrough.holders import Holder, driver_of, gpu_addresses

if TYPE_CHECKING:
    from harness.lab.machine import LabMachine
    from suites.e2e.passthrough.conftest import StartHost


#: Does the same as `harness gpu host release`, a program that starts slowly under emulation.
_RELEASE = (
    "import sys; from harness.gpu.passthrough.pool import GpuPool; GpuPool().release(sys.argv[1])"
)


def resets_of(host: LabMachine, device_id: str) -> int:
    incidents = host.gpu(device_id).trace.incidents
    return sum(each.kind is IncidentKind.RESET for each in incidents)


def test_leased_gpu_is_bound_to_vfio_and_can_be_reset_and_gets_its_driver_back(
    start_host: StartHost,
) -> None:
    host = start_host(2)
    first, second = gpu_addresses(host)
    assert [driver_of(host, each) for each in (first, second)] == [DRIVER, DRIVER]

    holder = Holder(host, "holder").start(first)
    assert holder.answer() == {"held": [first]}
    assert (driver_of(host, first), driver_of(host, second)) == (VFIO_DRIVER, DRIVER)

    before = [resets_of(host, each) for each in ("gpu0", "gpu1")]
    holder.tell("reset")
    assert holder.answer() == {"reset": 1}
    after = [resets_of(host, each) for each in ("gpu0", "gpu1")]
    assert sorted(new - old for old, new in zip(before, after, strict=True)) == [0, 1]

    holder.tell("end")
    assert holder.answer() == {"ended": True}
    assert driver_of(host, first) == DRIVER
    override = host.guest.read_text(f"/sys/bus/pci/devices/{first}/driver_override")
    assert override == "(null)\n"


def test_gpu_of_a_killed_holder_is_restored_by_the_next_lease(start_host: StartHost) -> None:
    host = start_host(1)
    (gpu,) = gpu_addresses(host)
    killed = Holder(host, "killed").start()
    assert killed.answer() == {"held": [gpu]}
    waiting = Holder(host, "waiting").start()
    waits = str(waiting.answer()["waits"])
    assert f"{gpu} is held by 'holder' of user root" in waits

    killed.kill()
    assert waiting.answer() == {"held": [gpu]}
    assert driver_of(host, gpu) == VFIO_DRIVER

    waiting.tell("end")
    assert waiting.answer() == {"ended": True}
    assert driver_of(host, gpu) == DRIVER


def test_gpu_that_left_the_bus_is_quarantined_and_can_be_released_after_it_returns(
    start_host: StartHost,
) -> None:
    host = start_host(2)
    gpus = gpu_addresses(host)
    holder = Holder(host, "holder").start()
    (held,) = _held(holder.answer())
    (other,) = set(gpus) - {held}
    device_id = _device_id(host, held)
    release = ("python3", "-c", _RELEASE, held)

    host.gpu(device_id).fall_off_bus()
    holder.tell("reset")
    error = str(holder.answer()["error"])
    assert f"GPU {held} is quarantined: {held} does not answer" in error
    assert f"`harness gpu host release {held}`" in error

    next_holder = Holder(host, "next").start()
    assert next_holder.answer() == {"held": [other]}
    next_holder.tell("end")
    assert next_holder.answer() == {"ended": True}
    assert driver_of(host, other) == DRIVER

    holder.tell("end")
    assert holder.answer() == {"ended": True}
    refused = host.guest.run(*release)
    assert not refused.ok
    assert f"{held} does not answer" in refused.stderr, refused.render()
    host.gpu(device_id).return_to_bus()
    host.guest.output_of(*release)
    assert driver_of(host, held) == DRIVER


def _held(answer: object) -> list[str]:
    assert isinstance(answer, dict), answer
    held = answer["held"]
    assert isinstance(held, list), answer
    return held


def _device_id(host: LabMachine, address: str) -> str:
    """Return the emulated GPU behind a host's function: its trace grows when the function is read."""
    before = {name: len(trace.accesses) for name, trace in host.gpu_traces().items()}
    host.guest.output_of("lspci", "-s", address, "-x")
    grown = [
        name for name, trace in host.gpu_traces().items() if len(trace.accesses) > before[name]
    ]
    (device_id,) = grown
    return device_id
