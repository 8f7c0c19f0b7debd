"""Boots a distribution's own image, in which cloud-init installs the guest agent."""

from __future__ import annotations

import base64
import hashlib
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cloudinit import UserData, render_seed
from harness.errors import BadInputError
from harness.image import FirmwareType
from harness.lab.saved_states import SavedState
from harness.machine.description.spec import (
    DEFAULT_CLOUD_IMAGE_MEMORY_MIB,
    DirectKernel,
    Firmware,
    Flash,
)
from harness.settings import SHIPPED_IMAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.cloudinit import SeedFiles, SshAccess
    from harness.image import CloudImage, CloudImageKernel
    from harness.lab.machine import LabMachine
    from harness.machine.uefi_firmware import UefiFirmware

#: Size (GiB) to which cloud-init grows the image.
DISK_GIB = 10
#: Seconds under KVM for the boot loader, the first boot and the distribution's cloud-init.
_FIRST_BOOT_KVM_S = 90.0
_VARIABLES = "uefi-variables.fd"

#: The folder with the files of the built images, which include the agent's files.
_AGENT_TREE = SHIPPED_IMAGES / "debian-12/root"
_LOADER = Path("usr/lib/harness/agent-loader")
_UNIT = Path("etc/systemd/system/harness-agent.service")
#: This link makes systemd start the agent as soon as the agent's virtio port exists.
_WANTS = "/etc/systemd/system/dev-virtio\\x2dports-harness.agent.device.wants"
#: The files that the seed creates in the guest.
AGENT_FILES = (f"/{_LOADER}", f"/{_UNIT}", f"{_WANTS}/{_UNIT.name}")

_PUT = 'mkdir -p -- "${1%/*}" && printf %s "$2" | base64 -d >"$1.part" && chmod "$3" "$1.part" && mv -- "$1.part" "$1"'
#: Sends the journal and a login prompt to the serial port, if the kernel's command line has no
#: console there.
_CONSOLE = (
    "grep -q 'console=ttyS0' /proc/cmdline && exit 0; "
    "mkdir -p /run/systemd/journald.conf.d && "
    "printf '[Journal]\\nForwardToConsole=yes\\nTTYPath=/dev/ttyS0\\n' "
    ">/run/systemd/journald.conf.d/harness.conf && "
    "systemctl restart systemd-journald.service && "
    "systemctl start --no-block serial-getty@ttyS0.service"
)


#: Removes the files one by one, since only cloud-init 23.4 and later have `cloud-init clean
#: --configs`.
_CLEAN = """\
set -e
cloud-init clean --logs
rm -rf /etc/netplan/50-cloud-init.yaml /etc/network/interfaces.d/50-cloud-init
rm -rf /etc/systemd/network/10-cloud-init-*.network /etc/systemd/network/50-cloud-init-*.link
rm -f /etc/ssh/ssh_host_* {files} {agent_files}
rm -rf {folders} /root/.ssh/authorized_keys
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id /var/lib/systemd/random-seed
sync
"""


def render_clean(
    files: Sequence[str], folders: Sequence[str], *, agent_files: Sequence[str] = ()
) -> str:
    """Return a script that restores an image to its state before its first boot.

    The next boot creates the files of a first boot again. The files from the seed (`files`,
    `folders` and the agent) are removed too.
    """
    return _CLEAN.format(
        files=shlex.join(files),
        folders=shlex.join(folders),
        agent_files=shlex.join(agent_files),
    )


@dataclass(frozen=True, kw_only=True)
class CloudImageBoot:
    """How a cloud image is booted.

    Without a `kernel`, `firmware` starts the image's own boot loader. The default is the firmware
    type in the image's recipe. With a `kernel`, QEMU loads this kernel, with the boot loader's
    command line and `append`. The disk is enlarged to `disk_gib`.
    """

    firmware: FirmwareType | None = None
    kernel: CloudImageKernel | None = None
    append: tuple[str, ...] = ()
    disk_gib: int = DISK_GIB
    memory_mib: int = DEFAULT_CLOUD_IMAGE_MEMORY_MIB

    def __post_init__(self) -> None:
        if self.append and self.kernel is None:
            raise BadInputError(
                f"{list(self.append)} can't be added to a command line that the boot loader "
                "chooses; set 'kernel' to one of `lab.cloud_image_kernels`, so that QEMU loads the kernel.",
                source="CloudImageBoot",
                key="append",
            )

    def of(self, image: CloudImage) -> CloudImageBoot:
        """Return this boot. A missing firmware type becomes the firmware type of `image`."""
        return replace(self, firmware=self.firmware or image.firmware)

    def size_gib(self, image: CloudImage) -> int | None:
        """Return the size of the overlay, or None for the size of the image.

        An overlay that is smaller than the image would truncate the last partition.
        """
        return self.disk_gib if image.virtual_bytes < self.disk_gib << 30 else None

    @property
    def needs_variables(self) -> bool:
        """Return whether the machine needs a file of UEFI variables."""
        return self.kernel is None and self.firmware is FirmwareType.UEFI

    def to_kernel(self, folder: Path) -> DirectKernel | Firmware:
        """Return the kernel or firmware of the machine. The file of UEFI variables is in `folder`."""
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
        return Firmware(flash=Flash(code=_firmware().code, variables=folder / _VARIABLES))

    def prepare(self, folder: Path) -> None:
        """Create the files in the machine's folder that `to_kernel` names.

        Raises RequirementError if the host lacks the UEFI firmware.
        """
        if self.needs_variables:
            shutil.copyfile(_firmware().variables, folder / _VARIABLES)


@dataclass(frozen=True, kw_only=True)
class CloudImageSource:
    """The boot source of a cloud image.

    A state is saved only after cloud-init has finished, since cloud-init installs the agent.
    """

    image: CloudImage
    boot: CloudImageBoot

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
            "cloud_image": self.image.digest,
            # Overlays name their backing file by path, so a local image that moved needs a new
            # checkpoint.
            "disk": str(self.image.disk.resolve()),
            "disk_gib": self.boot.disk_gib,
            "firmware": None if self.boot.firmware is None else self.boot.firmware.value,
            "uefi_code": _code_digest() if self.boot.needs_variables else None,
            "kernel": None if kernel is None else kernel.version,
            "seed": hashlib.sha256(repr(self.first_seed).encode()).hexdigest(),
        }

    def disk_sha256(self) -> str:
        return self.image.digest

    @property
    def kernel_append(self) -> tuple[str, ...]:
        return ()

    @property
    def first_seed(self) -> SeedFiles:
        # The seed has no SSH keys, since all clones would share the keys of the template.
        return cloud_image_seed("clone", instance_id="clone")

    def kernel(self, folder: Path) -> DirectKernel | Firmware:
        return self.boot.to_kernel(folder)

    def prepare(self, folder: Path) -> None:
        self.boot.prepare(folder)

    def wait_until_booted(self, machine: LabMachine) -> None:
        machine.guest.wait_for_cloud_init_result(machine.deadline(_FIRST_BOOT_KVM_S))


def cloud_image_booted(image: CloudImage, *, boot: CloudImageBoot | None = None) -> SavedState:
    """Return the saved state of a cloud image whose cloud-init has finished."""
    boot = (boot or CloudImageBoot()).of(image)
    return SavedState(
        name=f"{image.name}-cloud-image-booted",
        origin=CloudImageSource(image=image, boot=boot),
        memory_mib=boot.memory_mib,
    )


def _firmware() -> UefiFirmware:
    # The import is inside the function, because importing takes longer than starting a machine that boots
    # a kernel directly.
    from harness.machine.uefi_firmware import find_uefi_firmware  # noqa: PLC0415

    return find_uefi_firmware()


def _code_digest() -> str:
    return hashlib.sha256(_firmware().code.read_bytes()).hexdigest()


def cloud_image_seed(
    hostname: str, *, instance_id: str, access: SshAccess | None = None
) -> SeedFiles:
    """Return a seed that installs the guest agent, and a serial console if the image has none.

    `bootcmd` installs both before cloud-init writes files, so that the agent can report later
    errors.
    """
    return render_seed(
        UserData(hostname=hostname, access=access, early=agent_commands()),
        instance_id=instance_id,
    )


def agent_commands() -> tuple[tuple[str, ...], ...]:
    """Return the commands that install and start the agent."""
    loader, unit = (_AGENT_TREE / _LOADER).read_bytes(), (_AGENT_TREE / _UNIT).read_bytes()
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
