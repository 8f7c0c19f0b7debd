"""The facts that are read about a host's PCI functions, and which GPUs may be leased."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.passthrough import Verdict, VerdictKind, device_users
from harness.gpu.passthrough.device_users import find_device_users
from harness.gpu.passthrough.discovery import read_function, read_functions, read_host
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

    from harness.gpu.passthrough import HostFunction

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
    host.add_function(GPU, group=5, below=PORT)
    host.add_function(SECOND, group=6, device=L4)
    return host


@pytest.fixture
def empty_host(tmp_path: Path) -> FakeHost:
    """Return a host without a GPU."""
    return FakeHost(tmp_path / "host")


def verdicts(host: FakeHost) -> dict[str, Verdict]:
    return {gpu.address: gpu.verdict for gpu in read_host(host.root).gpus}


def verdict(host: FakeHost) -> Verdict:
    return verdicts(host)[GPU]


def function_at(host: FakeHost, address: str = GPU) -> HostFunction:
    found = read_function(host.root, address)
    assert found is not None
    return found


def test_gpu_in_its_own_iommu_group_is_usable(host: FakeHost) -> None:
    """A GPU without a display may have the class of a processing accelerator."""
    accelerator = "0000:67:00.0"
    host.add_function(accelerator, group=7, class_code=0x120000)
    host.add_function(PORT, group=1, class_code=ROOT_PORT_CLASS, driver="pcieport")

    found = read_host(host.root)

    assert [(gpu.address, gpu.verdict.kind) for gpu in found.gpus] == [
        (each, VerdictKind.USABLE) for each in (GPU, SECOND, accelerator)
    ]
    assert list(found.functions) == [PORT, GPU, SECOND, accelerator]


def test_pci_function_is_read_from_sysfs(empty_host: FakeHost) -> None:
    folder = empty_host.add_function(
        "0000:67:00.0", group=7, class_code=VGA_CLASS, driver="nvidia", reset_methods="flr pm"
    )
    (folder / "rom").write_bytes(bytes(512))
    (folder / "numa_node").write_text("1\n")
    (folder / "power_state").write_text("D3hot\n")
    (folder / "driver_override").write_text("nvidia\n")
    (folder / "mdev_supported_types" / "nvidia-63").mkdir(parents=True)

    before = open_descriptors()
    function = function_at(empty_host, "0000:67:00.0")

    assert open_descriptors() == before
    assert (function.vendor, function.device, function.class_code) == (0x10DE, 0x2330, VGA_CLASS)
    assert (function.subsystem_vendor, function.subsystem) == (0x10DE, 0x16C1)
    assert (function.driver, function.driver_override) == ("nvidia", "nvidia")
    assert (function.group, function.reset_methods) == (7, ("flr", "pm"))
    assert (function.rom_bytes, function.numa_node) == (512, 1)
    assert (function.power_state, function.is_answering) == ("D3hot", True)
    assert function.mdev_types == ("nvidia-63",)
    assert not function.is_boot_vga


def test_unset_sysfs_values_are_read_as_none(host: FakeHost) -> None:
    for override in ("(null)\n", "\n"):
        (host.device(GPU) / "driver_override").write_text(override)

        function = function_at(host)

        assert (function.driver, function.driver_override) == (None, None)
        assert (function.numa_node, function.rom_bytes) == (None, None)
        assert function.unreadable == ()


def test_lease_of_a_gpu_includes_all_functions_of_its_iommu_group_except_bridges(
    host: FakeHost,
) -> None:
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS, driver="snd_hda_intel")
    host.add_function(PORT, group=5, class_code=ROOT_PORT_CLASS, driver="pcieport")
    host.add_function("0000:00:00.0", group=5, class_code=0x060000)

    gpu = read_host(host.root).gpus[0]

    assert gpu.verdict.is_usable
    assert [each.address for each in gpu.functions] == [GPU, AUDIO]


def test_each_gpu_that_shares_its_iommu_group_with_another_card_or_gpu_is_refused(
    host: FakeHost,
) -> None:
    third, fourth = "0000:67:00.0", "0000:67:00.3"
    host.add_function(NVME, group=5, class_code=NVME_CLASS, driver="nvme")
    for gpu in (third, fourth):
        host.add_function(gpu, group=7)

    found = verdicts(host)

    for gpu in (GPU, third, fourth):
        assert found[gpu].kind is VerdictKind.REFUSED
    assert f"shares IOMMU group 5 with {NVME}" in found[GPU].reason
    assert "driver nvme" in found[GPU].reason
    assert found[SECOND].is_usable


def test_gpu_without_an_iommu_group_is_refused(host: FakeHost) -> None:
    host.add_function("0000:67:00.0", group=None)

    reason = verdicts(host)["0000:67:00.0"].reason

    assert "in no IOMMU group, although other functions are" in reason


def test_verdict_on_a_host_without_iommu_groups_says_that_the_iommu_is_off(
    empty_host: FakeHost,
) -> None:
    empty_host.add_function(GPU, group=None)

    found = verdict(empty_host)

    assert found.kind is VerdictKind.REFUSED
    assert "its IOMMU is off" in found.reason


@pytest.mark.parametrize(("number", "process"), [("259:1", "1"), ("0:40", "self")])
def test_gpu_with_a_mounted_disk_in_its_iommu_group_is_refused(
    host: FakeHost, number: str, process: str
) -> None:
    """A run in its own mount namespace does not see the mounts of the host."""
    host.add_function(USB, group=5, class_code=USB_CLASS)
    host.add_disk("nvme0n1", USB, "259:1")
    assert verdict(host).is_usable
    btrfs = host.root / "sys/fs/btrfs/f00/devices"
    btrfs.mkdir(parents=True)
    host.link("sys/fs/btrfs/f00/devices/nvme0n1p1", host.root / "sys/class/block/nvme0n1p1")
    kind = "btrfs" if number == "0:40" else "ext4"
    # A line that can't be parsed does not hide the next line.
    host.write(f"proc/{process}/mountinfo", "what?\n")
    host.mount(number, r"/my\040data", kind, "/dev/nvme0n1p1", process=process)

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert found.reasons[0] == f"{USB}: The host has mounted '/my data' from this device."


@pytest.fixture
def disks(empty_host: FakeHost) -> list[Path]:
    """Return the partitions of two disks, which are on separate cards."""
    empty_host.add_function(NVME, group=2, class_code=NVME_CLASS)
    empty_host.add_function(USB, group=5, class_code=USB_CLASS)
    return [
        empty_host.add_disk(name, address, number) / f"{name}p1"
        for name, address, number in (("sda", USB, "8:1"), ("sdb", NVME, "8:17"))
    ]


def test_both_disks_of_an_encrypted_raid_are_found(
    empty_host: FakeHost, disks: list[Path]
) -> None:
    raid = empty_host.add_virtual_disk("md127", "9:127", *disks)
    empty_host.add_virtual_disk("dm-0", "253:0", raid)
    empty_host.mount("253:0", "/")

    assert set(find_host_use(empty_host.root).reasons) == {USB, NVME}


def test_both_disks_of_a_btrfs_file_system_are_found(
    empty_host: FakeHost, disks: list[Path]
) -> None:
    """The source of the mount is the second disk."""
    for disk in disks:
        empty_host.link(f"sys/fs/btrfs/f00/devices/{disk.name}", disk)
    empty_host.mount("0:40", "/", "btrfs", "/dev/sdbp1")

    assert set(find_host_use(empty_host.root).reasons) == {USB, NVME}


@pytest.mark.usefixtures("disks")
def test_disks_of_two_mounts_with_the_same_source_are_found(empty_host: FakeHost) -> None:
    empty_host.mount("8:1", "/", source="/dev/root")
    empty_host.mount("8:17", "/srv", source="/dev/root")

    assert set(find_host_use(empty_host.root).reasons) == {USB, NVME}


@pytest.mark.usefixtures("disks")
def test_disks_of_swap_partitions_are_found(empty_host: FakeHost) -> None:
    empty_host.write(
        "proc/swaps",
        "Filename Type Size Used Priority\n/swap.img file 9 0 -1\n"
        "/dev/sdap1 partition 9 0 -2\n/dev/sdbp1 partition 9 0 -3\n",
    )

    assert find_host_use(empty_host.root).reasons == {
        USB: ("The host swaps to '/dev/sdap1' on this device.",),
        NVME: ("The host swaps to '/dev/sdbp1' on this device.",),
    }


def test_disks_in_use_are_unknown_if_mounts_or_swaps_cannot_be_read(
    empty_host: FakeHost,
) -> None:
    """Ordinary users cannot read the mounts of process 1; a user's own list may be incomplete."""
    seen = []
    for file in ("1/mountinfo", "self/mountinfo", "swaps"):
        (empty_host.root / "proc" / file).unlink(missing_ok=True)
        (empty_host.root / "proc" / file).mkdir()
        seen.append(len(find_host_use(empty_host.root).unknown_disks))

    assert seen == [0, 1, 2]


def test_each_malformed_line_of_proc_swaps_is_reported_as_an_unknown_disk(
    empty_host: FakeHost,
) -> None:
    lines = ("", "/dev/sda2", "/dev/sda2 zoned 1000 0 -2")
    empty_host.write("proc/swaps", "\n".join(["Filename Type Size Used Priority", *lines, ""]))

    assert find_host_use(empty_host.root).unknown_disks == tuple(
        f"A line of '/proc/swaps' can't be parsed: {line}" for line in lines
    )


def test_both_controllers_of_a_multipath_nvme_disk_are_found(empty_host: FakeHost) -> None:
    """A multipath NVMe namespace is a child of its subsystem and not of a controller."""
    host = empty_host
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

    assert set(find_host_use(host.root).reasons) == {card, NVME}


def test_verdict_is_unknown_if_the_iommu_group_of_the_gpu_may_contain_the_disk_of_a_mount(
    tmp_path: Path,
) -> None:
    for row, (number, kind, source, class_code) in enumerate(
        (
            ("8:1", "ext4", "/dev/sda1", USB_CLASS),
            ("0:50", "zfs", "tank/root", NVME_CLASS),
            ("0:50", "btrfs", "/dev/mapper/root", USB_CLASS),
        )
    ):
        host = FakeHost(tmp_path / str(row))
        host.add_function(GPU, group=5)
        host.add_function(SECOND, group=6)
        host.add_function(USB, group=5, class_code=class_code)
        host.mount(number, "/srv", kind, source)

        found = verdicts(host)

        assert found[GPU].kind is VerdictKind.UNKNOWN, source
        assert re.search(rf"The host may need {USB}: .* disks? .*'/srv'", found[GPU].reason)
        assert found[SECOND].is_usable


def test_nfs_and_loop_mounts_have_no_unknown_disk_but_a_bcache_mount_has_one(
    empty_host: FakeHost,
) -> None:
    """A network file system or a loop device uses no hardware; a bcache device uses a disk."""
    virtual = empty_host.root / "sys/devices/virtual/block"
    for number, name in (("251:0", "loop3"), ("251:1", "bcache0")):
        (virtual / name).mkdir(parents=True)
        empty_host.link(f"sys/dev/block/{number}", virtual / name)
    empty_host.mount("0:51", "/home", "nfs4", "server:/home")
    empty_host.mount("251:0", "/loop")
    assert find_host_use(empty_host.root).unknown_disks == ()

    empty_host.mount("251:1", "/srv")
    assert len(find_host_use(empty_host.root).unknown_disks) == 1


def test_route_to_half_of_all_addresses_is_not_a_default_route(host: FakeHost) -> None:
    host.add_function("0000:65:00.5", group=5, class_code=NIC_CLASS)
    host.add_interface("eth1", "0000:65:00.5", is_default=False)
    with (host.root / "proc/net/route").open("a") as table:
        table.write("eth1\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000080\t0\t0\t0\n")
    add_ipv6_default_route(host, "eth1", prefix="01")

    assert verdict(host).is_usable


def test_unreachable_default_route_reports_no_unknown_network_card(empty_host: FakeHost) -> None:
    """The kernel lists `unreachable default` with the interface '*'."""
    empty_host.add_default_route("*")

    assert find_host_use(empty_host.root).unknown_network == ()


def add_ipv6_default_route(host: FakeHost, interface: str, prefix: str = "00") -> None:
    host.write(
        "proc/net/ipv6_route",
        f"{'0' * 32} {prefix} {'0' * 32} 00 fe80{'0' * 28} 00000400 1 0 00000003    {interface}\n",
    )


@pytest.fixture
def cards(empty_host: FakeHost) -> tuple[str, ...]:
    """Return three network cards, which have the interfaces eth0, eth1 and eth2."""
    cards = (NIC, "0000:65:00.5", "0000:66:00.5")
    for number, card in enumerate(cards):
        empty_host.add_function(card, group=number, class_code=NIC_CLASS)
        empty_host.add_interface(f"eth{number}", card, is_default=False)
    return cards


def test_gpu_is_refused_if_a_network_card_in_its_iommu_group_has_the_default_route(
    host: FakeHost,
) -> None:
    card = "0000:65:00.5"
    host.add_function(card, group=5, class_code=NIC_CLASS)
    host.add_interface("eth0", card, is_default=True)

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    assert f"{card}: The default route of the host uses its interface 'eth0'" in found.reason


def test_network_card_of_each_default_route_is_found(
    empty_host: FakeHost, cards: tuple[str, ...]
) -> None:
    empty_host.add_default_route("eth0")
    empty_host.add_default_route("eth1")
    add_ipv6_default_route(empty_host, "eth2")

    assert set(find_host_use(empty_host.root).reasons) == {*cards}


def test_network_cards_below_a_bridge_over_a_vlan_over_a_bond_are_found(
    empty_host: FakeHost, cards: tuple[str, ...]
) -> None:
    empty_host.add_virtual_interface("bond0", "eth0", "eth1")
    empty_host.add_virtual_interface("vlan", "bond0")
    empty_host.add_virtual_interface("bridge", "vlan", "eth2", ports="brif")
    empty_host.add_default_route("bridge")

    assert set(find_host_use(empty_host.root).reasons) == {*cards}


def test_default_route_over_an_interface_with_a_non_utf8_name_reports_an_unknown_card(
    empty_host: FakeHost,
) -> None:
    """The kernel accepts any bytes but white space and '/' in the name of an interface."""
    with (empty_host.root / "proc/net/route").open("ab") as table:
        table.write(b"e\xff\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")

    assert find_host_use(empty_host.root).unknown_network == (
        r"The network interface 'e\xff' is not in sysfs.",
    )


def test_verdict_is_unknown_if_routes_cannot_be_read_and_the_iommu_group_may_have_a_network_card(
    host: FakeHost,
) -> None:
    third = "0000:67:00.0"
    host.add_function(third, group=7)
    for number, class_code in ((5, NIC_CLASS), (7, USB_CLASS)):
        host.add_function(f"0000:6{number}:00.5", group=number, class_code=class_code)
    (host.root / "proc/net/route").unlink()

    found = verdicts(host)

    assert found[GPU].kind is found[third].kind is VerdictKind.UNKNOWN
    assert found[SECOND].is_usable


def test_gpu_that_the_firmware_chose_for_the_console_is_refused(host: FakeHost) -> None:
    host.add_function("0000:67:00.0", group=7, class_code=VGA_CLASS, boot_vga=True)
    host.add_function("0000:68:00.0", group=8, class_code=VGA_CLASS, boot_vga=False)
    host.add_function("0000:65:00.1", group=5, class_code=AUDIO_CLASS, boot_vga=True)

    found = verdicts(host)

    assert "boot_vga is 1" in found["0000:67:00.0"].reason
    assert found["0000:68:00.0"].is_usable
    assert "0000:65:00.1: The firmware chose this function" in found[GPU].reason


def test_gpu_with_a_framebuffer_is_refused(host: FakeHost) -> None:
    buffer = host.device(GPU) / "graphics/fb1"
    buffer.mkdir(parents=True)
    host.link("sys/class/graphics/fb1", buffer)
    host.link(str((buffer / "device").relative_to(host.root)), host.device(GPU))

    found = verdicts(host)

    assert "The host's console is on its framebuffer 'fb1'" in found[GPU].reason
    assert found[SECOND].is_usable


def test_gpu_that_cannot_be_reset_is_refused(empty_host: FakeHost) -> None:
    empty_host.add_function(GPU, group=5, reset_methods=None)
    empty_host.add_function(SECOND, group=6, reset_methods="")

    assert all(
        "no method to reset the GPU" in each.reason for each in verdicts(empty_host).values()
    )


def test_gpu_that_stays_in_d3cold_is_refused(host: FakeHost) -> None:
    for address, state in ((GPU, "D3cold"), (SECOND, "D3hot")):
        (host.device(address) / "power_state").write_text(f"{state}\n")

    found = verdicts(host)

    assert found[GPU].kind is VerdictKind.REFUSED
    assert "power state D3cold" in found[GPU].reason
    assert found[SECOND].is_usable


def test_gpu_whose_configuration_space_shows_no_ids_does_not_answer(host: FakeHost) -> None:
    for ids in (
        *(b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"),
        *(b"\xff\xff\x00\x00", b"\x00\x00\xff\xff"),
        # A function reads like this while it is not ready after a reset.
        b"\x01\x00\xff\xff",
    ):
        (host.device(GPU) / "config").write_bytes(ids + bytes(60))

        assert not function_at(host).is_answering, ids


def test_verdict_is_unknown_if_attributes_of_any_function_cannot_be_read(host: FakeHost) -> None:
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    decisive = (
        "driver_override",
        "vendor",
        "device",
        "class",
        "reset_method",
        "boot_vga",
        "config",
    )
    for address, names in ((GPU, ("numa_node", "reset_method")), (AUDIO, decisive)):
        for name in names:
            # Even root can't read a folder as a file.
            (host.device(address) / name).unlink(missing_ok=True)
            (host.device(address) / name).mkdir()

    found = verdict(host)

    assert found.kind is VerdictKind.UNKNOWN
    assert found.reasons == (
        f"reset_method can't be read in '/sys/bus/pci/devices/{GPU}'.",
        f"{', '.join(decisive)} can't be read in '/sys/bus/pci/devices/{AUDIO}'.",
    )


def test_gpu_without_optional_sysfs_attributes_is_usable(host: FakeHost) -> None:
    """The ids and the configuration space are the only attributes that a function must have.

    Linux before 5.15 has the file 'reset' but not 'reset_method'.
    """
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    for address in (GPU, AUDIO):
        (host.device(address) / "driver_override").unlink()
    (host.device(GPU) / "reset_method").unlink()

    found = read_host(host.root)

    assert found.gpus[0].verdict.is_usable
    assert found.functions[GPU].reset_methods == ("default",)


def test_malformed_sysfs_attributes_and_a_missing_config_file_are_reported_as_unreadable(
    host: FakeHost,
) -> None:
    contents = {
        "driver_override": b"\xff\n",
        "boot_vga": b"maybe\n",
        # The file is shorter than the ids.
        "config": b"\xde\x10",
    }
    for name, content in contents.items():
        (host.device(GPU) / name).write_bytes(content)

    assert function_at(host).unreadable == tuple(contents)
    (host.device(SECOND) / "config").unlink()
    assert function_at(host, SECOND).unreadable == ("config",)


def test_unreadable_numa_node_is_listed_but_the_gpu_stays_usable(host: FakeHost) -> None:
    (host.device(GPU) / "numa_node").unlink()
    (host.device(GPU) / "numa_node").mkdir()

    found = read_host(host.root)

    assert found.gpus[0].verdict.is_usable
    assert found.functions[GPU].unreadable == ("numa_node",)


def test_verdict_is_unknown_if_the_iommu_group_has_no_number(host: FakeHost) -> None:
    link = host.device(GPU) / "iommu_group"
    link.unlink()
    link.symlink_to("../x")

    assert verdict(host).kind is VerdictKind.UNKNOWN


def test_verdicts_report_a_pci_virtual_function_and_its_physical_function(host: FakeHost) -> None:
    virtual = host.add_function("0000:66:00.4", group=9)
    host.link(str((virtual / "physfn").relative_to(host.root)), host.device(SECOND))
    host.link(str((host.device(SECOND) / "virtfn0").relative_to(host.root)), virtual)

    found = verdicts(host)

    assert f"SR-IOV virtual function of {SECOND}" in found["0000:66:00.4"].reason
    assert "The GPU has 1 SR-IOV virtual functions" in found[SECOND].reason
    assert found[GPU].is_usable


def test_gpu_with_mediated_devices_is_refused(host: FakeHost) -> None:
    """A GPU whose driver offers mediated devices is usable as long as no such device exists."""
    for gpu in (GPU, SECOND):
        (host.device(gpu) / "mdev_supported_types/nvidia-63").mkdir(parents=True)
    for name in ("83b8f4f2", "93b8f4f2"):
        (host.device(GPU) / name).mkdir()
        host.link(f"sys/bus/mdev/devices/{name}", host.device(GPU) / name)

    found = verdicts(host)

    assert "mediated devices (vGPUs): 83b8f4f2, 93b8f4f2" in found[GPU].reason
    assert found[SECOND].is_usable


def test_mediated_device_belongs_to_its_pci_function_but_not_to_the_root_port_above(
    empty_host: FakeHost,
) -> None:
    empty_host.add_function(PORT, group=1, class_code=ROOT_PORT_CLASS)
    below = empty_host.add_function("0000:00:1f.0", group=5, below=PORT)
    (below / "a3b8f4f2").mkdir()
    empty_host.link("sys/bus/mdev/devices/a3b8f4f2", below / "a3b8f4f2")

    functions = read_host(empty_host.root).functions

    assert functions["0000:00:1f.0"].mdevs == ("a3b8f4f2",)
    assert functions[PORT].mdevs == ()


def test_reason_mentions_the_process_that_has_the_vfio_group_file_open(host: FakeHost) -> None:
    host.bind(GPU, "vfio-pci")
    host.add_process(4711, "qemu-system-x86", "/dev/vfio/vfio", "/dev/vfio/5")

    found = verdicts(host)

    assert found[GPU].kind is VerdictKind.BUSY
    assert "process 4711 ('qemu-system-x86' of user " in found[GPU].reason
    assert "'/dev/vfio/5' is open in" in found[GPU].reason
    assert found[SECOND].is_usable


def test_gpu_is_not_busy_if_the_open_file_at_its_vfio_path_has_another_device_number(
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


def test_process_name_with_control_characters_is_escaped(empty_host: FakeHost) -> None:
    empty_host.add_process(1234, "x", "/dev/vfio/5")
    (empty_host.root / "proc/1234/comm").write_bytes(b"\xff\x1b[2J\n")

    [described] = find_device_users(empty_host.root).of_file("/dev/vfio/5")

    assert "process 1234 ('\\xff\\x1b[2J' of user" in described


def test_mountinfo_line_with_line_separators_or_invalid_utf8_is_parsed(
    empty_host: FakeHost,
) -> None:
    """A FUSE mount point of a user may contain line separators or not be UTF-8."""
    empty_host.mount("0:99", "/home/ann/\x0b\u2028x", kind="fuse.sshfs", source="ann@host:")
    table = empty_host.root / "proc/self/mountinfo"
    table.write_bytes(table.read_bytes().replace(b"ann@host:", b"ann@\xff:"))

    assert find_host_use(empty_host.root).unknown_disks == ()


def test_mounts_with_the_same_device_number_are_distinguished_by_source(
    empty_host: FakeHost,
) -> None:
    """A file system on several disks has several mounts with one device number."""
    empty_host.mount("0:99", "/one", kind="btrfs", source="one")
    empty_host.mount("0:99", "/again", kind="btrfs", source="one")
    empty_host.mount("0:99", "/other", kind="btrfs", source="/dev/other")

    assert len(find_host_use(empty_host.root).unknown_disks) == 2


def test_reason_mentions_the_process_that_uses_the_gpu_through_nvidias_driver(
    host: FakeHost,
) -> None:
    host.bind(GPU, "nvidia")
    host.bind(SECOND, "nvidia")
    host.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Model: x\nDevice Minor: \t 0\n")
    host.write(f"proc/driver/nvidia/gpus/{SECOND}/information", "Model: x\nDevice Minor: \t 1\n")
    # The driver may write hexadecimal digits in upper case.
    host.add_function("0000:af:00.0", group=7, driver="nvidia")
    host.write("proc/driver/nvidia/gpus/0000:AF:00.0/information", "").write_bytes(
        b"GPU UUID: \xff\nDevice Minor: 2\n"
    )
    host.add_process(12, "nvidia-persiste", "/dev/nvidiactl", "/dev/nvidia1")
    host.add_process(13, "python3", "/dev/nvidia2")

    found = verdicts(host)

    assert found[GPU].is_usable
    assert "process 12 ('nvidia-persiste'" in found[SECOND].reason
    assert "process 13 ('python3'" in found["0000:af:00.0"].reason


def test_verdict_is_unknown_if_an_open_nvidia_file_may_belong_to_the_gpu(
    host: FakeHost,
) -> None:
    host.bind(GPU, "nvidia")
    host.bind(SECOND, "nvidia")
    host.write(f"proc/driver/nvidia/gpus/{SECOND}/information", "Model: x\nDevice Minor: \t 1\n")
    host.add_process(11, "python3", "/dev/nvidia1")
    assert verdict(host).is_usable

    host.add_process(12, "python3", "/dev/nvidia0")

    found = verdicts(host)
    assert found[GPU].kind is VerdictKind.UNKNOWN
    assert found[SECOND].kind is VerdictKind.BUSY
    host.write(f"proc/driver/nvidia/gpus/{GPU}/information", "Device Minor: 5\n")
    assert verdict(host).is_usable


def test_verdict_on_a_gpu_at_pci_function_1_is_unknown_if_a_dev_nvidia_file_is_open(
    empty_host: FakeHost,
) -> None:
    empty_host.add_function("0000:99:00.0", group=99, class_code=AUDIO_CLASS)
    empty_host.add_function("0000:99:00.1", group=99, driver="nvidia")
    empty_host.add_process(12, "python3", "/dev/nvidia0")

    assert verdicts(empty_host)["0000:99:00.1"].kind is VerdictKind.UNKNOWN


def test_reason_mentions_the_process_that_drives_a_pci_function_from_user_space(
    host: FakeHost,
) -> None:
    """The process may drive another function of the card, and use iommufd instead of the group."""
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    files = ("/dev/dri/card1", "/dev/dri/renderD129", "/dev/uio3", "/dev/vfio/devices/vfio0")
    for address, folder, file in zip(
        (GPU, GPU, AUDIO, AUDIO), ("drm", "drm", "uio", "vfio-dev"), files, strict=True
    ):
        device = host.device(address) / folder / file.rpartition("/")[2]
        device.mkdir(parents=True)
        host.link(f"sys/class/{folder}/{device.name}", device)
        host.link(str((device / "device").relative_to(host.root)), host.device(address))
    host.add_process(98, "shell", "/dev/null", "/dev/vfio/vfio", "/dev/nvidiactl")
    host.add_process(99, "a-driver", "/dev/null", *files)

    found = verdicts(host)

    user = user_name(os.geteuid())
    assert found[GPU].kind is VerdictKind.BUSY
    assert found[GPU].reasons == tuple(
        f"'{file}' is open in process 99 ('a-driver' of user {user}); end every process that has this file open."
        for file in files
    )
    assert found[SECOND].is_usable


def test_verdict_is_unknown_if_processes_cannot_be_seen(host: FakeHost) -> None:
    """An ordinary user does not see the open files of other users' processes."""
    host.bind(GPU, "nouveau")
    host.bind(SECOND, "vfio-pci")
    (host.root / "proc/1/fd").rmdir()
    (host.root / "proc/1").rmdir()

    found = verdicts(host)

    assert found[GPU].kind is VerdictKind.UNKNOWN
    assert "run as root, or bind the GPU to vfio-pci at boot" in found[GPU].reason
    # This GPU is on vfio-pci: opening its group's file later shows whether it is in use.
    assert found[SECOND].is_usable


def test_search_for_processes_that_use_a_device_continues_after_an_unreadable_process(
    empty_host: FakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_host.add_process(98, "of another user")
    empty_host.add_process(99, "qemu", "/dev/vfio/6")
    true_files = device_users._open_files

    def open_files(root: Path, process: Path) -> Iterator[str]:
        if process.name == "98":
            raise PermissionError
        return true_files(root, process)

    monkeypatch.setattr(device_users, "_open_files", open_files)

    found = find_device_users(empty_host.root)

    [described] = found.of_file("/dev/vfio/6")
    assert described.startswith("process 99 ('qemu'")
    assert not found.is_complete


def test_reasons_of_one_kind_are_shown_in_the_order_in_which_they_were_found() -> None:
    for kind in list(VerdictKind)[1:]:
        first = Verdict.of([], "usable").with_finding(kind, "One.")

        assert first.with_finding(kind, "Two.").reasons == ("One.", "Two.")
        refused = first.with_finding(VerdictKind.REFUSED, "No.")
        assert refused.kind is VerdictKind.REFUSED
        assert refused.reasons == (("One.", "No.") if kind is refused.kind else ("No.", "One."))


def test_reasons_of_a_verdict_are_sorted_from_refused_to_unknown_to_busy(
    host: FakeHost,
) -> None:
    host.add_function(NVME, group=5, class_code=NVME_CLASS)
    host.add_process(1234, "qemu", "/dev/vfio/5")
    host.mount("0:50", "/srv", "zfs", "tank/root")

    found = verdict(host)

    assert found.kind is VerdictKind.REFUSED
    for part, reason in zip(("shares", "may need", "open"), found.reasons, strict=True):
        assert part in reason


def test_sysfs_entry_that_is_not_a_pci_function_is_ignored(host: FakeHost, tmp_path: Path) -> None:
    (host.root / BUS / "devices" / "junk").mkdir()

    assert list(read_functions(host.root)) == [GPU, SECOND]
    # A host without a PCI bus has no GPUs.
    assert read_host(tmp_path / "absent").gpus == ()


def test_reading_a_pci_function_that_leaves_the_bus_meanwhile_returns_none(
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
