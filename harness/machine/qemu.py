"""Machines as QEMU processes of this host."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import MAC_ADDRESS
from harness.errors import HarnessError, RequirementError
from harness.machine.console import Console
from harness.machine.qmp import QmpEvent, QmpSession, names
from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.machine.spec import MachineSpec
    from harness.provisioning.command import ChildProcess

_START_S = 30.0
_QMP_S = 30.0
_QUIT_S = 5.0
_SSH_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)")


@dataclass(frozen=True, kw_only=True)
class Channels:
    """Descriptors that QEMU inherits for its control channels."""

    qmp_fd: int
    serial_fd: int


def root_port_id(index: int) -> str:
    """Return the QEMU id of the PCIe root port number `index`, counted from 0."""
    return f"rp{index}"


def render_argv(
    spec: MachineSpec,
    channels: Channels,
    *,
    serial_log: Path,
    attachments: Sequence[GpuAttachment] = (),
) -> list[str]:
    """Render QEMU's command line; pure.

    The attachments take the root ports in order. The guest's network reaches nothing but the
    one forward from the host's loopback to its SSH port; the kernel chooses the host's port, so
    two machines never race for one. Raises HarnessError for more attachments than root ports.
    """
    if len(attachments) > spec.root_ports:
        raise HarnessError(
            f"Machine '{spec.name}' has {spec.root_ports} root ports for {len(attachments)} "
            "devices; raise 'root_ports'."
        )
    argv = [
        spec.qemu,
        *("-name", f"guest={spec.name},debug-threads=on"),
        *("-machine", "q35,memory-backend=ram,hpet=off"),
        # Shared, since a device server may be handed the guest's memory.
        *("-object", f"memory-backend-memfd,id=ram,size={spec.memory_mib}M,share=on"),
        *("-accel", spec.accelerator.to_qemu()),
        *("-cpu", spec.accelerator.cpu_model),
        *("-smp", str(spec.cpus)),
        *("-m", f"{spec.memory_mib}M"),
        *("-display", "none"),
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        *("-chardev", f"socket,id=qmp,fd={channels.qmp_fd}"),
        *("-mon", "chardev=qmp,mode=control"),
        *("-chardev", f"socket,id=serial,fd={channels.serial_fd},logfile={_quoted(serial_log)}"),
        *("-serial", "chardev:serial"),
        *("-device", "virtio-rng-pci"),
        *("-drive", f"file={_quoted(spec.disk)},id=disk,if=none,format=qcow2,cache=unsafe"),
        *("-device", "virtio-blk-pci,drive=disk,serial=root"),
        *("-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-device", f"virtio-net-pci,netdev=net,romfile=,mac={MAC_ADDRESS}"),
        *("-kernel", str(spec.kernel.vmlinuz)),
        *("-initrd", str(spec.kernel.initrd)),
        *("-append", " ".join((*spec.kernel.append, *spec.extra_append))),
    ]
    if spec.seed is not None:
        argv += [
            *("-drive", f"file={_quoted(spec.seed)},id=seed,if=none,format=raw,readonly=on"),
            *("-device", "virtio-blk-pci,drive=seed,serial=seed"),
        ]
    for index in range(spec.root_ports):
        argv += [
            "-device",
            (
                f"pcie-root-port,id={root_port_id(index)},chassis={index + 1},slot={index + 1},"
                f"mem-reserve={spec.root_port_window_mib}M"
            ),
        ]
    for index, attachment in enumerate(attachments):
        argv += ["-device", attachment.to_device_argv(root_port_id(index))]
    return argv


def _quoted(path: Path) -> str:
    """Return `path` as QEMU's option parser takes it: a comma is written twice."""
    return str(path).replace(",", ",,")


def require_qemu(qemu: str) -> None:
    """Raise RequirementError where this host lacks the program `qemu`, or what starts it."""
    if shutil.which(qemu) is None:
        raise RequirementError(
            f"There is no QEMU '{qemu}' on this host; install it with "
            "`apt-get install qemu-system-x86 qemu-utils`, or run `./dev setup`."
        )
    if shutil.which("setpriv") is None:
        raise RequirementError(
            "There is no 'setpriv' on this host, by which QEMU dies with the harness; install it "
            "with `apt-get install util-linux`, or run `./dev setup`."
        )


class QemuMachine:
    """A running QEMU process; ends with its `with` block, or with this process.

    What it leaves in `folder`: `argv.txt`, `stderr.log`, `serial.log`.
    """

    def __init__(
        self, spec: MachineSpec, folder: Path, attachments: Sequence[GpuAttachment] = ()
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._attachments = tuple(attachments)
        self._process: ChildProcess | None = None
        self._resources = contextlib.ExitStack()
        self._ports: dict[str, str] = {
            attachment.id: root_port_id(index) for index, attachment in enumerate(attachments)
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    @property
    def stderr_log(self) -> Path:
        return self.folder / "stderr.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start QEMU and greet it over QMP.

        Raises RequirementError where there is no such binary, HarnessError with QEMU's own
        words where it refuses.
        """
        require_qemu(self.spec.qemu)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        qmp_ours, qmp_theirs = socket.socketpair()
        serial_ours, serial_theirs = socket.socketpair()
        # Closed at the end in any case; console and session close them before.
        self._resources.callback(qmp_ours.close)
        self._resources.callback(serial_ours.close)
        with qmp_theirs, serial_theirs:
            argv = render_argv(
                self.spec,
                Channels(qmp_fd=qmp_theirs.fileno(), serial_fd=serial_theirs.fileno()),
                serial_log=self.serial_log,
                attachments=self._attachments,
            )
            command_line = shlex.join(argv)
            (self.folder / "argv.txt").write_text(command_line + "\n")
            with self.stderr_log.open("wb") as stderr:
                self._process = spawn(
                    argv,
                    stderr=stderr,
                    pass_fds=[
                        qmp_theirs.fileno(),
                        serial_theirs.fileno(),
                        *(attachment.fd for attachment in self._attachments),
                    ],
                    cwd=self.folder,
                )
        self.console = Console(self.spec.name, serial_ours)
        self._resources.callback(self.console.close)
        self._qmp = QmpSession(self.spec.name, qmp_ours)
        self._resources.callback(self._qmp.close)
        try:
            self._qmp.connect(Deadline.after(_START_S))
        except HarnessError as error:
            words = self.stderr_log.read_text(errors="replace").strip() or "nothing"
            raise HarnessError(
                f"QEMU did not start machine '{self.spec.name}'; its stderr says: {words}. {error} "
                f"Its command line was:\n{command_line}"
            ) from error

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""
        return self._qmp.events

    def trouble(self) -> str | None:
        """Say why this machine will not go on, or None."""
        for event in self.events:
            if event.name == "BLOCK_IO_ERROR":
                reason = event.data.get("reason", "no reason given")
                return (
                    f"QEMU could not write its disk ({reason}); free space on the file system of "
                    f"'{self.folder}'"
                )
        return None

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server."""
        text = self._execute("human-monitor-command", {"command-line": "info usernet"})
        found = _SSH_FORWARD.search(str(text))
        if found is None:
            raise HarnessError(f"QEMU shows no forward to the guest's SSH port: {text!r}.")
        return int(found.group(1))

    def plug(self, attachment: GpuAttachment) -> None:
        """Hot-plug a device into the first free root port.

        Raises HarnessError where no port is free, or the ports' windows are too small for it.
        """
        port = self._free_port()
        if attachment.root_port_window_mib > self.spec.root_port_window_mib:
            raise HarnessError(
                f"The root ports of machine '{self.spec.name}' reserve "
                f"{self.spec.root_port_window_mib} MiB, but device '{attachment.id}' needs "
                f"{attachment.root_port_window_mib}; raise 'root_port_window_mib'."
            )
        fdname = f"fd-{attachment.id}"
        self._qmp.hand_over(attachment.fd, fdname, Deadline.after(_QMP_S))
        self._execute("device_add", attachment.to_device_add(port, fdname))
        self._ports[attachment.id] = port

    def unplug(self, device_id: str, deadline: Deadline) -> None:
        """Ask the guest to let go of a device, and wait until it has."""
        seen = len(self._qmp.events)
        self._execute("device_del", {"id": device_id})
        self._qmp.wait_for_event(
            f"the removal of device '{device_id}'",
            lambda event: event.name == "DEVICE_DELETED" and event.data.get("device") == device_id,
            deadline,
            since=seen,
        )
        del self._ports[device_id]

    def _free_port(self) -> str:
        taken = set(self._ports.values())
        for index in range(self.spec.root_ports):
            if root_port_id(index) not in taken:
                return root_port_id(index)
        raise HarnessError(
            f"All {self.spec.root_ports} root ports of machine '{self.spec.name}' are taken; "
            "raise 'root_ports'."
        )

    def wait_for_power_off(self, deadline: Deadline) -> None:
        """Wait until the guest has powered itself off and QEMU has ended.

        Raises HarnessError when it reset instead, or is still up at the deadline.
        """
        event = self._qmp.wait_for_event("its power-off", names("SHUTDOWN"), deadline)
        reason = event.data.get("reason")
        if reason != "guest-shutdown":
            raise HarnessError(
                f"Machine '{self.spec.name}' was expected to power off, but ended by "
                f"'{reason}'. Its console's last lines:\n{self.console.tail()}"
            )
        self._wait_for_exit(deadline)

    def _wait_for_exit(self, deadline: Deadline) -> None:
        process = self._process
        if process is None:
            raise HarnessError(f"Machine '{self.spec.name}' was never started.")

        def look() -> Observation[int]:
            return Observation(process.poll(), "the process is still running")

        try:
            wait_for(f"QEMU of machine '{self.spec.name}' to end", look, deadline, interval_s=0.02)
        except WaitTimeoutError as error:
            raise HarnessError(str(error)) from error

    def _execute(self, command: str, arguments: dict[str, object] | None = None) -> object:
        return self._qmp.execute(command, Deadline.after(_QMP_S), arguments)

    def kill(self) -> None:
        """End QEMU at once; whoever waits for this machine learns that it has ended."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End QEMU, and show that it has ended."""
        process = self._process
        try:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                self._wait_for_exit(Deadline.after(_QUIT_S))
        finally:
            self._resources.close()
