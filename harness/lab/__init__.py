"""Joins image, seed, payload, GPU and machine into nodes.

The rooms below know nothing of one another; the command line and the pytest fixtures both need
them joined, in the same way.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.cloudinit import write_seed
from harness.errors import BadInputError, HarnessError
from harness.errors import RequirementError as RequirementError
from harness.gpu.transport import Transport
from harness.image import ImageEvent, Stage, StockImage
from harness.image.catalogue import Recipe, load_catalogue
from harness.image.derived import DerivedStore
from harness.image.source import Algorithm, LocalImage, Stock
from harness.image.stock import StockStore, open_local
from harness.image.store import ImageStore
from harness.lab.drivers import open_driver
from harness.lab.layers import Shape, booted, node_spec
from harness.lab.machine import SEED, Equipment
from harness.lab.machines import Machines
from harness.lab.node import Node, NodeRequest
from harness.lab.stock import StockBoot, StockOrigin, agent_commands, stock_booted, stock_seed
from harness.lab.templates import Templates
from harness.lease import leased_folder, make_private_folder, sweep
from harness.machine.broker import Broker, host_folder
from harness.machine.checkpoint import CheckpointStore
from harness.machine.spec import Accelerator as Accelerator
from harness.machine.ssh import SshIdentity
from harness.payload import build_agent, build_payload
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.gpu.script import GpuScript
    from harness.image import Image, ImageListener, StockKernel
    from harness.lab.layers import Layer
    from harness.lab.machine import LabMachine
    from harness.machine import VmDriver
    from harness.machine.accelerator import AcceleratorChoice
    from harness.machine.checkpoint import Checkpoint
    from harness.machine.spec import MachineSpec
    from harness.payload import Payload
    from harness.settings import Settings

_IMAGE_S = 1500.0
_FETCH_S = 3600.0
_KERNELS_S = 600.0
_DISK = "disk.qcow2"


@dataclass(kw_only=True)
class Lab:
    """What the machines of one run share: image, payload, keys, a folder, an accelerator."""

    settings: Settings
    folder: Path
    driver: VmDriver
    accelerator: AcceleratorChoice
    payload: Payload
    agent_program: Payload
    identity: SshIdentity
    listener: ImageListener
    broker: Broker
    store: ImageStore = field(init=False)
    stock: StockStore = field(init=False)
    derived: DerivedStore = field(init=False)
    checkpoints: CheckpointStore = field(init=False)
    machines: Machines = field(init=False)
    templates: Templates = field(init=False)

    def __post_init__(self) -> None:
        self.store = ImageStore(
            self.settings.image_store, accepted_licences=self.settings.accepted_licences
        )
        self.stock = StockStore(self.settings.stock_store)
        self.derived = DerivedStore(self.settings.derived_store)
        self.checkpoints = CheckpointStore(
            self.settings.checkpoint_store, limit_mib=self.settings.checkpoint_limit_mib
        )
        self.machines = Machines(
            self.folder,
            Equipment(
                driver=self.driver,
                agent_program=self.agent_program.content,
                identity=self.identity,
                broker=self.broker,
                transport=lambda: self.transport,
                tell=self._tell,
            ),
            evidence_folder=self.settings.evidence_folder,
        )
        self.templates = Templates(
            checkpoints=self.checkpoints,
            images=self.store,
            machines=self.machines,
            driver=self.driver,
            spec_of=self._spec_of,
            agent_digest=self.agent_program.digest,
            folder=self.folder,
            evidence_folder=self.settings.evidence_folder,
            patience=self.accelerator.accelerator.patience,
            listener=self.listener,
        )

    def _tell(self, message: str) -> None:
        self.listener(ImageEvent(image="machines", stage=Stage.WAIT, message=message))

    def close(self) -> None:
        """Let go of the checkpoints and the images that this lab used."""
        self.templates.close()
        self.store.close()
        self.stock.close()
        self.derived.close()

    def node_image(self, name: str | None = None) -> Image:
        """Return an image of the catalogue, built where the cache has none.

        Without a name it is the first one that the settings name.
        """
        name = name or self.settings.images[0]
        source = load_catalogue(self.settings.images_folder).get(name)
        if not isinstance(source, Recipe):
            # What a person asked for can't be had anywhere: no reason to skip.
            raise BadInputError(
                f"'{name}' is a stock image, and these nodes are of images that are built from a "
                "recipe; name one of kind 'build', or ask for a node of `lab.stock_image`.",
                source="--image",
            )
        return self.store.ensure(source, deadline=Deadline.after(_IMAGE_S), listener=self.listener)

    def stock_image(self, name: str) -> StockImage:
        """Return a distribution's image by its name in the catalogue, or one by its path.

        It is fetched where the cache has none.
        """
        source = load_catalogue(self.settings.images_folder).get(name)
        if isinstance(source, LocalImage):
            return open_local(source, Algorithm.SHA256)
        if not isinstance(source, Stock):
            raise BadInputError(
                f"'{name}' is built from a recipe, and has no boot loader; use `node_image`, or name "
                "one of kind 'url' or a file.",
                source="stock_image",
            )
        return self.stock.ensure(source, deadline=Deadline.after(_FETCH_S), listener=self.listener)

    def stock_kernels(self, image: StockImage) -> tuple[StockKernel, ...]:
        """Return the kernels of a stock image's boot menu, the oldest first, for `StockBoot`.

        They are taken out of its disk where the cache has none; nothing is booted for it.
        """
        deadline = Deadline.after(_KERNELS_S)
        return self.derived.kernels(image, deadline=deadline, listener=self.listener)

    def stock_booted(self, image: StockImage, boot: StockBoot | None = None) -> Layer:
        """Return the layer of a stock image whose cloud-init has finished, for `clone`."""
        return stock_booted(image, images=self.settings.images_folder, boot=boot)

    @contextlib.contextmanager
    def boot(
        self, request: NodeRequest, *, disk: Path | None = None, start: str | None = None
    ) -> Iterator[Node]:
        """Boot a node on an overlay of its own, or on `disk`, and end it afterwards.

        `start` is "cold" or "clone", as the settings say where it is None. A clone goes on from
        a checkpoint of its image and kernel, taken just before cloud-init; `disk` needs a cold
        start, and so does a stock image.
        """
        if isinstance(request.image, StockImage):
            with self._boot_stock_node(request, request.image, disk) as node:
                yield node
            return
        layer = booted(
            request.image,
            request.kernel,
            memory_mib=request.memory_mib,
            slots=request.slots,
        )
        is_clone = disk is None and (start or self.settings.machine_start) == "clone"
        checkpoint = self.hold(layer) if is_clone else None
        with self.machines.place(request.name) as folder:
            if disk is None:
                disk = folder / _DISK
                backing = request.image.disk if checkpoint is None else checkpoint.disk
                self.store.create_overlay(backing, disk)
            if checkpoint is None:
                spec = replace(
                    node_spec(
                        request.name,
                        image=request.image,
                        kernel=request.kernel,
                        accelerator=self.accelerator.accelerator,
                        qemu=self.settings.qemu,
                        disk=disk,
                        memory_mib=request.memory_mib,
                        slots=request.slots,
                        has_apertures=self._has_apertures,
                    ),
                    seed=folder / SEED,
                )
            else:
                spec = self._spec_of(layer, request.name, disk, folder)
            machine = self.machines.new(
                spec,
                folder,
                gpus=request.gpus,
                gpu_scripts=request.gpu_scripts,
                checkpoint=checkpoint,
            )
            node = Node(request, machine, payload=self.payload, identity=self.identity)
            with self.machines.running(machine, node):
                yield node

    @contextlib.contextmanager
    def _boot_stock_node(
        self, request: NodeRequest, image: StockImage, disk: Path | None
    ) -> Iterator[Node]:
        boot = replace(request.stock or StockBoot(), memory_mib=request.memory_mib)
        with self.machines.place(request.name) as folder:
            spec = self._stock_spec(
                image, boot, name=request.name, folder=folder, disk=disk, slots=request.slots
            )
            machine = self.machines.new(
                replace(spec, seed=folder / SEED),
                folder,
                gpus=request.gpus,
                gpu_scripts=request.gpu_scripts,
            )
            node = Node(
                request,
                machine,
                payload=self.payload,
                identity=self.identity,
                early=agent_commands(self.settings.images_folder),
            )
            with self.machines.running(machine, node):
                yield node

    @contextlib.contextmanager
    def boot_stock(
        self, image: StockImage, boot: StockBoot | None = None, *, name: str = "stock"
    ) -> Iterator[LabMachine]:
        """Boot a distribution's image by firmware and its own boot loader, and end it afterwards.

        Its disk is an overlay, larger than the image, which cloud-init grows into. The guest agent
        comes with cloud-init, and so does a console on the serial port. `boot` says by which
        firmware, or which kernel of `stock_kernels` alone; raises RequirementError where the host
        has no OVMF.
        """
        with self.machines.place(name) as folder:
            seed = stock_seed(
                name,
                instance_id=f"{name}-{folder.name}",
                images=self.settings.images_folder,
                access=self.identity.access,
            )
            spec = self._stock_spec(image, boot or StockBoot(), name=name, folder=folder)
            machine = self.machines.new(
                replace(spec, seed=write_seed(seed, folder / SEED)), folder
            )
            with self.machines.running(machine, machine):
                yield machine

    def _stock_spec(
        self,
        image: StockImage,
        boot: StockBoot,
        *,
        name: str,
        folder: Path,
        disk: Path | None = None,
        slots: int = 1,
    ) -> MachineSpec:
        """Make a stock machine's disk and firmware in its folder, and return what boots them."""
        boot = boot.of(image)
        if disk is None:
            disk = folder / _DISK
            self.store.create_overlay(image.disk, disk, size_gib=boot.size_gib(image))
        origin = StockOrigin(image=image, boot=boot, images=self.settings.images_folder)
        shape = Shape(
            accelerator=self.accelerator.accelerator,
            qemu=self.settings.qemu,
            memory_mib=boot.memory_mib,
            slots=slots,
            has_apertures=self._has_apertures,
        )
        boot.prepare(folder)
        return origin.spec(name, shape, disk=disk, folder=folder)

    @contextlib.contextmanager
    def clone(
        self,
        layer: Layer,
        name: str = "clone",
        *,
        gpus: Sequence[GpuModel] = (),
        gpu_scripts: Mapping[str, GpuScript] | None = None,
        hostname: str | None = None,
    ) -> Iterator[LabMachine]:
        """Begin a machine from a layer's checkpoint, and end it afterwards.

        The checkpoint is made where the cache has none. Every clone has its own disk overlay and
        maps the checkpoint's memory privately, so nothing that it does reaches another one.
        """
        checkpoint = self.hold(layer)
        with self.machines.place(name) as folder:
            disk = folder / _DISK
            self.store.create_overlay(checkpoint.disk, disk)
            spec = self._spec_of(layer, name, disk, folder)
            machine = self.machines.new(
                layer.origin.prepare(spec, folder, is_first=False),
                folder,
                gpus=gpus,
                gpu_scripts=gpu_scripts,
                checkpoint=checkpoint,
                hostname=hostname,
            )
            with self.machines.running(machine, machine):
                yield machine

    def _spec_of(self, layer: Layer, name: str, disk: Path, folder: Path) -> MachineSpec:
        return layer.spec(
            name,
            accelerator=self.accelerator.accelerator,
            qemu=self.settings.qemu,
            disk=disk,
            folder=folder,
            has_apertures=self._has_apertures,
        )

    def hold(self, layer: Layer) -> Checkpoint:
        """Return a layer's checkpoint, made where the cache has none, and in use until the end."""
        return self.templates.hold(layer)

    @functools.cached_property
    def transport(self) -> Transport:
        """Return the way by which machines take an emulated GPU without harm.

        Raises RequirementError where there is none, with what would do.
        """
        return self.driver.transport(self.accelerator.accelerator)

    @functools.cached_property
    def _has_apertures(self) -> bool:
        """Tell whether machines get room for 64-bit BARs; one without a GPU can do without.

        Whatever QEMU's trouble is, who plugs a GPU or starts the machine is told of it.
        """
        try:
            return self.transport is Transport.VFIO_USER
        except HarnessError:
            return False

    def abandon(self) -> None:
        """End every machine at once, from any thread; those who wait for one learn of it."""
        self.machines.abandon()

    def keep(self, evidence: Evidence, name: str) -> Path:
        """Copy an evidence folder to where people look for it, and return its new path."""
        return evidence.copy_to(self.settings.evidence_folder / name)

    def salvage(self, node: Node, name: str) -> Path | None:
        """Keep what can be had of a node that may be beyond reach, and return its folder.

        Where nothing can be kept it says so, and returns None: there is trouble enough.
        """
        try:
            return self.keep(node.salvage(), name)
        except (HarnessError, OSError) as error:
            self._tell(f"the evidence of '{node.request.name}' could not be kept: {error}")
            return None


@contextlib.contextmanager
def open_lab(settings: Settings, listener: ImageListener) -> Iterator[Lab]:
    """Open a lab: sweep what dead runs left, choose the accelerator, make keys.

    Raises RequirementError where the host cannot run machines.
    """
    with contextlib.ExitStack() as opened:

        def tell(message: str) -> None:
            listener(ImageEvent(image="machines", stage=Stage.WAIT, message=message))

        driver = opened.enter_context(open_driver(settings, tell))
        sweep(settings.runs_folder)
        folder = opened.enter_context(leased_folder(settings.runs_folder, prefix="run"))
        lab = Lab(
            settings=settings,
            folder=folder,
            driver=driver,
            accelerator=driver.choose_accelerator(settings.accelerator),
            payload=build_payload(),
            agent_program=build_agent(),
            identity=SshIdentity.generate(make_private_folder(folder / "keys")),
            listener=listener,
            broker=Broker(host_folder()),
        )
        with contextlib.closing(lab):
            yield lab
