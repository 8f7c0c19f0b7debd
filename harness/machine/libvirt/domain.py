"""The life of one domain: begun paused, heard of by events, ended, and shown to be gone."""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.complaint import (
    Code,
    Complaint,
    ConnectionLostError,
    LibvirtError,
)
from harness.machine.libvirt.events import DomainEvents, EventKind, kinds
from harness.machine.libvirt.monitor import DomainMonitor
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.events import DomainEvent
    from harness.machine.libvirt.monitor import MonitorEvents

_REOPEN_S = 10.0
POWERED_OFF = "shutdown"
#: virDomainEventStoppedDetailType of libvirt-domain.h.
_ENDINGS = {
    0: POWERED_OFF,
    1: "destroyed",
    2: "crashed",
    3: "migrated",
    4: "saved",
    5: "failed",
    6: "from snapshot",
}
#: What libvirt says of a domain that has ended.
_IS_OVER = frozenset({Code.NO_DOMAIN, Code.OPERATION_INVALID})

_LOG = logging.getLogger(__name__)


class Domain:
    """A transient domain of machine `machine`, which libvirt ends with its connection."""

    def __init__(
        self, connection: Connection, monitor_events: MonitorEvents, *, machine: str
    ) -> None:
        self._connection = connection
        self._monitor_events = monitor_events
        self._machine = machine
        self.uuid = str(uuid.uuid4())
        self.name = f"{machine}-{self.uuid[:8]}"
        self._raw: Any = None
        self._generation = connection.generation
        self._may_exist = False
        self._has_ended = False
        self._watches = contextlib.ExitStack()

    def start(self, xml: str, *, emulator: str) -> None:
        """Start the domain, whose guest executes nothing before `resume`.

        Raises HarnessError with libvirt's words where it refuses; then there is none. One that
        comes when nobody waits any more is ended as it comes.
        """
        connection, name = self._connection, self._machine
        libvirt, raw = load_libvirt(), connection.raw
        flags = libvirt.VIR_DOMAIN_START_PAUSED | libvirt.VIR_DOMAIN_START_AUTODESTROY
        self._generation = connection.generation
        self._may_exist = True
        try:
            self._raw = connection.run(
                f"the start of machine '{name}'",
                lambda: raw.createXML(xml, flags),
                late=self._end_late,
            )
        except LibvirtError as error:
            self._may_exist = False
            raise HarnessError(f"{error} {self._remedy(error, emulator)}") from error
        self.monitor = DomainMonitor(
            connection, self._monitor_events, self._raw, name=name, uuid=self.uuid
        )
        self._watches.callback(self.monitor.close)
        self._events = DomainEvents(
            connection, name=self.name, uuid=self.uuid, domain=self._raw, listener=self._hear
        )
        self._watches.callback(self._events.close)

    def _remedy(self, error: LibvirtError, emulator: str) -> str:
        if "already" in str(error):
            return (
                f"Somebody's domain has the name '{self.name}' or its UUID; run again for others, "
                f"or end that one by `virsh destroy {self.name}`."
            )
        return (
            f"Where '{emulator}' lacks a device or can't be started, name another by --qemu; where "
            "libvirt has no word for something, use a newer one, or --machine-driver=qemu."
        )

    def _end_late(self, raw: Any) -> None:
        """End the domain of a start that was given up; whoever wanted it has gone on."""
        try:
            raw.destroy()
        except load_libvirt().libvirtError as error:
            complaint = Complaint.of(error)
            if complaint.code not in _IS_OVER:
                _LOG.warning(
                    "Machine '%s' began after its start was given up, and could not be ended: %s; "
                    "end it by `virsh destroy %s`",
                    *(self._machine, complaint.message.rstrip("."), self.name),
                )

    @property
    def raw(self) -> Any:
        """Return libvirt's own object."""
        return self._raw

    @property
    def is_lost(self) -> bool:
        """Tell whether the libvirtd that began it has gone."""
        return self._connection.is_lost or self._connection.generation != self._generation

    @property
    def is_running(self) -> bool:
        return self._raw is not None and not self._has_ended and not self.is_lost

    def _hear(self, event: DomainEvent) -> None:
        if event.kind in {EventKind.STOPPED, EventKind.CRASHED}:
            self._has_ended = True
            self.monitor.note_end(str(event))

    def resume(self) -> None:
        """Let the guest go, or go on."""
        self._connection.run(f"the go of machine '{self._machine}'", self._raw.resume)

    def suspend(self) -> None:
        """Halt the guest."""
        self._connection.run(f"the halt of machine '{self._machine}'", self._raw.suspend)

    def processor_s(self) -> float:
        """Return the processor time that its QEMU has taken."""
        info = self._connection.run(f"the query of machine '{self._machine}'", self._raw.info)
        return float(info[4]) / 1e9

    def attach(self, what: str, xml: str) -> None:
        """Plug a device in."""
        self._connection.run(
            f"the plugging of {what} into machine '{self._machine}'",
            lambda: self._raw.attachDevice(xml),
        )

    def detach(self, what: str, alias: str, deadline: Deadline) -> None:
        """Have libvirt ask the guest to let go of a device, and wait until it has."""
        since = len(self._events.seen)
        self._connection.run(
            f"the unplugging of {what} from machine '{self._machine}'",
            lambda: self._raw.detachDeviceAlias(alias, 0),
        )
        self._events.wait_for(
            f"the removal of {what}",
            lambda event: event.kind is EventKind.DEVICE_REMOVED and event.device == alias,
            deadline,
            since=since,
        )

    def wait_for_end(self, deadline: Deadline) -> str:
        """Wait until its QEMU has ended, and return how libvirt calls that; `POWERED_OFF` is one."""
        event = self._events.wait_for(
            f"the end of machine '{self._machine}'", kinds(EventKind.STOPPED), deadline
        )
        return _ENDINGS.get(event.detail, f"number {event.detail}")

    def destroy(self) -> None:
        """End the domain where it has not ended, and show that libvirt lists it no more.

        Where libvirtd went meanwhile, the one that came instead is asked: after a crash of
        libvirtd its domains go on. Raises HarnessError where none came.
        """
        if not self._may_exist or self._has_ended:
            return
        # One that is still starting may come after this, and is looked for again.
        has_begun = self._raw is not None
        connection = self._connection
        try:
            connection.reopen(Deadline.after(_REOPEN_S))
            raw = connection.raw
            connection.run(
                f"the end of machine '{self._machine}'",
                lambda: raw.lookupByUUIDString(self.uuid).destroy(),
            )
        except LibvirtError as error:
            if error.code not in _IS_OVER:
                raise
        except (ConnectionLostError, RequirementError) as error:
            raise HarnessError(
                f"Machine '{self._machine}' may run on: {error} Once a libvirtd answers there, look "
                f"for its domain by `virsh list`, and end it by `virsh destroy {self.name}`."
            ) from error
        if has_begun:
            self._has_ended = True
        left = connection.run(
            "the list of domains", lambda: [each.UUIDString() for each in raw.listAllDomains(0)]
        )
        if self.uuid in left:
            raise HarnessError(
                f"Machine '{self._machine}' was ended, but libvirt at '{connection.uri}' still lists "
                f"its domain '{self.name}'; end it by `virsh destroy {self.name}`."
            )

    def close(self) -> None:
        """End the domain, and hear of it no more."""
        with self._watches:
            self.destroy()
