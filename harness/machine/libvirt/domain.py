"""Starts one domain paused, watches its events, ends it, and verifies that it has ended."""

from __future__ import annotations

import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.errors import (
    Code,
    ConnectionLostError,
    ErrorContext,
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
#: libvirt's error codes for calls on a domain that has ended.
_IS_OVER = frozenset({Code.NO_DOMAIN, Code.OPERATION_INVALID})

_LOG = logging.getLogger(__name__)


class Domain:
    """The transient domain of machine `machine`, which libvirt ends when the connection ends."""

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
        """Start the domain paused. `resume` lets its guest run.

        Raises HarnessError with libvirt's message if libvirt refuses. A domain that starts after
        the time limit is ended at once.
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
            connection,
            name=self.name,
            uuid=self.uuid,
            domain=self._raw,
            listener=self._report_event,
        )
        self._watches.callback(self._events.close)

    def _remedy(self, error: LibvirtError, emulator: str) -> str:
        if "already" in str(error):
            return (
                f"Another domain has the name '{self.name}' or its UUID; run again to get a new "
                f"name and UUID, or end that domain by `virsh destroy {self.name}`."
            )
        return (
            f"If '{emulator}' lacks a device or can't be started, name another QEMU by --qemu; if "
            "libvirt does not support an element, use a newer libvirt, or --machine-driver=qemu."
        )

    def _end_late(self, raw: Any) -> None:
        """End a domain that started after the harness had given up waiting for the start."""
        try:
            raw.destroy()
        except load_libvirt().libvirtError as error:
            context = ErrorContext.of(error)
            if context.code not in _IS_OVER:
                _LOG.warning(
                    "Machine '%s' started after its start was given up, and could not be ended: %s; "
                    "end it by `virsh destroy %s`",
                    *(self._machine, context.message.rstrip("."), self.name),
                )

    @property
    def raw(self) -> Any:
        """Return libvirt's own object."""
        return self._raw

    @property
    def is_lost(self) -> bool:
        """Return whether the libvirtd that started the domain has ended."""
        return self._connection.is_lost or self._connection.generation != self._generation

    @property
    def is_running(self) -> bool:
        return self._raw is not None and not self._has_ended and not self.is_lost

    def _report_event(self, event: DomainEvent) -> None:
        if event.kind in {EventKind.STOPPED, EventKind.CRASHED}:
            self._has_ended = True
            self.monitor.note_end(str(event))

    def resume(self) -> None:
        """Let the guest run."""
        self._connection.run(f"the resume of machine '{self._machine}'", self._raw.resume)

    def suspend(self) -> None:
        """Pause the guest."""
        self._connection.run(f"the pause of machine '{self._machine}'", self._raw.suspend)

    def processor_s(self) -> float:
        """Return the processor time that the domain's QEMU has used, in seconds."""
        info = self._connection.run(f"the query of machine '{self._machine}'", self._raw.info)
        return float(info[4]) / 1e9

    def attach(self, what: str, xml: str) -> None:
        """Plug a device in."""
        self._connection.run(
            f"the plugging of {what} into machine '{self._machine}'",
            lambda: self._raw.attachDevice(xml),
        )

    def detach(self, what: str, alias: str, deadline: Deadline) -> None:
        """Ask the guest through libvirt to release a device, and wait for its removal."""
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
        """Wait until the domain's QEMU has ended, and return the cause, such as `POWERED_OFF`."""
        event = self._events.wait_for(
            f"the end of machine '{self._machine}'", kinds(EventKind.STOPPED), deadline
        )
        return _ENDINGS.get(event.detail, f"number {event.detail}")

    def destroy(self) -> None:
        """End the domain if it has not ended, and verify that libvirt no longer lists it.

        A domain survives a crash of libvirtd. After a crash, the restarted libvirtd ends the
        domain. Raises HarnessError if no libvirtd answers.
        """
        if not self._may_exist or self._has_ended:
            return
        # A domain that is still starting may appear later. `close` looks for that domain again.
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
                f"Machine '{self._machine}' may still run: {error} Once a libvirtd answers again, look "
                f"for its domain by `virsh list`, and end it by `virsh destroy {self.name}`."
            ) from error
        left = connection.run(
            "the list of domains", lambda: [each.UUIDString() for each in raw.listAllDomains(0)]
        )
        if self.uuid in left:
            raise HarnessError(
                f"Machine '{self._machine}' was ended, but libvirt at '{connection.uri}' still lists "
                f"its domain '{self.name}'; end it by `virsh destroy {self.name}`."
            )
        if has_begun:
            self._has_ended = True

    def close(self) -> None:
        """End the domain, and stop watching it."""
        with self._watches:
            self.destroy()
