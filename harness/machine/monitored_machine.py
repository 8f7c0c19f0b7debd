"""The actions that VM drivers share, over QEMU's monitor: plug, save, restore, power off."""

from __future__ import annotations

import abc
import contextlib
import math
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu import HostGpuAttachment
from harness.machine.channels.event_log import names
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.description.argv import root_port_id, ssh_port_of
from harness.machine.device_state import (
    DeviceStateError,
    load_device_state,
    restore_whole_state,
    save_device_state,
    save_whole_state,
)
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from harness.gpu import Attachment
    from harness.machine.channels.agent import Agent
    from harness.machine.channels.console import Console
    from harness.machine.channels.event_log import QmpEvent
    from harness.machine.channels.monitor import Monitor
    from harness.machine.description.spec import MachineSpec


#: A guest is idle if it uses at most this share of a core in this number of consecutive
#: measurements. All measurements take five seconds together, so that udev's workers, which end
#: after three idle seconds, end before the save and not in each clone.
_IDLE_SHARE = 0.05
_INTERVAL_S = 1.0
_IDLE_MEASUREMENTS = 5


def wait_until_idle(name: str, processor_s: Callable[[], float], deadline: Deadline) -> None:
    """Wait until machine `name` is idle. `processor_s` returns the processor time of its VM so far.

    Raises HarnessError if the machine does not become idle before the deadline.
    """
    clock = deadline.clock
    # The first measurement has no earlier measurement to compare with.
    used, at, share, idle = -math.inf, clock.monotonic() - _INTERVAL_S, math.inf, 0

    def poll() -> Observation[bool]:
        nonlocal used, at, share, idle
        now = clock.monotonic()
        # The last call before the deadline may follow another call too closely for a measurement.
        if now - at >= _INTERVAL_S / 2:
            used_now = processor_s()
            share, used, at = (used_now - used) / (now - at), used_now, now
            idle = idle + 1 if share <= _IDLE_SHARE else 0
        return Observation(
            True if idle >= _IDLE_MEASUREMENTS else None, f"{share:.0%} of a core in use"
        )

    try:
        wait_for(f"machine '{name}' to become idle", poll, deadline, interval_s=_INTERVAL_S)
    except WaitTimeoutError as error:
        raise HarnessError(
            f"{error} A checkpoint needs an idle guest; end the processes that keep the guest busy."
        ) from error


class RootPorts:
    """The root ports of one machine. Devices that are attached at its start use the first ports."""

    def __init__(self, spec: MachineSpec, attachments: Sequence[Attachment] = ()) -> None:
        self._spec = spec
        self._taken = {
            attachment.id: root_port_id(index) for index, attachment in enumerate(attachments)
        }

    def choose(self, attachment: Attachment) -> str:
        """Return the first free root port. `take` assigns the port once the device is plugged.

        Raises HarnessError if no port is free, or if the ports' windows are too small for the
        device.
        """
        spec = self._spec
        port = root_port_id(self.free())
        if attachment.root_port_window_mib > spec.root_port_window_mib:
            raise HarnessError(
                f"The root ports of machine '{spec.name}' reserve {spec.root_port_window_mib} MiB, "
                f"but device '{attachment.id}' needs {attachment.root_port_window_mib}; raise "
                "'root_port_window_mib'."
            )
        if attachment.aperture_mib > spec.root_port_aperture_mib:
            raise HarnessError(
                f"The root ports of machine '{spec.name}' reserve {spec.root_port_aperture_mib} "
                f"MiB for 64-bit BARs, but device '{attachment.id}' needs "
                f"{attachment.aperture_mib}; raise 'root_port_aperture_mib'."
            )
        return port

    def free(self) -> int:
        """Return the number of the first free root port. Raises HarnessError if none is free."""
        taken = set(self._taken.values())
        for index in range(self._spec.root_ports):
            if root_port_id(index) not in taken:
                return index
        raise HarnessError(
            f"All {self._spec.root_ports} root ports of machine '{self._spec.name}' are in use; raise "
            "'root_ports'."
        )

    def take(self, device_id: str, port: str) -> None:
        """Record that a device uses a port."""
        self._taken[device_id] = port

    def release(self, device_id: str) -> None:
        """Record that a device was removed."""
        self._taken.pop(device_id, None)


#: Seconds to wait for the end of a QEMU that can't load a state. QEMU prints the reason just
#: before it ends.
_LAST_OUTPUT_S = 2.0
#: For a guest with a GPU of the host, VFIO locks all memory before QEMU answers. A host locks more
#: than a GiB per second, but a host that is itself an emulated machine locks only some ten MiB per
#: second.
_LOCKED_MIB_PER_S = 16.0


class MonitoredMachine(abc.ABC):
    """A machine that QEMU's monitor controls. A subclass starts and ends QEMU.

    The machine ends with its `with` block. `at_start` are the devices that use the first root
    ports.
    """

    console: Console
    agent: Agent

    def __init__(
        self, spec: MachineSpec, folder: Path, at_start: Sequence[Attachment] = ()
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._has_seed = spec.seed is not None
        self._ports = RootPorts(spec, at_start)
        self._resources = contextlib.ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    @abc.abstractmethod
    def monitor(self) -> Monitor:
        """Return QEMU's monitor."""

    @abc.abstractmethod
    def _start(self) -> None:
        """Start QEMU, and connect monitor, console and agent."""

    @abc.abstractmethod
    def close(self) -> None:
        """End QEMU, and verify that it has ended."""

    @abc.abstractmethod
    def _pause(self) -> None:
        """Stop the guest's CPUs."""

    @abc.abstractmethod
    def _resume(self) -> None:
        """Let the guest's CPUs run."""

    @abc.abstractmethod
    def _end_saved(self) -> None:
        """End a QEMU whose state has been saved."""

    @abc.abstractmethod
    def _wait_for_exit(self, deadline: Deadline) -> str | None:
        """Wait until QEMU has ended. Return how QEMU ended, or None if the guest powered off."""

    @abc.abstractmethod
    def _last_output(self) -> str:
        """Return a sentence with the end of QEMU's output."""

    @abc.abstractmethod
    def _processor_s(self) -> float:
        """Return the processor time that QEMU has used, in seconds."""

    @abc.abstractmethod
    def _attach_seed(self, seed: Path) -> None:
        """Plug the seed volume into its root port."""

    @abc.abstractmethod
    def _detach_seed(self, deadline: Deadline) -> None:
        """Unplug the seed volume from its root port."""

    @staticmethod
    def _qemu_id(name: str) -> str:
        """Return QEMU's id for the device that the spec calls `name`."""
        return name

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""
        return self.monitor.events

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server."""
        answer = self.monitor.execute("human-monitor-command", {"command-line": "info usernet"})
        return ssh_port_of(str(answer))

    def plug(self, attachment: Attachment) -> None:
        """Hot-plug a device into the first free root port.

        Raises HarnessError if no port is free, or if the ports' windows are too small for the
        device.
        """
        port = self._ports.choose(attachment)
        fdname = None
        if attachment.fd is not None:
            fdname = f"fd-{attachment.id}"
            self.monitor.execute("getfd", {"fdname": fdname}, fd=attachment.fd)
        limit_s = COMMAND_S
        if isinstance(attachment, HostGpuAttachment):
            limit_s += self.spec.memory_mib / _LOCKED_MIB_PER_S
        for device in attachment.to_device_add(self._qemu_id(port), fdname):
            self.monitor.execute("device_add", device, limit_s=limit_s)
        self._ports.take(attachment.id, port)

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to release a device, and wait until QEMU has removed it."""
        self._delete_device(device_id, deadline)
        self._ports.release(device_id)

    def _delete_device(self, device_id: str, deadline: Deadline) -> None:
        seen = len(self.events)
        self.monitor.execute("device_del", {"id": device_id})
        self.monitor.wait_for_event(
            f"the removal of device '{device_id}'",
            lambda event: event.name == "DEVICE_DELETED" and event.data.get("device") == device_id,
            deadline,
            since=seen,
        )

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume into a machine that was started without a seed volume."""
        self._attach_seed(seed)
        self._has_seed = True

    def unplug_seed(self, deadline: Deadline) -> None:
        """Unplug the seed volume, if the machine has a seed volume."""
        if self._has_seed:
            self._detach_seed(deadline)
            self._has_seed = False

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest is idle, as QEMU's processor time shows.

        Raises HarnessError if the guest does not become idle before the deadline.
        """
        wait_until_idle(self.spec.name, self._processor_s, deadline)

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end QEMU.

        The guest's memory stays in the file that the spec names. The memory, the state and the disk
        together form the checkpoint. Raises HarnessError if QEMU refuses, for example because a
        plugged device can't be saved.
        """
        self._pause()
        with self._explained():
            save_device_state(self.monitor, self.spec.name, state)
        self._end_saved()

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest run.

        Raises HarnessError if QEMU finds that the state belongs to another machine, or is
        truncated.
        """
        with self._explained():
            load_device_state(self.monitor, self.spec.name, state)
        self._resume()

    @contextlib.contextmanager
    def saved_whole(self, state: Path) -> Iterator[None]:
        """Save memory and devices to the new file `state`. The guest continues after the context.

        In the context the machine's disk is complete and does not change. Raises HarnessError if
        QEMU refuses, for example because a plugged device can't be saved.
        """
        self._pause()
        try:
            with self._explained():
                save_whole_state(self.monitor, self.spec.name, state)
            yield
        finally:
            self._resume()

    def restore_whole(self, state: Path) -> None:
        """Load memory and devices from the file `state`, and let the guest run.

        Raises HarnessError if QEMU finds that the state belongs to another machine, or is
        truncated.
        """
        with self._explained():
            restore_whole_state(self.monitor, self.spec.name, state)
        self._resume()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add QEMU's own output to an error about a state."""
        try:
            yield
        except DeviceStateError as error:
            with contextlib.suppress(HarnessError):
                self._wait_for_exit(Deadline.after(_LAST_OUTPUT_S))
            raise HarnessError(f"{error} {self._last_output()}") from error

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off and its QEMU has ended.

        Raises HarnessError if the guest has rebooted instead, or is still up at the deadline.
        """
        event = self.monitor.wait_for_event("its power-off", names("SHUTDOWN"), deadline)
        ending, reason = self._wait_for_exit(deadline), event.data.get("reason")
        if ending is not None or reason != "guest-shutdown":
            described = "" if ending is None else f" as '{ending}'"
            raise HarnessError(
                f"Machine '{self.spec.name}' was expected to power off, but ended{described} by "
                f"'{reason}'. The last lines of its console:\n{self.console.tail()}"
            )
