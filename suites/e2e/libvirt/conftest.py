"""A lab whose machines are domains of a libvirtd that only these tests use."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from harness.lab import Lab
from harness.lease import leased_folder
from harness.machine.capacity.broker import host_folder
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.private_daemon import PrivateDaemon, private_daemon
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.progress import ProgressEvent
    from harness.settings import Settings

PATIENCE_S = 60.0
_VIRSH_S = 20.0


@dataclass(frozen=True)
class Libvirtd:
    """A libvirtd, and queries to it with virsh."""

    daemon: PrivateDaemon

    def domains(self) -> list[str]:
        """Return the names of all domains, running or not, from `virsh list --all`."""
        listed = LocalRunner().run(
            ["virsh", "-c", self.daemon.uri, "list", "--all", "--name"], timeout_s=_VIRSH_S
        )
        return listed.check("Listing the domains").stdout.split()


@pytest.fixture(scope="session")
def libvirtd(settings: Settings) -> Iterator[Libvirtd]:
    """Run a libvirtd for the tests of this folder."""
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            load_libvirt()
            # The folder's path is short, since the length of a socket path is limited.
            folder = stack.enter_context(leased_folder(host_folder() / "libvirt", prefix="t"))
            daemon = stack.enter_context(
                private_daemon(folder / "d", deadline=Deadline.after(PATIENCE_S))
            )
        yield Libvirtd(daemon)


@pytest.fixture(scope="session")
def libvirt_lab(
    libvirtd: Libvirtd, settings: Settings, announce: Callable[[ProgressEvent], None]
) -> Iterator[Lab]:
    """Open a lab that starts its machines by the libvirtd of these tests."""
    here = replace(settings, machine_driver=MachineDriver.LIBVIRT, machine_uri=libvirtd.daemon.uri)
    with contextlib.ExitStack() as stack:
        with requirements(settings):
            lab = stack.enter_context(Lab.open(here, announce))
        yield lab
