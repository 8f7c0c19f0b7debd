"""QMP commands and events that libvirt passes between a domain's QEMU and the harness."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from harness.errors import HarnessError
from harness.machine.channels.event_log import names
from harness.machine.libvirt import monitor
from harness.machine.libvirt.errors import ConnectionLostError, LibvirtError
from harness.machine.libvirt.monitor import DomainMonitor, MonitorEvents
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeDomain, FakeLibvirtError
from suites.unit.machine.libvirt.fake_libvirt_qemu import FakeLibvirtQemu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.connection import Connection
    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S = 20.0
ONE, TWO = FakeDomain("one"), FakeDomain("two")


@pytest.fixture
def qemu(monkeypatch: pytest.MonkeyPatch) -> FakeLibvirtQemu:
    fake = FakeLibvirtQemu()
    monkeypatch.setattr(monitor, "load_libvirt_qemu", lambda: fake)
    return fake


@pytest.fixture
def events(connection: Connection, qemu: FakeLibvirtQemu) -> MonitorEvents:
    del qemu
    return MonitorEvents(connection)


@pytest.fixture
def one(connection: Connection, events: MonitorEvents) -> Iterator[DomainMonitor]:
    watched = DomainMonitor(connection, events, ONE, name="first", uuid="one")
    yield watched
    watched.close()


def test_qmp_command_is_sent_to_the_domain_of_the_monitor_and_returns_the_answer(
    qemu: FakeLibvirtQemu, one: DomainMonitor
) -> None:
    qemu.answers.append({"return": {"status": "running"}})

    assert one.execute("query-status") == {"status": "running"}
    assert qemu.asked == [{"domain": "one", "execute": "query-status", "arguments": {}}]


def test_error_for_a_refused_qmp_command_has_the_message_of_qemu(
    qemu: FakeLibvirtQemu, one: DomainMonitor
) -> None:
    qemu.answers.append({"error": {"class": "GenericError", "desc": "no such device"}})

    with pytest.raises(
        HarnessError, match="'first' failed QMP command 'device_add': no such device"
    ):
        one.execute("device_add", {"driver": "nothing"})


def test_error_for_a_refused_qmp_command_has_the_command_and_the_machine_name(
    qemu: FakeLibvirtQemu, one: DomainMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise FakeLibvirtError("domain is not running", code=55)

    monkeypatch.setattr(qemu, "qemuMonitorCommand", refuse)

    with pytest.raises(
        LibvirtError, match="QMP command 'stop' of machine 'first': domain is not running"
    ):
        one.execute("stop")


def test_hanging_qmp_command_ends_at_the_time_limit_of_the_caller(
    qemu: FakeLibvirtQemu, one: DomainMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*_: object) -> str:
        release.wait(LONG_S)
        return "{}"

    monkeypatch.setattr(qemu, "qemuMonitorCommand", hang)

    with pytest.raises(
        LibvirtHangsError, match=r"did not answer QMP command 'stop' of machine 'first' at 'qemu"
    ):
        one.execute("stop", limit_s=0.02)
    release.set()


def test_file_descriptor_is_sent_to_qemu_with_the_command_that_uses_it(
    qemu: FakeLibvirtQemu, one: DomainMonitor
) -> None:
    qemu.answers.append({"return": {}})

    one.execute("getfd", {"fdname": "fd-gpu0"}, fd=7)

    assert qemu.handed == [[7]]
    assert qemu.asked[0]["arguments"] == {"fdname": "fd-gpu0"}


def test_each_domain_receives_its_own_events(
    connection: Connection, events: MonitorEvents, qemu: FakeLibvirtQemu, one: DomainMonitor
) -> None:
    two = DomainMonitor(connection, events, TWO, name="second", uuid="two")

    qemu.tell(ONE, "STOP")
    qemu.tell(TWO, "MIGRATION", '{"status": "completed"}')

    qemu.tell(FakeDomain("unknown"), "STOP")

    (event,) = two.events
    assert [(event.name, event.data) for event in one.events] == [("STOP", {})]
    assert (event.name, event.at_s, event.data) == ("MIGRATION", 12.5, {"status": "completed"})
    two.close()


def test_all_monitors_share_one_registration_until_the_last_monitor_is_closed(
    connection: Connection, events: MonitorEvents, qemu: FakeLibvirtQemu
) -> None:
    one = DomainMonitor(connection, events, ONE, name="first", uuid="one")
    two = DomainMonitor(connection, events, TWO, name="second", uuid="two")
    assert len(qemu.callbacks) == 1

    one.close()
    assert len(qemu.callbacks) == 1
    two.close()

    assert qemu.callbacks == {}


def test_events_are_registered_again_on_a_new_connection(
    libvirt: FakeLibvirt,
    raw: FakeConnect,
    connection: Connection,
    events: MonitorEvents,
    qemu: FakeLibvirtQemu,
) -> None:
    """The registration ended together with the old connection."""
    old = DomainMonitor(connection, events, ONE, name="first", uuid="one")
    libvirt.connects.append(FakeConnect())
    raw.break_down()
    connection.reopen(Deadline.after(LONG_S))
    qemu.callbacks.clear()

    new = DomainMonitor(connection, events, TWO, name="second", uuid="two")
    qemu.tell(TWO, "STOP")

    assert len(qemu.callbacks) == 1
    assert [event.name for event in new.events] == ["STOP"]
    old.close()
    assert len(qemu.callbacks) == 1
    new.close()
    assert qemu.callbacks == {}


@pytest.mark.parametrize("is_open_again", [False, True])
def test_monitor_of_a_lost_connection_is_closed_without_deregistering_its_events(
    libvirt: FakeLibvirt,
    raw: FakeConnect,
    connection: Connection,
    events: MonitorEvents,
    qemu: FakeLibvirtQemu,
    *,
    is_open_again: bool,
) -> None:
    """The number of the old registration may now belong to another registration."""
    watched = DomainMonitor(connection, events, ONE, name="first", uuid="one")
    raw.break_down()
    if is_open_again:
        libvirt.connects.append(FakeConnect())
        connection.reopen(Deadline.after(LONG_S))

    watched.close()

    assert len(qemu.callbacks) == 1


def test_error_is_raised_if_libvirt_refuses_to_deregister_qmp_events(
    connection: Connection,
    events: MonitorEvents,
    qemu: FakeLibvirtQemu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise FakeLibvirtError("not now", code=1)

    watched = DomainMonitor(connection, events, ONE, name="first", uuid="one")
    monkeypatch.setattr(qemu, "qemuMonitorEventDeregister", refuse)

    with pytest.raises(LibvirtError, match="the end of the registration for QMP events: not now"):
        watched.close()


def test_end_of_libvirtd_ends_a_wait(raw: FakeConnect, one: DomainMonitor) -> None:
    raw.break_down()

    with pytest.raises(ConnectionLostError) as lost:
        one.wait_for_event("it", names("STOP"), Deadline.after(LONG_S))

    assert str(lost.value).startswith(
        "libvirtd at 'qemu:///system' ended or was restarted during the wait for it of machine 'first' "
        "(seen: no event); "
    )


def test_wait_on_a_monitor_fails_at_once_after_libvirt_was_reconnected(
    libvirt: FakeLibvirt, raw: FakeConnect, connection: Connection, one: DomainMonitor
) -> None:
    libvirt.connects.append(FakeConnect())
    raw.break_down()
    connection.reopen(Deadline.after(LONG_S))

    with pytest.raises(ConnectionLostError, match="during the wait for it of machine 'first'"):
        one.wait_for_event("it", names("STOP"), Deadline.after(LONG_S))


def test_wait_ignores_an_event_before_the_given_position(
    qemu: FakeLibvirtQemu, one: DomainMonitor
) -> None:
    qemu.tell(ONE, "STOP")

    with pytest.raises(HarnessError, match="seen: no event"):
        one.wait_for_event("it", names("STOP"), Deadline.after(0.0), since=1)
    assert one.wait_for_event("it", names("STOP"), Deadline.after(0.0)).name == "STOP"


def test_monitor_that_cannot_register_leaves_no_watcher_on_the_connection(
    connection: Connection,
    events: MonitorEvents,
    qemu: FakeLibvirtQemu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection must not keep a watcher for a monitor that failed to register."""

    def refuse(*_: object) -> NoReturn:
        raise FakeLibvirtError("no monitor", code=1)

    monkeypatch.setattr(qemu, "qemuMonitorEventRegister", refuse)
    watchers = tuple(connection._watchers)

    with pytest.raises(LibvirtError, match="the registration for QMP events: no monitor"):
        DomainMonitor(connection, events, ONE, name="first", uuid="one")

    assert tuple(connection._watchers) == watchers
