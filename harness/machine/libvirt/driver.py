"""The VM driver that runs machines as libvirt domains."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.gpu.transport import Transport, find_transport
from harness.lease import leased_folder, sweep
from harness.machine.accelerator import choose_accelerator
from harness.machine.capacity.broker import host_folder
from harness.machine.description.spec import without_paths
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.daemon_layout import DaemonKind, DaemonLayout
from harness.machine.libvirt.domain_xml import DomainHost, render_domain
from harness.machine.libvirt.errors import NoDaemonError
from harness.machine.libvirt.machine import LibvirtMachine
from harness.machine.libvirt.monitor import MonitorEvents
from harness.machine.libvirt.private_daemon import private_daemon
from harness.machine.qemu.driver import qemu_identity, require_qemu
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from harness.settings import user_cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.gpu import Attachment
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.description.spec import Accelerator, MachineSpec
    from harness.settings import AcceleratorOption

DEFAULT_URI = "qemu:///session"

_OPEN_S = 30.0
#: URIs for which a private daemon may replace the host's daemon.
_OWN_DAEMONS = {"qemu:///system": DaemonKind.SYSTEM, "qemu:///session": DaemonKind.SESSION}
_DAEMON = "d"
_SYSTEM_LOGS = Path("/var/log/libvirt/qemu")
_NO_UUID = "00000000-0000-0000-0000-000000000000"


class LibvirtDriver:
    """Creates machines over one connection to libvirtd, and reconnects when libvirtd restarts."""

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
        report: Callable[[str], None],
    ) -> Iterator[LibvirtDriver]:
        """Connect to libvirt until the context ends, which also ends the machines.

        If no libvirtd answers, a private libvirtd is started and reported. Raises RequirementError
        if libvirt is not available.
        """
        require_qemu(qemu)
        # The path is short, since a socket's path may have no more than 107 characters.
        parent = host_folder() / "libvirt"
        sweep(parent)
        with contextlib.ExitStack() as opened:
            sockets = opened.enter_context(leased_folder(parent, prefix="s"))
            connection = connect(uri or DEFAULT_URI, sockets, opened, report)
            capabilities = connection.run(
                "the query of its capabilities", lambda: str(connection.raw.getCapabilities())
            )
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

    def choose_accelerator(self, option: AcceleratorOption) -> AcceleratorChoice:
        return choose_accelerator(
            option, qemu=self._host.emulator, runner=LocalRunner(), cache=self._cache
        )

    def transport(self, accelerator: Accelerator) -> Transport:
        found = find_transport(self._host.emulator, accelerator.accel, LocalRunner())
        if found is not Transport.MPQEMU:
            raise RequirementError(
                f"'{self._host.emulator}' needs the device '{found.value}' for an emulated GPU, but libvirt "
                f"can't pass the socket of '{found.value}' to QEMU; use QEMU 6.0 to 8.1, or --machine-driver=qemu."
            )
        return found

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        host = DomainHost(emulator="qemu")
        return {
            "domain": render_domain(without_paths(spec), host, name="checkpoint", uuid=_NO_UUID),
            "libvirt": list(self._connection.daemon_version),
            "qemu": qemu_identity(self._host.emulator, spec.accelerator),
        }

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> LibvirtMachine:
        self._connection.reopen(Deadline.after(_OPEN_S))
        return LibvirtMachine(
            spec,
            folder,
            attachments,
            connection=self._connection,
            host=replace(self._host, emulator=shutil.which(spec.qemu) or spec.qemu),
            agent_socket=self._sockets / secrets.token_hex(4),
            monitor_events=self._monitor_events,
            qemu_logs=self._qemu_logs,
            agent_program=agent_program,
        )


def connect(
    uri: str, folder: Path, opened: contextlib.ExitStack, report: Callable[[str], None]
) -> Connection:
    """Connect to libvirtd, or to a private libvirtd in `folder` if the host runs none."""
    try:
        return opened.enter_context(Connection.open(uri, deadline=Deadline.after(_OPEN_S)))
    except NoDaemonError as error:
        kind = _OWN_DAEMONS.get(uri)
        if kind is None:
            raise
        report(f"{error} As long as none answers, each run starts a private libvirtd.")
    daemon = opened.enter_context(
        private_daemon(folder / _DAEMON, kind=kind, deadline=Deadline.after(_OPEN_S))
    )
    return opened.enter_context(Connection.open(daemon.uri, deadline=Deadline.after(_OPEN_S)))


def qemu_logs(connection: Connection, folder: Path) -> Path:
    """Return the folder with the QEMU logs of the libvirtd that `connect` found or started in `folder`."""
    own = folder / _DAEMON
    kind = DaemonKind.SESSION if connection.is_session else DaemonKind.SYSTEM
    if own.is_dir():
        return DaemonLayout(folder=own, kind=kind).qemu_logs
    if kind is DaemonKind.SYSTEM:
        return _SYSTEM_LOGS
    return user_cache_folder("libvirt") / "qemu" / "log"


def parse_security_models(capabilities: str) -> tuple[str, ...]:
    """Return the security models of libvirt's host, from libvirt's capabilities."""
    found = ET.fromstring(capabilities).findall("./host/secmodel/model")  # noqa: S314 - XML from libvirtd
    return tuple(str(model.text) for model in found)
