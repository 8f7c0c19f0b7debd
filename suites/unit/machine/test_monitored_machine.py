"""What every VM driver's machines do over QEMU's monitor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.gpu import GpuAttachment, HostGpuAttachment
from harness.machine import monitored_machine
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.device_state import DeviceStateError
from harness.machine.monitored_machine import MonitoredMachine
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec, an_attachment
from suites.unit.machine.fake_monitor import FakeMonitor, an_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.channels.console import Console
    from harness.machine.description.spec import MachineSpec

DONE = an_event("MIGRATION", status="completed")


class FakeMachine(MonitoredMachine):
    """A machine whose monitor is scripted; `steps` records what the base class asks of it."""

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        monitor: FakeMonitor,
        at_start: Sequence[Attachment] = (),
    ) -> None:
        super().__init__(spec, folder, at_start)
        self._fake = monitor
        self.steps: list[str] = []
        self.ending: str | None = None
        self.console = cast("Console", SimpleNamespace(tail=lambda: "Reached target Power-Off."))

    @property
    @override
    def monitor(self) -> FakeMonitor:
        return self._fake

    @override
    def _start(self) -> None:
        raise HarnessError("QEMU does not start.")

    @override
    def close(self) -> None:
        self.steps.append("close")

    @override
    def _pause(self) -> None:
        self.steps.append("pause")

    @override
    def _resume(self) -> None:
        self.steps.append("resume")

    @override
    def _end_saved(self) -> None:
        self.steps.append("end")

    @override
    def _wait_for_exit(self, deadline: Deadline) -> str | None:
        self.steps.append("wait for exit")
        return self.ending

    @override
    def _last_output(self) -> str:
        return "Its stderr ends with: load of migration failed"

    @override
    def _processor_s(self) -> float:
        return 0.0

    @override
    def _attach_seed(self, seed: Path) -> None:
        self.steps.append(f"attach {seed.name}")

    @override
    def _detach_seed(self, deadline: Deadline) -> None:
        self.steps.append("detach seed")

    @staticmethod
    @override
    def _qemu_id(name: str) -> str:
        return f"ua-{name}"


def a_machine(folder: Path, monitor: FakeMonitor | None = None) -> FakeMachine:
    return FakeMachine(a_machine_spec(root_ports=2), folder, monitor or FakeMonitor())


def soon() -> Deadline:
    return Deadline.after(1.0)


def test_machine_that_does_not_start_is_closed(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)

    with pytest.raises(HarnessError, match="does not start"), machine:
        pass

    assert machine.steps == ["close"]


def test_state_is_saved_of_a_paused_guest_whose_qemu_then_ends(tmp_path: Path) -> None:
    monitor = FakeMonitor(events={"migrate": DONE})
    machine = a_machine(tmp_path, monitor)

    machine.save(tmp_path / "state")

    assert machine.steps == ["pause", "end"]
    assert monitor.commands == ["migrate-set-capabilities", "query-version", "getfd", "migrate"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_saved_state_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("kept")

    with pytest.raises(FileExistsError):
        a_machine(tmp_path).save(tmp_path / "state")

    assert (tmp_path / "state").read_text() == "kept"


def test_guest_runs_once_its_state_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    monitor = FakeMonitor(events={"migrate-incoming": DONE})
    machine = a_machine(tmp_path, monitor)

    machine.restore(tmp_path / "state")

    assert machine.steps == ["resume"]
    assert monitor.arguments["migrate-set-parameters"] == {"announce-rounds": 0}


def test_state_that_qemu_refuses_is_reported_with_its_output_and_starts_nothing(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    state.touch()
    monitor = FakeMonitor(events={"migrate-incoming": an_event("MIGRATION", status="failed")})
    machine = a_machine(tmp_path, monitor)

    with pytest.raises(HarnessError) as caught:
        machine.restore(state)

    assert str(caught.value) == (
        f"QEMU of machine 'node' could not carry out 'migrate-incoming' with the state '{state}'. "
        "It ended as 'failed'. Its stderr ends with: load of migration failed"
    )
    assert machine.steps == ["wait for exit"]


def test_device_is_plugged_into_the_first_port_by_the_id_that_qemu_has(tmp_path: Path) -> None:
    monitor = FakeMonitor()

    a_machine(tmp_path, monitor).plug(an_attachment("gpu0"))

    assert monitor.arguments["device_add"]["bus"] == "ua-rp0"


def test_gpu_of_the_host_gets_the_time_to_lock_the_memory_of_the_guest(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    machine = a_machine(tmp_path, monitor)

    machine.plug(HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0",)))

    assert monitor.limits_s["device_add"] == COMMAND_S + machine.spec.memory_mib / 16


def test_emulated_gpu_is_plugged_within_the_usual_time(tmp_path: Path) -> None:
    monitor = FakeMonitor()

    a_machine(tmp_path, monitor).plug(an_attachment("gpu0"))

    assert monitor.limits_s["device_add"] == COMMAND_S


def test_unplugged_device_frees_its_port(tmp_path: Path) -> None:
    removed = an_event("DEVICE_DELETED", device="gpu0")
    machine = a_machine(tmp_path, FakeMonitor(events={"device_del": removed}))
    machine.plug(an_attachment("gpu0"))

    machine.unplug("gpu0", soon())

    assert machine._ports.free() == 0


def test_device_that_another_removal_is_reported_of_stays_plugged(tmp_path: Path) -> None:
    other = an_event("DEVICE_DELETED", device="gpu1")
    machine = a_machine(tmp_path, FakeMonitor(events={"device_del": other}))
    machine.plug(an_attachment("gpu0"))

    with pytest.raises(HarnessError, match="the removal of device 'gpu0' was not reported"):
        machine.unplug("gpu0", soon())

    assert machine._ports.free() == 1


def test_seed_is_detached_only_where_there_is_one(tmp_path: Path) -> None:
    machine = a_machine(tmp_path)

    machine.unplug_seed(soon())
    machine.plug_seed(tmp_path / "seed.iso")
    machine.unplug_seed(soon())
    machine.unplug_seed(soon())

    assert machine.steps == ["attach seed.iso", "detach seed"]


@pytest.mark.parametrize(
    ("reason", "ending", "described"),
    [
        ("guest-reset", None, "but ended by 'guest-reset'"),
        ("guest-shutdown", "crashed", "but ended as 'crashed' by 'guest-shutdown'"),
    ],
)
def test_end_that_is_no_power_off_is_reported_with_the_console(
    tmp_path: Path, reason: str, ending: str | None, described: str
) -> None:
    monitor = FakeMonitor()
    monitor.recorded.append(an_event("SHUTDOWN", reason=reason))
    machine = a_machine(tmp_path, monitor)
    machine.ending = ending

    with pytest.raises(HarnessError) as caught:
        machine.wait_for_power_off(soon())

    assert described in str(caught.value)
    assert str(caught.value).endswith("Reached target Power-Off.")


def test_power_off_is_complete_once_qemu_has_ended(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    monitor.recorded.append(an_event("SHUTDOWN", reason="guest-shutdown"))
    machine = a_machine(tmp_path, monitor)

    machine.wait_for_power_off(soon())

    assert machine.steps == ["wait for exit"]


USERNET = "  TCP[HOST_FORWARD]  23       127.0.0.1  34567      10.0.2.15    22     0     0\r\n"


def test_ssh_port_is_the_one_that_qemu_forwards(tmp_path: Path) -> None:
    monitor = FakeMonitor(results={"human-monitor-command": USERNET})

    assert a_machine(tmp_path, monitor).ssh_port() == 34567

    assert monitor.arguments["human-monitor-command"] == {"command-line": "info usernet"}


def test_rest_of_a_guest_is_judged_by_the_time_that_its_qemu_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float, Deadline]] = []

    def wait(name: str, processor_s: Callable[[], float], deadline: Deadline) -> None:
        asked.append((name, processor_s(), deadline))

    monkeypatch.setattr(monitored_machine, "wait_until_idle", wait)
    deadline = soon()

    a_machine(tmp_path).wait_until_idle(deadline)

    assert asked == [("node", 0.0, deadline)]


def test_guest_goes_on_once_its_whole_state_was_saved_and_its_disk_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_machine(tmp_path)
    monkeypatch.setattr(
        monitored_machine,
        "save_whole_state",
        lambda _, name, state: machine.steps.append(f"save {name} to {state.name}"),
    )

    with machine.saved_whole(tmp_path / "memory.zst"):
        machine.steps.append("copy the disk")

    assert machine.steps == ["pause", "save node to memory.zst", "copy the disk", "resume"]


@pytest.mark.parametrize("where", ["state", "disk"])
def test_guest_goes_on_where_it_could_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    machine = a_machine(tmp_path)

    def save(*_: object) -> None:
        if where == "state":
            raise DeviceStateError("QEMU refused.")

    monkeypatch.setattr(monitored_machine, "save_whole_state", save)

    def save_all() -> None:
        with machine.saved_whole(tmp_path / "memory.zst"):
            raise HarnessError("The disk could not be copied.")

    with pytest.raises(HarnessError, match="refused" if where == "state" else "be copied"):
        save_all()

    assert machine.steps[-1] == "resume"


def test_whole_state_that_was_loaded_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = FakeMonitor()
    machine = a_machine(tmp_path, monitor)
    loaded: list[object] = []
    monkeypatch.setattr(monitored_machine, "restore_whole_state", lambda *how: loaded.append(how))

    machine.restore_whole(tmp_path / "memory.zst")

    assert loaded == [(monitor, "node", tmp_path / "memory.zst")]
    assert machine.steps == ["resume"]


def test_whole_state_that_qemu_refuses_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise DeviceStateError("It is another machine's.")

    monkeypatch.setattr(monitored_machine, "restore_whole_state", refuse)
    machine = a_machine(tmp_path)

    with pytest.raises(
        HarnessError, match=r"^It is another machine's\. Its stderr ends with: load of migration"
    ):
        machine.restore_whole(tmp_path / "memory.zst")

    assert machine.steps == ["wait for exit"]


def test_machine_that_boots_from_a_seed_has_it_taken_out_again(tmp_path: Path) -> None:
    spec = a_machine_spec(seed=tmp_path / "seed.iso")
    machine = FakeMachine(spec, tmp_path, FakeMonitor())

    machine.unplug_seed(soon())

    assert machine.steps == ["detach seed"]
    assert machine.serial_log == tmp_path / "serial.log"


def test_devices_at_the_start_take_the_first_ports(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    machine = FakeMachine(a_machine_spec(root_ports=2), tmp_path, monitor, [an_attachment("gpu0")])

    machine.plug(an_attachment("gpu1"))

    assert monitor.arguments["device_add"]["bus"] == "ua-rp1"


def test_socket_of_a_device_is_handed_to_qemu_by_a_name_of_its_own(tmp_path: Path) -> None:
    monitor = FakeMonitor()
    gpu = GpuAttachment(id="gpu0", driver="x-pci-proxy-dev", fd=7, root_port_window_mib=64)

    a_machine(tmp_path, monitor).plug(gpu)

    assert monitor.commands == ["getfd", "device_add"]
    assert monitor.descriptors == {"getfd": 7}
    assert monitor.arguments["getfd"] == {"fdname": "fd-gpu0"}
    assert monitor.arguments["device_add"]["fd"] == "fd-gpu0"


def test_removal_that_was_reported_before_does_not_count(tmp_path: Path) -> None:
    """A device of this id may have been plugged and unplugged before."""
    monitor = FakeMonitor()
    monitor.recorded.append(an_event("DEVICE_DELETED", device="gpu0"))
    machine = a_machine(tmp_path, monitor)
    machine.plug(an_attachment("gpu0"))

    with pytest.raises(HarnessError, match="the removal of device 'gpu0' was not reported"):
        machine.unplug("gpu0", soon())

    assert monitor.arguments["device_del"] == {"id": "gpu0"}
