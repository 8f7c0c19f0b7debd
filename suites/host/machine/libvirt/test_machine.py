"""A machine on libvirt, without QEMU."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import GpuAttachment
from harness.machine.libvirt import domain as domain_module
from harness.machine.libvirt import machine as machine_module
from harness.machine.libvirt import monitor, stream
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec, an_attachment
from suites.unit.machine.libvirt.domains import a_host
from suites.unit.machine.libvirt.fake_host import Flags, HostWithStreams
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect
from suites.unit.machine.libvirt.fake_libvirt_qemu import FakeLibvirtQemu
from suites.unit.machine.libvirt.fake_streams import (
    FULL,
    READABLE,
    FakeLoopLibvirt,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S, SHORT_S = 20.0, 0.05
URI = "qemu:///system"


@pytest.fixture
def connect(libvirt: FakeLibvirt) -> Iterator[Callable[[], Connection]]:
    opened: list[Connection] = []

    def connect() -> Connection:
        libvirt.connects.append(FakeConnect())
        opened.append(Connection.open(URI, deadline=Deadline.after(LONG_S)))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def a_machine(connection: Connection, folder: Path, **changes: Any) -> LibvirtMachine:
    return LibvirtMachine(
        a_machine_spec(root_ports=1, **changes),
        folder,
        connection=connection,
        host=a_host(),
        agent_socket=folder / "agent",
        monitor_events=MonitorEvents(connection),
        qemu_logs=folder / "logs",
    )


def test_gpu_whose_socket_libvirt_cannot_pass_to_qemu_is_refused(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(), tmp_path)
    attachment = GpuAttachment(id="gpu0", driver="a-device", fd=None, root_port_window_mib=64)

    with pytest.raises(RequirementError, match=r"'a-device' at 'qemu.*--machine-driver=qemu"):
        machine.plug(attachment)


def test_gpu_that_needs_a_larger_window_than_its_root_port_has_is_refused(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(), tmp_path)

    with pytest.raises(HarnessError, match="reserve 64 MiB, but device 'gpu0' needs 256"):
        machine.plug(an_attachment(window_mib=256))


def test_machine_that_was_never_started_can_be_killed_and_closed(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(), tmp_path)

    machine.kill()
    machine.close()

    assert not machine.is_running
    assert machine.pid is None


@pytest.fixture
def host(libvirt: FakeLibvirt, monkeypatch: pytest.MonkeyPatch) -> HostWithStreams:
    loop, qemu = FakeLoopLibvirt(), FakeLibvirtQemu()
    monkeypatch.setattr(domain_module, "load_libvirt", lambda: Flags)
    monkeypatch.setattr(monitor, "load_libvirt_qemu", lambda: qemu)
    monkeypatch.setattr(stream, "load_libvirt", lambda: loop)
    made = HostWithStreams()
    libvirt.connects.append(made)
    return made


@pytest.fixture
def started_machine(host: HostWithStreams, tmp_path: Path) -> Iterator[LibvirtMachine]:
    """Start a machine whose console log is on a full disk."""
    (tmp_path / "serial.log").symlink_to(FULL)
    with (
        Connection.open(URI, deadline=Deadline.after(LONG_S)) as connection,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent,
    ):
        host.after_start = partial(agent.connect, str(tmp_path / "agent"))
        with a_machine(connection, tmp_path) as machine:
            yield machine
            host.hang_up()


def test_wait_reports_that_the_console_log_cannot_be_written(
    started_machine: LibvirtMachine, host: HostWithStreams, tmp_path: Path
) -> None:
    assert started_machine.failure() is None
    host.streams[0].incoming = [b"Linux version 6.1\n"]
    host.streams[0].turn(READABLE)

    with pytest.raises(
        HarnessError, match=rf"(?s)No space left on device.*'{tmp_path}'.*Linux version 6\.1"
    ):
        started_machine.console.wait_for(
            "login:", Deadline.after(SHORT_S), what="a prompt", failure=started_machine.failure
        )


# -- the agent's socket and QEMU's log ----------------------------------------------------------------


def test_end_of_the_qemu_log_is_quoted_even_if_the_disk_is_full(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(), tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / f"{machine._domain.name}.log").write_text("the end\n")
    (tmp_path / "stderr.log").symlink_to(FULL)

    assert machine._last_output() == "libvirt's log of the machine ends with: the end"


def test_log_of_qemu_is_copied_if_this_user_may_read_it(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(), tmp_path)
    (tmp_path / "logs").mkdir()
    assert machine.logs == {}
    assert machine._last_output() == (
        "libvirt's log of the machine ends with: nothing that this user may read"
    )

    (tmp_path / "logs" / f"{machine._domain.name}.log").write_bytes(b"\xff" * 3000 + b" the end\n")
    (tmp_path / "domain.xml").touch()

    assert machine.logs == {name: tmp_path / name for name in ("domain.xml", "stderr.log")}
    assert (tmp_path / "stderr.log").read_text().endswith(" the end\n")
    end = machine._last_output().removeprefix("libvirt's log of the machine ends with: ")
    assert len(end) == 2000
    assert end.endswith(" the end")


def test_machine_that_does_not_run_yet_can_be_killed(
    connect: Callable[[], Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = a_machine(connect(), tmp_path)

    def refuse() -> None:
        raise HarnessError("There is no such domain.")

    monkeypatch.setattr(machine._domain, "destroy", refuse)

    machine.kill()


def listening(connection: Connection, folder: Path) -> tuple[LibvirtMachine, socket.socket, Path]:
    """Return a machine that waits for its QEMU, and the socket to which QEMU must connect."""
    path = folder / "agent"
    machine = LibvirtMachine(
        a_machine_spec(),
        folder,
        connection=connection,
        host=a_host(),
        agent_socket=path,
        monitor_events=MonitorEvents(connection),
        qemu_logs=folder / "logs",
        agent_program=b"the agent",
    )
    return machine, machine._listen(), path


def test_machine_pid_is_the_peer_process_of_the_agent_socket(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine, listener, path = listening(connect(), tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as qemu:
        qemu.connect(str(path))

        machine._open_agent(listener)

        assert machine.pid == os.getpid()
        qemu.shutdown(socket.SHUT_RDWR)
        with pytest.raises(HarnessError, match="The agent of machine 'node' can't be reached any"):
            machine.agent.run(("true",), timeout_s=LONG_S)
        machine.close()
    assert not path.exists()
    assert listener.fileno() == -1


def test_machine_can_be_closed_if_the_agent_socket_is_already_removed(
    connect: Callable[[], Connection], tmp_path: Path
) -> None:
    machine, listener, path = listening(connect(), tmp_path)
    path.unlink()

    machine.close()

    assert listener.fileno() == -1


def test_error_for_a_qemu_that_does_not_connect_mentions_the_socket(
    connect: Callable[[], Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_module, "_CONNECT_S", 0.01)
    machine, listener, path = listening(connect(), tmp_path)

    with pytest.raises(HarnessError, match=rf"to connect to '{path}' within 0 s"):
        machine._open_agent(listener)

    machine.close()
    assert not path.exists()
