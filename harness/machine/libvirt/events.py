"""Records libvirt's events of one domain, so that waits need no polling."""

from __future__ import annotations

import contextlib
import enum
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.libvirt.errors import lost

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.machine.libvirt.connection import Connection
    from harness.provisioning.wait import Deadline


class EventKind(enum.Enum):
    """The kind of an event. Lifecycle events come first, in the order of libvirt's numbers."""

    DEFINED = "defined"
    UNDEFINED = "undefined"
    STARTED = "started"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    STOPPED = "stopped"
    SHUTDOWN = "shutdown"
    PMSUSPENDED = "pmsuspended"
    CRASHED = "crashed"
    REBOOT = "reboot"
    DEVICE_ADDED = "device added"
    DEVICE_REMOVED = "device removed"
    DEVICE_KEPT = "device removal refused"
    UNKNOWN = "unknown"


_LIFE_CYCLE = tuple(EventKind)[:9]


@dataclass(frozen=True, kw_only=True)
class DomainEvent:
    """An event. `detail` is libvirt's number of the cause. `device` is the alias of the device."""

    kind: EventKind
    detail: int = 0
    device: str | None = None

    @override
    def __str__(self) -> str:
        return self.kind.value if self.device is None else f"{self.kind.value} '{self.device}'"


def _ignore_event(_event: DomainEvent) -> None:
    pass


class DomainEvents:
    """The events of the domain with this UUID, recorded from construction to `close`.

    Without `domain`, the events are recorded even before the domain exists, so that no event is
    missed. libvirt permits only one such registration per connection. With `domain`, any number
    of objects may watch the domain. The event loop calls `listener`, which has to return quickly.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str,
        uuid: str,
        domain: Any = None,
        listener: Callable[[DomainEvent], None] = _ignore_event,
    ) -> None:
        self._connection = connection
        self._name = name
        self._uuid = uuid
        self._domain = domain
        self._listener = listener
        self._changed = threading.Condition()
        self._events: list[DomainEvent] = []
        self._registrations: list[int] = []
        self._generation = connection.generation
        self._forget = connection.on_loss(self._wake)
        try:
            self._register()
        except BaseException:
            with contextlib.suppress(HarnessError):
                self.close()
            raise

    @property
    def seen(self) -> tuple[DomainEvent, ...]:
        """Return the events so far, oldest first."""
        with self._changed:
            return tuple(self._events)

    def wait_for(
        self,
        what: str,
        matches: Callable[[DomainEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> DomainEvent:
        """Wait for an event that `matches`, at position `since` of `seen` or later.

        Raises HarnessError at the deadline, and when the domain stops. Raises ConnectionLostError
        at once if libvirtd ends.
        """
        with self._changed:
            while True:
                for event in self._events[since:]:
                    if matches(event):
                        return event
                    if _is_end(event):
                        raise HarnessError(
                            f"Domain '{self._name}' was '{event}' during the wait for {what}; "
                            "the domain's console and QEMU's log show why."
                        )
                seen = ", ".join(f"'{event}'" for event in self._events[since:]) or "no event"
                if self._is_lost:
                    raise lost(
                        f"the wait for {what} of domain '{self._name}'",
                        self._connection.uri,
                        f"events seen of the domain: {seen}",
                    )
                if deadline.has_passed():
                    raise HarnessError(
                        f"libvirt did not report {what} of domain '{self._name}' in time; events "
                        f"seen: {seen}. The domain's console shows what the guest does."
                    )
                self._changed.wait(deadline.remaining_s())

    def close(self) -> None:
        """Remove libvirt's callbacks, and end all waits for events."""
        self._forget()
        registrations, self._registrations = self._registrations, []
        if self._is_lost:
            return
        # Every registration is removed, even if libvirt refuses to remove another.
        with contextlib.ExitStack() as removal:
            for registration in registrations:
                removal.callback(
                    self._connection.run,
                    f"the removal of the event registration of domain '{self._name}'",
                    _bound(self._connection.raw.domainEventDeregisterAny, registration),
                )

    @property
    def _is_lost(self) -> bool:
        return self._connection.is_lost or self._connection.generation != self._generation

    def _register(self) -> None:
        raw = self._connection.raw
        for number, callback in (
            (_LIFECYCLE_ID, self._on_life_cycle),
            (_REBOOT_ID, self._on_reboot),
            (_DEVICE_ADDED_ID, self._on_device(EventKind.DEVICE_ADDED)),
            (_DEVICE_REMOVED_ID, self._on_device(EventKind.DEVICE_REMOVED)),
            (_DEVICE_KEPT_ID, self._on_device(EventKind.DEVICE_KEPT)),
        ):
            self._registrations.append(
                self._connection.run(
                    f"the event registration of domain '{self._name}'",
                    _bound(raw.domainEventRegisterAny, self._domain, number, callback, None),
                )
            )

    def _on_life_cycle(
        self,
        _raw: object,
        domain: Any,
        event: int,
        detail: int,
        _opaque: object,
    ) -> None:
        known = 0 <= event < len(_LIFE_CYCLE)
        kind = _LIFE_CYCLE[event] if known else EventKind.UNKNOWN
        self._note(domain, DomainEvent(kind=kind, detail=detail))

    def _on_reboot(self, _raw: object, domain: Any, _opaque: object) -> None:
        self._note(domain, DomainEvent(kind=EventKind.REBOOT))

    def _on_device(self, kind: EventKind) -> Callable[[object, Any, str, object], None]:
        def callback(_raw: object, domain: Any, alias: str, _opaque: object) -> None:
            self._note(domain, DomainEvent(kind=kind, device=alias))

        return callback

    def _note(self, domain: Any, event: DomainEvent) -> None:
        if domain.UUIDString() == self._uuid:
            with self._changed:
                self._events.append(event)
                self._changed.notify_all()
            self._listener(event)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def kinds(*wanted: EventKind) -> Callable[[DomainEvent], bool]:
    """Return a function that matches events of any of these kinds."""
    return lambda event: event.kind in wanted


def _is_end(event: DomainEvent) -> bool:
    return event.kind in {EventKind.STOPPED, EventKind.CRASHED}


def _bound(call: Callable[..., int], *arguments: object) -> Callable[[], int]:
    return lambda: call(*arguments)


# virDomainEventID of libvirt-domain.h.
_LIFECYCLE_ID = 0
_REBOOT_ID = 1
_DEVICE_REMOVED_ID = 15
_DEVICE_ADDED_ID = 19
_DEVICE_KEPT_ID = 22
