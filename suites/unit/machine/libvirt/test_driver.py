"""The driver whose machines are domains, as remote as no libvirt is needed."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.gpu.transport import Transport
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import driver as driver_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.driver import (
    LibvirtDriver,
    connect,
    parse_security_models,
    qemu_logs,
)
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.libvirt.domains import a_host
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirtError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.unit.machine.libvirt.fake_libvirt import FakeLibvirt

LONG_S = 20.0
NOBODY_LISTENS = FakeLibvirtError("Failed to connect: No such file", code=38, origin=7, errno=2)


@pytest.fixture
def driver(
    libvirt: FakeLibvirt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LibvirtDriver]:
    monkeypatch.setattr(driver_module, "qemu_identity", lambda qemu, _: f"digest of {qemu}")
    libvirt.connects.append(FakeConnect(version=9_000_000))
    with Connection.open("qemu:///system", deadline=Deadline.after(LONG_S)) as connection:
        yield LibvirtDriver(
            connection, a_host(), sockets=tmp_path, qemu_logs=tmp_path, cache=tmp_path
        )


def test_saved_state_depends_on_libvirt_the_program_and_the_devices(
    driver: LibvirtDriver,
) -> None:
    spec = a_machine_spec()

    parts = driver.state_parts(spec)

    assert (parts["libvirt"], parts["qemu"]) == (
        [9, 0, 0],
        "digest of /usr/bin/qemu-system-x86_64",
    )
    assert driver.state_parts(replace(spec, root_ports=2))["domain"] != parts["domain"]


def test_saved_state_does_not_depend_on_names_and_places(driver: LibvirtDriver) -> None:
    spec = a_machine_spec()
    moved = replace(spec, name="other", disk=Path("/moved/disk"), seed=Path("/moved/seed"))

    assert driver.state_parts(moved) == driver.state_parts(spec)


@pytest.mark.parametrize("accelerator", Accelerator)
def test_several_vcpus_always_run_at_once(driver: LibvirtDriver, accelerator: Accelerator) -> None:
    """Libvirt has no word for TCG's one thread."""
    spec = a_machine_spec(accelerator=accelerator)

    assert driver.has_vcpu_threads(replace(spec, cpus=2))
    assert not driver.has_vcpu_threads(spec)


def test_transport_that_needs_a_socket_by_its_path_is_refused(
    driver: LibvirtDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "find_transport", lambda *_: Transport.VFIO_USER)

    with pytest.raises(RequirementError, match=r"by 'vfio-user-pci'.*--machine-driver=qemu"):
        driver.transport(Accelerator.TCG)


def test_transport_that_takes_a_descriptor_is_taken(
    driver: LibvirtDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "find_transport", lambda *_: Transport.MPQEMU)

    assert driver.transport(Accelerator.TCG) is Transport.MPQEMU


def test_daemon_that_was_named_is_not_replaced_by_one_of_our_own(
    libvirt: FakeLibvirt, tmp_path: Path
) -> None:
    libvirt.connects.append(NOBODY_LISTENS)
    reports: list[str] = []

    with (
        contextlib.ExitStack() as opened,
        pytest.raises(RequirementError, match="No libvirtd answers at"),
    ):
        connect("qemu:///system?socket=/run/mine", tmp_path, opened, reports.append)

    assert reports == []


def test_security_models_are_those_of_the_capabilities() -> None:
    capabilities = (
        "<capabilities><host><secmodel><model>apparmor</model><doi>0</doi></secmodel>"
        "<secmodel><model>dac</model><doi>0</doi></secmodel></host></capabilities>"
    )

    assert parse_security_models(capabilities) == ("apparmor", "dac")
    assert parse_security_models("<capabilities><host/></capabilities>") == ()


@pytest.mark.parametrize(
    ("uri", "own", "logs"),
    [
        ("qemu:///system", "log/qemu", "/var/log/libvirt/qemu"),
        ("qemu:///session", "state/cache/libvirt/qemu/log", "/cache/libvirt/qemu/log"),
    ],
)
def test_qemu_logs_are_in_the_folder_of_their_libvirtd(
    libvirt: FakeLibvirt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    uri: str,
    own: str,
    logs: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    libvirt.connects.append(FakeConnect())
    with Connection.open(uri, deadline=Deadline.after(LONG_S)) as connection:
        assert qemu_logs(connection, tmp_path) == Path(logs)

        (tmp_path / "d").mkdir()

        assert qemu_logs(connection, tmp_path) == tmp_path / "d" / own
