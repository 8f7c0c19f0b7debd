"""A domain's QEMU monitor. libvirt passes the QMP commands and events through."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.machine.channels.event_log import EventLog, QmpEvent
from harness.machine.channels.monitor import COMMAND_S
from harness.machine.libvirt.binding import load_libvirt_qemu
from harness.machine.libvirt.errors import lost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.machine.libvirt.connection import Connection
    from harness.provisioning.wait import Deadline


class MonitorEvents:
    """Passes the QMP events of a connection's domains to one listener per domain.

    libvirt's client registers for QMP events once per connection: a second registration, for
    another domain, would never receive an event.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._listeners: dict[str, Callable[[QmpEvent], None]] = {}
        self._registration: tuple[int, int] | None = None

    def listen(self, uuid: str, listener: Callable[[QmpEvent], None]) -> None:
        """Call `listener`, in libvirt's event loop, with each later event of a domain."""
        connection, qemu = self._connection, load_libvirt_qemu()
        with self._lock:
            if self._registration is None or self._registration[0] != connection.generation:
                raw = connection.raw
                number = connection.run(
                    "the registration for QMP events",
                    lambda: qemu.qemuMonitorEventRegister(raw, None, None, self._dispatch, None),
                )
                self._registration = connection.generation, number
            self._listeners[uuid] = listener

    def forget(self, uuid: str) -> None:
        """Stop listening to a domain."""
        connection, qemu = self._connection, load_libvirt_qemu()
        with self._lock:
            self._listeners.pop(uuid, None)
            if self._listeners or self._registration is None:
                return
            (generation, number), self._registration = self._registration, None
            if connection.is_lost or generation != connection.generation:
                return
            raw = connection.raw
            connection.run(
                "the end of the registration for QMP events",
                lambda: qemu.qemuMonitorEventDeregister(raw, number),
            )

    def _dispatch(
        self,
        _raw: object,
        domain: Any,
        name: str,
        seconds: int,
        micros: int,
        details: str | None,
        _opaque: object,
    ) -> None:
        listener = self._listeners.get(domain.UUIDString())
        if listener is not None:
            data = json.loads(details) if details else {}
            listener(QmpEvent(name=name, at_s=seconds + micros / 1e6, data=data))


class DomainMonitor:
    """The monitor of one running domain, which records events from its construction on."""

    def __init__(
        self, connection: Connection, events: MonitorEvents, domain: Any, *, name: str, uuid: str
    ) -> None:
        self._all_events = events
        self._uuid = uuid
        self._qemu = load_libvirt_qemu()
        self._connection = connection
        self._domain = domain
        self._name = name
        self._log = EventLog(name, advice="libvirt's log of the domain and the console show why.")
        self._generation = connection.generation
        self._forget = connection.on_loss(self._log.wake)
        try:
            events.listen(uuid, self._log.add)
        except BaseException:
            self._forget()
            raise

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return the events so far, oldest first."""
        return self._log.events

    def execute(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        fd: int | None = None,
        limit_s: float = COMMAND_S,
    ) -> object:
        """Run one QMP command and return its result, as `Monitor.execute` describes."""
        text = json.dumps({"execute": command, "arguments": dict(arguments or {})})

        def run() -> str:
            if fd is None:
                return str(self._qemu.qemuMonitorCommand(self._domain, text, 0))
            reply, _ = self._qemu.qemuMonitorCommandWithFiles(self._domain, text, [fd], 0)
            return str(reply)

        reply = json.loads(
            self._connection.run(
                f"QMP command '{command}' of machine '{self._name}'", run, limit_s=limit_s
            )
        )
        if "error" in reply:
            raise HarnessError(
                f"QEMU of machine '{self._name}' failed QMP command '{command}': "
                f"{reply['error'].get('desc', reply['error'])}."
            )
        return reply.get("return")

    def wait_for_event(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> QmpEvent:
        """Wait for an event that `matches`, at position `since` of `events` or later.

        Raises HarnessError at the deadline, or at once if QEMU or libvirtd has ended.
        """

        def loss(seen: str) -> HarnessError | None:
            if not self._is_lost:
                return None
            return lost(
                f"the wait for {what} of machine '{self._name}'",
                self._connection.uri,
                f"seen: {seen}",
            )

        return self._log.wait_for(what, matches, deadline, since=since, loss=loss)

    def note_end(self, why: str) -> None:
        """Record that QEMU has ended. No more events follow."""
        self._log.end(why)

    def close(self) -> None:
        """Stop recording events."""
        self._forget()
        self._all_events.forget(self._uuid)

    @property
    def _is_lost(self) -> bool:
        return self._connection.is_lost or self._connection.generation != self._generation
