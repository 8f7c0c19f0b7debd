"""What is read of a host's PCI functions, and which GPUs may be taken."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.passthrough import VerdictKind, device_users
from harness.gpu.passthrough.discovery import read_function, read_host
from harness.gpu.passthrough.host_use import find_host_use
from harness.shared_folder import user_name
from suites.unit.gpu.passthrough.fake_host import (
    AUDIO_CLASS,
    BUS,
    L4,
    NIC_CLASS,
    NVME_CLASS,
    ROOT_PORT_CLASS,
    USB_CLASS,
    VGA_CLASS,
    FakeHost,
)
from suites.unit.gpu.socketside import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.gpu.passthrough import Verdict

GPU = "0000:65:00.0"
SECOND = "0000:66:00.0"
AUDIO = "0000:65:00.1"
USB = "0000:65:00.2"
NVME = "0000:03:00.0"
NIC = "0000:04:00.0"
PORT = "0000:00:01.0"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host with a GPU in group 5 and another in group 6."""
    host = FakeHost(tmp_path / "host")
    host.add_function(PORT, group=1, class_code=ROOT_PORT_CLASS, driver="pcieport")
    host.add_function(GPU, group=5, below=PORT)
    host.add_function(SECOND, group=6, device=L4)
    return host


def verdict(host: FakeHost, address: str = GPU) -> Verdict:
    return next(gpu for gpu in read_host(host.root).gpus if gpu.address == address).verdict


def test_gpu_in_a_group_of_its_own_is_usable(host: FakeHost) -> None:
    """A GPU without a display may have the class of a processing accelerator."""
    accelerator = "0000:67:00.0"
    host.add_function(accelerator, group=7, class_code=0x120000)

    found = read_host(host.root)

    assert [(gpu.address, gpu.verdict.kind) for gpu in found.gpus] == [
        (each, VerdictKind.USABLE) for each in (GPU, SECOND, accelerator)
    ]
    assert list(found.functions) == [PORT, GPU, SECOND, accelerator]


def test_pci_function_is_read_from_sysfs(host: FakeHost) -> None:
    folder = host.add_function(
        "0000:67:00.0", group=7, class_code=VGA_CLASS, driver="nvidia", reset_methods="flr pm"
    )
    (folder / "rom").write_bytes(bytes(512))
    (folder / "numa_node").write_text("1\n")
    (folder / "power_state").write_text("D3hot\n")
    (folder / "driver_override").write_text("nvidia\n")
    (folder / "mdev_supported_types" / "nvidia-63").mkdir(parents=True)

    function = read_host(host.root).functions["0000:67:00.0"]

    assert (function.vendor, function.device, function.class_code) == (0x10DE, 0x2330, VGA_CLASS)
    assert (function.subsystem_vendor, function.subsystem) == (0x10DE, 0x16C1)
    assert (function.driver, function.driver_override) == ("nvidia", "nvidia")
    assert (function.group, function.reset_methods) == (7, ("flr", "pm"))
    assert (function.rom_bytes, function.numa_node) == (512, 1)
    assert (function.power_state, function.is_answering) == ("D3hot", True)
    assert function.mdev_types == ("nvidia-63",)
    assert not function.is_boot_vga


@pytest.mark.parametrize("override", ["(null)\n", "\n", ""])
def test_unset_sysfs_values_are_read_as_none(host: FakeHost, override: str) -> None:
    (host.device(GPU) / "driver_override").write_text(override)

    function = read_host(host.root).functions[GPU]

    assert (function.driver, function.driver_override) == (None, None)
    assert (function.numa_node, function.rom_bytes) == (None, None)
    assert function.unreadable == ()


def test_audio_pci_function_of_the_card_is_handed_over_with_the_gpu(host: FakeHost) -> None:
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS, driver="snd_hda_intel")

    gpu = read_host(host.root).gpus[0]

    assert gpu.verdict.is_usable
    assert [each.address for each in gpu.functions] == [GPU, AUDIO]


@pytest.mark.parametrize("class_code", [ROOT_PORT_CLASS, 0x060000], ids=["root port", "host"])
def test_bridge_in_the_iommu_group_stays_with_the_host(host: FakeHost, class_code: int) -> None:
    host.add_function("0000:00:02.0", group=5, class_code=class_code, driver="pcieport")

    gpu = read_host(host.root).gpus[0]

    assert gpu.verdict.is_usable
    assert [each.address for each in gpu.functions] == [GPU]


def test_gpu_that_shares_its_iommu_group_with_another_card_is_refused(host: FakeHost) -> None:
    host.add_function(NVME, group=5, class_code=NVME_CLASS, driver="nvme")

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert f"shares IOMMU group 5 with {NVME}" in found.reason
    assert "driver nvme" in found.reason
    assert verdict(host, SECOND).is_usable


def test_both_gpus_that_share_one_iommu_group_are_refused(host: FakeHost) -> None:
    host.add_function("0000:65:00.3", group=5)

    assert verdict(host).kind is VerdictKind.REFUSED
    assert verdict(host, "0000:65:00.3").kind is VerdictKind.REFUSED


def test_gpu_without_an_iommu_group_is_refused(host: FakeHost) -> None:
    host.add_function("0000:67:00.0", group=None)

    assert (
        "in no IOMMU group, although other functions are" in verdict(host, "0000:67:00.0").reason
    )


def test_verdict_on_a_host_without_iommu_groups_says_that_the_iommu_is_off(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "host")
    host.add_function(GPU, group=None)

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert "its IOMMU is off" in found.reason


@pytest.mark.parametrize("process", ["self", "1"])
@pytest.mark.parametrize("number", ["259:1", "0:40"])
def test_gpu_with_a_mounted_disk_in_its_iommu_group_is_refused(
    host: FakeHost, number: str, process: str
) -> None:
    """A run in its own mount namespace does not see the mounts of the host."""
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.add_disk("nvme0n1", USB, "259:1")
    btrfs = host.root / "sys/fs/btrfs/f00/devices"
    btrfs.mkdir(parents=True)
    host.link("sys/fs/btrfs/f00/devices/nvme0n1p1", host.root / "sys/class/block/nvme0n1p1")
    kind = "btrfs" if number == "0:40" else "ext4"
    # A line that is not understood does not hide the next one.
    host.write(f"proc/{process}/mountinfo", "what?\n")
    host.mount(number, r"/my\040data", kind, "/dev/nvme0n1p1", process=process)

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert found.reasons[0] == f"{USB}: The host has mounted '/my data' from this device."


def test_gpu_with_an_unmounted_disk_in_its_iommu_group_is_usable(host: FakeHost) -> None:
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.add_disk("sda", USB, "8:1")

    assert verdict(host).is_usable


@pytest.mark.parametrize("place", ["first", "second"])
@pytest.mark.parametrize(
    "kind", ["mapped", "mapped RAID", "btrfs", "another mount", "same source", "swap"]
)
def test_each_disk_that_the_host_uses_is_found(host: FakeHost, kind: str, place: str) -> None:
    """One of two disks is on the GPU's card: behind device mapper, behind RAID, or directly."""
    host.add_function(NVME, group=2, class_code=NVME_CLASS)
    host.add_function(USB, group=5, class_code=USB_CLASS)
    addresses = (USB, NVME) if place == "first" else (NVME, USB)
    disks = [
        host.add_disk(name, address, number) / f"{name}p1"
        for name, number, address in zip(("sda", "sdb"), ("8:1", "8:17"), addresses, strict=True)
    ]
    match kind:
        case "mapped":
            host.add_virtual_disk("dm-0", "253:0", *disks)
            host.mount("253:0", "/")
        case "mapped RAID":
            raid = host.add_virtual_disk("md127", "9:127", *disks)
            host.add_virtual_disk("dm-0", "253:0", raid)
            host.mount("253:0", "/")
        case "btrfs":
            for disk in disks:
                host.link(f"sys/fs/btrfs/f00/devices/{disk.name}", disk)
            source = "/dev/sdap1" if place == "first" else "/dev/sdbp1"
            host.mount("0:40", "/", "btrfs", source)
        case "another mount":
            host.mount("8:1", "/", source="/dev/sdap1")
            host.mount("8:17", "/", source="/dev/sdbp1")
        case "same source":
            host.mount("8:1", "/", source="/dev/root")
            host.mount("8:17", "/srv", source="/dev/root")
        case _:
            host.write(
                "proc/swaps",
                "Filename Type Size Used Priority\n/swap.img file 9 0 -1\n"
                "/dev/sdap1 partition 9 0 -2\n/dev/sdbp1 partition 9 0 -3\n",
            )

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert f"{USB}: The host " in found.reason
    assert set(find_host_use(host.root).reasons) == {USB, NVME}


@pytest.mark.parametrize("file", ["self/mountinfo", "1/mountinfo", "swaps"])
def test_verdict_on_a_gpu_with_a_possible_disk_is_unknown_if_disks_in_use_cannot_be_read(
    host: FakeHost, file: str
) -> None:
    """Ordinary users cannot read the mounts of process 1, and their own may be incomplete."""
    host.add_function(USB, group=5, class_code=USB_CLASS)
    (host.root / "proc" / file).unlink(missing_ok=True)
    (host.root / "proc" / file).mkdir()

    is_known = file == "1/mountinfo"

    assert verdict(host).kind is (VerdictKind.USABLE if is_known else VerdictKind.UNKNOWN)


@pytest.mark.parametrize("line", ["", "/dev/sda2", "/dev/sda2 zoned 1000 0 -2"])
def test_verdict_on_a_gpu_with_a_storage_function_is_unknown_after_an_unknown_line_about_swap(
    host: FakeHost, line: str
) -> None:
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.write("proc/swaps", f"Filename Type Size Used Priority\n{line}\n")

    assert "A line of '/proc/swaps' can't be parsed" in verdict(host).reason
    assert verdict(host).kind is VerdictKind.UNKNOWN


def test_disk_with_several_paths_is_found(host: FakeHost) -> None:
    """A multipath NVMe namespace is a child of its subsystem and not of a controller."""
    card = "0000:65:00.4"
    subsystem = host.root / "sys/devices/virtual/nvme-subsystem/nvme-subsys3"
    partition = subsystem / "nvme3n1/nvme3n1p2"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("2\n")
    for name, address, group in (("nvme3", card, 5), ("nvme4", NVME, 9)):
        host.add_function(address, group=group, class_code=NVME_CLASS)
        controller = host.device(address) / "nvme" / name
        controller.mkdir(parents=True)
        host.link(f"sys/devices/virtual/nvme-subsystem/nvme-subsys3/{name}", controller)
    host.link("sys/dev/block/259:7", partition)
    host.mount("259:7", "/")

    assert f"{card}: The host has mounted '/'" in verdict(host).reason
    assert set(find_host_use(host.root).reasons) == {card, NVME}


@pytest.mark.parametrize("disk", ["sda", "nvme0n1"])
def test_gpu_with_the_disk_of_a_swap_partition_in_its_iommu_group_is_refused(
    host: FakeHost, disk: str
) -> None:
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.add_disk(disk, USB, "8:1")
    with (host.root / "proc/swaps").open("a") as table:
        table.write(f"/dev/{disk}p1 partition 1000 0 -2\n")

    assert f"{USB}: The host swaps to '/dev/{disk}p1' on this device." in verdict(host).reason


@pytest.mark.parametrize(
    ("number", "kind", "source", "class_code"),
    [
        ("8:1", "ext4", "/dev/sda1", USB_CLASS),
        ("0:50", "zfs", "tank/root", NVME_CLASS),
        ("0:50", "btrfs", "/dev/mapper/root", USB_CLASS),
    ],
)
def test_verdict_on_a_gpu_with_a_possible_disk_is_unknown_if_disks_of_a_mount_are_unknown(
    host: FakeHost, number: str, kind: str, source: str, class_code: int
) -> None:
    host.add_function(USB, group=5, class_code=class_code)
    host.mount(number, "/srv", kind, source)

    found = verdict(host)

    assert found.kind is VerdictKind.UNKNOWN
    assert re.search(rf"The host may need {USB}: The disks? of '/srv'", found.reason)
    assert verdict(host, SECOND).is_usable


@pytest.mark.parametrize(
    ("name", "kind"), [("bcache0", VerdictKind.UNKNOWN), ("loop3", VerdictKind.USABLE)]
)
def test_verdict_on_a_gpu_with_a_possible_disk_is_unknown_if_a_virtual_disk_may_use_hardware(
    host: FakeHost, name: str, kind: VerdictKind
) -> None:
    host.add_function(USB, group=5, class_code=USB_CLASS)
    disk = host.root / "sys/devices/virtual/block" / name
    disk.mkdir(parents=True)
    host.link("sys/dev/block/251:0", disk)
    host.mount("251:0", "/srv")

    assert verdict(host).kind is kind


def test_mounted_network_file_system_uses_no_disk(host: FakeHost) -> None:
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.mount("0:51", "/home", "nfs4", "server:/home")

    assert verdict(host).is_usable


def test_gpu_whose_group_has_a_network_card_without_the_default_route_is_usable(
    host: FakeHost,
) -> None:
    host.add_function("0000:65:00.5", group=5, class_code=NIC_CLASS)
    host.add_interface("eth1", "0000:65:00.5", is_default=False)

    assert verdict(host).is_usable


def test_route_to_half_of_all_addresses_is_not_a_default_route(host: FakeHost) -> None:
    host.add_function("0000:65:00.5", group=5, class_code=NIC_CLASS)
    host.add_interface("eth1", "0000:65:00.5", is_default=False)
    with (host.root / "proc/net/route").open("a") as table:
        table.write("eth1\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n")
    add_ipv6_default_route(host, "eth1", prefix="01")

    assert verdict(host).is_usable


def test_default_route_that_refuses_packets_uses_no_network_card(host: FakeHost) -> None:
    """The kernel lists `unreachable default` with the interface '*'."""
    host.add_default_route("*")

    assert find_host_use(host.root).unknown_network == ()


def add_ipv6_default_route(host: FakeHost, interface: str, prefix: str = "00") -> None:
    host.write(
        "proc/net/ipv6_route",
        f"{'0' * 32} {prefix} {'0' * 32} 00 fe80{'0' * 28} 00000400 1 0 00000003    {interface}\n",
    )


@pytest.mark.parametrize("place", ["first", "second"])
@pytest.mark.parametrize("kind", ["bond", "bridge", "VLAN of a bond", "routes", "IPv6 too"])
def test_gpu_is_refused_if_its_card_has_any_interface_that_the_default_route_uses(
    host: FakeHost, kind: str, place: str
) -> None:
    """One of two network cards is part of the GPU's card."""
    card = "0000:65:00.5"
    host.add_function(NIC, group=2, class_code=NIC_CLASS)
    host.add_function(card, group=5, class_code=NIC_CLASS)
    for name, address in zip(
        ("eth0", "eth1"), (card, NIC) if place == "first" else (NIC, card), strict=True
    ):
        host.add_interface(name, address, is_default=kind == "routes")
    match kind:
        case "bond":
            host.add_virtual_interface("top", "eth0", "eth1")
            add_ipv6_default_route(host, "top")
        case "bridge":
            host.add_virtual_interface("top", "eth0", "eth1", ports="brif")
            host.add_default_route("top")
        case "VLAN of a bond":
            host.add_virtual_interface("bond0", "eth0", "eth1")
            host.add_virtual_interface("top", "bond0")
            host.add_default_route("top")
        case "IPv6 too":
            host.add_default_route("eth0")
            add_ipv6_default_route(host, "eth1")
        case _:
            pass

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert f"{card}: The default route of the host uses its interface '" in found.reason
    assert set(find_host_use(host.root).reasons) == {card, NIC}


def test_default_route_by_an_interface_whose_name_is_not_utf8_leads_to_an_unknown_card(
    host: FakeHost,
) -> None:
    """The kernel accepts any bytes but white space and '/' in the name of an interface."""
    with (host.root / "proc/net/route").open("ab") as table:
        table.write(b"e\xff\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")

    assert find_host_use(host.root).unknown_network == (
        r"The network interface 'e\xff' is not in sysfs.",
    )


@pytest.mark.parametrize("class_code", [NIC_CLASS, USB_CLASS])
def test_verdict_on_a_gpu_with_a_possible_network_card_is_unknown_if_routes_cannot_be_read(
    host: FakeHost, class_code: int
) -> None:
    host.add_function("0000:65:00.5", group=5, class_code=class_code)
    (host.root / "proc/net/route").unlink()

    assert verdict(host).kind is VerdictKind.UNKNOWN
    assert verdict(host, SECOND).is_usable


def test_gpu_that_the_firmware_chose_for_the_console_is_refused(host: FakeHost) -> None:
    host.add_function("0000:67:00.0", group=7, class_code=VGA_CLASS, boot_vga=True)
    host.add_function("0000:68:00.0", group=8, class_code=VGA_CLASS, boot_vga=False)

    assert "boot_vga is 1" in verdict(host, "0000:67:00.0").reason
    assert verdict(host, "0000:68:00.0").is_usable

    host.add_function("0000:68:00.1", group=8, class_code=AUDIO_CLASS, boot_vga=True)
    assert "0000:68:00.1: The firmware chose it" in verdict(host, "0000:68:00.0").reason


@pytest.mark.parametrize("name", ["fb0", "fb1"])
def test_gpu_with_a_framebuffer_is_refused(host: FakeHost, name: str) -> None:
    buffer = host.device(GPU) / "graphics" / name
    buffer.mkdir(parents=True)
    host.link(f"sys/class/graphics/{name}", buffer)
    host.link(str((buffer / "device").relative_to(host.root)), host.device(GPU))

    assert f"The host's console is on its framebuffer '{name}'" in verdict(host).reason
    assert verdict(host, SECOND).is_usable


@pytest.mark.parametrize("methods", [None, ""])
def test_gpu_that_cannot_be_reset_is_refused(host: FakeHost, methods: str | None) -> None:
    host.add_function("0000:67:00.0", group=7, reset_methods=methods)

    assert "no method to reset it" in verdict(host, "0000:67:00.0").reason


def test_gpu_without_a_reset_method_file_is_usable_with_the_default_reset(host: FakeHost) -> None:
    """Linux before 5.15 has the file 'reset' but not 'reset_method'."""
    (host.device(GPU) / "reset_method").unlink()

    assert read_host(host.root).functions[GPU].reset_methods == ("default",)
    assert verdict(host).is_usable


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config", b"\xff" * 64, "does not answer"),
        ("config", bytes(64), "does not answer"),
        # A function that needs more time after a reset reads so.
        ("config", b"\x01\x00" + b"\xff" * 62, "does not answer"),
        ("power_state", b"D3cold\n", "power state D3cold"),
        ("power_state", b"D3hot\n", None),
    ],
)
def test_gpu_that_stays_in_d3cold_or_does_not_answer_is_refused(
    host: FakeHost, file: str, content: bytes, reason: str | None
) -> None:
    (host.device(GPU) / file).write_bytes(content)

    assert verdict(host).is_usable is (reason is None)
    assert (reason or "") in verdict(host).reason


@pytest.mark.parametrize(
    ("address", "name"),
    [
        *((GPU, name) for name in ("config", "boot_vga", "reset_method")),
        (AUDIO, "driver_override"),
    ],
)
def test_verdict_is_unknown_if_an_attribute_cannot_be_read(
    host: FakeHost, name: str, address: str
) -> None:
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    # A folder can't be read as a file, by root neither.
    (host.device(address) / name).unlink(missing_ok=True)
    (host.device(address) / name).mkdir()

    found = verdict(host)

    assert found.kind is VerdictKind.UNKNOWN
    assert f"{name} can't be read in '/sys/bus/pci/devices/{address}'" in found.reason
    # Each function has a configuration space, and need not have the others.
    (host.device(address) / name).rmdir()
    assert verdict(host).is_usable is (name != "config")


def test_verdict_is_unknown_if_the_configuration_space_is_shorter_than_the_ids(
    host: FakeHost,
) -> None:
    (host.device(GPU) / "config").write_bytes(b"\xde\x10")

    assert verdict(host).kind is VerdictKind.UNKNOWN


def test_unreadable_numa_node_is_listed_but_the_gpu_stays_usable(host: FakeHost) -> None:
    (host.device(GPU) / "numa_node").unlink()
    (host.device(GPU) / "numa_node").mkdir()

    assert verdict(host).is_usable
    assert read_host(host.root).functions[GPU].unreadable == ("numa_node",)


def test_verdict_is_unknown_if_boot_vga_is_not_a_number(host: FakeHost) -> None:
    (host.device(GPU) / "boot_vga").write_text("maybe\n")

    assert verdict(host).kind is VerdictKind.UNKNOWN


def test_verdict_is_unknown_if_the_iommu_group_has_no_number(host: FakeHost) -> None:
    link = host.device(GPU) / "iommu_group"
    link.unlink()
    link.symlink_to("../x")

    assert verdict(host).kind is VerdictKind.UNKNOWN


def test_verdicts_report_a_pci_virtual_function_and_its_physical_function(host: FakeHost) -> None:
    virtual = host.add_function("0000:66:00.4", group=9)
    host.link(str((virtual / "physfn").relative_to(host.root)), host.device(SECOND))
    host.link(str((host.device(SECOND) / "virtfn0").relative_to(host.root)), virtual)

    assert f"SR-IOV virtual function of {SECOND}" in verdict(host, "0000:66:00.4").reason
    assert "It has 1 SR-IOV virtual functions" in verdict(host, SECOND).reason
    assert verdict(host).is_usable


def test_gpu_with_mediated_devices_is_refused(host: FakeHost) -> None:
    (host.device(GPU) / "mdev_supported_types/nvidia-63").mkdir(parents=True)
    for name in ("83b8f4f2", "93b8f4f2"):
        (host.device(GPU) / name).mkdir()
        host.link(f"sys/bus/mdev/devices/{name}", host.device(GPU) / name)

    assert "mediated devices (vGPUs): 83b8f4f2, 93b8f4f2" in verdict(host).reason
    assert verdict(host, SECOND).is_usable
    # They belong to no function above their own, such as its root port.
    below = host.add_function("0000:00:1f.0", group=8, below=PORT)
    (below / "a3b8f4f2").mkdir()
    host.link("sys/bus/mdev/devices/a3b8f4f2", below / "a3b8f4f2")
    functions = read_host(host.root).functions
    seen = {each: functions[each].mdevs for each in (PORT, "0000:00:1f.0")}
    assert seen == {PORT: (), "0000:00:1f.0": ("a3b8f4f2",)}


def test_gpu_that_offers_mediated_devices_but_has_none_is_usable(host: FakeHost) -> None:
    (host.device(GPU) / "mdev_supported_types/nvidia-63").mkdir(parents=True)

    assert verdict(host).is_usable


def test_reason_mentions_the_process_that_has_the_vfio_group_file_open(host: FakeHost) -> None:
    host.bind(GPU, "vfio-pci")
    host.add_process(4711, "qemu-system-x86", "/dev/vfio/vfio", "/dev/vfio/5")

    found = verdict(host)

    assert found.kind is VerdictKind.BUSY
    assert "process 4711 ('qemu-system-x86' of user " in found.reason
    assert "has '/dev/vfio/5' open" in found.reason
    assert verdict(host, SECOND).is_usable


def test_gpu_is_not_busy_if_an_open_file_has_the_path_of_its_device_but_another_number(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users may mount any file at '/dev/vfio' in their own mount namespace."""
    host.bind(GPU, "vfio-pci")
    host.add_process(1234, "x", "/dev/vfio/5")
    numbers = {"3": 0, "5": 0xF300}
    monkeypatch.setattr(device_users, "_device_number", lambda path: numbers[path.name])
    assert verdict(host).is_usable

    numbers["3"] = 0xF300
    assert verdict(host).kind is VerdictKind.BUSY


def test_process_name_with_control_characters_is_escaped(host: FakeHost) -> None:
    host.bind(GPU, "vfio-pci")
    host.add_process(1234, "x", "/dev/vfio/5")
    (host.root / "proc/1234/comm").write_bytes(b"\xff\x1b[2J\n")

    assert "process 1234 ('\\xff\\x1b[2J' of user" in verdict(host).reason


def test_mount_point_with_line_separators_or_invalid_utf8_is_read(host: FakeHost) -> None:
    """A FUSE mount point of a user may contain line separators or not be UTF-8."""
    host.mount("0:99", "/home/ann/\x0b\u2028x", kind="fuse.sshfs", source="ann@host:")
    table = host.root / "proc/self/mountinfo"
    table.write_bytes(table.read_bytes().replace(b"ann@host:", b"ann@\xff:"))

    assert verdict(host).is_usable, verdict(host).reason
    assert find_host_use(host.root).unknown_disks == ()


def test_mounts_with_the_same_device_number_are_distinguished_by_source(host: FakeHost) -> None:
    """A file system on several disks has such mounts."""
    host.mount("0:99", "/one", kind="btrfs", source="one")
    assert len(find_host_use(host.root).unknown_disks) == 1

    host.mount("0:99", "/other", kind="btrfs", source="/dev/other")

    assert len(find_host_use(host.root).unknown_disks) == 2


def test_reason_mentions_the_process_that_uses_the_gpu_through_nvidias_driver(
    host: FakeHost,
) -> None:
    host.bind(GPU, "nvidia")
    host.bind(SECOND, "nvidia")
    host.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Model: x\nDevice Minor: \t 0\n")
    host.write(f"proc/driver/nvidia/gpus/{SECOND}/information", "Model: x\nDevice Minor: \t 1\n")
    host.add_process(12, "nvidia-persiste", "/dev/nvidiactl", "/dev/nvidia1")

    assert verdict(host).is_usable
    assert "process 12 ('nvidia-persiste'" in verdict(host, SECOND).reason
    # The driver writes hexadecimal digits in either way.
    host.add_function("0000:af:00.0", group=7, driver="nvidia")
    host.write("proc/driver/nvidia/gpus/0000:AF:00.0/information", "Device Minor: 2\n")
    host.add_process(13, "python3", "/dev/nvidia2")
    assert "process 13 ('python3'" in verdict(host, "0000:af:00.0").reason


def test_verdict_is_unknown_if_an_open_nvidia_file_may_belong_to_the_gpu(
    host: FakeHost,
) -> None:
    host.bind(GPU, "nvidia")
    host.bind(SECOND, "nvidia")
    host.write(f"proc/driver/nvidia/gpus/{SECOND}/information", "Model: x\nDevice Minor: \t 1\n")
    host.add_process(11, "python3", "/dev/nvidia1")
    assert verdict(host).is_usable

    host.add_process(12, "python3", "/dev/nvidia0")

    assert verdict(host).kind is VerdictKind.UNKNOWN
    assert verdict(host, SECOND).kind is VerdictKind.BUSY
    host.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Device Minor: 5\n")
    assert verdict(host).is_usable


def test_gpu_in_use_is_found_even_if_nvidias_driver_writes_its_address_in_capitals(
    host: FakeHost,
) -> None:
    host.add_driver("nvidia")
    host.add_function("0000:9a:00.0", group=99, driver="nvidia")
    host.write("proc/driver/nvidia/gpus/0000:9A:00.0/information", "").write_bytes(
        b"GPU UUID: \xff\nDevice Minor: 0\n"
    )
    host.add_process(12, "python3", "/dev/nvidia0")

    assert verdict(host, "0000:9a:00.0").kind is VerdictKind.BUSY


def test_verdict_on_a_gpu_at_pci_function_1_is_unknown_if_its_nvidia_file_may_be_open(
    host: FakeHost,
) -> None:
    """Without access to the processes of other users, only a GPU without a driver is free."""
    host.add_driver("nvidia")
    host.add_function("0000:99:00.0", group=99, class_code=AUDIO_CLASS)
    host.add_function("0000:99:00.1", group=99, driver="nvidia")
    host.add_process(12, "python3", "/dev/nvidia0")

    assert verdict(host, "0000:99:00.1").kind is VerdictKind.UNKNOWN


@pytest.mark.parametrize(
    ("address", "driver", "folder", "file"),
    [
        (AUDIO, "uio_pci_generic", "uio", "/dev/uio3"),
        (AUDIO, "vfio-pci", "vfio-dev", "/dev/vfio/devices/vfio0"),
        (GPU, "nouveau", "drm", "/dev/dri/card1"),
        (GPU, "nouveau", "drm", "/dev/dri/renderD129"),
    ],
)
def test_reason_mentions_the_process_that_drives_a_pci_function_from_user_space(
    host: FakeHost, address: str, driver: str, folder: str, file: str
) -> None:
    """The process may drive another function of the card, and use iommufd instead of the group."""
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    host.bind(address, driver)
    device = host.device(address) / folder / file.rpartition("/")[2]
    device.mkdir(parents=True)
    host.link(f"sys/class/{folder}/{device.name}", device)
    host.link(str((device / "device").relative_to(host.root)), host.device(address))
    host.add_process(98, "shell", "/dev/null", "/dev/vfio/vfio", "/dev/nvidiactl")
    host.add_process(99, "a-driver", "/dev/null", file)

    found = verdict(host)

    assert found.kind is VerdictKind.BUSY
    assert f"process 99 ('a-driver' of user root) has '{file}' open" in found.reason.replace(
        f"of user {user_name(os.geteuid())})", "of user root)"
    )
    assert "process 98" not in found.reason
    assert verdict(host, SECOND).is_usable


@pytest.mark.parametrize("driver", ["nvidia", "nouveau"])
def test_verdict_is_unknown_if_processes_cannot_be_seen(host: FakeHost, driver: str) -> None:
    """An ordinary user does not see the open files of other users' processes."""
    host.bind(GPU, driver)
    host.bind(SECOND, "vfio-pci")
    (host.root / "proc/1/fd").rmdir()
    (host.root / "proc/1").rmdir()

    assert verdict(host).kind is VerdictKind.UNKNOWN
    assert "run as root, or bind the GPU to vfio-pci at boot" in verdict(host).reason
    # Opening the group's file will tell.
    assert verdict(host, SECOND).is_usable


def test_search_for_processes_that_use_a_device_continues_after_an_unreadable_process(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.bind(SECOND, "vfio-pci")
    host.add_process(98, "of another user")
    host.add_process(99, "qemu", "/dev/vfio/6")
    true_files = device_users._open_files

    def open_files(root: Path, process: Path) -> Iterator[str]:
        if process.name == "98":
            raise PermissionError
        return true_files(root, process)

    monkeypatch.setattr(device_users, "_open_files", open_files)

    assert "process 99 ('qemu'" in verdict(host, SECOND).reason
    assert not device_users.find_device_users(host.root).is_complete


@pytest.mark.parametrize("kind", list(VerdictKind)[1:])
def test_reasons_of_one_kind_are_shown_in_the_order_in_which_they_were_found(
    host: FakeHost, kind: VerdictKind
) -> None:
    first = verdict(host).with_finding(kind, "One.")

    assert first.with_finding(kind, "Two.").reasons == ("One.", "Two.")
    refused = first.with_finding(VerdictKind.REFUSED, "No.")
    assert refused.kind is VerdictKind.REFUSED
    assert refused.reasons == (("One.", "No.") if kind is refused.kind else ("No.", "One."))


def test_verdict_refused_precedes_unknown_and_unknown_precedes_busy(
    host: FakeHost,
) -> None:
    host.add_function(NVME, group=5, class_code=NVME_CLASS)
    host.add_process(1234, "qemu", "/dev/vfio/5")
    host.mount("0:50", "/srv", "zfs", "tank/root")

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    for part, reason in zip(("shares", "may need", "open"), found.reasons, strict=True):
        assert part in reason


def test_reading_a_pci_function_leaves_no_file_open(host: FakeHost) -> None:
    before = open_descriptors()

    read_host(host.root)

    assert open_descriptors() == before


def test_host_without_pci_has_no_gpus(tmp_path: Path) -> None:
    assert read_host(tmp_path).gpus == ()


def test_sysfs_entry_that_is_not_a_pci_function_is_ignored(host: FakeHost) -> None:
    (host.root / BUS / "devices" / "junk").mkdir()

    assert "junk" not in read_host(host.root).functions


def test_pci_function_that_leaves_the_bus_while_it_is_read_is_absent(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: int) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr("os.listdir", gone)

    assert read_function(host.root, GPU) is None


def test_pci_function_whose_folder_cannot_be_read_raises_an_error(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)

    with pytest.raises(HarnessError, match=f"{GPU}' can't be read: Permission denied"):
        read_function(host.root, GPU)
