"""Joins image, seed, payload, GPU and machine into nodes.

The packages of these parts do not import each other. The command line and the pytest fixtures both
start nodes through this package.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError
from harness.gpu.transport import Transport
from harness.image import CloudImage
from harness.image.own_kernel import KernelFiles, KernelPackages
from harness.lab.cloud_images import (
    CloudImageBoot,
    CloudImageSource,
    cloud_image_seed,
)
from harness.lab.description import Platform, describe
from harness.lab.gpu_sources import GpuSources
from harness.lab.guest_channels import MachineServices
from harness.lab.images import LabImages
from harness.lab.running_machines import Machines
from harness.lab.saved_states import CheckpointBuilder, describe_clone
from harness.lab.shared_caches import host_facts
from harness.lab.vm_drivers import open_driver
from harness.lease import leased_folder, sweep
from harness.machine.accelerator import apertures_mib
from harness.machine.capacity.broker import Broker, host_folder
from harness.machine.channels.ssh import generated_once
from harness.machine.checkpoint.store import CheckpointStore
from harness.machine.description.spec import Accelerator
from harness.machine.entrance.roster import Roster, roster_folder
from harness.payload import build_agent
from harness.progress import ProgressEvent, Stage
from harness.progress.activities import Activities
from harness.provisioning.wait import Deadline
from harness.settings import GpuEmulation, GpuSource, MachineStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.gpu.passthrough.pool import GpuPool
    from harness.gpu.script import GpuScript
    from harness.image import Image
    from harness.lab.gpu_sources import RequestedGpu
    from harness.lab.machine import LabMachine
    from harness.lab.machine_bundle import MachineBundle
    from harness.lab.node import Node
    from harness.lab.node_request import NodeRequest
    from harness.lab.saved_states import SavedState
    from harness.machine import VmDriver
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.channels.ssh import SshIdentity
    from harness.machine.checkpoint.store import Checkpoint
    from harness.payload import Payload
    from harness.progress import ProgressListener
    from harness.provisioner import Provisioner
    from harness.settings import Settings

_IMAGE_S = 1500.0
#: The model to emulate if a test requests a GPU and names no model.
_ANY_MODEL = "h100-sxm5-80gb"


@dataclass(kw_only=True)
class Lab(LabImages):
    """The shared parts of the machines of one run: images, provisioner, keys, a folder, an accelerator."""

    folder: Path
    driver: VmDriver
    accelerator: AcceleratorChoice
    agent_program: Payload
    keys: Callable[[], SshIdentity]
    broker: Broker
    roster: Roster
    checkpoints: CheckpointStore = field(init=False)
    machines: Machines = field(init=False)
    checkpoint_builder: CheckpointBuilder = field(init=False)
    activities: Activities = field(init=False)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        self.activities = Activities(self.listener)
        self.checkpoints = CheckpointStore(
            self.settings.checkpoint_store,
            limit_mib=self.settings.checkpoint_limit_mib,
            source=self._shared_caches.get("checkpoints"),
        )
        self.machines = Machines(
            self.folder,
            MachineServices(
                driver=self.driver,
                agent_program=self.agent_program.content,
                identity=self.keys,
                broker=self.broker,
                transport=lambda: self.transport,
                gpu_sources=GpuSources(
                    source=self.settings.gpu_source,
                    pool=lambda: self.gpu_pool,
                    any_model=self._any_model,
                    emulation=self.settings.gpu_emulation,
                    model_folders=self.settings.gpu_models,
                ),
                patience=self.patience,
                roster=self.roster,
                report=self._report,
                activities=self.activities,
            ),
            images=self.store,
            evidence_folder=self.settings.evidence_folder,
        )
        self.checkpoint_builder = CheckpointBuilder(
            checkpoints=self.checkpoints,
            images=self.store,
            machines=self.machines,
            driver=self.driver,
            platform=lambda: self.platform,
            agent_digest=self.agent_program.digest,
            folder=self.folder,
            evidence_folder=self.settings.evidence_folder,
            patience=self.patience,
            needs=lambda: host_facts(self.settings.qemu, self.accelerator.accelerator),
            listener=self.listener,
        )

    @property
    def patience(self) -> float:
        """Return the factor that multiplies a guest's time limits.

        Under KVM, the factor is 1 unless a setting changes it.
        """
        return self.accelerator.accelerator.patience * self.settings.timeout_multiplier

    @classmethod
    @contextlib.contextmanager
    def open(cls, settings: Settings, listener: ProgressListener) -> Iterator[Lab]:
        """Open a lab: remove files that dead runs left, and choose the accelerator.

        Raises RequirementError if the host cannot run machines.
        """
        with contextlib.ExitStack() as opened:

            def report(message: str) -> None:
                listener(ProgressEvent(subject="machines", stage=Stage.WAIT, message=message))

            driver = opened.enter_context(open_driver(settings, report))
            sweep(settings.runs_folder)
            folder = opened.enter_context(leased_folder(settings.runs_folder, prefix="run"))
            lab = cls(
                settings=settings,
                folder=folder,
                driver=driver,
                accelerator=driver.choose_accelerator(settings.accelerator),
                agent_program=build_agent(),
                keys=generated_once(folder / "keys"),
                listener=listener,
                broker=Broker(host_folder()),
                roster=Roster(roster_folder()),
            )
            with contextlib.closing(lab):
                yield lab

    def _report(self, message: str) -> None:
        self.listener(ProgressEvent(subject="machines", stage=Stage.WAIT, message=message))

    @override
    def close(self) -> None:
        """Release the checkpoints and the images that this lab used."""
        self.checkpoint_builder.close()
        super().close()

    @functools.cached_property
    def provisioner(self) -> Provisioner:
        """Return the provisioner of the settings.

        Raises BadInputError if the settings name no existing provisioner.
        """
        # The import is inside the function, because importing takes longer than restoring a clone, which
        # needs no provisioner.
        from harness.provisioner.choice import choose_provisioner  # noqa: PLC0415

        return choose_provisioner(self.settings.provisioner)

    @property
    def identity(self) -> SshIdentity:
        """Return the SSH keys of this lab, generated at their first use.

        Raises RequirementError if there is no OpenSSH client.
        """
        return self.keys()

    def node_image(self, name: str | None = None) -> Image:
        """Return the node image `name`: a name in the catalogue, a path, or a URL.

        An image with a recipe is built if it is not in the cache. A cloud image gets the guest
        agent and the stand-ins, and so becomes a node image. The default for `name` is the first
        image in the settings.
        """
        # The import is inside the function, because importing takes longer than starting a clone of a
        # known checkpoint.
        from harness.image.catalogue import Recipe, load_catalogue  # noqa: PLC0415

        name = name or self.settings.images[0]
        source = load_catalogue(*self.settings.image_folders).get(name)
        if not isinstance(source, Recipe):
            from harness.lab.prepared_images import prepare_node_image  # noqa: PLC0415 - rarely needed

            return prepare_node_image(self, self.cloud_image(name))
        return self.store.ensure(source, deadline=Deadline.after(_IMAGE_S), listener=self.listener)

    def boot(
        self, request: NodeRequest, *, disk: Path | None = None, start: MachineStart | None = None
    ) -> AbstractContextManager[Node]:
        """Boot a node on a new overlay, or on `disk`, and end the node afterwards.

        `start` is `COLD` or `CLONE`, by default `machine_start`. A clone continues from a
        checkpoint of its image and kernel. The checkpoint was saved just before cloud-init
        started. A node with a `disk` and a node of a cloud image always do a cold boot.
        """
        if not isinstance(request.image, CloudImage) and isinstance(
            request.kernel, (KernelPackages, KernelFiles)
        ):
            from harness.lab.own_kernels import install_kernel  # noqa: PLC0415 - rarely needed

            image, kernel = install_kernel(self, request.image, request.kernel)
            request = replace(request, image=image, kernel=kernel)
        # The import is inside the function, because loading the readers of evidence takes longer
        # than starting a clone.
        from harness.lab.node import Node  # noqa: PLC0415
        from harness.lab.node_request import (  # noqa: PLC0415
            MAX_TIME_LIMIT_MULTIPLIER,
            describe_node,
            require_applied_user_data,
            state_of,
        )

        if request.time_limit_multiplier is None:
            multiplier = self.settings.timeout_multiplier * self.broker.tasks_per_processor()
            multiplier = min(multiplier, MAX_TIME_LIMIT_MULTIPLIER)
            # On a quiet host, the provisioner's own limits are not changed.
            request = replace(
                request, time_limit_multiplier=multiplier if multiplier > 1 else None
            )
        provisioner = request.provisioner or self.provisioner
        require_applied_user_data(request, provisioner)
        state = None
        if disk is None and (start or self.machine_start) is MachineStart.CLONE:
            state = state_of(request)
        description = describe_node(
            request,
            self.platform,
            self.machines.new_folder(request.name),
            provisioner=provisioner,
            access=None if request.skip_cloud_init else self.identity.access,
            saved=None if state is None else (state, self.ensure_checkpoint(state)),
            disk=disk,
        )
        return self.machines.started(
            description, functools.partial(Node, request, provisioner=provisioner)
        )

    def boot_cloud_image(
        self,
        image: CloudImage,
        boot: CloudImageBoot | None = None,
        *,
        name: str = "cloud-image",
        disk: Path | None = None,
    ) -> AbstractContextManager[LabMachine]:
        """Boot a distribution's image by firmware and boot loader, and end the machine afterwards.

        The machine's disk is `disk`, or an overlay that is larger than the image. cloud-init grows
        the root file system. cloud-init installs the guest agent and a console on the serial port.
        `boot` names the firmware, or one kernel of `cloud_image_kernels` to boot without firmware.
        Raises RequirementError if the host lacks the firmware.
        """
        folder = self.machines.new_folder(name)
        boot = (boot or CloudImageBoot()).of(image)
        description = describe(
            name,
            CloudImageSource(image=image, boot=boot),
            self.platform,
            folder,
            memory_mib=boot.memory_mib,
            slots=1,
            disk=disk,
            seed=cloud_image_seed(
                name, instance_id=f"{name}-{folder.name}", access=self.identity.access
            ),
        )
        return self.machines.running(description)

    def clone(
        self,
        saved_state: SavedState,
        name: str = "clone",
        *,
        gpus: Sequence[RequestedGpu] = (),
        gpu_scripts: Mapping[str, GpuScript] | None = None,
        hostname: str | None = None,
    ) -> AbstractContextManager[LabMachine]:
        """Start a machine from the checkpoint of a saved state, and end the machine afterwards.

        The checkpoint is made if the cache has none. Every clone has its own disk overlay and maps
        the checkpoint's memory privately, so no clone can change another clone.
        """
        description = replace(
            describe_clone(
                saved_state,
                self.platform,
                self.machines.new_folder(name),
                self.ensure_checkpoint(saved_state),
                name=name,
            ),
            gpus=gpus,
            gpu_scripts=gpu_scripts or {},
            hostname=hostname,
        )
        return self.machines.running(description)

    def resume(
        self, bundle: MachineBundle, *, base: Path | None = None, kept_until: float | None = None
    ) -> AbstractContextManager[LabMachine]:
        """Continue a saved machine with new GPUs of the same models, and end the machine afterwards.

        `base` is the backing file of the machine's disk. Without `base`, the cache must contain
        the base image. Raises BadInputError for a bundle that names files of this host. Raises
        HarnessError if this host lacks the base image, the QEMU version or the firmware of the
        machine. The message says how to get the missing part.
        """
        from harness.lab.resumed_machine import resumed_machine  # noqa: PLC0415 - rarely needed

        folder = self.machines.new_folder(bundle.name)
        return self.machines.running(
            resumed_machine(bundle, self.settings, folder, base=base, kept_until=kept_until)
        )

    def ensure_checkpoint(self, saved_state: SavedState) -> Checkpoint:
        """Return the checkpoint of a saved state, in use until `close`. Make a missing checkpoint."""
        return self.checkpoint_builder.ensure_checkpoint(saved_state)

    @functools.cached_property
    def gpu_pool(self) -> GpuPool:
        """Return the pool of this host's GPUs.

        Raises BadInputError for a wrong inventory.
        """
        from harness.lab.gpu_sources import open_gpu_pool  # noqa: PLC0415 - rarely needed

        return open_gpu_pool(self.settings)

    def _any_model(self) -> GpuModel:
        """Return the model to emulate for a request that names no model."""
        from harness.gpu.catalogue import find_model  # noqa: PLC0415 - rarely needed

        return find_model(_ANY_MODEL, *self.settings.gpu_models)

    @functools.cached_property
    def transport(self) -> Transport:
        """Return the transport for emulated GPUs of machines.

        Raises RequirementError if QEMU has no such transport. The message names a QEMU version
        that supports emulated GPUs.
        """
        return self.driver.transport(self.accelerator.accelerator)

    @functools.cached_property
    def machine_start(self) -> MachineStart:
        """Return how nodes start by default: by a cold boot, or as clones.

        The setting decides, with one exception: nodes boot if NVIDIA's driver has to open GPUs
        over the transport mpqemu. mpqemu reaches only shared memory, and a clone's memory is
        private.
        """
        start = self.settings.machine_start
        if start is not MachineStart.CLONE or self.settings.gpu_emulation is not GpuEmulation.GSP:
            return start
        with contextlib.suppress(HarnessError):
            if self.transport is Transport.MPQEMU:
                message = (
                    "Each node is booted, which takes longer than starting a clone: the GPU device "
                    f"'{self.transport.value}' of '{self.settings.qemu}' can't access a clone's memory, so "
                    "NVIDIA's driver could not open a GPU in a clone. QEMU 10.1.1 or newer has no such limit; "
                    "'harness qemu sid' installs it."
                )
                self.listener(
                    ProgressEvent(subject="machines", stage=Stage.CHECK, message=message)
                )
                return MachineStart.COLD
        return start

    @functools.cached_property
    def platform(self) -> Platform:
        """Return the platform that all machines of this lab share.

        This property ignores a missing transport, since a machine without a GPU needs no
        transport. The error is raised later, when a machine starts with a GPU or a GPU is plugged
        into a machine. A GPU of the host has 64-bit BARs under every transport.
        """
        accelerator = self.accelerator.accelerator
        transport = None
        with contextlib.suppress(HarnessError):
            transport = self.transport
        is_opened = self.settings.gpu_emulation is GpuEmulation.GSP
        has_wide_bars = (
            self.settings.gpu_source is not GpuSource.EMULATED or transport is Transport.VFIO_USER
        )
        return Platform(
            accelerator=accelerator,
            qemu=self.settings.qemu,
            apertures_mib=apertures_mib(accelerator) if has_wide_bars else 0,
            tsc_khz=self.accelerator.tsc_khz,
            # QEMU's `x-pci-proxy-dev` delivers interrupts only through KVM.
            lacks_gpu_interrupts=is_opened
            and transport is Transport.MPQEMU
            and accelerator is Accelerator.TCG,
        )

    def kill_machines(self) -> None:
        """Kill every machine, from any thread. Threads that wait for a machine get an error."""
        self.machines.kill_all()

    def save_evidence(self, evidence: Evidence, name: str) -> Path:
        """Copy an evidence folder to the configured evidence folder, and return its new path."""
        return evidence.copy_to(self.settings.evidence_folder / name)

    def try_save_evidence(self, node: Node, name: str) -> Path | None:
        """Keep the available evidence of a node that might not answer, and return the folder.

        On failure this method reports the reason and returns None, so that the original error is
        not masked.
        """
        try:
            return self.save_evidence(node.collect_available(), name)
        except (HarnessError, OSError) as error:
            self._report(f"the evidence of '{node.request.name}' could not be kept: {error}")
            return None
