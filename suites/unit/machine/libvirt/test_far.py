"""What a libvirt on another host can't give a machine, each refused with a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from harness.errors import RequirementError
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.far import FarLibvirtDriver, parse_emulator
from harness.machine.spec import Accelerator
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect
from suites.unit.machine.test_argv import a_machine_spec

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
SESSION = "qemu+ssh://far/session"


@pytest.fixture
def connection(libvirt: FakeLibvirt) -> Iterator[Connection]:
    libvirt.connects.append(FakeConnect())
    with Connection.open(SESSION, deadline=Deadline.after(20)) as opened:
        yield opened


@pytest.fixture
def driver(connection: Connection) -> FarLibvirtDriver:
    return FarLibvirtDriver(connection, cast("Storage", None), CAPABILITIES)


def test_session_has_to_be_told_its_folder(connection: Connection) -> None:
    opening = FarLibvirtDriver.open(
        connection, CAPABILITIES, folder=None, cache=Path("/cache"), tell=print
    )

    with pytest.raises(RequirementError, match="name one by --machine-storage"), opening:
        raise AssertionError("it opened all the same")


@pytest.mark.parametrize(
    ("choice", "accelerator"),
    [("auto", Accelerator.TCG), ("tcg", Accelerator.TCG), ("kvm", Accelerator.KVM)],
)
def test_kvm_is_taken_only_where_it_was_asked_for(
    driver: FarLibvirtDriver, choice: str, accelerator: Accelerator
) -> None:
    chosen = driver.choose_accelerator(choice)

    assert chosen.accelerator is accelerator
    assert "KVM" in chosen.reason


def test_emulated_gpu_is_refused(driver: FarLibvirtDriver) -> None:
    with pytest.raises(RequirementError, match="takes no emulated GPU, whose server is a process"):
        driver.transport(Accelerator.TCG)


def test_checkpoint_is_refused(driver: FarLibvirtDriver) -> None:
    with pytest.raises(RequirementError, match="use --machine-start=cold"):
        driver.state_parts(a_machine_spec())


def test_emulator_is_the_far_hosts_own() -> None:
    assert parse_emulator(CAPABILITIES) == "/usr/bin/qemu-system-x86_64"


@pytest.mark.parametrize(
    "capabilities",
    [
        "<capabilities/>",
        "<capabilities><guest><arch name='aarch64'><emulator>/q</emulator></arch></guest></capabilities>",
    ],
)
def test_host_without_qemu_is_told_the_package(capabilities: str) -> None:
    with pytest.raises(RequirementError, match="qemu-system-x86` there"):
        parse_emulator(capabilities)
