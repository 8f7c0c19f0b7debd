"""What a libvirt on another host can't give a machine, each refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import RequirementError
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.remote_driver import RemoteLibvirtDriver, parse_emulator
from harness.provisioning.wait import Deadline
from harness.settings import AcceleratorOption
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    return RemoteLibvirtDriver(connection, cast("Storage", None), CAPABILITIES)


def test_session_requires_a_folder(connection: Connection) -> None:
    opening = RemoteLibvirtDriver.open(
        connection, CAPABILITIES, folder=None, cache=Path("/cache"), report=print
    )

    with pytest.raises(RequirementError, match="name one by --machine-storage"), opening:
        raise AssertionError("it opened all the same")


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
    assert "KVM" in chosen.reason


def test_emulated_gpu_is_refused(driver: RemoteLibvirtDriver) -> None:
    with pytest.raises(
        RequirementError, match="can't have an emulated GPU, whose server is a process"
    ):
        driver.transport(Accelerator.TCG)


def test_checkpoint_is_refused(driver: RemoteLibvirtDriver) -> None:
    with pytest.raises(RequirementError, match="use --machine-start=cold"):
        driver.state_parts(a_machine_spec())


def test_emulator_is_the_remote_hosts_own() -> None:
    assert parse_emulator(CAPABILITIES) == "/usr/bin/qemu-system-x86_64"


@pytest.mark.parametrize(
    "capabilities",
    [
        "<capabilities/>",
        "<capabilities><guest><arch name='aarch64'><emulator>/q</emulator></arch></guest></capabilities>",
    ],
)
def test_host_without_qemu_gets_the_package_as_remedy(capabilities: str) -> None:
    with pytest.raises(RequirementError, match="qemu-system-x86` there"):
        parse_emulator(capabilities)
