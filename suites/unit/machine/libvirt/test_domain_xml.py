"""The domain XML of a machine."""

from __future__ import annotations

import dataclasses
import json
import os
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import RequirementError
from harness.gpu import HostGpuAttachment
from harness.machine.description.argv import render_argv
from harness.machine.description.spec import (
    Accelerator,
    DirectKernel,
    Firmware,
    HostPort,
    MachineSpec,
    MemoryFile,
)
from harness.machine.libvirt.domain_xml import (
    MOST_ROOT_PORTS,
    DomainHost,
    render_domain,
    render_host_gpu,
    render_seed_disk,
)
from suites.unit.machine.description.builders import CHANNELS, a_machine_spec
from suites.unit.machine.libvirt.domains import CASES, GOLDENS, UUID, a_host

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"


def parsed(spec: MachineSpec, **host: Any) -> ET.Element:
    return an_element(render_domain(spec, a_host(**host), name="node", uuid=UUID))


def an_element(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - it was rendered here


def arguments(domain: ET.Element) -> list[str]:
    return [each.attrib["value"] for each in domain.iter(f"{QEMU}arg")]


def test_each_domain_matches_its_recorded_xml() -> None:
    """`UPDATE_GOLDENS=1` in the environment writes the recorded files instead.

    suites/host/libvirt validates these files with libvirt's schema.
    """
    rendered = {name: case.render() for name, case in CASES.items()}
    if os.environ.get("UPDATE_GOLDENS") == "1":
        for name, text in rendered.items():
            (GOLDENS / f"{name}.xml").write_text(text)

    assert rendered == {path.stem: path.read_text() for path in GOLDENS.iterdir()}


#: For each field of a machine spec, a value that `a_machine_spec` does not have.
OTHERS: dict[str, Any] = {
    "name": "other",
    "accelerator": Accelerator.KVM,
    "kernel": Firmware(),
    "disk": Path("/other"),
    "seed": Path("/other"),
    "memory_mib": 4096,
    "cpus": 2,
    "root_ports": 3,
    "root_port_window_mib": 128,
    "root_port_aperture_mib": 64,
    "has_iommu": True,
    "memory_file": MemoryFile(path=Path("/other"), is_private=True),
    "is_restored": True,
    "extra_append": ("other",),
}


def test_every_requested_property_is_rendered() -> None:
    """`qemu` and `host_ports` are not compared: the host has QEMU's path, and libvirt has no ports."""
    plain = ET.tostring(parsed(a_machine_spec()))
    fields = {each.name for each in dataclasses.fields(MachineSpec)} - {"qemu", "host_ports"}

    assert [
        field
        for field in sorted(fields)
        if ET.tostring(parsed(a_machine_spec(**{field: OTHERS[field]}))) == plain
    ] == []


def test_more_root_ports_than_slots_are_refused() -> None:
    assert len(parsed(a_machine_spec(root_ports=MOST_ROOT_PORTS)).findall(".//alias")) == (
        MOST_ROOT_PORTS + 1
    )
    with pytest.raises(
        RequirementError,
        match=r"25 root ports, but a domain has slots for 24.*--machine-driver=qemu",
    ):
        parsed(a_machine_spec(root_ports=MOST_ROOT_PORTS + 1))


def test_host_port_forwarding_is_refused_under_libvirt() -> None:
    spec = a_machine_spec(host_ports=(HostPort(host_port=41000, guest_port=443),))

    with pytest.raises(RequirementError, match=r"port of this host.*--machine-driver=qemu"):
        render_domain(spec, a_host(), name="node", uuid=UUID)


def test_no_two_devices_share_a_pci_address() -> None:
    domain = parsed(a_machine_spec(root_ports=MOST_ROOT_PORTS, seed=Path("/seed")))

    places = [
        (each.attrib["bus"], each.attrib["slot"]) for each in domain.findall("./devices/*/address")
    ]
    (card,) = (json.loads(each) for each in arguments(domain) if "virtio-net" in each)

    assert len(set(places)) == len(places)
    assert ("0x00", f"{int(card['addr'], 16):#04x}") not in places


def test_memory_file_is_shared_by_a_template_and_mapped_privately_by_a_clone() -> None:
    for is_private in (True, False):
        memory = MemoryFile(path=Path("/a,b/ram"), is_private=is_private)

        words = arguments(parsed(a_machine_spec(memory_file=memory)))

        backend = json.loads(words[words.index("-object") + 1])
        assert (backend["mem-path"], backend["share"]) == ("/a,b/ram", not is_private)
        assert words[words.index("-machine") + 1] == f"memory-backend={backend['id']}"


def test_qemu_runs_as_the_requesting_user_if_libvirt_supports_the_dac_model() -> None:
    host = replace(a_host(security_models=("apparmor", "dac")), owner=(1000, 100))
    domain = an_element(render_domain(a_machine_spec(), host, name="node", uuid=UUID))
    labels = domain.findall("seclabel")

    assert [(label.attrib["model"], label.attrib["type"]) for label in labels] == [
        ("apparmor", "none"),
        ("dac", "static"),
    ]
    assert labels[1].findtext("label") == "+1000:+100"


def test_kernel_command_line_is_the_same_as_with_the_qemu_driver() -> None:
    """The kernel of a cloud image gets only the command line of its boot loader."""
    plain = a_machine_spec(extra_append=("cc:{}",))
    assert isinstance(plain.kernel, DirectKernel)
    for is_verbatim in (False, True):
        spec = replace(plain, kernel=replace(plain.kernel, is_verbatim=is_verbatim))
        argv = render_argv(spec, CHANNELS, serial_log=Path("serial.log"))

        command_line = parsed(spec).findtext("os/cmdline")

        assert command_line == argv[argv.index("-append") + 1]
        assert ("norandmaps" in str(command_line)) is not is_verbatim


def test_seed_disk_is_rendered_with_the_pci_bus_of_the_seed_port() -> None:
    assert render_seed_disk(Path("/runs/seed & more.iso")) == (
        '<disk type="file" device="disk"><driver name="qemu" type="raw" />'
        '<source file="/runs/seed &amp; more.iso" /><target dev="vdb" bus="virtio" /><readonly />'
        '<serial>seed</serial><alias name="ua-seed-disk" />'
        '<address type="pci" domain="0x0000" bus="0x01" slot="0x00" function="0x0" /></disk>'
    )


def test_libvirt_does_not_bind_the_driver_of_a_host_gpu() -> None:
    """Libvirt and the GPU pool would both bind the driver."""
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.1",))

    assert render_host_gpu(gpu, port=2) == (
        '<hostdev mode="subsystem" type="pci" managed="no">'
        '<source><address domain="0x0000" bus="0x65" slot="0x00" function="0x1" /></source>'
        '<rom enabled="no" /><alias name="ua-gpu0" />'
        '<address type="pci" domain="0x0000" bus="0x04" slot="0x00" function="0x0" /></hostdev>'
    )


def test_host_gpu_with_two_pci_functions_is_refused() -> None:
    gpu = HostGpuAttachment(id="gpu0", addresses=("0000:65:00.0", "0000:65:00.1"))

    with pytest.raises(
        RequirementError, match=r"'0000:65:00\.0' has 2 PCI functions.*--machine-driver=qemu"
    ):
        render_host_gpu(gpu, port=0)


def test_seclabel_of_a_security_model_has_type_none_if_no_owner_is_known() -> None:
    host = DomainHost(emulator="/usr/bin/qemu", security_models=("dac",))

    domain = an_element(render_domain(a_machine_spec(), host, name="node", uuid=UUID))

    (label,) = domain.findall("seclabel")
    assert label.attrib == {"type": "none", "model": "dac"}
