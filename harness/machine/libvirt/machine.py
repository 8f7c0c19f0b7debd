"""Machines as domains of libvirt: what leads into them, and what is plugged into them."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import TYPE_CHECKING

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
from harness.machine.eventlog import disk_trouble, names
from harness.machine.libvirt.complaint import ConnectionLostError, LibvirtError
from harness.machine.libvirt.domain import POWERED_OFF, Domain
from harness.machine.libvirt.domain_xml import (
    SEED_ALIAS,
    alias_of,
    render_domain,
    render_host_gpu,
    render_seed_disk,
)
from harness.machine.libvirt.stream import StreamSocket
from harness.machine.rest import wait_until_idle
from harness.machine.rootports import RootPorts
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.machine.eventlog import QmpEvent
    from harness.machine.libvirt.connection import Connection
    from harness.machine.libvirt.domain_xml import DomainHost, PciAddress
    from harness.machine.libvirt.monitor import MonitorEvents
    from harness.machine.spec import MachineSpec

_CONNECT_S = 30.0
_WORDS = 2000


class LibvirtMachine:
    """A running domain; ends with its `with` block, with this process, or with its connection.

    What it leaves in `folder`: `domain.xml`, `serial.log`, and `stderr.log` where this user may
    read what libvirt keeps of QEMU's words, in `qemu_logs`.
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
        qemu_logs: Path | None = None,
        agent_program: bytes = b"",
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._connection = connection
        self._host = host
        self._qemu_logs = qemu_logs
        self._attachments = tuple(attachments)
        self._agent_program = agent_program
        self._domain = Domain(connection, monitor_events, machine=spec.name)
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
    def logs(self) -> Mapping[str, Path]:
        """Return what is left in `folder` for those who ask what happened."""
        self._keep_words()
        names = ("domain.xml", "stderr.log", "serial.log")
        return {name: self.folder / name for name in names if (self.folder / name).exists()}

    def _keep_words(self) -> str:
        """Copy what QEMU said so far, and return the end of it."""
        if self._qemu_logs is None:
            return ""
        try:
            words = (self._qemu_logs / f"{self._domain.name}.log").read_text(errors="replace")
        except OSError:
            # The system's logs are root's.
            return ""
        (self.folder / "stderr.log").write_text(words)
        return words.strip()[-_WORDS:]

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    @property
    def pid(self) -> int | None:
        return self._pid

    @property
    def is_running(self) -> bool:
        return self._domain.is_running

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""
        return self._domain.monitor.events

    def _start(self) -> None:
        domain, spec = self._domain, with_kernel_header(self.spec, self.folder)
        xml = render_domain(spec, self._host, name=domain.name, uuid=domain.uuid)
        (self.folder / "domain.xml").write_text(xml)
        # Before the domain, which finds it as it starts.
        listener = self._listen()
        # After the streams that are opened from here on: they end before their domain.
        self._resources.callback(domain.close)
        domain.start(xml, emulator=self._host.emulator)
        self._open_console()
        self._open_agent(listener)
        for attachment in self._attachments:
            self.plug(attachment)
        if not self.spec.is_restored:
            domain.resume()

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
        self._console_stream = StreamSocket(
            self._connection,
            f"the console of machine '{self.spec.name}'",
            lambda stream: self._domain.raw.openConsole(None, stream, 0),
            log=self.serial_log,
        )
        self._resources.callback(self._console_stream.close)
        self.console = Console(self.spec.name, self._console_stream.ours)
        self._resources.callback(self.console.close)

    def _open_agent(self, listener: socket.socket | None) -> None:
        name = self.spec.name
        if listener is None:
            stream = StreamSocket(
                self._connection,
                f"the agent's channel of machine '{name}'",
                lambda stream: self._domain.raw.openChannel(AGENT_PORT, stream, 0),
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

    def trouble(self) -> str | None:
        """Say why this machine will not go on, or None."""
        if self._domain.is_lost:
            return (
                f"libvirtd at '{self._connection.uri}' ended or was restarted, and its machines "
                "with it"
            )
        return disk_trouble(self.events, self.spec.disk) or self._console_stream.trouble()

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server.

        Raises RequirementError where that is another host's loopback.
        """
        if not self._connection.is_local:
            raise RequirementError(
                f"Machine '{self.spec.name}' runs at '{self._connection.uri}', where the way to its "
                "SSH server begins; use its agent, which is reached from here."
            )
        answer = self._domain.monitor.execute(
            "human-monitor-command", {"command-line": "info usernet"}
        )
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
        self._domain.monitor.hand_over(attachment.fd, fdname)
        self._domain.monitor.execute(
            "device_add", attachment.to_device_add(alias_of(port), fdname)
        )
        self._ports.take(attachment.id, port)

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to let go of a device, and wait until it has."""
        seen = len(self.events)
        self._domain.monitor.execute("device_del", {"id": device_id})
        self._domain.monitor.wait_for_event(
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
            self._domain.attach(f"the host's GPU '{address}'", xml)
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
        self._domain.detach(f"the host's GPU '{device_id}'", alias_of(device_id), deadline)
        self._ports.release(device_id)

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume, where the machine was started without one."""
        self._domain.attach("the seed", render_seed_disk(seed))
        self._has_seed = True

    def unplug_seed(self, deadline: Deadline) -> None:
        """Take the seed volume out again, where there is one."""
        if not self._has_seed:
            return
        self._domain.detach("the seed", SEED_ALIAS, deadline)
        self._has_seed = False

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest has nothing to do, judged by the time that its QEMU takes.

        Raises HarnessError where it never rests.
        """
        wait_until_idle(self.spec.name, self._domain.processor_s, deadline)

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end it.

        libvirt itself refuses to save what it is to destroy with its connection, and would copy
        all of the memory; QEMU leaves that in its file.
        """
        self._domain.suspend()
        self._domain.monitor.execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._migrate("migrate", state, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._domain.destroy()

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest go on.

        Raises HarnessError where QEMU finds that the state is another machine's, or cut short.
        """
        self._domain.monitor.execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._domain.monitor.execute("migrate-set-parameters", QUIET)
        self._migrate("migrate-incoming", state, os.O_RDONLY)
        self._domain.resume()

    def _migrate(self, command: str, state: Path, flags: int) -> None:
        seen = len(self.events)
        descriptor = os.open(state, flags | os.O_CLOEXEC, 0o600)
        try:
            self._domain.monitor.hand_over(descriptor, "state")
        finally:
            os.close(descriptor)
        try:
            self._domain.monitor.execute(command, {"uri": "fd:state"})
            event = self._domain.monitor.wait_for_event(
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
            self._domain.wait_for_end(Deadline.after(LAST_WORDS_S))
        words = self._keep_words() or "nothing that this user may read"
        return HarnessError(
            f"QEMU of machine '{self.spec.name}' could not carry out '{command}' with the state "
            f"'{state}'. {reason} libvirt's log of it ends with: {words}"
        )

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off and its QEMU has ended.

        Raises HarnessError when it reset instead, or is still up at the deadline.
        """
        event = self._domain.monitor.wait_for_event("its power-off", names("SHUTDOWN"), deadline)
        ending, reason = self._domain.wait_for_end(deadline), event.data.get("reason")
        # To libvirt, a guest that resets although it may not has shut down too.
        if ending != POWERED_OFF or reason != "guest-shutdown":
            raise HarnessError(
                f"Machine '{self.spec.name}' was expected to power off, but ended as '{ending}', by "
                f"'{reason}'. Its console's last lines:\n{self.console.tail()}"
            )

    def kill(self) -> None:
        """End the domain at once; whoever waits for this machine learns that it has ended."""
        with contextlib.suppress(HarnessError):
            self._domain.destroy()

    def close(self) -> None:
        """Close what leads into the domain, end it, and show that it has ended."""
        self._resources.close()
