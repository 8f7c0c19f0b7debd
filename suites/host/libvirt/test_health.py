"""The doctor's checks of a real libvirtd, for example of whether its QEMU may open /dev/kvm."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from harness.machine.libvirt import requirement_checks
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon_layout import DaemonKind
from harness.machine.libvirt.private_daemon import private_daemon
from harness.plugin.select import requirements
from harness.provisioning.wait import Deadline
from suites.host.libvirt.conftest import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.machine.libvirt.private_daemon import PrivateDaemon
    from harness.settings import Settings


@pytest.fixture
def trapped(settings: Settings, daemon_folder: Path) -> Iterator[PrivateDaemon]:
    """Run a libvirtd that starts QEMU as a separate user, as distributions configure libvirtd."""
    deadline = Deadline.after(PATIENCE_S)
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            load_libvirt()
            daemon = stack.enter_context(
                private_daemon(daemon_folder, kind=DaemonKind.SYSTEM, deadline=deadline)
            )
        conf = daemon_folder / "etc" / "qemu.conf"
        text = conf.read_text()
        conf.write_text(text.replace('"root"', '"+65534"'))
        daemon.restart(deadline)
        yield daemon


@pytest.fixture
def kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace /dev/kvm by a file that only root may open."""
    path = tmp_path / "kvm"
    path.touch(mode=0o600)
    monkeypatch.setattr(requirement_checks, "KVM", path)
    return path


def test_kvm_check_fails_if_qemu_may_not_open_dev_kvm(trapped: PrivateDaemon, kvm: Path) -> None:
    with Connection.open(trapped.uri, deadline=Deadline.after(PATIENCE_S)) as connection:
        finding = requirement_checks._kvm(connection)
        kvm.chmod(0o666)
        mended = requirement_checks._kvm(connection)

    assert not finding.is_met
    assert f"'{kvm}' has mode 0600" in finding.found
    assert "may not" in finding.found
    assert mended.is_met


@pytest.mark.usefixtures("kvm")
def test_checks_of_kvm_and_emulator_pass_for_a_private_libvirtd(
    daemon: PrivateDaemon, connection: Connection
) -> None:
    assert requirement_checks._kvm(connection).is_met
    finding = requirement_checks._emulator(connection, "qemu-system-x86_64", None)

    assert finding.is_met
    assert "with machine 'pc-q35" in finding.found
    assert daemon.uri == connection.uri
