"""Pure functions that render a machine's domain XML.

The domain has the devices of `harness.machine.description.argv`. Parts that libvirt's schema lacks
are passed to QEMU by libvirt's `qemu:` extension. RequirementError is raised for parts that this
extension lacks too.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.cloudinit import MAC_ADDRESS
from harness.errors import RequirementError
from harness.machine.description.argv import AGENT_PORT, SEED_PORT, root_port_id
from harness.machine.description.spec import Accelerator, Firmware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from harness.gpu import HostGpuAttachment
    from harness.machine.description.spec import MachineSpec, MemoryFile

QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
#: libvirt accepts user-defined device aliases only with this prefix.
_USER_ALIAS = "ua-"
SEED_ALIAS = f"{_USER_ALIAS}seed-disk"

#: Slots on the root bus. libvirt uses slot 0x1f itself, and chooses free slots for other devices.
_SERIAL_SLOT, _RNG_SLOT, _DISK_SLOT, _NET_SLOT, _SEED_SLOT, _FIRST_PORT_SLOT = range(2, 8)
_LAST_SLOT = 0x1E
MOST_ROOT_PORTS = _LAST_SLOT - _FIRST_PORT_SLOT + 1
_SEED_CHASSIS = 31
#: The numbers of the buses behind the seed's root port and behind the first port for GPUs. The
#: root bus is bus 0.
SEED_BUS, _FIRST_PORT_BUS = 1, 2


@dataclass(frozen=True, kw_only=True)
class DomainHost:
    """The facts about a host that a domain's XML depends on.

    `owner` is the user and group of QEMU, if libvirt allows a choice, so that QEMU can access the
    files of the user who runs the harness. The model `dac` sets the owner. The other
    `security_models` are disabled for the domain. QEMU connects to the harness's listening socket
    `agent_socket`, which is None if the XML is for a machine that is not started.
    """

    emulator: str
    security_models: tuple[str, ...] = ()
    owner: tuple[int, int] | None = None
    agent_socket: Path | None = None


def render_domain(spec: MachineSpec, host: DomainHost, *, name: str, uuid: str) -> str:
    """Render the libvirt domain for the machine that `spec` describes.

    Raises RequirementError for parts that libvirt does not support.
    """
    if spec.root_ports > MOST_ROOT_PORTS:
        raise RequirementError(
            f"Machine '{spec.name}' requests {spec.root_ports} root ports, but a domain has "
            f"slots for {MOST_ROOT_PORTS}; request fewer, or use --machine-driver=qemu."
        )
    if spec.host_ports:
        raise RequirementError(
            f"Machine '{spec.name}' needs a port of this host. For this port, QEMU has to start a "
            "program, but libvirt does not let QEMU start programs. Use --machine-driver=qemu."
        )
    ET.register_namespace("qemu", QEMU_NAMESPACE)
    is_kvm = spec.accelerator is Accelerator.KVM
    domain = ET.Element("domain", type="kvm" if is_kvm else "qemu")
    _text(domain, "name", name)
    _text(domain, "uuid", uuid)
    _text(domain, "title", f"machine '{spec.name}' of gpu-node-harness")
    _text(domain, "memory", str(spec.memory_mib), unit="MiB")
    _text(domain, "vcpu", str(spec.cpus))
    _add_boot(domain, spec)
    features = ET.SubElement(domain, "features")
    ET.SubElement(features, "acpi")
    ET.SubElement(features, "apic")
    if spec.has_iommu and is_kvm:
        # Without this element, KVM emulates interrupts itself, and the IOMMU can't remap them.
        ET.SubElement(features, "ioapic", driver="qemu")
    _add_cpu(domain, spec.accelerator)
    clock = ET.SubElement(domain, "clock", offset="utc")
    ET.SubElement(clock, "timer", name="hpet", present="no")
    _text(domain, "on_poweroff", "destroy")
    # The guest's reboot ends the domain, as with `-no-reboot`.
    _text(domain, "on_reboot", "restart" if spec.may_reboot else "destroy")
    _text(domain, "on_crash", "destroy")
    _add_devices(domain, spec, host)
    _add_security(domain, host)
    _add_command_line(domain, _extra_arguments(spec))
    _add_overrides(domain, spec)
    ET.indent(domain)
    return ET.tostring(domain, encoding="unicode") + "\n"


def render_seed_disk(seed: Path) -> str:
    """Render a seed volume, to be plugged into a running domain."""
    return ET.tostring(_seed_disk(seed), encoding="unicode")


def render_host_gpu(attachment: HostGpuAttachment, *, port: int) -> str:
    """Render a GPU of the host, to be plugged into the root port number `port`, counted from 0.

    With 'managed' off, libvirt does not compete with the pool of the harness, which binds the GPU
    to `vfio-pci`. Raises RequirementError for a GPU of several functions: libvirt plugs only
    function 0 into a running domain.
    """
    if len(attachment.addresses) > 1:
        raise RequirementError(
            f"The GPU '{attachment.addresses[0]}' has {len(attachment.addresses)} PCI "
            "functions, but libvirt can plug in only devices with one PCI function; use "
            "--machine-driver=qemu."
        )
    segment, bus, rest = attachment.addresses[0].split(":")
    slot, _, function = rest.partition(".")
    device = ET.Element("hostdev", mode="subsystem", type="pci", managed="no")
    source = ET.SubElement(device, "source")
    ET.SubElement(
        source,
        "address",
        domain=f"0x{segment}",
        bus=f"0x{bus}",
        slot=f"0x{slot}",
        function=f"0x{function}",
    )
    ET.SubElement(device, "rom", enabled="no")
    ET.SubElement(device, "alias", name=alias_of(attachment.id))
    _address(device, bus=_FIRST_PORT_BUS + port, slot=0)
    return ET.tostring(device, encoding="unicode")


def alias_of(name: str) -> str:
    """Return libvirt's alias of a device, which is its id in QEMU."""
    return f"{_USER_ALIAS}{name}"


def _text(parent: ET.Element, tag: str, text: str, **attributes: str) -> None:
    ET.SubElement(parent, tag, attributes).text = text


def _add_boot(domain: ET.Element, spec: MachineSpec) -> None:
    system = ET.SubElement(domain, "os")
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    kernel = spec.kernel
    if isinstance(kernel, Firmware):
        if kernel.flash is not None:
            _text(system, "loader", str(kernel.flash.code), readonly="yes", type="pflash")
            _text(system, "nvram", str(kernel.flash.variables))
        return
    _text(system, "kernel", str(kernel.vmlinuz))
    if not spec.is_restored:
        _text(system, "initrd", str(kernel.initrd))
        _text(system, "cmdline", spec.kernel_command_line)


def _add_cpu(domain: ET.Element, accelerator: Accelerator) -> None:
    """Render the CPU model, whose name and switches are QEMU's."""
    model, *switches = accelerator.cpu_model.split(",")
    mode = {"host": "host-passthrough", "max": "maximum"}[model]
    cpu = ET.SubElement(domain, "cpu", mode=mode, check="none", migratable="on")
    for switch in switches:
        ET.SubElement(cpu, "feature", policy="disable", name=switch.removeprefix("-"))


def _add_devices(domain: ET.Element, spec: MachineSpec, host: DomainHost) -> None:
    devices = ET.SubElement(domain, "devices")
    _text(devices, "emulator", host.emulator)
    devices.append(_root_disk(spec))
    if spec.seed is not None:
        devices.append(_seed_disk(spec.seed))
    ET.SubElement(devices, "controller", type="pci", index="0", model="pcie-root")
    _add_root_port(devices, SEED_PORT, SEED_BUS, slot=_SEED_SLOT, chassis=_SEED_CHASSIS)
    for index in range(spec.root_ports):
        _add_root_port(
            devices,
            root_port_id(index),
            _FIRST_PORT_BUS + index,
            slot=_FIRST_PORT_SLOT + index,
            chassis=index + 1,
        )
    ET.SubElement(devices, "controller", type="usb", model="none")
    serial_bus = ET.SubElement(devices, "controller", type="virtio-serial", index="0")
    _address(serial_bus, bus=0, slot=_SERIAL_SLOT)
    serial = ET.SubElement(devices, "serial", type="pty")
    ET.SubElement(serial, "target", port="0")
    console = ET.SubElement(devices, "console", type="pty")
    ET.SubElement(console, "target", type="serial", port="0")
    channel = ET.SubElement(devices, "channel", type="unix")
    if host.agent_socket is not None:
        ET.SubElement(channel, "source", mode="connect", path=str(host.agent_socket))
    ET.SubElement(channel, "target", type="virtio", name=AGENT_PORT)
    ET.SubElement(devices, "memballoon", model="none")
    if spec.has_iommu:
        iommu = ET.SubElement(devices, "iommu", model="intel")
        if spec.accelerator is Accelerator.KVM:
            ET.SubElement(iommu, "driver", intremap="on")
    rng = ET.SubElement(devices, "rng", model="virtio")
    ET.SubElement(rng, "backend", model="builtin")
    _address(rng, bus=0, slot=_RNG_SLOT)


def _root_disk(spec: MachineSpec) -> ET.Element:
    disk = ET.Element("disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type="qcow2", cache="unsafe")
    ET.SubElement(disk, "source", file=str(spec.disk))
    ET.SubElement(disk, "target", dev="vda", bus="virtio")
    _text(disk, "serial", "root")
    if isinstance(spec.kernel, Firmware):
        # Without a boot order, firmware could boot the seed.
        ET.SubElement(disk, "boot", order="1")
    _address(disk, bus=0, slot=_DISK_SLOT)
    return disk


def _seed_disk(seed: Path) -> ET.Element:
    disk = ET.Element("disk", type="file", device="disk")
    ET.SubElement(disk, "driver", name="qemu", type="raw")
    ET.SubElement(disk, "source", file=str(seed))
    ET.SubElement(disk, "target", dev="vdb", bus="virtio")
    ET.SubElement(disk, "readonly")
    _text(disk, "serial", "seed")
    ET.SubElement(disk, "alias", name=SEED_ALIAS)
    _address(disk, bus=SEED_BUS, slot=0)
    return disk


def _add_root_port(devices: ET.Element, name: str, bus: int, *, slot: int, chassis: int) -> None:
    port = ET.SubElement(devices, "controller", type="pci", index=str(bus), model="pcie-root-port")
    ET.SubElement(port, "model", name="pcie-root-port")
    ET.SubElement(port, "target", chassis=str(chassis), port=f"{chassis:#x}")
    ET.SubElement(port, "alias", name=alias_of(name))
    _address(port, bus=0, slot=slot)


def _address(device: ET.Element, *, bus: int, slot: int) -> None:
    ET.SubElement(
        device,
        "address",
        type="pci",
        domain="0x0000",
        bus=f"{bus:#04x}",
        slot=f"{slot:#04x}",
        function="0x0",
    )


def _add_security(domain: ET.Element, host: DomainHost) -> None:
    for model in host.security_models:
        if model == "dac" and host.owner is not None:
            user, group = host.owner
            label = ET.SubElement(domain, "seclabel", type="static", model="dac", relabel="no")
            _text(label, "label", f"+{user}:+{group}")
        elif model != "none":
            ET.SubElement(domain, "seclabel", type="none", model=model)


def _extra_arguments(spec: MachineSpec) -> Sequence[str]:
    """Return QEMU arguments for parts that libvirt's schema lacks.

    libvirt's network of type 'user' can't be restricted, and can't forward a port. libvirt also
    chooses the names of memory and of memory files, but QEMU can restore a saved machine only if
    the memory has the same name. The options of the last `-machine` override earlier values.
    """
    card = {
        "driver": "virtio-net-pci",
        "netdev": "net",
        "romfile": "",
        # As in `argv`: without this setting, a clone's QEMU crashes when its guest resets the card.
        "guest_announce": False,
        "mac": MAC_ADDRESS,
        "bus": "pcie.0",
        "addr": f"{_NET_SLOT:#x}",
    }
    arguments = [
        *("-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-device", json.dumps(card)),
        *("-object", json.dumps(_memory_backend(spec.memory_file, spec.memory_mib))),
        *("-machine", "memory-backend=ram"),
    ]
    if spec.is_restored:
        arguments += ["-incoming", "defer"]
    return arguments


def _memory_backend(memory: MemoryFile | None, memory_mib: int) -> Mapping[str, object]:
    """Describe the guest's memory, which servers of emulated GPUs map if it is shared."""
    backend = {"id": "ram", "size": memory_mib << 20}
    if memory is None:
        return {"qom-type": "memory-backend-memfd", **backend, "share": True}
    return {
        "qom-type": "memory-backend-file",
        **backend,
        "share": not memory.is_private,
        "mem-path": str(memory.path),
    }


def _add_command_line(domain: ET.Element, arguments: Sequence[str]) -> None:
    line = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}commandline")
    for argument in arguments:
        ET.SubElement(line, f"{{{QEMU_NAMESPACE}}}arg", value=argument)


def _add_overrides(domain: ET.Element, spec: MachineSpec) -> None:
    """Render the reserved address space of root ports, for which libvirt's schema has no element."""
    reserved = {"mem-reserve": spec.root_port_window_mib << 20}
    if spec.root_port_aperture_mib:
        reserved["pref64-reserve"] = spec.root_port_aperture_mib << 20
    if not spec.root_ports:
        return
    override = ET.SubElement(domain, f"{{{QEMU_NAMESPACE}}}override")
    for index in range(spec.root_ports):
        device = ET.SubElement(
            override, f"{{{QEMU_NAMESPACE}}}device", alias=alias_of(root_port_id(index))
        )
        frontend = ET.SubElement(device, f"{{{QEMU_NAMESPACE}}}frontend")
        for name, size in reserved.items():
            ET.SubElement(
                frontend,
                f"{{{QEMU_NAMESPACE}}}property",
                name=name,
                type="unsigned",
                value=str(size),
            )
