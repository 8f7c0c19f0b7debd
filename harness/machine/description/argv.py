"""Pure functions that render a machine's QEMU command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import MAC_ADDRESS
from harness.errors import HarnessError
from harness.machine.description.host_port import connect_argv
from harness.machine.description.spec import Accelerator, Firmware

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.description.spec import Flash, MachineSpec

#: The name, in the guest, of the virtio-serial port on which the agent listens.
AGENT_PORT = "harness.agent"
#: The root port of the seed volume, which is plugged in at the start or later.
SEED_PORT = "seed"
#: The seed's slot number, above all slots of GPUs.
_SEED_SLOT = 31
_SSH_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)")


@dataclass(frozen=True, kw_only=True)
class Channels:
    """The descriptors that QEMU inherits, one for each of its control channels."""

    qmp_fd: int
    serial_fd: int
    agent_fd: int


def root_port_id(index: int) -> str:
    """Return the QEMU id of the PCIe root port number `index`, counted from 0."""
    return f"rp{index}"


def render_argv(
    spec: MachineSpec,
    channels: Channels,
    *,
    serial_log: Path,
    attachments: Sequence[Attachment] = (),
) -> list[str]:
    """Render QEMU's command line. The function is pure.

    The attachments use the root ports in order. The guest's network is restricted to one forward
    from the host's loopback to the guest's SSH port, and to the ports of the host that the spec
    names. The kernel chooses the host's port for SSH, so that two machines never compete for a
    port. Raises HarnessError for more attachments than root ports.
    """
    if len(attachments) > spec.root_ports:
        raise HarnessError(
            f"Machine '{spec.name}' has {spec.root_ports} root ports for {len(attachments)} "
            "devices; raise 'root_ports'."
        )
    argv = [
        spec.qemu,
        *("-name", f"guest={spec.name},debug-threads=on"),
        *("-machine", "q35,memory-backend=ram,hpet=off" + _irqchip(spec)),
        *("-object", _memory_backend(spec)),
        *("-accel", spec.accelerator.to_qemu(spec.cpus)),
        *("-cpu", spec.accelerator.cpu_model),
        *("-smp", str(spec.cpus)),
        *("-m", f"{spec.memory_mib}M"),
        *("-display", "none"),
        "-nodefaults",
        "-no-user-config",
        *(() if spec.may_reboot else ("-no-reboot",)),
        # On QEMU's command line the IOMMU must precede the devices behind the IOMMU.
        *(("-device", "intel-iommu") if spec.has_iommu else ()),
        *("-chardev", f"socket,id=qmp,fd={channels.qmp_fd}"),
        *("-mon", "chardev=qmp,mode=control"),
        *("-chardev", f"socket,id=serial,fd={channels.serial_fd},logfile={_quoted(serial_log)}"),
        *("-serial", "chardev:serial"),
        *("-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=agent,fd={channels.agent_fd}"),
        *("-device", f"virtserialport,chardev=agent,name={AGENT_PORT}"),
        *("-device", "virtio-rng-pci"),
        *("-drive", f"file={_quoted(spec.disk)},id=disk,if=none,format=qcow2,cache=unsafe"),
        *("-device", _disk_device(spec)),
        *("-netdev", _network(spec)),
        # QEMU 7.2 deletes a clone's announce timer with `announce-rounds` 0, and crashes when the
        # guest then resets its card (`timer_del` of hw/net/virtio-net.c). `guest_announce=off`
        # creates no timer.
        *("-device", f"virtio-net-pci,netdev=net,romfile=,guest_announce=off,mac={MAC_ADDRESS}"),
        *_boot_argv(spec),
    ]
    argv += ["-device", f"pcie-root-port,id={SEED_PORT},chassis={_SEED_SLOT},slot={_SEED_SLOT}"]
    if spec.seed is not None:
        argv += [
            "-blockdev",
            (
                "driver=raw,node-name=seed,read-only=on,file.driver=file,"
                f"file.filename={_quoted(spec.seed)}"
            ),
            *("-device", f"virtio-blk-pci,id=seed-disk,drive=seed,serial=seed,bus={SEED_PORT}"),
        ]
    aperture = spec.root_port_aperture_mib
    for index in range(spec.root_ports):
        argv += [
            "-device",
            (
                f"pcie-root-port,id={root_port_id(index)},chassis={index + 1},slot={index + 1},"
                f"mem-reserve={spec.root_port_window_mib}M"
                + (f",pref64-reserve={aperture}M" if aperture else "")
            ),
        ]
    for index, attachment in enumerate(attachments):
        for device in attachment.to_device_argv(root_port_id(index)):
            argv += ["-device", device]
    if spec.is_restored:
        argv += ["-incoming", "defer"]
    return argv


def _irqchip(spec: MachineSpec) -> str:
    """Split the irqchip under KVM, so that QEMU's IOMMU remaps interrupts for VFIO in the guest."""
    is_split = spec.has_iommu and spec.accelerator is Accelerator.KVM
    return ",kernel-irqchip=split" if is_split else ""


def _network(spec: MachineSpec) -> str:
    forwards = [
        f",guestfwd=tcp:{each.guest_address}:{each.guest_port}-cmd:"
        + shlex.join(connect_argv(each.host_port)).replace(",", ",,")
        for each in spec.host_ports
    ]
    return "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22" + "".join(forwards)


def _disk_device(spec: MachineSpec) -> str:
    """Render the disk.

    With firmware, the disk has a boot index. Otherwise, firmware could boot the seed volume.
    """
    first = ",bootindex=1" if isinstance(spec.kernel, Firmware) else ""
    return f"virtio-blk-pci,drive=disk,serial=root{first}"


def _boot_argv(spec: MachineSpec) -> Sequence[str]:
    kernel = spec.kernel
    if isinstance(kernel, Firmware):
        return () if kernel.flash is None else _flash_argv(kernel.flash)
    if spec.is_restored:
        return ("-kernel", str(kernel.vmlinuz))
    return (
        *("-kernel", str(kernel.vmlinuz)),
        *("-initrd", str(kernel.initrd)),
        *("-append", spec.kernel_command_line),
    )


def _flash_argv(flash: Flash) -> Sequence[str]:
    """Render the flash devices of firmware: first the read-only code, then its variables."""
    return (
        "-drive",
        f"if=pflash,unit=0,format=raw,readonly=on,file={_quoted(flash.code)}",
        "-drive",
        f"if=pflash,unit=1,format=raw,file={_quoted(flash.variables)}",
    )


def _memory_backend(spec: MachineSpec) -> str:
    """Render the guest's memory.

    The memory is shared unless a clone maps a file: device servers map shared memory, and a
    template's memory file becomes part of a checkpoint. A clone maps the file privately, so it never writes to the file.
    """
    size = f"id=ram,size={spec.memory_mib}M"
    memory = spec.memory_file
    if memory is None:
        return f"memory-backend-memfd,{size},share=on"
    share = "off" if memory.is_private else "on"
    return f"memory-backend-file,{size},share={share},mem-path={_quoted(memory.path)}"


def _quoted(path: Path) -> str:
    """Return `path` for QEMU's option parser, with each comma doubled."""
    return str(path).replace(",", ",,")


def ssh_port_of(usernet: str) -> int:
    """Return the loopback port that leads to the guest's SSH server, from `info usernet`.

    Raises HarnessError if there is no such forward.
    """
    found = _SSH_FORWARD.search(usernet)
    if found is None:
        raise HarnessError(
            "QEMU was expected to forward a port of this host to the guest's SSH port, but `info usernet` "
            f"shows no such port: {usernet!r}."
        )
    return int(found.group(1))
