"""A simulated host: sysfs, procfs and /dev as files, and a kernel that reacts to writes to sysfs.

The pool writes to sysfs by `tee`, and the kernel is a `Runner` for `tee`. The kernel changes the
files as Linux does for driver_override, unbind, drivers_probe, reset and reset_method. A test can
make a write fail.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUS = "sys/bus/pci"
GPU_CLASS = 0x030200
VGA_CLASS = 0x030000
AUDIO_CLASS = 0x040300
ROOT_PORT_CLASS = 0x060400
NVME_CLASS = 0x010802
NIC_CLASS = 0x020000
USB_CLASS = 0x0C0330
H100 = 0x2330
L4 = 0x27B8
#: The content of the file driver_override if no override is set.
_NULL = "(null)"


@dataclass
class FakeHost:
    """A host whose files are below `root`; at first, the host has an IOMMU but no functions."""

    root: Path
    boot_id: str = "b0071d00-0000-4000-8000-000000000001"
    _folders: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.root.exists():
            return
        for folder in (
            *(f"{BUS}/devices", f"{BUS}/drivers", "sys/kernel/iommu_groups", "dev/vfio"),
            *("proc/self", "proc/1/fd", "proc/net", "proc/sys/kernel/random"),
        ):
            (self.root / folder).mkdir(parents=True)
        self.write("proc/self/mountinfo", "22 1 0:21 / / rw - tmpfs tmpfs rw\n")
        self.write("proc/swaps", "Filename Type Size Used Priority\n")
        self.write("proc/net/route", "Iface Destination Gateway Flags RefCnt Use Metric Mask\n")
        self.write("proc/sys/kernel/random/boot_id", f"{self.boot_id}\n")
        self.write(f"{BUS}/drivers_probe", "")
        self.add_driver("vfio-pci")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        try:
            _write(file, text.encode())
        except FileNotFoundError:
            file.parent.mkdir(parents=True)
            _write(file, text.encode())
        return file

    def link(self, path: str, target: Path) -> None:
        """Make a relative link, like the links in sysfs."""
        link = self.root / path
        text = "../" * path.count("/") + self._inside(target)
        try:
            link.symlink_to(text)
        except FileNotFoundError:
            link.parent.mkdir(parents=True)
            link.symlink_to(text)

    def _inside(self, path: Path) -> str:
        return str(path).removeprefix(f"{self.root}/")

    def device(self, address: str) -> Path:
        """Return the folder of a function."""
        if address not in self._folders:
            self._folders[address] = (self.root / BUS / "devices" / address).resolve()
        return self._folders[address]

    def add_driver(self, name: str) -> None:
        self.write(f"{BUS}/drivers/{name}/unbind", "")

    def add_function(
        self,
        address: str,
        *,
        group: int | None,
        class_code: int = GPU_CLASS,
        vendor: int = 0x10DE,
        device: int = H100,
        driver: str | None = None,
        reset_methods: str | None = "flr bus",
        boot_vga: bool | None = None,
        below: str = "",
    ) -> Path:
        """Add a function; `below` is the address of its root port, if any."""
        segment = address.rpartition(":")[0]
        folder = self.root / "sys/devices" / f"pci{segment}" / below / address
        folder.mkdir(parents=True, exist_ok=True)
        self._folders[address] = folder
        for name, text in (
            ("vendor", f"{vendor:#06x}"),
            ("device", f"{device:#06x}"),
            ("subsystem_vendor", f"{vendor:#06x}"),
            ("subsystem_device", "0x16c1"),
            ("class", f"{class_code:#08x}"),
            ("numa_node", "-1"),
            ("power_state", "D0"),
            ("driver_override", _NULL),
        ):
            _write(f"{folder}/{name}", f"{text}\n".encode())
        ids = vendor.to_bytes(2, "little") + device.to_bytes(2, "little")
        _write(f"{folder}/config", ids + bytes(60))
        if reset_methods is not None:
            _write(f"{folder}/reset_method", f"{reset_methods}\n".encode())
            _write(f"{folder}/reset", b"")
        if boot_vga is not None:
            _write(f"{folder}/boot_vga", f"{int(boot_vga)}\n".encode())
        self.link(f"{BUS}/devices/{address}", folder)
        if group is not None:
            groups = f"sys/kernel/iommu_groups/{group}"
            self.link(f"{groups}/devices/{address}", folder)
            self.link(f"{self._inside(folder)}/iommu_group", self.root / groups)
        if driver is not None:
            self.bind(address, driver)
        return folder

    def bind(self, address: str, driver: str) -> None:
        driver_folder = self.root / BUS / "drivers" / driver
        if not driver_folder.exists():
            self.add_driver(driver)
        self.link(f"{self._inside(self.device(address))}/driver", driver_folder)
        if driver == "vfio-pci" and (group := self.group_of(address)):
            self.write(f"dev/vfio/{group}", "")

    def unbind(self, address: str) -> None:
        (self.device(address) / "driver").unlink()

    def group_of(self, address: str) -> str | None:
        return self._target(address, "iommu_group")

    def driver_of(self, address: str) -> str | None:
        return self._target(address, "driver")

    def _target(self, address: str, link: str) -> str | None:
        try:
            return (self.device(address) / link).readlink().name
        except FileNotFoundError:
            return None

    def override_of(self, address: str) -> str:
        return (self.device(address) / "driver_override").read_text().strip()

    def remove(self, address: str) -> None:
        """Take a function off the bus."""
        (self.root / BUS / "devices" / address).unlink()
        del self._folders[address]

    def add_process(self, number: int, name: str, *files: str) -> None:
        """Add a process that has `files` open."""
        self.write(f"proc/{number}/comm", f"{name}\n")
        (self.root / f"proc/{number}/fd").mkdir()
        for descriptor, file in enumerate(files, 3):
            (self.root / f"proc/{number}/fd/{descriptor}").symlink_to(file)

    def add_disk(self, name: str, address: str, number: str) -> Path:
        """Add a disk behind a function, and its first partition with that device number."""
        disk = self.device(address) / "block" / name
        partition = disk / f"{name}p1"
        partition.mkdir(parents=True)
        (partition / "partition").write_text("1\n")
        for each in (disk, partition):
            self.link(f"sys/class/block/{each.name}", each)
        self.link(f"sys/dev/block/{number}", partition)
        return disk

    def mount(
        self,
        number: str,
        point: str,
        kind: str = "ext4",
        source: str = "/dev/x",
        *,
        process: str = "self",
    ) -> None:
        """Add a line to the mount table of a process, by default of this process."""
        with (self.root / "proc" / process / "mountinfo").open("a") as table:
            table.write(f"23 22 {number} / {point} rw,noatime shared:1 - {kind} {source} rw\n")

    def add_virtual_disk(self, name: str, number: str, *below: Path) -> Path:
        """Add a disk of device mapper or RAID on top of the disks `below`."""
        disk = self.root / "sys/devices/virtual/block" / name
        (disk / "slaves").mkdir(parents=True)
        for each in below:
            self.link(str((disk / "slaves" / each.name).relative_to(self.root)), each)
        self.link(f"sys/dev/block/{number}", disk)
        self.link(f"sys/class/block/{name}", disk)
        return disk

    def add_virtual_interface(self, name: str, *below: str, ports: str = "") -> None:
        """Add a bond or VLAN on the interfaces `below`; add a bridge if `ports` is set."""
        folder = self.root / "sys/devices/virtual/net" / name
        folder.mkdir(parents=True)
        self.link(f"sys/class/net/{name}", folder)
        for each in below:
            where = f"brif/{each}" if ports else f"lower_{each}"
            self.link(
                str((folder / where).relative_to(self.root)),
                (self.root / "sys/class/net" / each).resolve(),
            )

    def add_interface(self, name: str, address: str, *, is_default: bool) -> None:
        folder = self.device(address) / "net" / name
        folder.mkdir(parents=True)
        self.link(f"sys/class/net/{name}", folder)
        self.link(f"{(folder / 'device').relative_to(self.root)}", self.device(address))
        if is_default:
            self.add_default_route(name)

    def add_default_route(self, interface: str) -> None:
        with (self.root / "proc/net/route").open("a") as table:
            table.write(f"{interface}\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n")


def _write(path: Path | str, content: bytes) -> None:
    """Write a file without pathlib and buffers, which are slow for a host's dozens of files."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(descriptor, content)
    os.close(descriptor)


@dataclass
class FakeKernel:
    """Runs `tee` for files in the sysfs of `host`, with the effects that the writes have in Linux.

    `broken` maps the end of a path to the error of a write to this path. `matching` maps a function
    to the driver that the kernel binds if no override is set. A function in `dies_at_reset` reads
    as all ones after a reset.
    """

    host: FakeHost
    broken: dict[str, str] = field(default_factory=dict)
    matching: dict[str, str] = field(default_factory=dict)
    dies_at_reset: set[str] = field(default_factory=set)
    failing_methods: set[str] = field(default_factory=set)
    refused_methods: set[str] = field(default_factory=set)
    hangs: str | None = None
    writes: list[tuple[str, str]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, env
        assert argv[0] == "tee"
        path, text = Path(argv[1]), stdin or ""
        shown = str(path.relative_to(self.host.root / BUS))
        self.writes.append((shown, text.strip()))
        if self.hangs is not None and shown.endswith(self.hangs):
            return CommandResult(
                argv=tuple(argv), exit_code=124, stdout="", stderr="", timed_out=True
            )
        failure = next(
            (why for end, why in self.broken.items() if shown.endswith(end)), None
        ) or self._written(path, text.strip())
        return CommandResult(
            argv=tuple(argv),
            exit_code=1 if failure else 0,
            stdout=text,
            stderr=f"tee: {path}: {failure}\n" if failure else "",
        )

    def _written(self, path: Path, text: str) -> str | None:
        address = path.parent.name
        if not path.exists():
            return "No such file or directory"
        if path.name == "driver_override":
            path.write_text(f"{text or _NULL}\n")
        elif path.name == "unbind":
            self.host.unbind(text)
        elif path.name == "drivers_probe":
            return self._probe(text)
        elif path.name == "reset_method":
            if text in self.refused_methods:
                return "Invalid argument"
            path.write_text(f"{text}\n")
        elif path.name == "reset":
            method = (path.parent / "reset_method").read_text().split()[0]
            if method in self.failing_methods:
                return "Connection timed out"
            if address in self.dies_at_reset:
                (path.parent / "config").write_bytes(b"\xff" * 64)
        else:
            raise AssertionError(f"unexpected write into '{path}'")
        return None

    def _probe(self, address: str) -> str | None:
        override = self.host.override_of(address)
        driver = self.matching.get(address) if override == _NULL else override
        if driver is None or not (self.host.root / BUS / "drivers" / driver).exists():
            # The kernel reports no error if no driver binds to the function.
            return None
        self.host.bind(address, driver)
        return None
