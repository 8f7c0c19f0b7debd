"""Events of a domain, and what ends a wait for an event."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import ConnectionLostError, LibvirtError
from harness.machine.libvirt.events import DomainEvents, EventKind, kinds
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeDomain, FakeLibvirtError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

_LONG_S = 20.0
LIFE_CYCLE, REBOOT, DEVICE_REMOVED, DEVICE_ADDED, DEVICE_KEPT = 0, 1, 15, 19, 22
STARTED, RESUMED, STOPPED, CRASHED = 2, 4, 5, 8
DOMAIN = FakeDomain("one")


@pytest.fixture
def events(connection: Connection) -> Iterator[DomainEvents]:
    with contextlib.closing(DomainEvents(connection, name="node", uuid="one")) as watched:
        yield watched


def test_event_that_arrived_before_the_wait_ends_the_wait_at_once(
    raw: FakeConnect, events: DomainEvents
) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, STARTED, 0)
    raw.tell(LIFE_CYCLE, DOMAIN, RESUMED, 3)

    event = events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))

    assert (event.kind, event.detail) == (EventKind.RESUMED, 3)
    assert [str(each) for each in events.seen] == ["started", "resumed"]


def test_event_during_the_wait_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    late = threading.Timer(0.02, raw.tell, (REBOOT, DOMAIN))
    late.start()

    event = events.wait_for("its reboot", kinds(EventKind.REBOOT), Deadline.after(_LONG_S))

    assert event.kind is EventKind.REBOOT
    late.join()


def test_events_of_other_domains_are_ignored(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, FakeDomain("two"), STARTED, 0)

    assert events.seen == ()


def test_device_event_has_the_alias_of_the_device(raw: FakeConnect, events: DomainEvents) -> None:
    for event in (DEVICE_ADDED, DEVICE_REMOVED, DEVICE_KEPT):
        raw.tell(event, DOMAIN, "hostdev0")

    assert [(seen.kind, str(seen)) for seen in events.seen] == [
        (EventKind.DEVICE_ADDED, "device added 'hostdev0'"),
        (EventKind.DEVICE_REMOVED, "device removed 'hostdev0'"),
        (EventKind.DEVICE_KEPT, "device removal refused 'hostdev0'"),
    ]


def test_wait_ignores_an_event_before_the_given_position(
    raw: FakeConnect, events: DomainEvents
) -> None:
    raw.tell(REBOOT, DOMAIN)

    with pytest.raises(
        HarnessError, match="its reboot of domain 'node' in time; events seen: no event"
    ):
        events.wait_for("its reboot", kinds(EventKind.REBOOT), Deadline.after(0.02), since=1)


def test_end_of_the_domain_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    for since, (event, end) in enumerate(((STOPPED, "stopped"), (CRASHED, "crashed"))):
        raw.tell(LIFE_CYCLE, DOMAIN, event, 0)

        with pytest.raises(HarnessError, match=rf"'node' was '{end}' during the wait for its run"):
            events.wait_for(
                "its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S), since=since
            )


def test_end_of_the_daemon_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, STARTED, 0)
    late = threading.Timer(0.02, raw.break_down)
    late.start()

    with pytest.raises(ConnectionLostError) as lost:
        events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))
    late.join()

    assert str(lost.value).startswith(
        "libvirtd at 'qemu:///system' ended or was restarted during the wait for its run of domain "
        "'node' (events seen of the domain: 'started'); "
    )


def test_wait_for_an_event_fails_at_once_after_libvirt_was_reconnected(
    libvirt: FakeLibvirt, raw: FakeConnect, connection: Connection, events: DomainEvents
) -> None:
    libvirt.connects.append(FakeConnect())
    raw.break_down()
    connection.reopen(Deadline.after(_LONG_S))

    with pytest.raises(ConnectionLostError, match=r"\(events seen of the domain: no event\)"):
        events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))


def test_closed_watch_leaves_no_callback(raw: FakeConnect, connection: Connection) -> None:
    with contextlib.closing(DomainEvents(connection, name="node", uuid="one")):
        assert len(raw.callbacks) == 5

    assert raw.callbacks == {}


class RefusingConnect(FakeConnect):
    """A connection that registers only some events, and refuses to deregister the number `kept`."""

    def __init__(self, *, registers: int = 5, kept: int | None = None) -> None:
        super().__init__()
        self.registers = registers
        self.kept = kept

    @override
    def domainEventRegisterAny(
        self, domain: object, event: int, callback: Callable[..., None], opaque: object
    ) -> int:
        if len(self.callbacks) == self.registers:
            raise FakeLibvirtError("no more", code=1)
        return super().domainEventRegisterAny(domain, event, callback, opaque)

    @override
    def domainEventDeregisterAny(self, registration: int) -> int:
        if registration == self.kept:
            raise FakeLibvirtError("not now", code=1)
        return super().domainEventDeregisterAny(registration)


def test_close_deregisters_every_callback_unless_libvirt_refuses_the_call(
    libvirt: FakeLibvirt,
) -> None:
    raw = RefusingConnect(kept=2)
    libvirt.connects.append(raw)

    with Connection.open("qemu:///system", deadline=Deadline.after(_LONG_S)) as connection:
        events = DomainEvents(connection, name="node", uuid="one")
        with pytest.raises(LibvirtError, match="registration of domain 'node': not now"):
            events.close()

    assert list(raw.callbacks) == [2]


def test_failed_event_registration_deregisters_the_callbacks_that_were_registered_before(
    libvirt: FakeLibvirt,
) -> None:
    """The first refusal is reported, even if libvirt also refuses to deregister a callback."""
    raw = RefusingConnect(registers=3, kept=1)
    libvirt.connects.append(raw)

    with Connection.open("qemu:///system", deadline=Deadline.after(_LONG_S)) as connection:
        with pytest.raises(LibvirtError, match="the event registration of domain 'node': no more"):
            DomainEvents(connection, name="node", uuid="one")

        assert connection._watchers == []

    assert list(raw.callbacks) == [1]


def test_watch_of_a_lost_connection_is_closed_without_a_request_to_libvirt(
    raw: FakeConnect, connection: Connection
) -> None:
    with contextlib.closing(DomainEvents(connection, name="node", uuid="one")):
        raw.break_down()

    assert len(raw.callbacks) == 5
