"""Machines as QEMU processes of this host."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.machine.agent import Agent
from harness.machine.argv import SEED_PORT, Channels, render_argv, ssh_port_of
from harness.machine.console import Console
from harness.machine.devicestate import (
    CAPABILITIES,
    LAST_WORDS_S,
    MIGRATE_S,
    QUIET,
    is_end,
    with_kernel_header,
)
from harness.machine.eventlog import QmpEvent, disk_trouble, names
from harness.machine.qmp import QmpSession
from harness.machine.rest import wait_until_idle
from harness.machine.rootports import RootPorts
from harness.machine.spec import Accelerator
from harness.provisioning.command import spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import GpuAttachment
    from harness.machine.spec import MachineSpec
    from harness.provisioning.command import ChildProcess

_START_S = 30.0
_QMP_S = 30.0
_QUIT_S = 5.0
_FILE_URI_MAJOR = 9
_STATE_FDSET = 1


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


@functools.lru_cache
def qemu_identity(qemu: str, accelerator: Accelerator) -> str:
    """Name this host's QEMU `qemu`, and under KVM the processor that its guests see.

    A guest's saved state can be loaded by no other. Raises RequirementError where there is none.
    """
    binary = shutil.which(qemu)
    if binary is None:
        require_qemu(qemu)
    digest = hashlib.sha256(Path(binary or qemu).read_bytes())
    if accelerator is Accelerator.KVM:
        processor = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        for line in processor.splitlines():
            if line.startswith(("vendor_id", "model name", "microcode", "flags")):
                digest.update(line.encode())
    return digest.hexdigest()


def _processor_s(stat: Path) -> float:
    """Return the processor time that a process has taken, from its `/proc/<pid>/stat`."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class QemuMachine:
    """A running QEMU process; ends with its `with` block, or with this process.

    What it leaves in `folder`: `argv.txt`, `stderr.log`, `serial.log`.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[GpuAttachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> None:
        self.spec = spec
        self.folder = folder
        self._agent_program = agent_program
        self._has_seed = spec.seed is not None
        self._attachments = tuple(attachments)
        self._process: ChildProcess | None = None
        self._resources = contextlib.ExitStack()
        self._ports = RootPorts(spec, attachments)

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
    def logs(self) -> Mapping[str, Path]:
        """Return what is left in `folder` for those who ask what happened."""
        return {
            "argv.txt": self.folder / "argv.txt",
            "stderr.log": self.stderr_log,
            "serial.log": self.serial_log,
        }

    @property
    def serial_log(self) -> Path:
        return self.folder / "serial.log"

    @property
    def stderr_log(self) -> Path:
        return self.folder / "stderr.log"

    @property
    def pid(self) -> int:
        """Return the id of QEMU's process; raises HarnessError before it has been started."""
        if self._process is None:
            raise HarnessError(f"Machine '{self.spec.name}' was never started.")
        return self._process.pid

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
        agent_ours, agent_theirs = socket.socketpair()
        # Closed at the end in any case; console and session close them before.
        self._resources.callback(qmp_ours.close)
        self._resources.callback(serial_ours.close)
        self._resources.callback(agent_ours.close)
        with qmp_theirs, serial_theirs, agent_theirs:
            argv = render_argv(
                with_kernel_header(self.spec, self.folder),
                Channels(
                    qmp_fd=qmp_theirs.fileno(),
                    serial_fd=serial_theirs.fileno(),
                    agent_fd=agent_theirs.fileno(),
                ),
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
                        agent_theirs.fileno(),
                        *(one.fd for one in self._attachments if one.fd is not None),
                    ],
                    cwd=self.folder,
                )
        self.console = Console(self.spec.name, serial_ours)
        self._resources.callback(self.console.close)
        self.agent = Agent(self.spec.name, agent_ours, self._agent_program)
        self._resources.callback(self.agent.close)
        self._qmp = QmpSession(self.spec.name, qmp_ours)
        self._resources.callback(self._qmp.close)
        try:
            self._qmp.connect(Deadline.after(_START_S))
        except HarnessError as error:
            raise HarnessError(
                f"QEMU did not start machine '{self.spec.name}'; its stderr says: "
                f"{self._last_words()}. {error} Its command line was:\n{command_line}"
            ) from error

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return QEMU's events so far, oldest first."""
        return self._qmp.events

    def trouble(self) -> str | None:
        """Say why this machine will not go on, or None."""
        return disk_trouble(self.events, self.folder)

    def ssh_port(self) -> int:
        """Return the loopback port that leads to the guest's SSH server."""
        text = self._execute("human-monitor-command", {"command-line": "info usernet"})
        return ssh_port_of(str(text))

    def plug(self, attachment: GpuAttachment) -> None:
        """Hot-plug a device into the first free root port.

        Raises HarnessError where no port is free, or the ports' windows are too small for it.
        """
        port = self._ports.choose(attachment)
        fdname = None
        if attachment.fd is not None:
            fdname = f"fd-{attachment.id}"
            self._qmp.hand_over(attachment.fd, fdname, Deadline.after(_QMP_S))
        self._execute("device_add", attachment.to_device_add(port, fdname))
        self._ports.take(attachment.id, port)

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
        self._ports.release(device_id)

    def plug_seed(self, seed: Path) -> None:
        """Hot-plug a seed volume, where the machine was started without one."""
        self._execute(
            "blockdev-add",
            {
                "node-name": "seed",
                "driver": "raw",
                "read-only": True,
                "file": {"driver": "file", "filename": str(seed)},
            },
        )
        self._execute(
            "device_add",
            {
                "driver": "virtio-blk-pci",
                "id": "seed-disk",
                "drive": "seed",
                "serial": "seed",
                "bus": SEED_PORT,
            },
        )
        self._has_seed = True

    def unplug_seed(self, deadline: Deadline) -> None:
        """Take the seed volume out again, where there is one."""
        if not self._has_seed:
            return
        self.unplug("seed-disk", deadline)
        self._execute("blockdev-del", {"node-name": "seed"})
        self._has_seed = False

    def wait_until_idle(self, deadline: Deadline) -> None:
        """Wait until the guest has nothing to do, judged by the time that QEMU's process takes.

        Raises HarnessError where it never rests.
        """
        stat = Path(f"/proc/{self.pid}/stat")
        wait_until_idle(self.spec.name, lambda: _processor_s(stat), deadline)

    def save(self, state: Path) -> None:
        """Stop the guest, save its devices' state to the new file `state`, and end QEMU.

        The guest's memory stays in the file that the spec names; memory, state and disk together
        are the checkpoint. Raises HarnessError where QEMU refuses, as with a device plugged in
        that cannot be saved.
        """
        self._execute("stop")
        self._execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._migrate("migrate", state, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._execute("quit")
        self._wait_for_exit(Deadline.after(_QMP_S))

    def restore(self, state: Path) -> None:
        """Load the devices' state from `state`, and let the guest go on.

        Raises HarnessError where QEMU finds that the state is another machine's, or cut short.
        """
        self._execute("migrate-set-capabilities", {"capabilities": CAPABILITIES})
        self._execute("migrate-set-parameters", QUIET)
        self._migrate("migrate-incoming", state, os.O_RDONLY)
        self._execute("cont")

    def _migrate(self, command: str, state: Path, flags: int) -> None:
        seen = len(self._qmp.events)
        descriptor = os.open(state, flags | os.O_CLOEXEC, 0o600)
        try:
            uri = self._hand_over_state(descriptor)
        finally:
            os.close(descriptor)
        try:
            self._execute(command, {"uri": uri})
            event = self._qmp.wait_for_event(
                f"the end of '{command}'",
                is_end,
                Deadline.after(MIGRATE_S),
                since=seen,
            )
        except HarnessError as error:
            raise self._no_state(command, state, str(error)) from error
        status = event.data.get("status")
        if status != "completed":
            raise self._no_state(command, state, f"It ended as '{status}'.")

    def _hand_over_state(self, descriptor: int) -> str:
        """Hand the file of a state to QEMU, and return the URI by which it is migrated.

        QEMU 11 takes a file by `file:` only, which came with 8.2; a name in it ends at a comma.
        """
        told = self._execute("query-version")
        qemu = told.get("qemu") if isinstance(told, dict) else None
        if not isinstance(qemu, dict) or qemu.get("major", 0) < _FILE_URI_MAJOR:
            self._qmp.hand_over(descriptor, "state", Deadline.after(_QMP_S))
            return "fd:state"
        self._qmp.hand_over_set(descriptor, _STATE_FDSET, Deadline.after(_QMP_S))
        return f"file:/dev/fdset/{_STATE_FDSET}"

    def _no_state(self, command: str, state: Path, reason: str) -> HarnessError:
        with contextlib.suppress(HarnessError):
            # QEMU ends over a state that it can't load, and says why just before.
            self._wait_for_exit(Deadline.after(LAST_WORDS_S))
        return HarnessError(
            f"QEMU of machine '{self.spec.name}' could not carry out '{command}' with the state "
            f"'{state}'. {reason} Its stderr says: {self._last_words()}"
        )

    def _last_words(self) -> str:
        return self.stderr_log.read_text(errors="replace").strip()[-2000:] or "nothing"

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

    def _execute(self, command: str, arguments: Mapping[str, object] | None = None) -> object:
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
