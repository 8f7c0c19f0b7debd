"""A real private libvirtd: its start, restart and end, also with the process that started it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.machine.libvirt.errors import Code, ConnectionLostError, LibvirtError
from harness.machine.libvirt.events import DomainEvents, EventKind, kinds
from harness.machine.libvirt.private_daemon import private_daemon
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.command import PIPE, end, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.host.libvirt.conftest import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.libvirt.private_daemon import PrivateDaemon

REPOSITORY = Path(__file__).parents[3]
UUID = "6f2d9c1e-0d0b-4c5a-9c53-0f4f6f6d1a11"
NAME = "never-started"
XML = f"""
<domain type='qemu'>
  <name>{NAME}</name><uuid>{UUID}</uuid><memory unit='MiB'>64</memory>
  <os><type arch='x86_64' machine='q35'>hvm</type></os>
</domain>
"""


def _deadline() -> Deadline:
    return Deadline.after(PATIENCE_S)


def _names(connection: Connection) -> list[str]:
    domains = connection.run("the list of domains", connection.raw.listAllDomains)
    return [domain.name() for domain in domains]


@contextlib.contextmanager
def _stopped(daemon: PrivateDaemon) -> Iterator[None]:
    """Stop libvirtd by SIGSTOP until the block ends.

    nsenter stops itself when its child stops. At the end of the block, SIGCONT continues nsenter,
    which then continues its child.
    """
    nsenter, libvirtd = daemon.processes()[-2:]

    def poll() -> Observation[bool]:
        state = Path(f"/proc/{nsenter}/stat").read_text().rpartition(")")[2].split()[0]
        return Observation(state == "T" or None, f"nsenter is in state {state}")

    os.kill(libvirtd, signal.SIGSTOP)
    try:
        wait_for("nsenter to stop with libvirtd", poll, _deadline(), interval_s=0.01)
        yield
    finally:
        os.kill(nsenter, signal.SIGCONT)


def test_private_libvirtd_is_a_session_or_system_daemon_as_requested(
    daemon: PrivateDaemon, connection: Connection
) -> None:
    assert connection.is_session is (daemon.kind is DaemonKind.SESSION)
    assert connection.daemon_version >= (8, 0, 0)


def test_daemon_has_none_of_the_domains_of_the_hosts_libvirtd(connection: Connection) -> None:
    assert _names(connection) == []


def test_machines_may_lock_as_much_memory_as_the_host_allows(daemon_folder: Path) -> None:
    """VFIO locks the memory of a machine with a host GPU; libvirt can only lower the limit."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, before[1]))
    try:
        with private_daemon(
            daemon_folder, kind=DaemonKind.SESSION, deadline=_deadline()
        ) as running:
            process = running.processes()[-1]
            soft, hard = resource.prlimit(process, resource.RLIMIT_MEMLOCK)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)

    assert soft == hard
    assert hard in (before[1], resource.RLIM_INFINITY)


def test_events_arrive_without_polling(connection: Connection) -> None:
    with contextlib.closing(DomainEvents(connection, name=NAME, uuid=UUID)) as events:
        domain = connection.run("the definition", lambda: connection.raw.defineXML(XML))
        events.wait_for("its definition", kinds(EventKind.DEFINED), _deadline())
        connection.run("its removal", domain.undefine)
        events.wait_for("its removal", kinds(EventKind.UNDEFINED), _deadline())

    assert _names(connection) == []


def test_refused_libvirt_call_raises_the_error_code_and_prints_nothing(
    connection: Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LibvirtError, match="no domain with matching name 'nobody'") as caught:
        connection.run("the look at 'nobody'", lambda: connection.raw.lookupByName("nobody"))

    assert caught.value.code == Code.NO_DOMAIN
    assert capfd.readouterr() == ("", "")


def test_connection_reports_a_restarted_libvirtd_and_can_be_reopened(
    daemon: PrivateDaemon, connection: Connection
) -> None:
    generation = connection.generation
    with contextlib.closing(DomainEvents(connection, name=NAME, uuid=UUID)) as events:
        daemon.restart(_deadline())

        with pytest.raises(ConnectionLostError, match="ended or was restarted"):
            events.wait_for("an event", kinds(EventKind.CRASHED), _deadline())
        with pytest.raises(ConnectionLostError, match="ended or was restarted"):
            _names(connection)

    connection.reopen(_deadline())

    assert connection.generation == generation + 1
    assert _names(connection) == []


def test_killed_libvirtd_can_be_started_again(
    daemon: PrivateDaemon, connection: Connection
) -> None:
    daemon.kill(_deadline())
    daemon.start(_deadline())

    connection.reopen(_deadline())

    assert _names(connection) == []


def test_error_for_a_hanging_daemon_has_the_stacks_of_all_threads(
    daemon: PrivateDaemon, connection: Connection
) -> None:
    with _stopped(daemon), pytest.raises(LibvirtHangsError) as caught:
        connection.run("the list of domains", connection.raw.listAllDomains, limit_s=0.2)

    assert "did not answer the list of domains" in str(caught.value)
    assert "in listAllDomains" in str(caught.value)
    assert _names(connection) == []


def test_domains_are_not_shared_between_two_private_daemons(
    daemon: PrivateDaemon, connection: Connection, daemon_folder: Path
) -> None:
    domain = connection.run("the definition", lambda: connection.raw.defineXML(XML))
    try:
        with (
            private_daemon(daemon_folder, kind=daemon.kind, deadline=_deadline()) as other,
            Connection.open(other.uri, deadline=_deadline()) as beside,
        ):
            assert _names(beside) == []
    finally:
        connection.run("its removal", domain.undefine)


def test_socket_with_too_long_a_path_is_refused(daemon: PrivateDaemon, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)

    with (
        pytest.raises(HarnessError, match="but Unix allows 107; name a folder with a shorter"),
        private_daemon(folder, kind=daemon.kind, deadline=_deadline()),
    ):
        raise AssertionError("it started all the same")

    assert not folder.exists()


_OWNER = """\
import sys
from pathlib import Path
from harness.machine.libvirt.private_daemon import private_daemon
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.provisioning.wait import Deadline

folder, kind = sys.argv[1:]
with private_daemon(Path(folder), kind=DaemonKind(kind), deadline=Deadline.after(60)) as daemon:
    print(*daemon.processes(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_daemon_ends_with_the_process_that_started_it(
    daemon: PrivateDaemon, daemon_folder: Path, number: signal.Signals
) -> None:
    owner = spawn(
        [
            *("env", "--default-signal=INT", sys.executable, "-c", _OWNER),
            *(str(daemon_folder), daemon.kind.value),
        ],
        stdin=PIPE,
        stdout=PIPE,
        cwd=REPOSITORY,
    )
    try:
        assert owner.stdout is not None
        processes = [int(word) for word in owner.stdout.readline().split()]
        assert len(processes) >= 3
        assert _alive(processes) == processes

        os.kill(owner.pid, number)

        def poll() -> Observation[bool]:
            alive = _alive(processes)
            return Observation(None if alive else True, f"processes {alive}")

        wait_for("the end of all of them", poll, _deadline(), interval_s=0.02)
    finally:
        end(owner)
        for pipe in (owner.stdin, owner.stdout):
            if pipe is not None:
                pipe.close()


def _alive(processes: list[int]) -> list[int]:
    alive = []
    for process in processes:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z":
                alive.append(process)
    return alive
