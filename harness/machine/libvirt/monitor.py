"""QEMU's own commands and events, past libvirt, for what libvirt has no words for."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.machine.eventlog import EventLog, QmpEvent
from harness.machine.libvirt.binding import load_libvirt_qemu
from harness.machine.libvirt.complaint import lost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.machine.libvirt.connection import Connection
    from harness.provisioning.wait import Deadline

_QMP_S = 30.0


class MonitorEvents:
    """What the QEMUs of one connection report, told to whoever listens for one domain.

    libvirt's client asks its server for such events once a connection: of a second domain that is
    asked for by itself none would ever come.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._listeners: dict[str, Callable[[QmpEvent], None]] = {}
        self._registration: tuple[int, int] | None = None

    def listen(self, uuid: str, hear: Callable[[QmpEvent], None]) -> None:
        """Have `hear` called, by libvirt's event loop, for each event of a domain from now on."""
        connection, qemu = self._connection, load_libvirt_qemu()
        with self._lock:
            if self._registration is None or self._registration[0] != connection.generation:
                raw = connection.raw
                number = connection.run(
                    "the watch on QEMU's monitors",
                    lambda: qemu.qemuMonitorEventRegister(raw, None, None, self._note, None),
                )
                self._registration = connection.generation, number
            self._listeners[uuid] = hear

    def forget(self, uuid: str) -> None:
        """Listen to a domain no more."""
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
                "the end of the watch on QEMU's monitors",
                lambda: qemu.qemuMonitorEventDeregister(raw, number),
            )

    def _note(
        self,
        _raw: object,
        domain: Any,
        name: str,
        seconds: int,
        micros: int,
        details: str | None,
        _opaque: object,
    ) -> None:
        hear = self._listeners.get(domain.UUIDString())
        if hear is not None:
            data = json.loads(details) if details else {}
            hear(QmpEvent(name=name, at_s=seconds + micros / 1e6, data=data))


class DomainMonitor:
    """The monitor of one running domain; its events are kept from the making of this object on."""

    def __init__(
        self, connection: Connection, events: MonitorEvents, domain: Any, *, name: str, uuid: str
    ) -> None:
        self._all_events = events
        self._uuid = uuid
        self._qemu = load_libvirt_qemu()
        self._connection = connection
        self._domain = domain
        self._name = name
        self._log = EventLog(name, advice="libvirt's log of the domain and the console say why.")
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

    def execute(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
        """Run one command of QEMU and return what it returned.

        Raises HarnessError when QEMU refuses, is gone, or does not answer in time.
        """
        text = json.dumps({"execute": command, "arguments": dict(arguments or {})})
        answer = self._connection.run(
            f"QEMU's command '{command}' in machine '{self._name}'",
            lambda: self._qemu.qemuMonitorCommand(self._domain, text, 0),
            limit_s=_QMP_S,
        )
        return self._result(command, answer)

    def hand_over(self, fd: int, fdname: str) -> None:
        """Give QEMU a copy of descriptor `fd` under the name `fdname`."""
        text = json.dumps({"execute": "getfd", "arguments": {"fdname": fdname}})
        answer, _ = self._connection.run(
            f"handing descriptor '{fdname}' to machine '{self._name}'",
            lambda: self._qemu.qemuMonitorCommandWithFiles(self._domain, text, [fd], 0),
            limit_s=_QMP_S,
        )
        self._result("getfd", answer)

    def wait_for_event(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> QmpEvent:
        """Wait for an event from position `since` of `events` on that `matches`.

        Raises HarnessError at the deadline, and at once when QEMU or libvirtd has gone.
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
        """Learn that QEMU has ended; nothing more will come."""
        self._log.end(why)

    def close(self) -> None:
        """Hear of no more events."""
        self._forget()
        self._all_events.forget(self._uuid)

    @property
    def _is_lost(self) -> bool:
        return self._connection.is_lost or self._connection.generation != self._generation

    def _result(self, command: str, answer: str) -> object:
        told = json.loads(answer)
        if "error" in told:
            raise HarnessError(
                f"QEMU of machine '{self._name}' failed QMP command '{command}': "
                f"{told['error'].get('desc', told['error'])}."
            )
        return told.get("return")
