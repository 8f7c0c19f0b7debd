"""The libvirt driver: the behaviour that can be tested without libvirt."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.gpu.transport import Transport
from harness.machine.description.spec import Accelerator
from harness.machine.libvirt import driver as driver_module
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.machine.libvirt.domain_xml import DomainHost
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
    monkeypatch.setattr(
        driver_module, "qemu_identity", lambda qemu, used: f"digest of {qemu} with {used.accel}"
    )
    libvirt.connects.append(FakeConnect(version=9_000_000))
    with Connection.open("qemu:///system", deadline=Deadline.after(LONG_S)) as connection:
        yield LibvirtDriver(
            connection, a_host(), sockets=tmp_path, qemu_logs=tmp_path, cache=tmp_path
        )


def test_state_parts_depend_on_the_libvirt_version_and_the_qemu_digest_and_the_devices(
    driver: LibvirtDriver,
) -> None:
    spec = a_machine_spec()

    parts = driver.state_parts(spec)

    assert (parts["libvirt"], parts["qemu"]) == (
        [9, 0, 0],
        "digest of /usr/bin/qemu-system-x86_64 with tcg",
    )
    assert driver.state_parts(replace(spec, root_ports=2))["domain"] != parts["domain"]


def test_state_parts_do_not_depend_on_the_machine_name_and_disk_paths(
    driver: LibvirtDriver,
) -> None:
    spec = a_machine_spec()
    moved = replace(spec, name="other", disk=Path("/moved/disk"), seed=Path("/moved/seed"))

    assert driver.state_parts(moved) == driver.state_parts(spec)


def test_vfio_user_transport_is_refused_under_libvirt(
    driver: LibvirtDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "find_transport", lambda *_: Transport.VFIO_USER)

    with pytest.raises(RequirementError, match=r"'vfio-user-pci'.*--machine-driver=qemu"):
        driver.transport(Accelerator.TCG)


def test_libvirtd_at_the_given_uri_is_not_replaced_by_a_private_libvirtd(
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


def test_security_models_are_read_from_the_capabilities_of_libvirt() -> None:
    capabilities = (
        "<capabilities><host><secmodel><model>apparmor</model><doi>0</doi></secmodel>"
        "<secmodel><model>dac</model><doi>0</doi></secmodel></host></capabilities>"
    )

    assert parse_security_models(capabilities) == ("apparmor", "dac")
    assert parse_security_models("<capabilities><host/></capabilities>") == ()


def test_folder_of_the_qemu_logs_follows_from_the_libvirt_uri(
    libvirt: FakeLibvirt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    for uri, own, logs in (
        ("qemu:///system", "log/qemu", "/var/log/libvirt/qemu"),
        ("qemu:///session", "state/cache/libvirt/qemu/log", "/cache/libvirt/qemu/log"),
    ):
        libvirt.connects.append(FakeConnect())
        with Connection.open(uri, deadline=Deadline.after(LONG_S)) as connection:
            assert qemu_logs(connection, tmp_path) == Path(logs)

            (tmp_path / "d").mkdir()

            assert qemu_logs(connection, tmp_path) == tmp_path / "d" / own
            (tmp_path / "d").rmdir()


@pytest.mark.parametrize(
    ("uri", "kind"),
    [("qemu:///system", DaemonKind.SYSTEM), ("qemu:///session", DaemonKind.SESSION)],
)
def test_private_daemon_is_used_and_reported_if_no_other_daemon_listens(
    libvirt: FakeLibvirt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uri: str,
    kind: DaemonKind,
) -> None:
    started: list[tuple[Path, DaemonKind, int]] = []

    @contextlib.contextmanager
    def daemon(folder: Path, *, kind: DaemonKind, deadline: Deadline) -> Iterator[SimpleNamespace]:
        started.append((folder, kind, round(deadline.remaining_s())))
        yield SimpleNamespace(uri=f"{uri}?socket=/run/own")
        started.clear()

    monkeypatch.setattr(driver_module, "private_daemon", daemon)
    libvirt.connects += [NOBODY_LISTENS, FakeConnect()]
    reports: list[str] = []

    with contextlib.ExitStack() as opened:
        connection = connect(uri, tmp_path, opened, reports.append)

        assert started == [(tmp_path / "d", kind, 30)]
        assert connection.uri == f"{uri}?socket=/run/own"

    assert started == []
    (report,) = reports
    assert report.startswith("No libvirtd answers at")
    assert report.endswith(" As long as none answers, each run starts a private libvirtd.")


class HostWithCapabilities(FakeConnect):
    """A connection that returns the capabilities of its host."""

    def getCapabilities(self) -> str:  # noqa: N802 - libvirt's name
        return (
            "<capabilities><host><secmodel><model>dac</model></secmodel></host><guest>"
            "<arch name='x86_64'><emulator>/there/qemu</emulator></arch></guest></capabilities>"
        )


@pytest.fixture
def required(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Let each program exist, and return the programs that were required."""
    programs: list[str] = []
    monkeypatch.setattr(driver_module, "require_qemu", programs.append)
    monkeypatch.setattr(driver_module, "host_folder", lambda: tmp_path)
    monkeypatch.setattr("shutil.which", {"mine": "/opt/mine"}.get)
    return programs


@pytest.mark.parametrize(
    ("uri", "qemu", "emulator"),
    [(None, "mine", "/opt/mine"), ("qemu:///system", "absent", "absent")],
)
def test_closed_libvirt_driver_leaves_no_socket_folder(
    libvirt: FakeLibvirt,
    required: list[str],
    tmp_path: Path,
    *,
    uri: str | None,
    qemu: str,
    emulator: str,
) -> None:
    """No socket of the driver or of a killed process remains."""
    raw = HostWithCapabilities()
    libvirt.connects.append(raw)
    (tmp_path / "libvirt" / "s-killed").mkdir(parents=True, mode=0o700)

    with LibvirtDriver.open(uri, qemu=qemu, cache=tmp_path / "cache", report=print) as driver:
        assert isinstance(driver, LibvirtDriver)
        assert libvirt.opened == [uri or "qemu:///session"]
        assert required == [qemu]
        assert driver._host == DomainHost(
            emulator=emulator, security_models=("dac",), owner=(os.geteuid(), os.getegid())
        )
        assert [path.is_dir() for path in (tmp_path / "libvirt").glob("s-*")] == [True]

    assert list((tmp_path / "libvirt").glob("s-*")) == []
    assert raw.calls[-1] == "close"
