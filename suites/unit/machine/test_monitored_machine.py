"""The behaviour over QEMU's monitor that the machines of all VM drivers share."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu import GpuAttachment, HostGpuAttachment
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.monitored_machine import RootPorts, wait_until_idle
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.description.builders import a_machine_spec, an_attachment
from suites.unit.machine.fake_machine import FakeMachine, a_machine, soon
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_machine_that_does_not_start_is_closed(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)
    machine.start_error = KeyboardInterrupt("Ctrl-C")

    with pytest.raises(KeyboardInterrupt, match=r"Ctrl-C"), machine:
        pass

    assert machine.steps == ["close"]


def test_device_is_plugged_into_the_first_free_root_port(
    tmp_path: Path,
) -> None:
    monitor = FakeMonitor({"device_add": HarnessError("Bus 'rp0' is gone.")})
    machine = a_machine(tmp_path, monitor)
    with pytest.raises(HarnessError, match="is gone"):
        machine.plug(an_attachment("gpu0"))
    assert machine._ports.free() == 0

    monitor.results["device_add"] = {}
    machine.plug(an_attachment("gpu0"))

    assert monitor.arguments["device_add"]["bus"] == "ua-rp0"
    assert machine._ports.free() == 1


def test_time_limit_for_plugging_a_host_gpu_grows_with_the_memory_of_the_guest(
    tmp_path: Path,
) -> None:
    """Each PCI function has this limit, because QEMU may lock the memory for any function."""
    monitor = FakeMonitor()
    machine = a_machine(tmp_path, monitor)

    machine.plug(an_attachment("emulated"))
    assert monitor.limits_s["device_add"] == COMMAND_S
    machine.plug(HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0", "0000:65:00.1")))

    assert monitor.limits_s["device_add"] == COMMAND_S + machine.spec.memory_mib / 16


def test_unplugged_device_frees_its_port(tmp_path: Path) -> None:
    removed = an_event("DEVICE_DELETED", device="gpu0")
    monitor = FakeMonitor(events={"device_del": removed})
    machine = a_machine(tmp_path, monitor)
    machine.plug(an_attachment("gpu0"))
    deadline = soon()

    machine.unplug("gpu0", deadline)

    assert machine._ports.free() == 0
    assert monitor.deadlines == [deadline]


def test_seed_is_unplugged_only_if_a_seed_is_plugged(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)

    machine.unplug_seed(soon())
    machine.plug_seed(tmp_path / "seed.iso")
    machine.unplug_seed(soon())
    machine.unplug_seed(soon())

    assert machine.steps == ["attach seed.iso", "detach seed"]


def test_failed_plug_or_unplug_of_a_seed_can_be_repeated(tmp_path: Path) -> None:
    """A failed attempt does not change the state of the seed."""
    machine = a_machine(tmp_path)
    machine.seed_error = HarnessError("not now")
    with pytest.raises(HarnessError, match="not now"):
        machine.plug_seed(tmp_path / "seed.iso")
    machine.unplug_seed(soon())
    assert machine.steps == ["attach seed.iso"]

    machine.seed_error = None
    machine.plug_seed(tmp_path / "seed.iso")
    machine.seed_error = HarnessError("not now")
    with pytest.raises(HarnessError, match="not now"):
        machine.unplug_seed(soon())
    machine.seed_error = None
    machine.unplug_seed(soon())

    assert machine.steps[2:] == ["detach seed", "detach seed"]


def test_error_for_a_machine_that_did_not_power_off_has_the_last_console_lines(
    tmp_path: Path,
) -> None:
    for reason, ending, described in (
        ("guest-reset", None, "by 'guest-reset'"),
        ("guest-shutdown", "crashed", "as 'crashed' by 'guest-shutdown'"),
    ):
        monitor = FakeMonitor()
        monitor.recorded.append(an_event("SHUTDOWN", reason=reason))
        machine = a_machine(tmp_path, monitor)
        machine.ending = ending

        with pytest.raises(
            HarnessError,
            match=rf"ended {described}\. The last lines of its console:\nReached target Power-Off",
        ):
            machine.wait_for_power_off(soon())


def test_power_off_is_complete_when_qemu_has_ended(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    monitor.recorded.append(an_event("SHUTDOWN", reason="guest-shutdown"))
    machine = a_machine(tmp_path, monitor)
    deadline = soon()

    machine.wait_for_power_off(deadline)

    assert machine.steps == ["wait for exit"]
    assert (monitor.deadlines, machine.deadlines) == ([deadline], [deadline])


def test_wait_for_power_off_does_not_wait_for_qemu_to_exit_without_a_power_off_event(
    tmp_path: Path,
) -> None:
    machine = a_machine(tmp_path)

    with pytest.raises(HarnessError, match=r"^its power-off was not reported$"):
        machine.wait_for_power_off(soon())

    assert machine.steps == []


USERNET = "  TCP[HOST_FORWARD]  23       127.0.0.1  34567      10.0.2.15    22     0     0\r\n"


def test_ssh_port_is_forwarded_by_qemu(tmp_path: Path) -> None:
    monitor = FakeMonitor(results={"human-monitor-command": USERNET})

    assert a_machine(tmp_path, monitor).ssh_port() == 34567

    assert monitor.arguments["human-monitor-command"] == {"command-line": "info usernet"}


def test_seed_with_which_a_machine_booted_can_be_unplugged(tmp_path: Path) -> None:
    spec = a_machine_spec(seed=tmp_path / "seed.iso")
    machine = FakeMachine(spec, tmp_path, FakeMonitor())

    machine.unplug_seed(soon())

    assert machine.steps == ["detach seed"]
    assert machine.serial_log == tmp_path / "serial.log"


def test_device_that_is_plugged_after_the_start_gets_the_port_after_the_devices_at_the_start(
    tmp_path: Path,
) -> None:
    monitor = FakeMonitor()
    machine = FakeMachine(a_machine_spec(root_ports=2), tmp_path, monitor, [an_attachment("gpu0")])

    machine.plug(an_attachment("gpu1"))

    assert monitor.arguments["device_add"]["bus"] == "ua-rp1"


def test_qemu_gets_the_socket_of_a_device_as_a_descriptor_named_after_the_device(
    tmp_path: Path,
) -> None:
    monitor = FakeMonitor()
    gpu = GpuAttachment(id="gpu0", driver="x-pci-proxy-dev", fd=7, root_port_window_mib=64)

    a_machine(tmp_path, monitor).plug(gpu)

    assert monitor.commands == ["getfd", "device_add"]
    assert monitor.descriptors == {"getfd": 7}
    assert monitor.arguments["getfd"] == {"fdname": "fd-gpu0"}
    assert monitor.arguments["device_add"]["fd"] == "fd-gpu0"


def test_qemu_gets_no_descriptor_for_a_vfio_user_device(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    gpu = GpuAttachment(id="gpu0", driver="vfio-user-pci", root_port_window_mib=64)

    a_machine(tmp_path, monitor).plug(gpu)

    device = {"driver": "vfio-user-pci", "id": "gpu0", "bus": "ua-rp0"}
    assert monitor.calls == [("device_add", device)]


def test_unplug_ignores_removal_events_of_other_devices_and_earlier_removals(
    tmp_path: Path,
) -> None:
    """A device with the same id may have been unplugged before."""
    other = an_event("DEVICE_DELETED", device="gpu1")
    monitor = FakeMonitor(events={"device_del": other})
    monitor.recorded.append(an_event("DEVICE_DELETED", device="gpu0"))
    machine = a_machine(tmp_path, monitor)
    machine.plug(an_attachment("gpu0"))

    with pytest.raises(HarnessError, match="the removal of device 'gpu0' was not reported"):
        machine.unplug("gpu0", soon())

    assert monitor.arguments["device_del"] == {"id": "gpu0"}
    assert machine._ports.free() == 1


def a_large_attachment(*, window_mib: int, aperture_mib: int = 0) -> GpuAttachment:
    return GpuAttachment(
        id="gpu0",
        driver="vfio-user-pci",
        root_port_window_mib=window_mib,
        aperture_mib=aperture_mib,
    )


def test_port_of_a_removed_device_is_free_again() -> None:
    ports = RootPorts(a_machine_spec(root_ports=2))
    ports.take("gpu0", "rp0")
    ports.take("gpu1", "rp1")
    ports.release("without a port")
    with pytest.raises(HarnessError, match="All 2 root ports of machine 'node'"):
        ports.free()

    ports.release("gpu0")

    assert ports.free() == 0


def test_error_for_a_device_that_exceeds_the_port_window_or_aperture_has_both_sizes() -> None:
    ports = RootPorts(a_machine_spec(root_port_window_mib=64, root_port_aperture_mib=256))

    assert ports.choose(a_large_attachment(window_mib=64, aperture_mib=256)) == "rp0"
    with pytest.raises(
        HarnessError,
        match="reserve 64 MiB, but device 'gpu0' needs 65; raise 'root_port_window_mib'",
    ):
        ports.choose(a_large_attachment(window_mib=65))
    with pytest.raises(
        HarnessError,
        match=r"reserve 256 MiB .* device 'gpu0' needs 257; raise 'root_port_aperture_mib'",
    ):
        ports.choose(a_large_attachment(window_mib=64, aperture_mib=257))
    with pytest.raises(HarnessError, match="reserve 0 MiB for 64-bit BARs"):
        RootPorts(a_machine_spec()).choose(a_large_attachment(window_mib=64, aperture_mib=1))


LONG_S = 20.0


def used(*shares: float) -> Iterator[float]:
    """Yield the processor time at each measurement of a guest that uses these shares of a core."""
    return itertools.accumulate((100.0, *shares))


def test_guest_is_idle_after_five_consecutive_idle_measurements() -> None:
    looks = used(0.9, 0.01, 0.01, 0.5, 0.01, 0.02, 0.01, 0.0, 0.05, 9.0)

    wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, FakeClock()))

    assert list(looks) == [pytest.approx(110.51)]


def test_idle_guest_is_measured_six_times_at_intervals_of_one_second() -> None:
    """The first sample has no predecessor. Up to 5 % of a core counts as idle."""
    clock = FakeClock()
    looks = iter([0.0, 0.05, 0.05, 0.05, 0.05, 0.05, 9.0])

    wait_until_idle("node", lambda: next(looks), Deadline.after(LONG_S, clock))

    assert list(looks) == [9.0]
    assert clock.sleeps == 5 * [1.0]


def test_error_for_a_guest_that_is_never_idle_has_the_cpu_usage() -> None:
    """The deadline passes between two samples, so the last interval is shorter."""
    clock = FakeClock()
    deadline = Deadline.after(LONG_S - 0.9, clock)
    started = clock.monotonic()

    with pytest.raises(HarnessError, match=r"last seen: 75% of a core in use\. "):
        wait_until_idle("node", lambda: 0.75 * (clock.monotonic() - started), deadline)
