"""The start and the end of a domain, and the check that the domain has ended."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.event_log import names
from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt import domain as domain_module
from harness.machine.libvirt import monitor
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.domain import POWERED_OFF, Domain
from harness.machine.libvirt.errors import ConnectionLostError
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.libvirt.fake_host import (
    LIFE_CYCLE,
    OF_RPC,
    OPERATION_FAILED,
    STOPPED,
    SYSTEM_ERROR,
    FakeHost,
    FakeRunningDomain,
    Flags,
)
from suites.unit.machine.libvirt.fake_libvirt import (
    FakeLibvirt,
    FakeLibvirtError,
)
from suites.unit.machine.libvirt.fake_libvirt_qemu import FakeLibvirtQemu
from suites.unit.machine.libvirt.impatient_watchdog import hasty, join_late

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.unit.machine.libvirt.conftest import Log

LONG_S = 20.0
TAKEN = (
    "Another domain has the name '{name}' or its UUID; run again to get a new "
    "name and UUID, or end that domain by `virsh destroy {name}`."
)
LACKING = (
    "If '/usr/bin/qemu' lacks a device or can't be started, name another QEMU by --qemu; if libvirt does "
    "not support an element, use a newer libvirt, or --machine-driver=qemu."
)


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def connection(
    libvirt: FakeLibvirt, host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Connection]:
    qemu = FakeLibvirtQemu()
    monkeypatch.setattr(monitor, "load_libvirt_qemu", lambda: qemu)
    monkeypatch.setattr(domain_module, "load_libvirt", lambda: Flags)
    libvirt.connects.append(host)
    with Connection.open("qemu:///system", deadline=Deadline.after(LONG_S, FakeClock())) as opened:
        yield opened


@pytest.fixture
def domain(connection: Connection, host: FakeHost) -> Domain:
    made = Domain(connection, MonitorEvents(connection), machine="node")
    host.uuid = made.uuid
    return made


def start(domain: Domain) -> None:
    domain.start("<domain/>", emulator="/usr/bin/qemu")


def test_closed_domain_is_ended_and_unregistered(domain: Domain, host: FakeHost) -> None:
    start(domain)
    assert domain.is_running

    domain.close()

    assert host.living == []
    assert host.callbacks == {}
    assert not domain.is_running


def test_domain_that_libvirt_still_lists_after_close_is_an_error(
    domain: Domain, host: FakeHost
) -> None:
    """Libvirt reports the end of the domain, but a second query still lists it."""
    host.is_stubborn = True
    start(domain)

    with pytest.raises(
        HarnessError, match=rf"still lists its domain '{domain.name}'.*virsh destroy {domain.name}"
    ):
        domain.close()


def test_domain_that_ended_by_itself_is_not_destroyed(domain: Domain, host: FakeHost) -> None:
    start(domain)
    host.tell(LIFE_CYCLE, FakeRunningDomain(host, domain.uuid), STOPPED, 0)

    domain.close()

    assert "destroy" not in host.calls
    with pytest.raises(HarnessError, match=r"'node' ended \(stopped\)"):
        domain.monitor.wait_for_event("anything", names("STOP"), Deadline.after(LONG_S))


def test_domain_that_libvirt_does_not_know_is_regarded_as_ended(
    domain: Domain, host: FakeHost
) -> None:
    start(domain)
    host.living.clear()

    domain.close()

    assert not domain.is_running


def test_domain_is_ended_through_a_restarted_libvirtd(
    domain: Domain, host: FakeHost, libvirt: FakeLibvirt
) -> None:
    """Domains survive a crash of libvirtd, and only their harness ends them."""
    start(domain)
    successor = FakeHost()
    successor.living.append(domain.uuid)
    libvirt.connects.append(successor)
    host.break_down()
    assert domain.is_lost
    assert not domain.is_running

    domain.close()

    assert successor.living == []


def test_domain_whose_libvirtd_has_ended_is_reported_as_maybe_running(
    domain: Domain, host: FakeHost, libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_INTERVAL_S", 2.0)
    start(domain)
    no_daemon = FakeLibvirtError("No such file or directory", code=38, errno=2)
    libvirt.connects.extend([no_daemon] * 100)
    host.break_down()

    with pytest.raises(HarnessError) as failed:
        domain.close()

    assert str(failed.value).startswith("Machine 'node' may still run: No libvirtd answers at ")
    assert str(failed.value).endswith(
        " by --machine-uri. Once a libvirtd answers again, look for its domain by `virsh list`, and end "
        f"it by `virsh destroy {domain.name}`."
    )


def test_domain_that_started_before_the_connection_was_reopened_is_lost(
    domain: Domain, host: FakeHost, connection: Connection, libvirt: FakeLibvirt
) -> None:
    start(domain)
    libvirt.connects.append(FakeHost())
    host.break_down()

    connection.reopen(Deadline.after(LONG_S))

    assert not connection.is_lost
    assert domain.is_lost


def test_domain_belongs_to_the_connection_that_started_it(
    domain: Domain, host: FakeHost, connection: Connection, libvirt: FakeLibvirt
) -> None:
    successor = FakeHost()
    successor.uuid = domain.uuid
    libvirt.connects.append(successor)
    host.break_down()
    connection.reopen(Deadline.after(LONG_S))

    start(domain)

    assert domain.is_running


def test_refused_start_leaves_no_callback_and_its_error_has_the_remedy(
    domain: Domain, host: FakeHost
) -> None:
    """The close of a domain that did not start needs no libvirtd."""
    for said, remedy in (
        ("domain 'node' already exists with uuid x", TAKEN),
        ("this QEMU doesn't support 'x'", LACKING),
    ):
        host.refusal = FakeLibvirtError(said, code=OPERATION_FAILED)

        with pytest.raises(
            HarnessError,
            match=rf"the start of machine 'node': {re.escape(said)}\. {re.escape(remedy.format(name=domain.name))}",
        ):
            start(domain)

        assert host.callbacks == {}
    host.break_down()

    domain.close()

    assert "look up" not in host.calls


class Hang:
    """A start that hangs until the test releases it, and that the watchdog abandons soon."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        self.has_begun.set()
        assert self.release.wait(LONG_S)

    def end(self) -> None:
        """Release the call, and wait until its thread has ended."""
        self.release.set()
        join_late("the start of", LONG_S)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    monkeypatch.setattr(connection_module, "watched", hasty("the start of"))
    hang = Hang()
    yield hang
    hang.end()


def test_domain_that_appears_after_its_start_was_cancelled_is_ended(
    domain: Domain, host: FakeHost, hang: Hang, log: Log
) -> None:
    host.before_start = hang
    with pytest.raises(LibvirtHangsError, match="did not answer the start of machine 'node'"):
        start(domain)
    domain.close()

    hang.end()

    assert host.calls[-1] == "destroy"
    assert host.living == []
    assert not any("could not be ended" in message for message in log.messages)


def test_domain_that_starts_late_and_cannot_be_ended_is_logged(
    domain: Domain, host: FakeHost, hang: Hang, log: Log
) -> None:
    host.before_start, host.refuses_end = hang, True
    with pytest.raises(LibvirtHangsError):
        start(domain)
    domain.close()

    hang.end()

    (message,) = log.warnings
    assert message == (
        "Machine 'node' started after its start was given up, and could not be ended: cannot kill it; "
        f"end it by `virsh destroy {domain.name}`"
    )


def test_domain_that_started_late_and_has_already_ended_is_not_reported(
    domain: Domain, host: FakeHost, hang: Hang, log: Log
) -> None:
    host.before_start, host.after_start = hang, host.living.clear
    with pytest.raises(LibvirtHangsError):
        start(domain)
    domain.close()

    hang.end()

    assert host.calls[-1] == "destroy"
    assert log.warnings == []


def test_domain_that_appeared_during_a_hanging_start_call_is_ended(
    domain: Domain, host: FakeHost, hang: Hang, log: Log
) -> None:
    host.after_start = hang
    with pytest.raises(LibvirtHangsError):
        start(domain)
    assert hang.has_begun.wait(LONG_S)

    domain.close()

    assert host.living == []
    hang.end()
    assert not any("could not be ended" in message for message in log.messages)


def test_domain_whose_start_was_interrupted_is_ended(domain: Domain, host: FakeHost) -> None:
    """Ctrl-C ends the wait for the start but not the start itself."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    host.after_start = interrupt
    with pytest.raises(KeyboardInterrupt):
        start(domain)

    domain.close()

    assert host.living == []


def test_domain_is_ended_through_a_new_libvirtd_if_libvirtd_ended_while_the_domain_started(
    domain: Domain, host: FakeHost, libvirt: FakeLibvirt
) -> None:
    successor = FakeHost()
    successor.living.append(domain.uuid)
    libvirt.connects.append(successor)
    host.refusal = FakeLibvirtError("end of file", code=SYSTEM_ERROR, origin=OF_RPC)
    with pytest.raises(ConnectionLostError):
        start(domain)

    domain.close()

    assert successor.living == []


def test_closing_ends_a_domain_that_started_after_the_request_to_destroy_it(
    domain: Domain, host: FakeHost
) -> None:
    """A machine that is killed during its start has no domain yet."""
    host.before_start = domain.destroy
    start(domain)

    domain.close()

    assert host.living == []


def test_domain_that_was_never_started_is_not_looked_up(domain: Domain, host: FakeHost) -> None:
    host.living.append(domain.uuid)

    domain.close()

    assert host.living == [domain.uuid]
    assert not domain.is_lost


def test_processor_time_of_a_domain_is_in_seconds(domain: Domain) -> None:
    start(domain)

    assert domain.processor_s() == 2.5


def test_detach_ends_when_libvirt_reports_the_removal_of_the_device(
    domain: Domain, host: FakeHost
) -> None:
    start(domain)

    domain.detach("the seed", "ua-seed", Deadline.after(LONG_S))

    assert host.calls[-1] == "detach ua-seed"


@pytest.mark.parametrize(("detail", "ending"), [(0, POWERED_OFF), (77, "number 77")])
def test_reason_for_the_end_of_a_domain_is_named_as_in_libvirt(
    domain: Domain, host: FakeHost, detail: int, ending: str
) -> None:
    start(domain)
    host.tell(LIFE_CYCLE, FakeRunningDomain(host, domain.uuid), STOPPED, detail)

    assert domain.wait_for_end(Deadline.after(LONG_S)) == ending
