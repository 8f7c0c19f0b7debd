"""The VM driver that starts QEMU itself, as a process of this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from harness.gpu.transport import find_transport
from harness.machine.accelerator import choose_accelerator
from harness.machine.description.argv import Channels, render_argv
from harness.machine.description.spec import Accelerator, without_paths
from harness.machine.program_answers import ProgramAnswers, RememberingRunner
from harness.machine.qemu.machine import QemuMachine, qemu_identity, require_qemu
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.gpu import Attachment
    from harness.gpu.transport import Transport
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.description.spec import MachineSpec
    from harness.settings import AcceleratorOption


def state_argv(spec: MachineSpec) -> list[str]:
    """Return the command line of a machine to be saved, whatever it is called and wherever it is.

    It says machine type, CPU, memory and devices.
    """
    channels = Channels(qmp_fd=0, serial_fd=0, agent_fd=0)
    return render_argv(without_paths(spec), channels, serial_log=Path("serial.log"))


class QemuDriver:
    """Makes machines of the program `qemu`. Raises RequirementError where there is none."""

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
