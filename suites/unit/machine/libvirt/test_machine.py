"""A machine on libvirt, as far as no domain is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import GpuAttachment
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.domains import a_host
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect
from suites.unit.machine.test_argv import a_machine_spec, an_attachment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S = 20.0
NEAR, FAR = "qemu:///system", "qemu+ssh://box/system"


@pytest.fixture
def connect(libvirt: FakeLibvirt) -> Iterator[Callable[[str], Connection]]:
    opened: list[Connection] = []

    def connect(uri: str) -> Connection:
        libvirt.connects.append(FakeConnect())
        opened.append(Connection.open(uri, deadline=Deadline.after(LONG_S)))
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
        monitor_events=MonitorEvents(connection),
        qemu_logs=folder / "logs",
    )


@pytest.mark.parametrize(
    ("uri", "fd"), [(NEAR, None), (FAR, 7)], ids=["socket-by-path", "other-host"]
)
def test_gpu_whose_socket_libvirt_can_not_hand_on_is_refused(
    connect: Callable[[str], Connection], tmp_path: Path, uri: str, fd: int | None
) -> None:
    machine = a_machine(connect(uri), tmp_path)
    attachment = GpuAttachment(id="gpu0", driver="a-device", fd=fd, root_port_window_mib=64)

    with pytest.raises(RequirementError, match=r"'a-device' at 'qemu.*--machine-driver=qemu"):
        machine.plug(attachment)


def test_gpu_that_needs_a_larger_window_is_refused(
    connect: Callable[[str], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(NEAR), tmp_path)

    with pytest.raises(HarnessError, match="reserve 64 MiB, but device 'gpu0' needs 256"):
        machine.plug(an_attachment(window_mib=256))


def test_way_to_the_ssh_server_of_another_host_is_refused(
    connect: Callable[[str], Connection], tmp_path: Path
) -> None:
    with pytest.raises(RequirementError, match=r"runs at 'qemu\+ssh://box.*use its agent"):
        a_machine(connect(FAR), tmp_path).ssh_port()


def test_machine_that_was_never_started_does_not_run_and_ends_at_once(
    connect: Callable[[str], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(NEAR), tmp_path)

    machine.kill()
    machine.close()

    assert not machine.is_running
    assert machine.pid is None


def test_logs_are_those_that_there_are(
    connect: Callable[[str], Connection], tmp_path: Path
) -> None:
    """QEMU's words belong to root where libvirt is the system's."""
    machine = a_machine(connect(NEAR), tmp_path)
    (tmp_path / "domain.xml").write_text("<domain/>")

    assert dict(machine.logs) == {"domain.xml": tmp_path / "domain.xml"}


def test_words_of_qemu_are_kept_where_they_can_be_read(
    connect: Callable[[str], Connection], tmp_path: Path
) -> None:
    machine = a_machine(connect(NEAR), tmp_path)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / f"{machine._domain.name}.log").write_text("qemu: no such device\n")

    assert machine.logs["stderr.log"].read_text() == "qemu: no such device\n"
