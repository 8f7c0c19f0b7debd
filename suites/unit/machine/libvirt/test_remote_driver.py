"""What a libvirt on another host can't give a machine, each refused with a sentence."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import RequirementError
from harness.gpu import HostGpuAttachment
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import remote_driver as remote_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.remote_driver import (
    SYSTEM_FOLDER,
    RemoteLibvirtDriver,
    parse_emulator,
)
from harness.provisioning.wait import Deadline
from harness.settings import AcceleratorOption
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.machine.description.spec import MachineSpec
    from harness.machine.libvirt.storage import Storage
    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

CAPABILITIES = """
<capabilities>
  <guest><arch name='i686'><emulator>/usr/bin/qemu-system-i386</emulator></arch></guest>
  <guest><arch name='x86_64'><emulator>/usr/bin/qemu-system-x86_64</emulator></arch></guest>
</capabilities>
"""
SESSION = "qemu+ssh://remote/session"


@pytest.fixture
def connection(libvirt: FakeLibvirt) -> Iterator[Connection]:
    libvirt.connects.append(FakeConnect())
    with Connection.open(SESSION, deadline=Deadline.after(20)) as opened:
        yield opened


@pytest.fixture
def driver(connection: Connection) -> RemoteLibvirtDriver:
    return RemoteLibvirtDriver(connection, cast("Storage", "the storage"), CAPABILITIES)


def test_session_requires_a_folder(connection: Connection) -> None:
    opening = RemoteLibvirtDriver.open(
        connection, CAPABILITIES, folder=None, cache=Path("/cache"), report=print
    )

    with pytest.raises(RequirementError) as refused, opening:
        raise AssertionError("it opened all the same")

    assert str(refused.value) == (
        f"Machines at '{SESSION}' need a folder of that host for their disks; name one by "
        "--machine-storage."
    )


@pytest.mark.parametrize(
    ("option", "accelerator"),
    [
        (AcceleratorOption.AUTO, Accelerator.TCG),
        (AcceleratorOption.TCG, Accelerator.TCG),
        (AcceleratorOption.KVM, Accelerator.KVM),
    ],
)
def test_kvm_is_used_only_on_request(
    driver: RemoteLibvirtDriver, option: AcceleratorOption, accelerator: Accelerator
) -> None:
    chosen = driver.choose_accelerator(option)

    assert chosen.accelerator is accelerator
    assert chosen.reason == (
        f"KVM was requested; '{SESSION}' must have it."
        if accelerator is Accelerator.KVM
        else "TCG, since KVM can't be tested on a remote host; --accelerator=kvm uses it untested."
    )


def test_emulated_gpu_is_refused(driver: RemoteLibvirtDriver) -> None:
    with pytest.raises(RequirementError) as refused:
        driver.transport(Accelerator.TCG)

    assert str(refused.value) == (
        f"A machine at '{SESSION}' can't have an emulated GPU, whose server is a process of this host; "
        "use a libvirt of this host, or --machine-driver=qemu."
    )


def test_checkpoint_is_refused(driver: RemoteLibvirtDriver) -> None:
    with pytest.raises(RequirementError) as refused:
        driver.state_parts(a_machine_spec())

    assert str(refused.value) == (
        f"Machine 'node' at '{SESSION}' can't start from a checkpoint, whose memory is a file of this "
        "host; use --machine-start=cold."
    )


def test_machine_has_its_files_on_the_remote_host_and_its_disk_back_after_a_power_off(
    driver: RemoteLibvirtDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[object] = []
    there = replace(a_machine_spec(), disk=Path("/there/disk"))

    class Files:
        spec = there

        def fetch_disk(self, deadline: Deadline) -> None:
            noted.append(("fetch", round(deadline.remaining_s())))

    @contextlib.contextmanager
    def files(spec: MachineSpec, storage: object, *, deadline: Deadline) -> Iterator[Files]:
        noted.append(("files", spec, storage, round(deadline.remaining_s())))
        yield Files()
        noted.append(("files removed",))

    monkeypatch.setattr(remote_module, "remote_files", files)
    monkeypatch.setattr(LibvirtMachine, "_start", lambda _: noted.append(("start",)))
    monkeypatch.setattr(LibvirtMachine, "close", lambda _: noted.append(("end",)))
    monkeypatch.setattr(LibvirtMachine, "wait_for_power_off", lambda *_: noted.append(("off",)))

    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0",))
    with driver.machine(a_machine_spec(), tmp_path, [gpu], agent_program=b"agent") as machine:
        assert (machine.spec, machine.folder) == (there, tmp_path)
        assert machine._host.emulator == "/usr/bin/qemu-system-x86_64"
        assert (machine._attachments, machine._agent_program) == ((gpu,), b"agent")
        machine.wait_for_power_off(Deadline.after(1))

    assert noted == [
        ("files", a_machine_spec(), "the storage", 1800),
        ("start",),
        ("off",),
        ("fetch", 1800),
        ("end",),
        ("files removed",),
    ]


def test_storage_is_in_the_folder_of_the_system_unless_one_is_named(
    libvirt: FakeLibvirt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[object, ...]] = []

    @contextlib.contextmanager
    def storage(connection: Connection, folder: object, **how: object) -> Iterator[str]:
        opened.append((connection, folder, how))
        yield "the storage"

    monkeypatch.setattr(remote_module, "open_storage", storage)
    libvirt.connects.append(FakeConnect())
    uri = "qemu+ssh://remote/system"
    with Connection.open(uri, deadline=Deadline.after(20)) as connection:
        for folder in (None, PurePosixPath("/srv")):
            with RemoteLibvirtDriver.open(
                connection, CAPABILITIES, folder=folder, cache=tmp_path, report=print
            ) as driver:
                assert driver._capabilities == CAPABILITIES

    folders = [folder for _, folder, _ in opened]
    assert folders == [SYSTEM_FOLDER, PurePosixPath("/srv")]
    states = [cast("dict[str, Path]", how)["state"] for _, _, how in opened]
    assert {state.parent for state in states} == {tmp_path / "remote"}
    assert len(set(states)) == 2


def test_emulator_is_the_remote_hosts_own() -> None:
    assert parse_emulator(CAPABILITIES) == "/usr/bin/qemu-system-x86_64"


@pytest.mark.parametrize(
    "capabilities",
    [
        "<capabilities/>",
        "<capabilities><guest><arch name='x86_64'><emulator/></arch></guest></capabilities>",
        "<capabilities><guest><arch name='aarch64'><emulator>/q</emulator></arch></guest></capabilities>",
    ],
)
def test_host_without_qemu_gets_the_package_as_remedy(capabilities: str) -> None:
    with pytest.raises(RequirementError) as refused:
        parse_emulator(capabilities)

    assert str(refused.value) == (
        "libvirt's host has no QEMU for x86-64; run `apt-get install --no-install-recommends "
        "qemu-system-x86` there, and restart its libvirtd."
    )
