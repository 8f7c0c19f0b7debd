"""The VM driver that starts QEMU without libvirt: each machine is a process of this host."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.foreign_files import last_bytes
from harness.gpu import HostGpuAttachment
from harness.gpu.transport import find_transport
from harness.machine.accelerator import choose_accelerator
from harness.machine.channels.event_log import disk_failure
from harness.machine.description.argv import SEED_PORT, Channels, render_argv
from harness.machine.description.spec import Accelerator, without_paths
from harness.machine.monitored_machine import MonitoredMachine
from harness.machine.program_answers import ProgramAnswers, RememberingRunner
from harness.machine.qemu.locked_memory import require_locked_memory
from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.gpu import Attachment
    from harness.gpu.transport import Transport
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.channels.qmp import QmpSession
    from harness.machine.description.spec import MachineSpec
    from harness.provisioning.command import ChildProcess
    from harness.settings import AcceleratorOption

_START_S = 30.0
_EXIT_S = 30.0
_KILL_S = 5.0


def require_qemu(qemu: str) -> None:
    """Raise RequirementError if this host lacks `qemu`, or `setpriv`, which starts QEMU."""
    if shutil.which(qemu) is None:
        raise RequirementError(
            f"There is no QEMU '{qemu}' on this host; install it with "
            "`apt-get install qemu-system-x86 qemu-utils`."
        )
    if shutil.which("setpriv") is None:
        raise RequirementError(
            "This host lacks 'setpriv', which makes QEMU end when the harness ends; install setpriv "
            "with `apt-get install util-linux`."
        )


@functools.lru_cache
def qemu_identity(
    qemu: str, accelerator: Accelerator, answers: ProgramAnswers | None = None
) -> str:
    """Return facts that identify the QEMU `qemu` and, under KVM, the processor that guests see.

    No other QEMU can load a guest's saved state. `answers` stores the binary's digest for later
    runs. Raises RequirementError if the host lacks the binary.
    """
    binary = shutil.which(qemu)
    if binary is None:
        require_qemu(qemu)

    processor: list[bytes] = []
    if accelerator is Accelerator.KVM:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
        seen = ("vendor_id", "model name", "microcode", "flags")
        processor = [line.encode() for line in first.splitlines() if line.startswith(seen)]

    def identity() -> str:
        digest = hashlib.sha256(Path(binary or qemu).read_bytes())
        for line in processor:
            digest.update(line)
        return digest.hexdigest()

    if answers is None:
        return identity()
    # Reading the binary takes as long as restoring a machine.
    question = f"identity {hashlib.sha256(b''.join(processor)).hexdigest()}"
    return str(answers.answer(qemu, question, identity))


def parse_processor_s(stat: str) -> float:
    """Return the processor time that a process has used, from its `/proc/<pid>/stat`."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class QemuMachine(MonitoredMachine):
    """A running QEMU process, which ends with its `with` block, or with this process.

    The machine leaves `argv.txt`, `stderr.log` and `serial.log` in `folder`.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> None:
        super().__init__(spec, folder, attachments)
        self._agent_program = agent_program
        self._attachments = tuple(attachments)
        self._process: ChildProcess | None = None

    @property
    def logs(self) -> Mapping[str, Path]:
        """Return the files in `folder` that explain what happened."""
        return {
            "argv.txt": self.folder / "argv.txt",
            "stderr.log": self.stderr_log,
            "serial.log": self.serial_log,
        }

    @property
    def stderr_log(self) -> Path:
        return self.folder / "stderr.log"

    @property
    def pid(self) -> int:
        """Return the PID of QEMU. Raises HarnessError if the machine has not been started yet."""
        if self._process is None:
            raise HarnessError(f"Machine '{self.spec.name}' was never started.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    @override
    def monitor(self) -> QmpSession:
        return self._qmp

    @override
    def _start(self) -> None:
        """Start QEMU and negotiate QMP.

        Raises RequirementError if there is no such binary, and HarnessError, with QEMU's own
        output, if QEMU refuses.
        """
        require_qemu(self.spec.qemu)
        if any(isinstance(each, HostGpuAttachment) for each in self._attachments):
            require_locked_memory(self.spec.memory_mib)
        qmp_ours, qmp_theirs = socket.socketpair()
        serial_ours, serial_theirs = socket.socketpair()
        agent_ours, agent_theirs = socket.socketpair()
        # Console and session normally close the sockets. After an error, the callbacks close them.
        self._resources.callback(qmp_ours.close)
        self._resources.callback(serial_ours.close)
        self._resources.callback(agent_ours.close)
        with qmp_theirs, serial_theirs, agent_theirs:
            argv = render_argv(
                self.spec,
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
        # The imports are here, so that these modules load while QEMU starts. QEMU's start takes
        # longer.
        from harness.machine.channels.agent import Agent  # noqa: PLC0415
        from harness.machine.channels.console import Console  # noqa: PLC0415
        from harness.machine.channels.qmp import QmpSession  # noqa: PLC0415

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
                f"QEMU did not start machine '{self.spec.name}'; its stderr ends with: "
                f"{self._stderr_end()}. {error} Its command line was:\n{command_line}"
            ) from error

    def failure(self) -> str | None:
        """Return why this machine will not continue, or None."""
        return disk_failure(self.events, self.folder)

    @override
    def plug(self, attachment: Attachment) -> None:
        """Hot-plug a device into the first free root port.

        Raises RequirementError if a GPU of the host needs more locked memory than is allowed.
        """
        if isinstance(attachment, HostGpuAttachment):
            require_locked_memory(self.spec.memory_mib)
        super().plug(attachment)

    @override
    def _attach_seed(self, seed: Path) -> None:
        self._qmp.execute(
            "blockdev-add",
            {
                "node-name": "seed",
                "driver": "raw",
                "read-only": True,
                "file": {"driver": "file", "filename": str(seed)},
            },
        )
        self._qmp.execute(
            "device_add",
            {
                "driver": "virtio-blk-pci",
                "id": "seed-disk",
                "drive": "seed",
                "serial": "seed",
                "bus": SEED_PORT,
            },
        )

    @override
    def _detach_seed(self, deadline: Deadline) -> None:
        self._delete_device("seed-disk", deadline)
        self._qmp.execute("blockdev-del", {"node-name": "seed"})

    @override
    def _processor_s(self) -> float:
        try:
            return parse_processor_s(Path(f"/proc/{self.pid}/stat").read_text())
        except OSError as error:
            raise HarnessError(
                f"QEMU of machine '{self.spec.name}' has ended. {self._last_output()}"
            ) from error

    @override
    def _pause(self) -> None:
        self._qmp.execute("stop")

    @override
    def _resume(self) -> None:
        self._qmp.execute("cont")

    @override
    def _end_saved(self) -> None:
        self._qmp.execute("quit")
        self._wait_for_exit(Deadline.after(_EXIT_S))

    @override
    def _last_output(self) -> str:
        return f"QEMU's stderr ends with: {self._stderr_end()}"

    def _stderr_end(self) -> str:
        return last_bytes(self.stderr_log, 2000).decode(errors="replace").strip() or "nothing"

    @override
    def _wait_for_exit(self, deadline: Deadline, *, interval_s: float = 0.02) -> None:
        process = self._process
        if process is None:
            raise HarnessError(f"Machine '{self.spec.name}' was never started.")

        def poll() -> Observation[int]:
            return Observation(process.poll(), "the process is still running")

        try:
            wait_for(
                f"QEMU of machine '{self.spec.name}' to end", poll, deadline, interval_s=interval_s
            )
        except WaitTimeoutError as error:
            raise HarnessError(str(error)) from error

    def kill(self) -> None:
        """End QEMU at once. A thread that waits for this machine gets an error."""
        if self._process is not None:
            self._process.kill()

    @override
    def close(self) -> None:
        process = self._process
        try:
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                # A process can't delay SIGKILL, so QEMU ends within milliseconds.
                self._wait_for_exit(Deadline.after(_KILL_S), interval_s=0.002)
        finally:
            self._resources.close()


def state_argv(spec: MachineSpec) -> list[str]:
    """Return a command line without the machine's name and folder, for use in the key of a state.

    The command line determines the machine type, CPU, memory and devices.
    """
    channels = Channels(qmp_fd=0, serial_fd=0, agent_fd=0)
    return render_argv(without_paths(spec), channels, serial_log=Path("serial.log"))


class QemuDriver:
    """Creates machines with the program `qemu`.

    Raises RequirementError if the host lacks `qemu`.
    """

    name = "qemu"

    def __init__(self, qemu: str, *, cache: Path) -> None:
        require_qemu(qemu)
        self._qemu = qemu
        self._cache = cache
        self._answers = ProgramAnswers(cache / "qemu.json")

    def choose_accelerator(self, option: AcceleratorOption) -> AcceleratorChoice:
        return choose_accelerator(option, qemu=self._qemu, runner=LocalRunner(), cache=self._cache)

    def transport(self, accelerator: Accelerator) -> Transport:
        return find_transport(
            self._qemu, accelerator.accel, RememberingRunner(LocalRunner(), self._answers)
        )

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        return {
            "argv": state_argv(spec),
            "qemu": qemu_identity(self._qemu, spec.accelerator, self._answers),
        }

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> QemuMachine:
        return QemuMachine(spec, folder, attachments, agent_program=agent_program)
