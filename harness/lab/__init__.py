"""Joins image, seed, payload, GPU and machine into nodes.

The rooms below know nothing of one another; the command line and the pytest fixtures both need
them joined, in the same way.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.evidence import Evidence
from harness.gpu.transport import choose_transport, parse_qemu_version
from harness.image import ImageEvent, Stage
from harness.image.catalogue import load_catalogue
from harness.image.store import ImageStore
from harness.lab.node import Node, NodeRequest
from harness.lease import leased_folder, make_private_folder, sweep
from harness.machine.accelerator import choose_accelerator
from harness.machine.qemu import require_qemu
from harness.machine.spec import Accelerator
from harness.machine.ssh import SshIdentity
from harness.payload import build_payload
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.image import Image, ImageListener
    from harness.machine.accelerator import AcceleratorChoice
    from harness.payload import Payload
    from harness.settings import Settings

_IMAGE_S = 1500.0
_BAKE_KVM_S = 120.0
_QUERY_S = 20.0
#: What a full driver build writes, with room to spare.
_OVERLAY_MIB = 1024


@dataclass(kw_only=True)
class Lab:
    """What the machines of one run share: image, payload, keys, a folder, an accelerator."""

    settings: Settings
    folder: Path
    accelerator: AcceleratorChoice
    payload: Payload
    identity: SshIdentity
    listener: ImageListener
    store: ImageStore = field(init=False)
    _has_transport: bool = field(init=False, default=False)
    _nodes: set[Node] = field(init=False, default_factory=set)
    _is_abandoned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.store = ImageStore(self.settings.image_store)

    def node_image(self) -> Image:
        """Return the image that the settings name, built where the cache has none."""
        recipe = load_catalogue(self.settings.images_folder).get(self.settings.image)
        return self.store.ensure(recipe, deadline=Deadline.after(_IMAGE_S), listener=self.listener)

    def baked_image(self) -> Image:
        """Return the node image with the driver baked in by a machine without a GPU.

        The bake runs on the kernel that is *not* the newest, so that a record which names the
        builder's kernel instead of the target's shows. The evidence of the bake is published
        with the image; `bake_evidence` reads it.
        """
        parent = self.node_image()
        request = NodeRequest(
            name="bake", image=parent, command="bake", kernel=parent.other_kernel, config=BAKE
        )

        def say(line: str) -> None:
            self.listener(
                ImageEvent(image=parent.name, stage=Stage.BUILD, message=f"bake: {line}")
            )

        def make(disk: Path) -> None:
            with self.boot(request, disk=disk) as node:
                try:
                    node.wait_until_provisioned(say)
                except HarnessError as error:
                    kept = self.keep_host_side(node, "bake")
                    raise HarnessError(f"{error}\nIts evidence lies in '{kept}'.") from error
                evidence = node.collect(disk.parent / "evidence")
                if evidence.exit_code != 0:
                    kept = self.keep(evidence, "bake")
                    outcome = evidence.outcome
                    why = "it left no outcome" if outcome is None else outcome.error
                    raise HarnessError(
                        f"The bake ended with {evidence.exit_code}: {why}. Its evidence lies in "
                        f"'{kept}'."
                    )
                node.power_off()

        parts = {"payload": self.payload.digest, "config": repr(sorted(BAKE.items()))}
        patience = self.accelerator.accelerator.patience
        return self.store.ensure_derived(
            parent,
            parts,
            make,
            deadline=Deadline.after(_BAKE_KVM_S * patience),
            listener=self.listener,
        )

    @staticmethod
    def bake_evidence(baked: Image) -> Evidence:
        """Return the evidence of the bake that made `baked`."""
        return Evidence(baked.folder / "evidence")

    @contextlib.contextmanager
    def boot(self, request: NodeRequest, *, disk: Path | None = None) -> Iterator[Node]:
        """Boot a node on an overlay of its own, or on `disk`, and end it afterwards."""
        self._require_space()
        folder = make_private_folder(self.folder / f"{request.name}-{secrets.token_hex(3)}")
        if disk is None:
            disk = folder / "disk.qcow2"
            self.store.create_overlay(request.image.disk, disk)
        node = Node(
            request,
            folder=folder,
            disk=disk,
            payload=self.payload,
            identity=self.identity,
            accelerator=self.accelerator.accelerator,
            qemu=self.settings.qemu,
            require_transport=self.require_transport,
        )
        try:
            with node:
                self._nodes.add(node)
                if self._is_abandoned:
                    raise HarnessError(f"Node '{request.name}' is not wanted any more.")
                yield node
        finally:
            self._nodes.discard(node)
            # An overlay holds hundreds of megabytes, and a run may boot many nodes.
            shutil.rmtree(folder, ignore_errors=True)

    def require_transport(self) -> None:
        """Expect this QEMU to take an emulated GPU without harm.

        Some versions have the device and crash on it, so nothing is started to find out. Raises
        RequirementError with what would do.
        """
        if self._has_transport:
            return
        qemu, runner = self.settings.qemu, LocalRunner()
        devices = runner.run([qemu, "-device", "help"], timeout_s=_QUERY_S)
        version = runner.run([qemu, "--version"], timeout_s=_QUERY_S)
        choose_transport(
            device_help=devices.stdout + devices.stderr,
            version=parse_qemu_version(version.stdout),
            accelerator="kvm" if self.accelerator.accelerator is Accelerator.KVM else "tcg",
        )
        self._has_transport = True

    def abandon(self) -> None:
        """End every machine at once, from any thread; those who wait for one learn of it."""
        self._is_abandoned = True
        for node in list(self._nodes):
            node.machine.kill()

    def _require_space(self) -> None:
        """Refuse to start a machine whose overlay would run out of space half-way."""
        free_mib = shutil.disk_usage(self.folder).free >> 20
        if free_mib < _OVERLAY_MIB:
            raise RequirementError(
                f"A node's overlay may take {_OVERLAY_MIB} MiB, but '{self.folder}' has only "
                f"{free_mib} MiB left; free some, or set XDG_CACHE_HOME to a larger disk."
            )

    def keep(self, evidence: Evidence, name: str) -> Path:
        """Copy an evidence folder to where people look for it, and return its new path."""
        return evidence.copy_to(self.settings.evidence_folder / name)

    def keep_host_side(self, node: Node, name: str) -> Path:
        """Keep what the host knows of a node beyond reach, and return its folder."""
        kept = self.settings.evidence_folder / name
        node.keep_host_side(kept)
        return kept


#: What a bake is asked for: section 4 of the contract, with prebaking switched on.
BAKE = {"gpu_node": False, "feature_flags": "NVIDIA_CUDA_PREBAKE"}


@contextlib.contextmanager
def open_lab(settings: Settings, listener: ImageListener) -> Iterator[Lab]:
    """Open a lab: sweep what dead runs left, choose the accelerator, make keys.

    Raises RequirementError where the host cannot run machines.
    """
    runner = LocalRunner()
    require_qemu(settings.qemu)
    sweep(settings.runs_folder)
    choice = choose_accelerator(
        settings.accelerator, qemu=settings.qemu, runner=runner, cache=settings.cache
    )
    with leased_folder(settings.runs_folder, prefix="run") as folder:
        yield Lab(
            settings=settings,
            folder=folder,
            accelerator=choice,
            payload=build_payload(),
            identity=SshIdentity.generate(make_private_folder(folder / "keys")),
            listener=listener,
        )
