"""A machine on a fake libvirt: how its domain starts, and which devices are plugged in."""

from __future__ import annotations

import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.gpu import HostGpuAttachment
from harness.machine.libvirt import domain as domain_module
from harness.machine.libvirt import monitor, stream
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.domain_xml import render_domain, render_host_gpu, render_seed_disk
from harness.machine.libvirt.driver import LibvirtDriver
from harness.machine.libvirt.errors import LibvirtError
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.libvirt.domains import a_host
from suites.unit.machine.libvirt.fake_host import (
    LIFE_CYCLE,
    STOPPED,
    FakeRunningDomain,
    Flags,
    HostWithStreams,
)
from suites.unit.machine.libvirt.fake_libvirt import FakeDomain
from suites.unit.machine.libvirt.fake_libvirt_qemu import FakeLibvirtQemu
from suites.unit.machine.libvirt.fake_streams import FakeLoopLibvirt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S = 20.0
URI = "qemu:///system"
GPU = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0",))
OTHER_GPU = HostGpuAttachment(id="gpu1", addresses=("0000:66:00.0",))


@pytest.fixture
def qemu(monkeypatch: pytest.MonkeyPatch) -> FakeLibvirtQemu:
    fake = FakeLibvirtQemu()
    monkeypatch.setattr(monitor, "load_libvirt_qemu", lambda: fake)
    return fake


@pytest.fixture
def host(
    libvirt: FakeLibvirt, qemu: FakeLibvirtQemu, monkeypatch: pytest.MonkeyPatch
) -> HostWithStreams:
    del qemu
    loop = FakeLoopLibvirt()
    monkeypatch.setattr(domain_module, "load_libvirt", lambda: Flags)
    monkeypatch.setattr(stream, "load_libvirt", lambda: loop)
    made = HostWithStreams()
    libvirt.connects.append(made)
    return made


@pytest.fixture
def connection(host: HostWithStreams) -> Iterator[Connection]:
    del host
    with Connection.open(URI, deadline=Deadline.after(LONG_S)) as opened:
        yield opened


@contextlib.contextmanager
def started_machine(
    connection: Connection,
    host: HostWithStreams,
    folder: Path,
    *attachments: HostGpuAttachment,
    **changes: Any,
) -> Iterator[LibvirtMachine]:
    """Start a machine whose QEMU connects to the socket of the agent."""
    path = folder / "agent"
    machine = LibvirtMachine(
        a_machine_spec(root_ports=2, **changes),
        folder,
        attachments,
        connection=connection,
        host=a_host(),
        agent_socket=path,
        monitor_events=MonitorEvents(connection),
        qemu_logs=folder,
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        host.after_start = partial(agent.connect, str(path))
        with machine:
            yield machine


@pytest.fixture
def machine(
    connection: Connection, host: HostWithStreams, tmp_path: Path
) -> Iterator[LibvirtMachine]:
    with started_machine(connection, host, tmp_path) as started:
        yield started
        host.hang_up()


def test_guest_starts_only_after_the_console_and_the_agent_are_connected(
    machine: LibvirtMachine, host: HostWithStreams, tmp_path: Path
) -> None:
    """Otherwise the guest would print and send requests before anybody listens."""
    name = machine._domain.name
    xml = render_domain(
        machine.spec, a_host(agent_socket=tmp_path / "agent"), name=name, uuid=host.uuid
    )

    assert name.startswith("node-")
    assert (tmp_path / "domain.xml").read_text() == xml
    assert [call for call in host.calls if not call.startswith("keep-alive")] == [
        f"create {xml}",
        "console None",
        "resume",
    ]
    assert machine.is_running


def test_machine_gets_only_its_own_events_from_the_shared_registration(
    connection: Connection, host: HostWithStreams, qemu: FakeLibvirtQemu, tmp_path: Path
) -> None:
    """Libvirt allows one registration for QMP events per connection."""
    driver = LibvirtDriver(
        connection, a_host(), sockets=tmp_path, qemu_logs=tmp_path, cache=tmp_path
    )
    with contextlib.ExitStack() as ends:
        machines = []
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            machines.append(driver.machine(a_machine_spec(name="the-same"), folder))
            path = machines[-1]._host.agent_socket
            agent = ends.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            host.after_start = partial(agent.connect, str(path))
            ends.enter_context(machines[-1])
            # libvirt's event loop, which does not run here, would report the end of the console.
            ends.callback(host.hang_up)

        qemu.tell(FakeDomain(machines[1]._domain.uuid), "STOP")

        assert len(qemu.callbacks) == 1
        assert [[event.name for event in each.events] for each in machines] == [[], ["STOP"]]


def test_driver_reconnects_to_a_restarted_libvirtd_for_a_new_machine(
    connection: Connection, host: HostWithStreams, libvirt: FakeLibvirt, tmp_path: Path
) -> None:
    driver = LibvirtDriver(
        connection, a_host(), sockets=tmp_path, qemu_logs=tmp_path, cache=tmp_path
    )
    libvirt.connects.append(HostWithStreams())
    host.break_down()

    machine = driver.machine(a_machine_spec(qemu="another-qemu"), tmp_path)

    assert not connection.is_lost
    assert machine._host.emulator == "another-qemu"


def test_start_does_not_resume_a_restored_machine(
    connection: Connection, host: HostWithStreams, tmp_path: Path
) -> None:
    with started_machine(connection, host, tmp_path, is_restored=True):
        host.hang_up()

    assert "resume" not in host.calls


def test_machine_whose_console_cannot_be_opened_is_ended(
    connection: Connection, host: HostWithStreams, tmp_path: Path
) -> None:
    host.refused_call, host.before_refusal = "console None", host.hang_up

    with (
        pytest.raises(LibvirtError, match="the console of machine 'node': not now"),
        started_machine(connection, host, tmp_path),
    ):
        raise AssertionError("it started all the same")

    assert host.living == []


def test_machine_whose_start_was_interrupted_is_ended(
    connection: Connection, host: HostWithStreams, tmp_path: Path
) -> None:
    """Ctrl-C arrives while libvirt starts the domain."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    host.before_start = lambda: setattr(host, "after_start", interrupt)

    with pytest.raises(KeyboardInterrupt), started_machine(connection, host, tmp_path):
        raise AssertionError("it started all the same")

    assert host.living == []


def test_killed_machine_does_not_run(machine: LibvirtMachine, host: HostWithStreams) -> None:
    machine.kill()

    assert not machine.is_running
    assert host.living == []


def test_seed_is_plugged_and_unplugged_as_a_disk(
    machine: LibvirtMachine, host: HostWithStreams, tmp_path: Path
) -> None:
    seed = tmp_path / "seed.iso"

    machine.plug_seed(seed)
    machine.unplug_seed(Deadline.after(LONG_S))

    assert host.calls[-2:] == [f"attach {render_seed_disk(seed)}", "detach ua-seed-disk"]


# -- GPUs of the host ---------------------------------------------------------------------------------


def test_all_gpus_are_plugged_in_before_the_guest_runs(
    connection: Connection, host: HostWithStreams, tmp_path: Path
) -> None:
    with started_machine(connection, host, tmp_path, GPU, OTHER_GPU):
        host.hang_up()

        assert host.calls[-3:] == [
            f"attach {render_host_gpu(GPU, port=0)}",
            f"attach {render_host_gpu(OTHER_GPU, port=1)}",
            "resume",
        ]


def test_unplugging_a_host_gpu_can_be_repeated_after_a_timeout(
    machine: LibvirtMachine, host: HostWithStreams
) -> None:
    machine.plug(GPU)
    host.is_stubborn = True
    with pytest.raises(HarnessError, match="did not report the removal of the host's GPU 'gpu0'"):
        machine.unplug(GPU.id, Deadline.after(0.0))
    host.is_stubborn = False

    machine.unplug(GPU.id, Deadline.after(LONG_S))

    assert host.calls[-2:] == ["detach ua-gpu0", "detach ua-gpu0"]


def test_gpus_of_the_host_take_free_root_ports(
    machine: LibvirtMachine, host: HostWithStreams
) -> None:
    machine.plug(GPU)
    machine.plug(OTHER_GPU)
    assert host.calls[-2:] == [
        f"attach {render_host_gpu(GPU, port=0)}",
        f"attach {render_host_gpu(OTHER_GPU, port=1)}",
    ]

    machine.unplug(OTHER_GPU.id, Deadline.after(LONG_S))
    machine.plug(OTHER_GPU)

    assert host.calls[-2:] == [
        "detach ua-gpu1",
        f"attach {render_host_gpu(OTHER_GPU, port=1)}",
    ]


def test_host_gpu_that_is_too_large_for_the_space_of_its_root_port_is_refused(
    machine: LibvirtMachine, host: HostWithStreams
) -> None:
    gpu = HostGpuAttachment(id="gpu0", addresses=GPU.addresses, aperture_mib=65536)

    with pytest.raises(
        HarnessError, match="device 'gpu0' needs 65536; raise 'root_port_aperture_"
    ):
        machine.plug(gpu)

    assert host.calls[-1] == "resume"


def test_gpu_of_the_host_that_libvirt_refuses_takes_no_root_port(
    machine: LibvirtMachine, host: HostWithStreams
) -> None:
    xml = render_host_gpu(GPU, port=0)
    host.refused_call = f"attach {xml}"

    with pytest.raises(
        RequirementError,
        match=r"'0000:65:00\.0' into machine 'node': not now\. `harness gpu host ls`",
    ):
        machine.plug(GPU)
    machine.plug(OTHER_GPU)

    assert host.calls[-1] == f"attach {render_host_gpu(OTHER_GPU, port=0)}"


# -- messages about machines that have ended or can't continue -----------------------------------------


def test_failure_of_a_machine_mentions_its_full_disk(
    machine: LibvirtMachine, host: HostWithStreams, qemu: FakeLibvirtQemu
) -> None:
    assert machine.failure() is None

    qemu.tell(FakeDomain(host.uuid), "BLOCK_IO_ERROR", '{"reason": "No space left on device"}')

    assert machine.failure() == (
        "QEMU could not write its disk (No space left on device); free space on the file system of "
        "'/runs/disk.qcow2'"
    )


@pytest.mark.parametrize("is_open_again", [False, True])
def test_failure_of_a_machine_mentions_the_end_of_libvirtd(
    machine: LibvirtMachine,
    host: HostWithStreams,
    connection: Connection,
    libvirt: FakeLibvirt,
    *,
    is_open_again: bool,
) -> None:
    libvirt.connects.append(HostWithStreams())

    host.break_down()
    if is_open_again:
        connection.reopen(Deadline.after(LONG_S))

    assert machine.failure() == (
        f"libvirtd at '{URI}' ended or was restarted, and its machines ended too"
    )
    assert not machine.is_running


@pytest.mark.parametrize(
    ("detail", "how"),
    [(0, "by 'guest-reset'"), (5, "as 'failed' by 'guest-reset'")],
    ids=["shutdown", "failed"],
)
def test_power_off_error_mentions_how_the_machine_ended(
    machine: LibvirtMachine, host: HostWithStreams, qemu: FakeLibvirtQemu, detail: int, how: str
) -> None:
    qemu.tell(FakeDomain(host.uuid), "SHUTDOWN", '{"reason": "guest-reset"}')
    host.tell(LIFE_CYCLE, FakeRunningDomain(host, host.uuid), STOPPED, detail)

    with pytest.raises(HarnessError, match=rf"expected to power off, but ended {how}\."):
        machine.wait_for_power_off(Deadline.after(LONG_S))


def test_wait_for_power_off_returns_after_a_guest_shutdown(
    machine: LibvirtMachine, host: HostWithStreams, qemu: FakeLibvirtQemu
) -> None:
    qemu.tell(FakeDomain(host.uuid), "SHUTDOWN", '{"reason": "guest-shutdown"}')
    host.tell(LIFE_CYCLE, FakeRunningDomain(host, host.uuid), STOPPED, 0)

    machine.wait_for_power_off(Deadline.after(LONG_S))

    assert not machine.is_running
