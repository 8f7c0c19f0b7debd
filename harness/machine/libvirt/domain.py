"""Machines as domains of libvirt."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import uuid
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError
from harness.machine.agent import Agent
from harness.machine.argv import AGENT_PORT, root_port_id, ssh_port_of
from harness.machine.console import Console
from harness.machine.devicestate import (
    CAPABILITIES,
    LAST_WORDS_S,
    MIGRATE_S,
    QUIET,
    is_end,
    with_kernel_header,
)
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.complaint import Code, ConnectionLostError, LibvirtError
from harness.machine.libvirt.domain_xml import (
    SEED_ALIAS,
    alias_of,
    render_domain,
    render_host_gpu,
    render_seed_disk,
)
from harness.machine.libvirt.events import DomainEvents, EventKind, kinds
from harness.machine.libvirt.monitor import DomainMonitor
from harness.machine.libvirt.stream import StreamSocket
from harness.machine.qmp import names
from harness.machine.rest import wait_until_idle
from harness.machine.rootports import RootPorts
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.domain_xml import DomainHost, PciAddress
    from harness.machine.libvirt.events import DomainEvent
    from harness.machine.libvirt.monitor import MonitorEvents
    from harness.machine.qmp import QmpEvent
    from harness.machine.spec import MachineSpec

_CONNECT_S = 30.0
_REOPEN_S = 10.0


class LibvirtMachine:
    """A running domain; ends with its `with` block, with this process, or with its connection.

    What it leaves in `folder`: `domain.xml`, `serial.log`.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        connection: Connection,
        host: DomainHost,
        monitor_events: MonitorEvents,
        agent_program: bytes = b"",
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._connection = connection
        self._host = host
        self._monitor_events = monitor_events
        self._attachments = tuple(attachments)
        self._agent_program = agent_program
        self._libvirt = load_libvirt()
        self._uuid = str(uuid.uuid4())
        self._domain: Any = None
        self._has_ended = False
        self._pid: int | None = None
        self._has_seed = spec.seed is not None
        self._resources = contextlib.ExitStack()
        self._ports = RootPorts(spec)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def domain_name(self) -> str:
        """Return the name that libvirt knows the machine by."""
        return f"{self.spec.name}-{self._uuid[:8]}"

    @property
    def logs(self) -> Mapping[str, Path]:
        """Return what is left in `folder` for those who ask what happened."""
        return {"domain.xml": self.folder / "domain.xml", "serial.log": self.serial_log}

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def is_running(self) -> bool:
        return self._domain is not None and not self._has_ended and not self._connection.is_lost

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""
        return self._monitor.events

    def _start(self) -> None:
        spec, name = with_kernel_header(self.spec, self.folder), self.spec.name
        xml = render_domain(spec, self._host, name=self.domain_name, uuid=self._uuid)
        (self.folder / "domain.xml").write_text(xml)
        # Before the domain, which finds it as it starts.
        listener = self._listen()
        # After the streams that are opened from here on: they end before their domain.
        self._resources.callback(self._destroy)
        flags = self._libvirt.VIR_DOMAIN_START_PAUSED | self._libvirt.VIR_DOMAIN_START_AUTODESTROY
        raw = self._connection.raw
        self._domain = self._connection.run(
            f"the start of machine '{name}'", lambda: raw.createXML(xml, flags)
        )
        self._life = DomainEvents(
            self._connection,
            name=self.domain_name,
            uuid=self._uuid,
            domain=self._domain,
            listener=self._hear,
        )
        self._resources.callback(self._life.close)
        self._monitor = DomainMonitor(
            self._connection, self._monitor_events, self._domain, name=name, uuid=self._uuid
        )
        self._resources.callback(self._monitor.close)
        self._open_console()
        self._open_agent(listener)
        for attachment in self._attachments:
            self.plug(attachment)
        if not self.spec.is_restored:
            self._resume()

    def _listen(self) -> socket.socket | None:
        path = self._host.agent_socket
        if path is None:
            return None
        listener = self._resources.enter_context(
            contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        )
        listener.bind(str(path))
        self._resources.callback(path.unlink, missing_ok=True)
        listener.listen(1)
        return listener

    def _open_console(self) -> None:
        stream = StreamSocket(
            self._connection,
            f"the console of machine '{self.spec.name}'",
            lambda stream: self._domain.openConsole(None, stream, 0),
            log=self.serial_log.open("wb"),
        )
        self._resources.callback(stream.close)
        self.console = Console(self.spec.name, stream.ours)
        self._resources.callback(self.console.close)

    def _open_agent(self, listener: socket.socket | None) -> None:
        name = self.spec.name
        if listener is None:
            stream = StreamSocket(
                self._connection,
                f"the agent's channel of machine '{name}'",
                lambda stream: self._domain.openChannel(AGENT_PORT, stream, 0),
            )
            self._resources.callback(stream.close)
            sock = stream.ours
        else:
            listener.settimeout(_CONNECT_S)
            try:
                sock, _ = listener.accept()
            except TimeoutError as error:
                raise HarnessError(
                    f"QEMU of machine '{name}' was expected to connect to '{self._host.agent_socket}' "
                    f"within {_CONNECT_S:.0f} s, but did not; look into libvirt's log of the domain."
                ) from error
            sock.setblocking(True)
            self._resources.callback(sock.close)
            peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self._pid = struct.unpack("3i", peer)[0]
        self.agent = Agent(name, sock, self._agent_program)
        self._resources.callback(self.agent.close)

    def _hear(self, event: DomainEvent) -> None:
        if event.kind in {EventKind.STOPPED, EventKind.CRASHED}:
            self._has_ended = True
            if self._domain is not None and hasattr(self, "_monitor"):
                self._monitor.note_end(str(event))

    def trouble(self) -> str | None:
        """Say why this machine will not go on, or None."""
        if self._connection.is_lost:
            return (
                f"libvirtd at '{self._connection.uri}' ended or was restarted, and its machines "
                "with it"
            )
        for event in self.events:
            if event.name == "BLOCK_IO_ERROR":
                reason = event.data.get("reason", "no reason given")
                return (
                    f"QEMU could not write its disk ({reason}); free space on the file system of "
                    f"'{self.spec.disk}'"
                )
        return None

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server.

        Raises RequirementError where that is another host's loopback.
        """
        if not self._connection.is_local:
            raise RequirementError(
                f"Machine '{self.spec.name}' runs at '{self._connection.uri}', where the way to its "
                "SSH server begins; use its agent, which is reached from here."
            )
        answer = self._monitor.execute("human-monitor-command", {"command-line": "info usernet"})
        return ssh_port_of(str(answer))

    def plug(self, attachment: GpuAttachment) -> None:
        """Hot-plug a device into the first free root port."""
        port = self._ports.choose(attachment)
        if attachment.fd is None or not self._connection.is_local:
            raise RequirementError(
                f"Machine '{self.spec.name}' can't take '{attachment.driver}' at "
                f"'{self._connection.uri}': libvirt hands a GPU's socket only to a QEMU of this host "
                "that takes it as a descriptor (QEMU 6.0 to 8.1); use --machine-driver=qemu."
            )
        fdname = f"fd-{attachment.id}"
        self._monitor.hand_over(attachment.fd, fdname)
        self._monitor.execute("device_add", attachment.to_device_add(alias_of(port), fdname))
        self._ports.take(attachment.id, port)

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to let go of a device, and wait until it has."""
        seen = len(self.events)
        self._monitor.execute("device_del", {"id": device_id})
        self._monitor.wait_for_event(
            f"the removal of device '{device_id}'",
            lambda event: event.name == "DEVICE_DELETED" and event.data.get("device") == device_id,
            deadline,
            since=seen,
        )
        self._ports.release(device_id)

    def plug_host_gpu(self, address: PciAddress, device_id: str) -> None:
        """Plug a GPU of the host itself into the first free root port.

        Raises RequirementError where VFIO does not give it away.
        """
        index = self._ports.free()
        xml = render_host_gpu(address, device_id, port=index)
        try:
            self._connection.run(
                f"the plugging of the host's GPU '{address}' into machine '{self.spec.name}'",
                lambda: self._domain.attachDevice(xml),
            )
        except LibvirtError as error:
            raise RequirementError(
                f"{error} A GPU is handed over by VFIO: switch the IOMMU on in the firmware and by "
                "the kernel's command line ('intel_iommu=on' or 'amd_iommu=on'), load 'vfio-pci', "
                "end what uses the GPU on the host, and hand over its whole IOMMU group "
                f"(`ls /sys/bus/pci/devices/{address}/iommu_group/devices`)."
            ) from error
        self._ports.take(device_id, root_port_id(index))

    def unplug_host_gpu(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to let go of a GPU of the host, and wait until the host has it back."""
        alias = alias_of(device_id)
        self._detach(alias, f"the host's GPU '{device_id}'", deadline)
        self._ports.release(device_id)

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume, where the machine was started without one."""
        xml = render_seed_disk(seed)
        self._connection.run(
            f"the plugging of the seed into machine '{self.spec.name}'",
            lambda: self._domain.attachDevice(xml),
        )
        self._has_seed = True

    def unplug_seed(self, deadline: Deadline) -> None:
        """Take the seed volume out again, where there is one."""
        if not self._has_seed:
            return
        self._detach(SEED_ALIAS, "the seed", deadline)
        self._has_seed = False

    def _detach(self, alias: str, what: str, deadline: Deadline) -> None:
        """Have libvirt ask the guest to let go of a device, and wait until it has."""
        since = len(self._life.seen)
        self._connection.run(
            f"the unplugging of {what} from machine '{self.spec.name}'",
            lambda: self._domain.detachDeviceAlias(alias, 0),
        )
        self._life.wait_for(
            f"the removal of {what}",
            lambda event: event.kind is EventKind.DEVICE_REMOVED and event.device == alias,
            deadline,
            since=since,
        )

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest has nothing to do, judged by the time that its QEMU takes.

        Raises HarnessError where it never rests.
        """
        wait_until_idle(self.spec.name, self._processor_s, deadline)

    def _processor_s(self) -> float:
        info = self._connection.run(f"the query of machine '{self.spec.name}'", self._domain.info)
        return float(info[4]) / 1e9

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end it.

        libvirt itself refuses to save what it is to destroy with its connection, and would copy
        all of the memory; QEMU leaves that in its file.
        """
        self._connection.run(f"the halt of machine '{self.spec.name}'", self._domain.suspend)
        self._monitor.execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._migrate("migrate", state, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._destroy()

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest go on.

        Raises HarnessError where QEMU finds that the state is another machine's, or cut short.
        """
        self._monitor.execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._monitor.execute("migrate-set-parameters", QUIET)
        self._migrate("migrate-incoming", state, os.O_RDONLY)
        self._resume()

    def _migrate(self, command: str, state: Path, flags: int) -> None:
        seen = len(self.events)
        descriptor = os.open(state, flags | os.O_CLOEXEC, 0o600)
        try:
            self._monitor.hand_over(descriptor, "state")
        finally:
            os.close(descriptor)
        try:
            self._monitor.execute(command, {"uri": "fd:state"})
            event = self._monitor.wait_for_event(
                f"the end of '{command}'",
                is_end,
                Deadline.after(MIGRATE_S),
                since=seen,
            )
        except ConnectionLostError:
            raise
        except HarnessError as error:
            raise self._no_state(command, state, str(error)) from error
        status = event.data.get("status")
        if status != "completed":
            raise self._no_state(command, state, f"It ended as '{status}'.")

    def _no_state(self, command: str, state: Path, reason: str) -> HarnessError:
        with contextlib.suppress(HarnessError):
            # QEMU ends over a state that it can't load, and says why just before.
            self._wait_for_end(Deadline.after(LAST_WORDS_S))
        return HarnessError(
            f"QEMU of machine '{self.spec.name}' could not carry out '{command}' with the state "
            f"'{state}'. {reason}"
        )

    def _resume(self) -> None:
        self._connection.run(f"the go of machine '{self.spec.name}'", self._domain.resume)

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off and its QEMU has ended.

        Raises HarnessError when it reset instead, or is still up at the deadline.
        """
        event = self._monitor.wait_for_event("its power-off", names("SHUTDOWN"), deadline)
        reason = event.data.get("reason")
        if reason != "guest-shutdown":
            raise HarnessError(
                f"Machine '{self.spec.name}' was expected to power off, but ended by "
                f"'{reason}'. Its console's last lines:\n{self.console.tail()}"
            )
        self._wait_for_end(deadline)

    def _wait_for_end(self, deadline: Deadline) -> None:
        self._life.wait_for(
            f"the end of machine '{self.spec.name}'", kinds(EventKind.STOPPED), deadline
        )

    def kill(self) -> None:
        """End the domain at once; whoever waits for this machine learns that it has ended."""
        with contextlib.suppress(HarnessError):
            self._destroy()

    def close(self) -> None:
        """Close what leads into the domain, end it, and show that it has ended."""
        self._resources.close()

    def _destroy(self) -> None:
        """End the domain where it has not ended, and show that libvirt lists it no more.

        Where libvirtd went meanwhile, the one that came instead is asked: after a crash of
        libvirtd its domains go on. Raises HarnessError where none came.
        """
        if self._domain is None or self._has_ended:
            return
        connection, name = self._connection, self.spec.name
        try:
            connection.reopen(Deadline.after(_REOPEN_S))
            raw = connection.raw
            connection.run(
                f"the end of machine '{name}'",
                lambda: raw.lookupByUUIDString(self._uuid).destroy(),
            )
        except LibvirtError as error:
            if error.code not in {Code.NO_DOMAIN, Code.OPERATION_INVALID}:
                raise
        except (ConnectionLostError, RequirementError) as error:
            raise HarnessError(
                f"Machine '{name}' may run on: {error} Once a libvirtd answers there, look for its "
                f"domain by `virsh list`, and end it by `virsh destroy {self.domain_name}`."
            ) from error
        self._has_ended = True
        left = connection.run(
            "the list of domains", lambda: [each.UUIDString() for each in raw.listAllDomains(0)]
        )
        if self._uuid in left:
            raise HarnessError(
                f"Machine '{name}' was ended, but libvirt at '{connection.uri}' still lists its "
                f"domain '{self.domain_name}'; end it by `virsh destroy {self.domain_name}`."
            )
