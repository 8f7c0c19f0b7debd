"""The VM driver whose machines are domains of libvirt."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from harness.errors import RequirementError
from harness.gpu.transport import Transport, find_transport
from harness.lease import leased_folder, sweep
from harness.machine.accelerator import choose_accelerator
from harness.machine.broker import host_folder
from harness.machine.libvirt.complaint import NoDaemonError
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon import private_daemon
from harness.machine.libvirt.domain_xml import DomainHost, render_domain
from harness.machine.libvirt.far import FarLibvirtDriver
from harness.machine.libvirt.layout import DaemonKind, DaemonLayout
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.qemu import qemu_identity, require_qemu
from harness.machine.spec import placeless
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import PurePosixPath

    from harness.gpu import GpuAttachment
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.spec import Accelerator, MachineSpec

DEFAULT_URI = "qemu:///session"

_OPEN_S = 30.0
#: URIs that name no daemon in particular.
_OWN_DAEMONS = {"qemu:///system": DaemonKind.SYSTEM, "qemu:///session": DaemonKind.SESSION}
_DAEMON = "d"
_SYSTEM_LOGS = Path("/var/log/libvirt/qemu")
_NO_UUID = "00000000-0000-0000-0000-000000000000"


class LibvirtDriver:
    """Makes machines by the libvirtd of one connection, which is opened anew where that went."""

    name = "libvirt"

    def __init__(
        self,
        connection: Connection,
        host: DomainHost,
        *,
        sockets: Path,
        qemu_logs: Path,
        cache: Path,
    ) -> None:
        self._connection = connection
        self._host = host
        self._monitor_events = MonitorEvents(connection)
        self._sockets = sockets
        self._qemu_logs = qemu_logs
        self._cache = cache

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        uri: str | None,
        *,
        qemu: str,
        cache: Path,
        tell: Callable[[str], None],
        far_folder: PurePosixPath | None = None,
    ) -> Iterator[LibvirtDriver | FarLibvirtDriver]:
        """Connect, for as long as machines are wanted; they end with it.

        Another host's libvirt keeps its machines' disks in `far_folder`, which lies there.

        Where no libvirtd of this host answers, one is started for as long, of which `tell` hears.
        Raises RequirementError where there is no libvirt to be had.
        """
        require_qemu(qemu)
        # Short, since a socket's path may have no more than 107 characters.
        parent = host_folder() / "libvirt"
        sweep(parent)
        with contextlib.ExitStack() as opened:
            sockets = opened.enter_context(leased_folder(parent, prefix="s"))
            connection = connect(uri or DEFAULT_URI, sockets, opened, tell)
            capabilities = connection.run(
                "the query of its capabilities", lambda: str(connection.raw.getCapabilities())
            )
            if not connection.is_local:
                yield opened.enter_context(
                    FarLibvirtDriver.open(
                        connection, capabilities, folder=far_folder, cache=cache, tell=tell
                    )
                )
                return
            host = DomainHost(
                emulator=shutil.which(qemu) or qemu,
                security_models=parse_security_models(capabilities),
                owner=(os.geteuid(), os.getegid()),
            )
            yield cls(
                connection,
                host,
                sockets=sockets,
                qemu_logs=qemu_logs(connection, sockets),
                cache=cache,
            )

    def choose_accelerator(self, choice: str) -> AcceleratorChoice:
        return choose_accelerator(
            choice, qemu=self._host.emulator, runner=LocalRunner(), cache=self._cache
        )

    def transport(self, accelerator: Accelerator) -> Transport:
        found = find_transport(self._host.emulator, accelerator.accel, LocalRunner())
        if found is not Transport.MPQEMU:
            raise RequirementError(
                f"'{self._host.emulator}' takes an emulated GPU by '{found.value}', whose socket "
                "libvirt doesn't hand on; use a QEMU from 6.0 to 8.1, or --machine-driver=qemu."
            )
        return found

    def has_vcpu_threads(self, spec: MachineSpec) -> bool:
        """Tell that any two run at once: libvirt can't have TCG run all of them in one thread."""
        return spec.cpus > 1

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        host = DomainHost(emulator="qemu")
        return {
            "domain": render_domain(placeless(spec), host, name="checkpoint", uuid=_NO_UUID),
            "libvirt": list(self._connection.daemon_version),
            "qemu": qemu_identity(self._host.emulator, spec.accelerator),
        }

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> LibvirtMachine:
        self._connection.reopen(Deadline.after(_OPEN_S))
        host = self._host
        return LibvirtMachine(
            spec,
            folder,
            attachments,
            connection=self._connection,
            host=DomainHost(
                emulator=shutil.which(spec.qemu) or spec.qemu,
                security_models=host.security_models,
                owner=host.owner,
                agent_socket=self._sockets / secrets.token_hex(4),
            ),
            monitor_events=self._monitor_events,
            qemu_logs=self._qemu_logs,
            agent_program=agent_program,
        )


def connect(
    uri: str, folder: Path, opened: contextlib.ExitStack, tell: Callable[[str], None]
) -> Connection:
    """Connect, to a libvirtd of one's own in `folder` where the host runs none."""
    try:
        return opened.enter_context(Connection.open(uri, deadline=Deadline.after(_OPEN_S)))
    except NoDaemonError as error:
        kind = _OWN_DAEMONS.get(uri)
        if kind is None:
            raise
        tell(f"{error} Until then, this run has a libvirtd of its own.")
    daemon = opened.enter_context(
        private_daemon(folder / _DAEMON, kind=kind, deadline=Deadline.after(_OPEN_S))
    )
    return opened.enter_context(Connection.open(daemon.uri, deadline=Deadline.after(_OPEN_S)))


def qemu_logs(connection: Connection, folder: Path) -> Path:
    """Return where the libvirtd that `connect` found, or put in `folder`, keeps QEMU's words."""
    own = folder / _DAEMON
    kind = DaemonKind.SESSION if connection.is_session else DaemonKind.SYSTEM
    if own.is_dir():
        return DaemonLayout(folder=own, kind=kind).qemu_logs
    if kind is DaemonKind.SYSTEM:
        return _SYSTEM_LOGS
    return Path(platformdirs.user_cache_dir("libvirt")) / "qemu" / "log"


def parse_security_models(capabilities: str) -> tuple[str, ...]:
    """Return by what libvirt's host confines its machines, from its capabilities."""
    found = ET.fromstring(capabilities).findall("./host/secmodel/model")  # noqa: S314 - libvirt's
    return tuple(str(model.text) for model in found)
