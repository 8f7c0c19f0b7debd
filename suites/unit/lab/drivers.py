"""A VM driver whose machines never start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.transport import Transport
from harness.machine.accelerator import AcceleratorChoice
from harness.machine.description.spec import Accelerator
from harness.machine.qemu.driver import QemuMachine, state_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.description.spec import MachineSpec
    from harness.settings import AcceleratorOption


class StuckDriver:
    """Answers the calls that a lab makes before it starts a machine; its QEMU does not exist."""

    name = "stuck"

    def choose_accelerator(self, option: AcceleratorOption) -> AcceleratorChoice:
        return AcceleratorChoice(accelerator=Accelerator.TCG, reason=f"'{option}' was asked for")

    def transport(self, accelerator: Accelerator) -> Transport:
        del accelerator
        return Transport.MPQEMU

    def state_parts(self, spec: MachineSpec) -> Mapping[str, object]:
        return {"argv": state_argv(spec)}

    def machine(
        self,
        spec: MachineSpec,
        folder: Path,
        attachments: Sequence[Attachment] = (),
        *,
        agent_program: bytes = b"",
    ) -> QemuMachine:
        return QemuMachine(spec, folder, attachments, agent_program=agent_program)
