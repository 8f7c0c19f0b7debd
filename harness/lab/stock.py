"""How a distribution's own image is booted, and what it is given so that the harness can look in."""

from __future__ import annotations

import base64
import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cloudinit import UserData, render_seed, write_seed
from harness.errors import BadInputError, RequirementError
from harness.lab.layers import Layer, aperture_mib
from harness.lab.machine import SEED
from harness.machine.spec import DirectKernel, Firmware, Flash, MachineSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.cloudinit import SeedFiles, SshAccess
    from harness.image import StockImage, StockKernel
    from harness.lab.layers import Shape
    from harness.lab.machine import LabMachine

#: Into so large a disk cloud-init grows the image.
DISK_GIB = 10
MEMORY_MIB = 1024
_SLOTS = 4
#: Boot loader, first boot and all of a distribution's cloud-init.
_FIRST_BOOT_KVM_S = 90.0
_OVMF = Path("/usr/share/OVMF")
_CODE, _VARIABLES = "OVMF_CODE_4M.fd", "OVMF_VARS_4M.fd"
_MACHINES_VARIABLES = "ovmf-variables.fd"

#: Where built images have the same files, below the catalogue.
_AGENT_TREE = Path("debian-12/root")
_LOADER = Path("usr/lib/harness/agent-loader")
_UNIT = Path("etc/systemd/system/harness-agent.service")
#: systemd starts the agent by this link, as soon as the port is there.
_WANTS = "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants"
#: What the seed puts into a guest that had no agent.
AGENT_FILES = (f"/{_LOADER}", f"/{_UNIT}", f"{_WANTS}/{_UNIT.name}")

_PUT = 'mkdir -p -- "${1%/*}" && printf %s "$2" | base64 -d >"$1.part" && chmod "$3" "$1.part" && mv -- "$1.part" "$1"'
#: Images that enable no serial console get the journal there, and a login.
_CONSOLE = (
    "grep -q 'console=ttyS0' /proc/cmdline && exit 0; "
    "mkdir -p /run/systemd/journald.conf.d && "
    "printf '[Journal]\\nForwardToConsole=yes\\nTTYPath=/dev/ttyS0\\n' "
    ">/run/systemd/journald.conf.d/harness.conf && "
    "systemctl restart systemd-journald.service && "
    "systemctl start --no-block serial-getty@ttyS0.service"
)


@dataclass(frozen=True, kw_only=True)
class StockBoot:
    """How a stock image is booted.

    By `firmware` ("bios", "uefi", or None for what the image's entry asks for) and its own boot
    loader, or where there is a `kernel` by that one alone, told what the boot loader would and `append`. The disk is made `disk_gib` large.
    """

    firmware: str | None = None
    kernel: StockKernel | None = None
    append: tuple[str, ...] = ()
    disk_gib: int = DISK_GIB
    memory_mib: int = MEMORY_MIB

    def __post_init__(self) -> None:
        if self.firmware not in {None, "bios", "uefi"}:
            raise BadInputError(
                f"'{self.firmware}' is no firmware; give 'bios' or 'uefi'.",
                source="StockBoot",
                key="firmware",
            )
        if self.append and self.kernel is None:
            raise BadInputError(
                f"{list(self.append)} can't be added to a command line that the boot loader "
                "chooses; name a 'kernel' of `lab.stock_kernels` too.",
                source="StockBoot",
                key="append",
            )

    def of(self, image: StockImage) -> StockBoot:
        """Return the same with the firmware that `image` asks for, where none is named."""
        return replace(self, firmware=self.firmware or image.firmware)

    def size_gib(self, image: StockImage) -> int | None:
        """Return how large an overlay has to be made, or None for as large as the image.

        One that were smaller would cut the image's last partition off.
        """
        return self.disk_gib if image.virtual_bytes < self.disk_gib << 30 else None

    @property
    def needs_variables(self) -> bool:
        """Return whether firmware keeps variables in the machine's folder."""
        return self.kernel is None and self.firmware == "uefi"

    def to_kernel(self, folder: Path) -> DirectKernel | Firmware:
        """Return what starts the machine; its firmware keeps its variables in `folder`."""
        if self.kernel is not None:
            return DirectKernel(
                version=self.kernel.version,
                vmlinuz=self.kernel.vmlinuz,
                initrd=self.kernel.initrd,
                append=(*self.kernel.command_line, *self.append),
                is_verbatim=True,
            )
        if not self.needs_variables:
            return Firmware()
        return Firmware(flash=Flash(code=_OVMF / _CODE, variables=folder / _MACHINES_VARIABLES))

    def prepare(self, folder: Path) -> None:
        """Make what `to_kernel` names in the machine's folder.

        Raises RequirementError where the host has no OVMF.
        """
        if self.needs_variables:
            _require_ovmf()
            shutil.copyfile(_OVMF / _VARIABLES, folder / _MACHINES_VARIABLES)


@dataclass(frozen=True, kw_only=True)
class StockOrigin:
    """A stock image that its own boot loader booted, once its cloud-init has finished.

    Sooner there is no agent, which cloud-init brings. `images` is the catalogue.
    """

    image: StockImage
    boot: StockBoot
    images: Path

    @property
    def name(self) -> str:
        return self.image.name

    @property
    def disk(self) -> Path:
        return self.image.disk

    @property
    def disk_gib(self) -> int | None:
        return self.boot.size_gib(self.image)

    def parts(self) -> Mapping[str, object]:
        kernel = self.boot.kernel
        return {
            "stock": self.image.digest,
            # A file of a person's own may have moved; overlays name what they lie on by its path.
            "disk": str(self.image.disk.resolve()),
            "disk_gib": self.boot.disk_gib,
            "firmware": self.boot.firmware,
            "ovmf": _digest_of(_OVMF / _CODE) if self.boot.needs_variables else None,
            "kernel": None if kernel is None else kernel.version,
            "seed": hashlib.sha256(repr(self._seed()).encode()).hexdigest(),
        }

    def disk_sha256(self) -> str:
        return self.image.digest

    def spec(self, name: str, shape: Shape, *, disk: Path, folder: Path) -> MachineSpec:
        return MachineSpec(
            name=name,
            accelerator=shape.accelerator,
            kernel=self.boot.to_kernel(folder),
            disk=disk,
            memory_mib=shape.memory_mib,
            root_ports=shape.slots,
            root_port_aperture_mib=aperture_mib(shape.slots) if shape.has_apertures else 0,
            qemu=shape.qemu,
        )

    def prepare(self, spec: MachineSpec, folder: Path, *, is_first: bool) -> MachineSpec:
        self.boot.prepare(folder)
        if not is_first:
            return spec
        return replace(spec, seed=write_seed(self._seed(), folder / SEED))

    def settle(self, machine: LabMachine) -> None:
        machine.guest.wait_for_cloud_init_result(machine.deadline(_FIRST_BOOT_KVM_S))

    def _seed(self) -> SeedFiles:
        # Without keys: a template's would be every clone's.
        return stock_seed("clone", instance_id="clone", images=self.images)


def stock_booted(image: StockImage, *, images: Path, boot: StockBoot | None = None) -> Layer:
    """Return the layer of a stock image whose cloud-init has finished; `images` is the catalogue."""
    boot = (boot or StockBoot()).of(image)
    return Layer(
        name=f"{image.name}-stock-booted",
        origin=StockOrigin(image=image, boot=boot, images=images),
        memory_mib=boot.memory_mib,
        slots=_SLOTS,
    )


def _digest_of(path: Path) -> str:
    _require_ovmf()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _require_ovmf() -> None:
    for name in (_CODE, _VARIABLES):
        if not (_OVMF / name).is_file():
            raise RequirementError(
                f"Booting by UEFI needs '{_OVMF / name}', not found on this host; install with "
                "'apt-get install --no-install-recommends ovmf'."
            )


def stock_seed(
    hostname: str, *, instance_id: str, images: Path, access: SshAccess | None = None
) -> SeedFiles:
    """Return a seed that brings the guest agent, and a serial console where there is none.

    Both come by `bootcmd`: it runs before cloud-init writes files, and so the agent is there for
    whatever goes wrong after. `images` is the catalogue, which has the agent's loader.
    """
    return render_seed(
        UserData(hostname=hostname, access=access, early=agent_commands(images)),
        instance_id=instance_id,
    )


def agent_commands(images: Path) -> tuple[tuple[str, ...], ...]:
    """Return the commands that install and start the agent, from the catalogue `images`."""
    tree = images / _AGENT_TREE
    try:
        loader, unit = (tree / _LOADER).read_bytes(), (tree / _UNIT).read_bytes()
    except OSError as error:
        raise BadInputError(
            f"The guest agent's loader cannot be read ({error.strerror}); point at the folder "
            "'images' of a checkout.",
            source=str(error.filename),
        ) from error
    return (
        ("sh", "-c", _CONSOLE),
        _put(f"/{_LOADER}", loader, mode="0755"),
        _put(f"/{_UNIT}", unit, mode="0644"),
        ("mkdir", "-p", _WANTS),
        ("ln", "-sf", f"../{_UNIT.name}", f"{_WANTS}/{_UNIT.name}"),
        ("systemctl", "daemon-reload"),
        ("systemctl", "start", "--no-block", _UNIT.name),
    )


def _put(path: str, content: bytes, *, mode: str) -> tuple[str, ...]:
    return ("sh", "-c", _PUT, "put", path, base64.b64encode(content).decode(), mode)
