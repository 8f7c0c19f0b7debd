"""One node: a machine that provisions itself by cloud-init, and its evidence."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from harness.evidence import CLOUD_INIT_OUTPUT_PATH
from harness.evidence.request import NOTHING_MORE, AdditionalEvidence
from harness.image import CloudImage, CloudImageKernel
from harness.lab import evidence_collection
from harness.lab.description import SEED
from harness.lab.machine_cloud_init import ignore_progress
from harness.lab.node_request import all_files
from harness.lab.provisioning_steps import ProvisioningSteps
from harness.machine.guest_time import GUEST_LIMIT_TIMES
from harness.steps import stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from harness.evidence import Evidence
    from harness.evidence.state import NodeState
    from harness.gpu.emulated import EmulatedGpu
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.machine import LabMachine
    from harness.lab.node_request import NodeRequest
    from harness.machine.channels.guest import Guest
    from harness.provisioner import Provisioner
    from harness.provisioning.command import Argv, CommandResult
    from harness.provisioning.wait import Deadline

#: Seconds for the boot loader's delay and everything that a distribution does at its first boot.
#: The time applies under KVM; `MachineServices.patience` multiplies the time under TCG.
_CLOUD_IMAGE_KVM_S = 90.0
_POWER_OFF_KVM_S = 15.0
#: Seconds under KVM to write a node's files and run its commands, which may compile kernel modules.
_PREPARE_KVM_S = 60.0


class Node:
    """A node on its machine. The machine ends with the `with` block."""

    def __init__(
        self,
        request: NodeRequest,
        machine: LabMachine,
        *,
        provisioner: Provisioner,
    ) -> None:
        self.request = request
        self.machine = machine
        self.folder = machine.folder
        self.provisioner = provisioner
        self._additional = NOTHING_MORE
        self._steps = ProvisioningSteps(provisioner)
        self._gathered: list[Evidence] = []
        self._gatherings = itertools.count(1)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as started:
            started.enter_context(self.machine)
            if self.request.skip_cloud_init:
                self._prepare_after_cloud_init()
            elif self.machine.checkpoint is not None:
                self._start_cloud_init()
            self._resources = started.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._resources.close()

    @stepped("Prepare node '{0.request.name}' by its agent")
    def _prepare_after_cloud_init(self) -> None:
        """Let the guest agent write the node's files and run the commands before provisioning."""
        machine = self.machine
        if machine.checkpoint is None:
            machine.wait_until_cloud_init_finished(self._deadline())
        self.machine.wait_for_gpus()
        deadline = machine.deadline(_PREPARE_KVM_S)
        for file in all_files(self.request, self.provisioner):
            machine.agent.write_bytes(file.path, file.content, deadline, file.mode)
        for argv in (*self.request.early, *self.request.before):
            self.guest.output_of(*argv, timeout_s=max(1.0, deadline.remaining_s()))

    @stepped("Start cloud-init of node '{0.request.name}'")
    def _start_cloud_init(self) -> None:
        """Plug the seed into a machine that stopped before cloud-init, and continue its boot."""
        machine = self.machine
        self.machine.wait_for_gpus()
        machine.plug_seed(self.folder / SEED)
        machine.start_cloud_init()

    def hot_plug(self, gpu: RequestedGpu) -> str:
        """Plug a GPU into the running node, and return its device id."""
        return self.machine.hot_plug(gpu)

    def hot_unplug(self, device_id: str, *, in_use: bool = False) -> None:
        """Ask the guest to release a GPU, and wait until the GPU is removed.

        Raises HarnessError if a process of the guest has a GPU open, unless `in_use` is true.
        """
        self.machine.hot_unplug(device_id, in_use=in_use)

    def mark(self, words: str) -> None:
        """Write a line into the trace of every GPU, to separate earlier from later entries."""
        self.machine.mark(words)

    def gpu(self, device_id: str = "gpu0") -> EmulatedGpu:
        """Return the device model of a plugged GPU."""
        return self.machine.gpu(device_id)

    def wait_until_provisioned(self, progress: Callable[[str], None] = ignore_progress) -> None:
        """Wait until cloud-init has finished, with or without errors.

        `progress` is called with each boot stage on the console, and with each step of the
        provisioner. The provisioner declares the pattern of its steps. On a node that skips
        cloud-init, this method runs the provisioner's command. Raises HarnessError at the
        deadline, or immediately if the guest can't finish any more.
        """
        if self.request.skip_cloud_init:
            if self.request.command is not None:
                self.provision(self.request.command)
            return
        log = self.provisioner.outcome.log
        with self._steps.run(f"Provision node '{self.request.name}' by cloud-init") as note:

            def seen(line: str) -> None:
                note(line)
                progress(line)

            self.machine.wait_until_cloud_init_finished(
                self._deadline(), seen, step=None if log is None else log.step
            )

    def provision(self, command: str) -> CommandResult:
        """Run a command of the provisioner in the guest, in the same way as cloud-init.

        A command that fails raises no error: the result has its exit code, and its whole output in
        stdout. The evidence records each call as a separate run, which `Evidence.of_run` returns.
        Raises BadInputError if the provisioner declares no such command.
        """
        argv = self.provisioner.guest_command(command, output=CLOUD_INIT_OUTPUT_PATH)
        deadline = self._deadline()
        with (
            self._steps.run(f"Provision node '{self.request.name}': command '{command}'"),
            self.machine.doing(f"is provisioned by command '{command}'", deadline),
        ):
            limit_s = deadline.remaining_s() * GUEST_LIMIT_TIMES
            return self.machine.agent.run(argv, timeout_s=limit_s, deadline=deadline)

    def _deadline(self) -> Deadline:
        """Return the deadline of provisioning, with more time for the first boot of a cloud image."""
        image = self.request.image
        is_cloud_image = isinstance(image, CloudImage) or isinstance(
            image.newest_kernel, CloudImageKernel
        )
        return self.machine.deadline(
            self.provisioner.timeout_s + (_CLOUD_IMAGE_KVM_S if is_cloud_image else 0.0),
            follows_progress=True,
        )

    @property
    def guest(self) -> Guest:
        """Return the guest, to run commands and read files in it."""
        return self.machine.guest

    @stepped("Gather evidence of node '{0.request.name}'")
    def evidence(
        self, *, files: Sequence[str] = (), commands: Mapping[str, Argv] | None = None
    ) -> Evidence:
        """Gather and return evidence of the present state of this node.

        Each call gathers new evidence into a separate folder, so that earlier evidence does not
        change. `files` are absolute paths of further files in the guest. `*` and `?` are
        wildcards. `Evidence.file`, `files` and `paths` return these files. `commands` maps names
        to argvs of further commands. `Evidence.output_of` and `exit_code_of` return the results of
        the commands. If the test fails, the evidence that is kept has these files and outputs too.

        Raises BadInputError if a path or command can't be gathered. The message names the path or
        command.
        """
        additional = AdditionalEvidence(files=files, commands=commands or {})
        evidence = self.collect(
            self.folder / f"evidence-{next(self._gatherings)}", additional=additional
        )
        self._additional = self._additional.merged(additional)
        self._gathered.append(evidence)
        return evidence

    @stepped("Gather the result of provisioning of node '{0.request.name}'")
    def result(self) -> Evidence:
        """Return evidence that contains only the reports of provisioning.

        This method takes less time than `evidence`. Use this method in tests that are only
        about a decision or an exit code. Expectations on anything else raise HarnessError.
        """
        folder = self.folder / f"evidence-{next(self._gatherings)}"
        # This evidence is not added to `gathered`: if the test fails, complete evidence is
        # gathered instead.
        return self._steps.told_by(
            evidence_collection.collect_result(self.machine, folder, provisioner=self.provisioner)
        )

    def state(self) -> NodeState:
        """Return the state of the whole node for `expect.unchanged`. The node should be idle."""
        return self.machine.state()

    @property
    def gathered(self) -> tuple[Evidence, ...]:
        """Return the evidence gathered so far, oldest first."""
        return tuple(self._gathered)

    def collect(self, folder: Path, *, additional: AdditionalEvidence = NOTHING_MORE) -> Evidence:
        """Gather evidence of the guest and of the host into `folder`.

        If the guest does not answer, `folder` gets the host's evidence, and HarnessError is
        raised.
        """
        return self._steps.told_by(
            evidence_collection.collect(
                self.machine,
                folder,
                kernels=self._kernels(),
                provisioner=self.provisioner,
                additional=additional,
            )
        )

    def collect_available(self) -> Evidence:
        """Gather the available evidence of a node that might not answer, within a short time.

        The evidence has the files and commands of all earlier calls of `evidence`.
        """
        return self._steps.told_by(
            evidence_collection.collect_available(
                self.machine,
                kernels=self._kernels(),
                provisioner=self.provisioner,
                additional=self._additional,
            )
        )

    def _kernels(self) -> Sequence[str] | None:
        """Return the image's kernel versions, or None for a cloud image, whose guest lists them."""
        image = self.request.image
        if isinstance(image, CloudImage):
            return None
        return [kernel.version for kernel in image.kernels]

    @stepped("Power node '{0.request.name}' off")
    def power_off(self) -> None:
        """Power the node off and wait until its machine has ended and its disk is complete.

        Raises HarnessError if the node does not power off.
        """
        self.guest.power_off()
        self.machine.vm.wait_for_power_off(self.machine.deadline(_POWER_OFF_KVM_S))
