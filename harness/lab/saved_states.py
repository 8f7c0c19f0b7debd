"""Saved states, from which tests start machines, and the checkpoints that store these states."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import secrets
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.artifact_cache import DISK
from harness.cloudinit import UserData, render_seed
from harness.errors import BadInputError, EvidencedError, HarnessError, RequirementError
from harness.image import CloudImageKernel
from harness.image.manifest import IMAGE_FORMAT
from harness.lab.description import BootSource, describe
from harness.lab.machine_cloud_init import START_CLOUD_INIT
from harness.lab.machine_saving import NONCE_FACT
from harness.lab.running_machines import host_evidence_kept
from harness.machine.description.spec import (
    DEFAULT_CPUS,
    DEFAULT_MEMORY_MIB,
    DEFAULT_SLOTS,
    DirectKernel,
    MemoryFile,
)
from harness.machine.guest_time import deadline_of_maker
from harness.provisioning.command import CommandError, LocalRunner
from harness.provisioning.wait import WaitTimeoutError
from harness.steps import stepped

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.cloudinit import SeedFiles
    from harness.image import Image, Kernel
    from harness.image.store import ImageStore
    from harness.lab.description import MachineDescription, Platform
    from harness.lab.machine import LabMachine
    from harness.lab.running_machines import Machines
    from harness.machine import VmDriver
    from harness.machine.checkpoint.store import Checkpoint, CheckpointPlace, CheckpointStore
    from harness.machine.description.spec import MachineSpec
    from harness.progress import ProgressListener

#: Seconds under KVM to boot the machine of a checkpoint.
_BOOT_KVM_S = 30.0
_BOOT_CLOUD_IMAGE_KVM_S = 60.0

#: Stops the boot before cloud-init: `multi-user.target`, which wants `cloud-init.target`, is not
#: started. containerd does not depend on cloud-init, so it is started already.
_STOP_BEFORE_CLOUD_INIT = ("systemd.unit=basic.target", "systemd.wants=containerd.service")

#: The units that have to be started before a machine's state is saved.
UNITS_BEFORE_CLOUD_INIT = ("basic.target", "containerd.service")


#: At a first boot netplan starts networkd itself, but only while systemd is "initializing"
#: (netplan, src/generate.c, check_called_just_in_time). In a machine that has stopped before
#: cloud-init, systemd is past that state, so this drop-in starts networkd.
_NETPLAN_DROP_IN = "/run/systemd/system/cloud-init-local.service.d/50-netplan.conf"
_NETPLAN = """\
[Service]
ExecStartPost=-/bin/sh -c 'for file in /run/systemd/network/10-netplan-*; do \
[ ! -e "$$file" ] || systemctl start --no-block systemd-networkd.service; done'
"""


class SavedStateSource(BootSource, Protocol):
    """The boot source of the first machine of a saved state."""

    @property
    def first_seed(self) -> SeedFiles | None:
        """Return the seed with which the first machine boots."""

    def parts(self) -> Mapping[str, object]:
        """Return everything on which the saved state depends, in addition to QEMU's command line."""

    def wait_until_booted(self, machine: LabMachine) -> None:
        """Wait until the first machine is in the state to be saved."""


@dataclass(frozen=True, kw_only=True)
class BuiltImageSource:
    """A built image and one of its kernels. With `is_held`, the boot stops before cloud-init.

    With `may_reboot`, the machine continues when its guest reboots.
    """

    image: Image
    kernel_image: Kernel
    is_held: bool = True
    may_reboot: bool = False

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def disk(self) -> Path:
        return self.image.disk

    @property
    def disk_gib(self) -> None:
        return None

    @property
    def kernel_append(self) -> tuple[str, ...]:
        return _STOP_BEFORE_CLOUD_INIT if self.is_held else ()

    @property
    def first_seed(self) -> None:
        return None

    def kernel(self, folder: Path) -> DirectKernel:
        del folder
        kernel = self.kernel_image
        direct = DirectKernel(
            version=kernel.version,
            vmlinuz=kernel.vmlinuz,
            initrd=kernel.initrd,
            may_reboot=self.may_reboot,
        )
        if isinstance(kernel, CloudImageKernel):
            return replace(direct, append=kernel.command_line, is_verbatim=True)
        return direct

    def prepare(self, folder: Path) -> None:
        """Create nothing: QEMU loads the kernel of a built image."""

    @property
    def _is_cloud_image(self) -> bool:
        return isinstance(self.kernel_image, CloudImageKernel)

    def parts(self) -> Mapping[str, object]:
        return {
            "image": self.image.key,
            "kernel": self.kernel_image.version,
            **({"netplan": _NETPLAN} if self._is_cloud_image else {}),
        }

    def disk_sha256(self) -> str:
        # The key is not enough: another build of the same image has other blocks, which do not match the
        # overlay.
        return IMAGE_FORMAT.read(self.image.folder).files[DISK].sha256

    def wait_until_booted(self, machine: LabMachine) -> None:
        deadline = machine.deadline(
            _BOOT_CLOUD_IMAGE_KVM_S if self._is_cloud_image else _BOOT_KVM_S
        )
        for unit in UNITS_BEFORE_CLOUD_INIT:
            # Not every image has containerd.
            if machine.guest.run("systemctl", "cat", unit).ok:
                machine.agent.wait_for_unit(unit, deadline)
        if self._is_cloud_image:
            machine.guest.write_text(_NETPLAN_DROP_IN, _NETPLAN)


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A state of a machine, which is stored in a checkpoint on first use.

    A saved state without a parent is an origin: a built image booted up to the point just before
    cloud-init, or a cloud image just after cloud-init. Any other state is its parent's state after
    `make` has run. `parts` name everything that the result depends on in addition to the parent:
    when one of them changes, the checkpoint is made again.
    """

    name: str
    origin: SavedStateSource
    memory_mib: int = DEFAULT_MEMORY_MIB
    cpus: int = DEFAULT_CPUS
    slots: int = DEFAULT_SLOTS
    has_iommu: bool = False
    parent: SavedState | None = None
    make: Callable[[LabMachine], None] | None = field(default=None, compare=False)
    parts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def derive(
        self,
        name: str,
        make: Callable[[LabMachine], None],
        parts: Mapping[str, str] | None = None,
    ) -> SavedState:
        """Return the saved state that `make` makes from this state.

        Without `parts`, the state depends on the source of the whole module that defines `make`,
        since `make` may call other functions of the module. Raises HarnessError if that module has
        no source file.
        """
        return replace(
            self,
            name=name,
            parent=self,
            make=make,
            parts=source_parts(make) if parts is None else parts,
        )


def describe_clone(
    state: SavedState,
    platform: Platform,
    folder: Path,
    checkpoint: Checkpoint | None,
    *,
    name: str | None = None,
    disk: Path | None = None,
    memory_file: MemoryFile | None = None,
    seed: SeedFiles | None = None,
) -> MachineDescription:
    """Describe a machine that continues from `checkpoint`, or that boots the origin of `state`.

    Without `checkpoint`, the machine boots. The machine's name is by default the name of the
    state. This function has no side effects.
    """
    return describe(
        name or state.name,
        state.origin,
        platform,
        folder,
        memory_mib=state.memory_mib,
        cpus=state.cpus,
        slots=state.slots,
        has_iommu=state.has_iommu,
        checkpoint=checkpoint,
        disk=disk,
        memory_file=memory_file,
        seed=seed,
    )


def booted(
    image: Image,
    kernel: Kernel | None = None,
    *,
    memory_mib: int = DEFAULT_MEMORY_MIB,
    cpus: int = DEFAULT_CPUS,
    slots: int = DEFAULT_SLOTS,
    has_iommu: bool = False,
) -> SavedState:
    """Return the saved state of an image booted up to the point just before cloud-init."""
    return SavedState(
        name=f"{image.name}-booted",
        origin=BuiltImageSource(image=image, kernel_image=kernel or image.newest_kernel),
        memory_mib=memory_mib,
        cpus=cpus,
        slots=max(slots, DEFAULT_SLOTS),
        has_iommu=has_iommu,
    )


def naming_seed(name: str) -> SeedFiles:
    """Return a seed that only sets a machine's hostname."""
    return render_seed(UserData(hostname=name), instance_id=name)


def cloud_init_done(saved_state: SavedState) -> SavedState:
    """Return the saved state in which cloud-init has run, with a seed that only sets the hostname."""
    seed = naming_seed("clone")

    def make(machine: LabMachine) -> None:
        machine.run_cloud_init(seed)

    return saved_state.derive(
        f"{saved_state.origin.name}-cloud-init-done",
        make,
        {
            "seed": hashlib.sha256(repr(seed).encode()).hexdigest(),
            "start_cloud_init": START_CLOUD_INIT,
        },
    )


def key_parts(
    saved_state: SavedState, spec: MachineSpec, driver: VmDriver
) -> Mapping[str, object]:
    """Return all inputs that determine a checkpoint's bytes, except the key of the parent.

    The VM driver's parts contain no paths: the image's key identifies the files.
    """
    return {
        **driver.state_parts(spec),
        **saved_state.origin.parts(),
        **saved_state.parts,
    }


def source_parts(make: Callable[..., None]) -> Mapping[str, str]:
    """Return the name of a function and the digest of its module's source."""
    try:
        source = Path(inspect.getfile(make)).read_bytes()
    except (OSError, TypeError) as error:
        raise HarnessError(
            f"The function {make!r} of a saved state has no source file ({error}), so changes to it "
            "could not be detected; name in `parts` everything on which the function's result "
            "depends."
        ) from error
    return {"make": make.__qualname__, "module_sha256": hashlib.sha256(source).hexdigest()}


_MAKE_KVM_S = 120.0
_COPY_S = 120.0


@dataclass(kw_only=True)
class CheckpointBuilder:
    """Finds or makes the checkpoints of a lab, and keeps them in use until `close`.

    `agent_digest` is the digest of the agent that runs in the saved machines. `needs` is a
    description, for people, of the QEMU and the processor that a saved machine needs.
    """

    checkpoints: CheckpointStore
    images: ImageStore
    machines: Machines
    driver: VmDriver
    platform: Callable[[], Platform]
    agent_digest: str
    folder: Path
    evidence_folder: Path
    patience: float
    needs: Callable[[], Mapping[str, str]]
    listener: ProgressListener
    _held: dict[SavedState, Checkpoint] = field(init=False, default_factory=dict)
    _holding: threading.RLock = field(init=False, default_factory=threading.RLock)
    _resources: contextlib.ExitStack = field(init=False, default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Release the checkpoints."""
        self._held.clear()
        self._resources.close()

    def ensure_checkpoint(self, saved_state: SavedState) -> Checkpoint:
        """Return the checkpoint of a saved state."""
        with self._holding:
            if saved_state not in self._held:
                parent = (
                    None
                    if saved_state.parent is None
                    else self.ensure_checkpoint(saved_state.parent)
                )
                machine = describe_clone(saved_state, self.platform(), self.folder, parent)
                parts = {
                    **key_parts(saved_state, machine.spec, self.driver),
                    "agent": self.agent_digest,
                    "image_disk_sha256": saved_state.origin.disk_sha256(),
                }
                self._held[saved_state] = self._resources.enter_context(
                    self.checkpoints.use(
                        saved_state.name,
                        parts,
                        functools.partial(self._make, saved_state, parent),
                        memory_mib=saved_state.memory_mib,
                        parent=parent,
                        deadline=deadline_of_maker(_MAKE_KVM_S * self.patience),
                        listener=self.listener,
                        cancelled=self.machines.stop_reason,
                    )
                )
            return self._held[saved_state]

    @stepped("Make the checkpoint '{1.name}'")
    def _make(
        self, saved_state: SavedState, parent: Checkpoint | None, place: CheckpointPlace
    ) -> Mapping[str, str]:
        """Bring a machine to the saved state, save the state in `place`, and return its facts."""
        if parent is None:
            origin = saved_state.origin
            self.images.create_overlay(origin.disk, place.disk, size_gib=origin.disk_gib)
        else:
            self.images.create_overlay(parent.disk, place.disk)
            copied = LocalRunner().run(
                ["cp", "--reflink=auto", "--sparse=always", str(parent.ram), str(place.ram)],
                timeout_s=_COPY_S,
            )
            copied.check(f"Copying the memory of '{parent.folder}'")
        _reserve(place.ram, saved_state.memory_mib)
        nonce = secrets.token_hex(16)
        description = describe_clone(
            saved_state,
            self.platform(),
            self.machines.new_folder(saved_state.name),
            parent,
            disk=place.disk,
            memory_file=MemoryFile(path=place.ram, is_private=False),
            seed=saved_state.origin.first_seed if parent is None else None,
        )
        kept = self.evidence_folder / "saved-states" / saved_state.name
        with (
            self.machines.created(description) as machine,
            host_evidence_kept(machine, kept),
        ):
            try:
                with self.machines.registered(machine), machine:
                    if saved_state.make is None:
                        saved_state.origin.wait_until_booted(machine)
                    else:
                        saved_state.make(machine)
                    machine.save(place.state, nonce)
            except (BadInputError, RequirementError):
                raise
            except Exception as error:
                raise HarnessError(
                    f"The saved state '{saved_state.name}' could not be made. {_sentence_of(error)}"
                ) from error
        return {NONCE_FACT: hashlib.sha256(nonce.encode()).hexdigest(), **self.needs()}


def _sentence_of(error: Exception) -> str:
    if isinstance(error, EvidencedError):
        return error.sentence
    return str(error) if isinstance(error, (CommandError, WaitTimeoutError)) else repr(error)


def _reserve(ram: Path, memory_mib: int) -> None:
    """Allocate all blocks of a memory file: SIGBUS would kill QEMU at a page without a block."""
    with ram.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, memory_mib << 20)
