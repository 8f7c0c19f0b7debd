"""Runs a machine as a libvirt domain: opens its channels, and plugs and unplugs its devices."""

from __future__ import annotations

import contextlib
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.foreign_files import last_bytes
from harness.gpu import HostGpuAttachment
from harness.machine.channels.agent import Agent
from harness.machine.channels.console import Console
from harness.machine.channels.event_log import disk_failure
from harness.machine.libvirt.domain import POWERED_OFF, Domain
from harness.machine.libvirt.domain_xml import (
    SEED_ALIAS,
    alias_of,
    render_domain,
    render_host_gpu,
    render_seed_disk,
)
from harness.machine.libvirt.errors import LibvirtError
from harness.machine.libvirt.stream import StreamSocket
from harness.machine.monitored_machine import MonitoredMachine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.description.spec import MachineSpec
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.domain_xml import DomainHost
    from harness.machine.libvirt.monitor import DomainMonitor, MonitorEvents
    from harness.provisioning.wait import Deadline

_CONNECT_S = 30.0
#: Characters of QEMU's log that an error quotes.
_LOG_END = 2000
#: The most bytes of QEMU's log that are copied, since a guest can make the log long.
_COPIED_BYTES = 4 << 20


class LibvirtMachine(MonitoredMachine):
    """A running domain, which ends with its `with` block, this process or its connection.

    The machine leaves `domain.xml` and `serial.log` in `folder`, and also `stderr.log` if this user may read
    the log of QEMU that libvirt writes into `qemu_logs`.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        connection: Connection,
        host: DomainHost,
        agent_socket: Path,
        monitor_events: MonitorEvents,
        qemu_logs: Path,
        agent_program: bytes = b"",
    ) -> None:
        # The attachments are plugged one by one after the domain's start.
        super().__init__(spec, folder)
        self._connection = connection
        self._host = replace(host, agent_socket=agent_socket)
        self._agent_socket = agent_socket
        self._qemu_logs = qemu_logs
        self._attachments = tuple(attachments)
        self._host_gpus: set[str] = set()
        self._agent_program = agent_program
        self._domain = Domain(connection, monitor_events, machine=spec.name)
        self._pid: int | None = None

    @property
    def logs(self) -> Mapping[str, Path]:
        """Return the files in `folder` that explain what happened."""
        self._copy_qemu_log()
        names = ("domain.xml", "stderr.log", "serial.log")
        return {name: self.folder / name for name in names if (self.folder / name).exists()}

    def _copy_qemu_log(self) -> str:
        """Copy QEMU's log into `folder`, and return the end of the log."""
        try:
            log = self._qemu_logs / f"{self._domain.name}.log"
            output = last_bytes(log, _COPIED_BYTES).decode(errors="replace")
        except OSError:
            # Only root may read the logs of the system's libvirtd.
            return ""
        # On a full disk, the end of the log is still returned, since it may explain the full disk.
        with contextlib.suppress(OSError):
            (self.folder / "stderr.log").write_text(output)
        return output.strip()[-_LOG_END:]

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def is_running(self) -> bool:
        return self._domain.is_running

    @property
    @override
    def monitor(self) -> DomainMonitor:
        return self._domain.monitor

    @override
    def _start(self) -> None:
        domain, spec = self._domain, self.spec
        xml = render_domain(spec, self._host, name=domain.name, uuid=domain.uuid)
        (self.folder / "domain.xml").write_text(xml)
        # QEMU connects to this socket at the domain's start, so the socket is created first.
        listener = self._listen()
        # Streams that are opened after this line are closed before the domain.
        self._resources.callback(domain.close)
        domain.start(xml, emulator=self._host.emulator)
        self._open_console()
        self._open_agent(listener)
        for attachment in self._attachments:
            self.plug(attachment)
        if not self.spec.is_restored:
            domain.resume()

    def _listen(self) -> socket.socket:
        path = self._agent_socket
        listener = self._resources.enter_context(
            contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        )
        listener.bind(str(path))
        self._resources.callback(path.unlink, missing_ok=True)
        listener.listen(1)
        return listener

    def _open_console(self) -> None:
        self._console_stream = StreamSocket(
            self._connection,
            f"the console of machine '{self.spec.name}'",
            lambda stream: self._domain.raw.openConsole(None, stream, 0),
            log=self.serial_log,
        )
        self._resources.callback(self._console_stream.close)
        self.console = Console(self.spec.name, self._console_stream.ours)
        self._resources.callback(self.console.close)

    def _open_agent(self, listener: socket.socket) -> None:
        name = self.spec.name
        listener.settimeout(_CONNECT_S)
        try:
            sock, _ = listener.accept()
        except TimeoutError as error:
            raise HarnessError(
                f"QEMU of machine '{name}' was expected to connect to '{self._agent_socket}' "
                f"within {_CONNECT_S:.0f} s, but did not; look into libvirt's log of the domain."
            ) from error
        self._resources.callback(sock.close)
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self._pid = struct.unpack("3i", peer)[0]
        self.agent = Agent(name, sock, self._agent_program)
        self._resources.callback(self.agent.close)

    def failure(self) -> str | None:
        """Return why this machine will not continue, or None."""
        if self._domain.is_lost:
            return (
                f"libvirtd at '{self._connection.uri}' ended or was restarted, and its machines "
                "ended too"
            )
        return disk_failure(self.events, self.spec.disk) or self._console_stream.failure()

    @override
    def plug(self, attachment: Attachment) -> None:
        """Hot-plug a device into the first free root port.

        Raises RequirementError for a device that libvirt can't pass to QEMU.
        """
        if isinstance(attachment, HostGpuAttachment):
            self._plug_host_gpu(attachment)
            return
        if attachment.fd is None:
            raise RequirementError(
                f"Machine '{self.spec.name}' can't use '{attachment.driver}' at "
                f"'{self._connection.uri}': libvirt passes a GPU's socket only to a QEMU "
                "that accepts a file descriptor (QEMU 6.0 to 8.1); use --machine-driver=qemu."
            )
        super().plug(attachment)

    def _plug_host_gpu(self, attachment: HostGpuAttachment) -> None:
        port = self._ports.choose(attachment)
        address = attachment.addresses[0]
        xml = render_host_gpu(attachment, port=self._ports.free())
        try:
            self._domain.attach(f"the host's GPU '{address}'", xml)
        except LibvirtError as error:
            raise RequirementError(
                f"{error} `harness gpu host ls` shows whether '{address}' can be handed over, and "
                "`harness doctor` shows what this host lacks for the handover."
            ) from error
        self._ports.take(attachment.id, port)
        self._host_gpus.add(attachment.id)

    @override
    def unplug(self, device_id: str, deadline: Deadline) -> None:
        if device_id not in self._host_gpus:
            super().unplug(device_id, deadline)
            return
        self._domain.detach(f"the host's GPU '{device_id}'", alias_of(device_id), deadline)
        self._host_gpus.remove(device_id)
        self._ports.release(device_id)

    @staticmethod
    @override
    def _qemu_id(name: str) -> str:
        return alias_of(name)

    @override
    def _attach_seed(self, seed: Path) -> None:
        self._domain.attach("the seed", render_seed_disk(seed))

    @override
    def _detach_seed(self, deadline: Deadline) -> None:
        self._domain.detach("the seed", SEED_ALIAS, deadline)

    @override
    def _processor_s(self) -> float:
        return self._domain.processor_s()

    @override
    def _pause(self) -> None:
        self._domain.suspend()

    @override
    def _resume(self) -> None:
        self._domain.resume()

    @override
    def _end_saved(self) -> None:
        # libvirt's own save refuses a domain with AUTODESTROY, and copies all memory.
        self._domain.destroy()

    @override
    def _wait_for_exit(self, deadline: Deadline) -> str | None:
        # If a machine may not reboot, libvirt also reports a shutdown when its guest resets.
        ending = self._domain.wait_for_end(deadline)
        return None if ending == POWERED_OFF else ending

    @override
    def _last_output(self) -> str:
        output = self._copy_qemu_log() or "nothing that this user may read"
        return f"libvirt's log of the machine ends with: {output}"

    def kill(self) -> None:
        """End the domain at once. A thread that waits for this machine gets an error."""
        with contextlib.suppress(HarnessError):
            self._domain.destroy()

    @override
    def close(self) -> None:
        self._resources.close()
