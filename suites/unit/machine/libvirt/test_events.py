"""Events of a domain: what ends a wait for one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import ConnectionLostError
from harness.machine.libvirt.events import DomainEvents, EventKind, kinds
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeDomain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

_LONG_S = 20.0
LIFE_CYCLE, REBOOT, DEVICE_REMOVED = 0, 1, 15
STARTED, RESUMED, STOPPED = 2, 4, 5
DOMAIN = FakeDomain("one")


@pytest.fixture
def raw() -> FakeConnect:
    return FakeConnect()


@pytest.fixture
def connection(libvirt: FakeLibvirt, raw: FakeConnect) -> Iterator[Connection]:
    libvirt.connects.append(raw)
    with Connection.open("qemu:///system", deadline=Deadline.after(_LONG_S)) as opened:
        yield opened


@pytest.fixture
def events(connection: Connection) -> Iterator[DomainEvents]:
    with DomainEvents(connection, name="node", uuid="one") as watched:
        yield watched


def test_event_that_came_before_the_wait_counts(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, STARTED, 0)
    raw.tell(LIFE_CYCLE, DOMAIN, RESUMED, 3)

    event = events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))

    assert (event.kind, event.detail) == (EventKind.RESUMED, 3)
    assert [str(each) for each in events.seen] == ["started", "resumed"]


def test_event_that_comes_later_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    late = threading.Timer(0.02, raw.tell, (REBOOT, DOMAIN))
    late.start()

    event = events.wait_for("its reboot", kinds(EventKind.REBOOT), Deadline.after(_LONG_S))

    assert event.kind is EventKind.REBOOT
    late.join()


def test_other_domains_are_not_seen(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, FakeDomain("two"), STARTED, 0)

    assert events.seen == ()


def test_device_is_named_by_its_alias(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(DEVICE_REMOVED, DOMAIN, "hostdev0")

    assert str(events.seen[0]) == "device removed 'hostdev0'"


def test_event_before_the_position_does_not_count(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(REBOOT, DOMAIN)

    with pytest.raises(HarnessError, match="did not report its reboot of domain 'node' in time"):
        events.wait_for("its reboot", kinds(EventKind.REBOOT), Deadline.after(0.02), since=1)


def test_end_of_the_domain_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, STOPPED, 0)

    with pytest.raises(HarnessError, match="was 'stopped' while waiting for its run"):
        events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))


def test_end_of_the_daemon_ends_the_wait(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, STARTED, 0)
    late = threading.Timer(0.02, raw.break_down)
    late.start()

    with pytest.raises(ConnectionLostError, match=r"wait for its run of domain 'node' .*start"):
        events.wait_for("its run", kinds(EventKind.RESUMED), Deadline.after(_LONG_S))
    late.join()


def test_unknown_error_number_is_kept(raw: FakeConnect, events: DomainEvents) -> None:
    raw.tell(LIFE_CYCLE, DOMAIN, 99, 0)

    assert events.seen[0].kind is EventKind.UNKNOWN


def test_closed_watch_leaves_no_callback(raw: FakeConnect, connection: Connection) -> None:
    with DomainEvents(connection, name="node", uuid="one"):
        assert len(raw.callbacks) == 5

    assert raw.callbacks == {}
