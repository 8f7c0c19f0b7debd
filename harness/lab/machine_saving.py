"""Saves a machine as a checkpoint or a bundle, and continues a saved machine."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from harness.errors import HarnessError, listed
from harness.lab.base_images import describe_base
from harness.lab.description import SEED
from harness.lab.guest_channels import ANSWER_KVM_S, CONNECT_KVM_S, HOT_PLUG_KVM_S, READY_KVM_S
from harness.lab.machine_gpus import MachineGpuSlots
from harness.machine import SavableMachine
from harness.steps import stepped

if TYPE_CHECKING:
    from pathlib import Path

    from harness.lab.machine_bundle import MachineBundle
    from harness.machine import Machine
    from harness.machine.checkpoint.store import Checkpoint


#: The key of the nonce's digest in a checkpoint's facts; the nonce itself is only in guest memory.
NONCE_FACT = "nonce_sha256"
#: Seconds within which a guest has to become idle before its state is saved.
_REST_S = 120.0
#: Reads the programs that tests run most, and the files of an interactive shell, into the page
#: cache; missing programs are ignored.
_WARM_UP = (
    "for tool in true false sh cat ls env sleep test grep uname date lspci systemctl journalctl; do "
    'cat "$(command -v "$tool")" >/dev/null 2>&1; done; '
    "echo exit | TERM=xterm-256color HISTFILE= script -qec bash /dev/null >/dev/null 2>&1; true"
)


def savable_machine(vm: Machine) -> SavableMachine:
    """Return `vm` as a machine that can be saved. Raises HarnessError if its driver saves no machines."""
    if isinstance(vm, SavableMachine):
        return vm
    raise HarnessError(f"The VM driver of machine '{vm.spec.name}' can't save running machines.")


class MachineSaving(MachineGpuSlots):
    """A machine that can be saved, and can continue from a saved state."""

    @stepped("Save the state of machine '{0.name}'")
    def save(self, state: Path, nonce: str) -> None:
        """Wait until the guest is idle, save memory and disk of the machine, and end the machine.

        Raises HarnessError while a GPU is plugged in: an emulated GPU's state can't be saved.
        """
        if self.gpus.plugged:
            raise HarnessError(
                f"Machine '{self.name}' can't become a checkpoint while it has the GPU "
                f"'{self.gpus.plugged[0]}'; unplug that GPU first, and plug a GPU into each clone."
            )
        with self._activity.during("is saved"):
            self.vm.unplug_seed(self.deadline(HOT_PLUG_KVM_S))
            # Each clone would repeat the work that the guest has not finished yet.
            self.guest.run("systemctl", "is-system-running", "--wait", timeout_s=_REST_S)
            self.guest.output_of("udevadm", "settle")
            # The template reads these programs into its page cache, so that no clone reads them from disk.
            self.guest.output_of("sh", "-c", _WARM_UP)
            self.guest.output_of("true")
            self.guest.output_of("sync")
            self.vm.wait_until_idle(self._after(_REST_S))
            self.agent.remember(nonce, self.deadline(CONNECT_KVM_S))
            self.vm.save(state)

    def save_bundle(self, folder: Path, *, purpose: str) -> MachineBundle:
        """Save the present state of the machine into the new `folder`, and let its guest continue.

        The machine's GPUs are unplugged first, and stay unplugged. Raises HarnessError if the guest does not
        answer and so can't release a GPU, or if the VM driver can't save machines.
        """
        from harness.lab.machine_bundle import save_machine  # noqa: PLC0415 - rarely needed

        with self._activity.during("is saved into the evidence"):
            savable = savable_machine(self.vm)
            if not self.vm.is_running:
                raise HarnessError(f"Machine '{self.name}' has ended, and its memory is gone.")
            models = [
                gpu.title for gpu in self.gpus.provided if gpu.device_id in self.gpus.emulated
            ]
            seed = self._release_devices()
            source = self.description.source
            return save_machine(
                self.vm,
                savable,
                folder,
                base=source.disk,
                base_image=describe_base(source.name, source.disk_sha256(), source.disk),
                gpus=models,
                seed=seed,
                agent_program=self.agent_program,
                driver=self._services.driver.name,
                purpose=purpose,
            )

    def _release_devices(self) -> Path | None:
        """Unplug the GPUs and the seed. If the seed stays plugged, return the seed's path.

        Raises HarnessError if a guest with GPUs does not answer, since GPUs can't be saved.
        """
        try:
            # With a hanging guest, an unplug would wait for its whole time limit.
            self.vm.agent.ping(self.deadline(ANSWER_KVM_S))
        except HarnessError as error:
            if self.gpus.plugged:
                raise HarnessError(
                    f"Machine '{self.name}' can't be saved while it has "
                    f"{listed(self.gpus.plugged)}, and its guest can't release a GPU, because the guest "
                    f"does not answer: {error}"
                ) from error
            seed = self.folder / SEED
            return seed if seed.exists() else None
        for device_id in self.gpus.plugged:
            self.hot_unplug(device_id, in_use=True)
        self.vm.unplug_seed(self.deadline(HOT_PLUG_KVM_S))
        return None

    @stepped("Restore the checkpoint '{1.folder.name}'")
    def _restore(self, checkpoint: Checkpoint) -> None:
        """Continue from the checkpoint, with the host's time and new random numbers."""
        self.vm.restore(checkpoint.state)
        result = self.vm.agent.settle(
            self.deadline(READY_KVM_S), hostname=self.description.hostname
        )
        digest = hashlib.sha256((result.nonce or "").encode()).hexdigest()
        if digest != checkpoint.facts[NONCE_FACT]:
            raise HarnessError(
                f"Machine '{self.name}' was expected to continue from '{checkpoint.folder}', but "
                "its memory lacks the random number that was stored when that checkpoint was made. Remove "
                "the checkpoint (`harness checkpoints gc --all`), and run again."
            )
        self._is_agent_ready = True

    @stepped("Resume the saved machine")
    def _resume(self, bundle: MachineBundle) -> None:
        """Continue a saved machine, with the host's time.

        The guest may not answer, since it may have hung before the machine was saved.
        """
        savable_machine(self.vm).restore_whole(bundle.memory)
        with contextlib.suppress(HarnessError):
            self.vm.agent.settle(self.deadline(ANSWER_KVM_S))
            self._is_agent_ready = True
