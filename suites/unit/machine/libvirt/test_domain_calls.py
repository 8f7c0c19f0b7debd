"""The calls of a domain to libvirt, and the errors for calls that libvirt refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.channels.event_log import names
from harness.machine.libvirt import domain as domain_module
from harness.machine.libvirt import monitor
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.domain import Domain
from harness.machine.libvirt.errors import LibvirtError
from harness.machine.libvirt.monitor import MonitorEvents
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.machine.libvirt.fake_host import (
    DEVICE_REMOVED,
    LIFE_CYCLE,
    FakeHost,
    FakeRunningDomain,
    Flags,
)
from suites.unit.machine.libvirt.fake_libvirt import FakeDomain
from suites.unit.machine.libvirt.fake_libvirt_qemu import FakeLibvirtQemu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S = 20.0
URI = "qemu:///system"
CRASHED = 8
DEVICE_KEPT = 22


def too_late() -> Deadline:
    return Deadline.after(0.0, FakeClock())


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def qemu(monkeypatch: pytest.MonkeyPatch) -> FakeLibvirtQemu:
    fake = FakeLibvirtQemu()
    monkeypatch.setattr(monitor, "load_libvirt_qemu", lambda: fake)
    return fake


@pytest.fixture
def domain(
    libvirt: FakeLibvirt, host: FakeHost, qemu: FakeLibvirtQemu, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Domain]:
    """Start a domain, which the test may end."""
    del qemu
    monkeypatch.setattr(domain_module, "load_libvirt", lambda: Flags)
    libvirt.connects.append(host)
    with Connection.open(URI, deadline=Deadline.after(LONG_S)) as connection:
        made = Domain(connection, MonitorEvents(connection), machine="node")
        host.uuid = made.uuid
        made.start("<domain/>", emulator="/usr/bin/qemu")
        yield made


def test_error_for_a_refused_destroy_mentions_the_machine_that_still_runs(
    domain: Domain, host: FakeHost
) -> None:
    host.refuses_end = True

    with pytest.raises(LibvirtError, match="the end of machine 'node': cannot kill it"):
        domain.destroy()

    assert domain.is_running


@pytest.mark.parametrize("trouble", ["refuses_end", "is_stubborn", "refuses_calls"])
def test_closing_a_domain_tries_again_to_end_the_domain_and_removes_all_callbacks(
    domain: Domain, host: FakeHost, qemu: FakeLibvirtQemu, trouble: str
) -> None:
    """`kill` hides the first error, so the close of the machine checks again."""
    setattr(host, trouble, True)
    with pytest.raises(HarnessError):
        domain.destroy()

    with pytest.raises(HarnessError) as failed:
        domain.close()

    assert domain.uuid in host.living or "the list of domains" in str(failed.value)
    assert host.callbacks == {}
    assert qemu.callbacks == {}


def test_closing_a_domain_that_has_already_ended_does_not_end_it_again(
    domain: Domain, host: FakeHost
) -> None:
    domain.destroy()
    assert not domain.is_running

    domain.close()

    assert host.calls.count("destroy") == 1


# -- devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "alias"),
    [(DEVICE_REMOVED, "ua-gpu0"), (DEVICE_KEPT, "ua-seed")],
    ids=["another-device", "not-removed"],
)
def test_detach_ignores_events_of_another_kind_or_of_another_device(
    domain: Domain, host: FakeHost, event: int, alias: str
) -> None:
    host.is_stubborn = True
    host.before_detach = lambda: host.tell(event, FakeDomain(domain.uuid), alias)

    with pytest.raises(HarnessError) as failed:
        domain.detach("the seed", "ua-seed", too_late())

    seen = {DEVICE_REMOVED: "removed", DEVICE_KEPT: "removal refused"}[event]
    assert str(failed.value) == (
        f"libvirt did not report the removal of the seed of domain '{domain.name}' in time; events "
        f"seen: 'device {seen} '{alias}''. The domain's console shows what the guest does."
    )


def test_earlier_removal_event_of_a_device_does_not_end_a_later_removal(
    domain: Domain, host: FakeHost
) -> None:
    domain.detach("the seed", "ua-seed", Deadline.after(LONG_S))
    host.is_stubborn = True

    with pytest.raises(HarnessError, match="in time; events seen: no event"):
        domain.detach("the seed", "ua-seed", too_late())


# -- events -------------------------------------------------------------------------------------------


def test_closing_a_domain_deregisters_the_callbacks_of_its_monitor(
    domain: Domain, qemu: FakeLibvirtQemu
) -> None:
    qemu.answers.append({"return": {"status": "paused"}})
    qemu.tell(FakeDomain(domain.uuid), "STOP")

    assert domain.monitor.execute("query-status") == {"status": "paused"}
    assert [each["domain"] for each in qemu.asked] == [domain.uuid]
    assert [event.name for event in domain.monitor.events] == ["STOP"]

    domain.close()

    assert qemu.callbacks == {}


def test_crashed_domain_is_not_running_and_a_wait_for_its_events_fails(
    domain: Domain, host: FakeHost
) -> None:
    host.tell(LIFE_CYCLE, FakeRunningDomain(host, domain.uuid), CRASHED, 0)

    assert not domain.is_running
    with pytest.raises(HarnessError, match=r"ended \(crashed\) during the wait for a stop"):
        domain.monitor.wait_for_event("a stop", names("STOP"), Deadline.after(LONG_S))
