"""Finds the PCI functions that the host itself needs: its disks, network and console."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.gpu.passthrough import is_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NVME_CONTROLLER = re.compile(r"nvme[0-9]+")
#: Block devices that have no hardware of their own; the file of a loop device is in a mounted file
#: system, so the file system's disk is found anyway.
_WITHOUT_HARDWARE = re.compile(r"(?:loop|zram|ram|nbd|rbd|drbd|fd)[0-9]+.*")
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class HostUse:
    """Why the host needs PCI functions, by the functions' addresses, and which facts are unknown.

    `unknown_disks` and `unknown_network` are sentences about facts that could not be found out. If
    there is a sentence, the host may need any function that could be a disk or a network card.
    """

    reasons: Mapping[str, tuple[str, ...]]
    unknown_disks: tuple[str, ...] = ()
    unknown_network: tuple[str, ...] = ()


@dataclass
class _Findings:
    reasons: dict[str, list[str]] = field(default_factory=dict)
    unknown_disks: list[str] = field(default_factory=list)
    unknown_network: list[str] = field(default_factory=list)

    def add(self, address: str, reason: str) -> None:
        found = self.reasons.setdefault(address, [])
        if reason not in found:
            found.append(reason)


def find_host_use(root: Path) -> HostUse:
    """Find the functions that the host below `root` needs."""
    found = _Findings()
    _find_disks(root, found)
    _find_network(root, found)
    for buffer in sorted((root / "sys/class/graphics").glob("fb[0-9]*")):
        address = _pci_address(buffer / "device")
        if address is not None:
            found.add(address, f"The host's console is on its framebuffer '{buffer.name}'.")
    return HostUse(
        reasons={address: tuple(reasons) for address, reasons in found.reasons.items()},
        unknown_disks=tuple(found.unknown_disks),
        unknown_network=tuple(found.unknown_network),
    )


def _find_disks(root: Path, found: _Findings) -> None:
    for mount in _mounts(root, found):
        for device in mount.block_devices(root):
            _find_block_device(
                device,
                f"The host has mounted '{mount.point}' from this device.",
                mount.point,
                found,
            )
        if mount.has_unknown_disks(root):
            found.unknown_disks.append(
                f"It is not known on which disks '{mount.point}' is ({mount.kind}, mounted from "
                f"'{mount.source}')."
            )
    try:
        swaps = (root / "proc/swaps").read_text(errors="backslashreplace").splitlines()[1:]
    except FileNotFoundError:
        return
    except OSError as error:
        found.unknown_disks.append(f"'/proc/swaps' can't be read ({error.strerror}).")
        return
    for line in swaps:
        name, kind, *_ = (*line.split(), "", "")
        if kind not in {"partition", "file"}:
            found.unknown_disks.append(f"A line of '/proc/swaps' can't be parsed: {line}")
        elif kind == "partition":
            device = root / "sys/class/block" / name.rpartition("/")[2]
            _find_block_device(device, f"The host swaps to '{name}' on this device.", name, found)


@dataclass(frozen=True, kw_only=True)
class _Mount:
    point: str
    number: str
    kind: str
    source: str

    def block_devices(self, root: Path) -> list[Path]:
        """Return the folders of the mount's block devices in sysfs."""
        if not self.number.startswith("0:"):
            return [root / "sys/dev/block" / self.number]
        if self.kind == "btrfs":
            # The mount has an anonymous device number, and may use several devices.
            mine = self.source.rpartition("/")[2]
            for devices in sorted((root / "sys/fs/btrfs").glob("*/devices")):
                names = sorted(each.name for each in devices.iterdir())
                if mine in names:
                    return [root / "sys/class/block" / name for name in names]
        return []

    def has_unknown_disks(self, root: Path) -> bool:
        """Return whether the mount may use disks that `block_devices` does not return."""
        if not self.number.startswith("0:") or self.block_devices(root):
            return False
        return self.kind in {"zfs", "btrfs", "bcachefs"} or self.source.startswith("/dev/")


def _mounts(root: Path, found: _Findings) -> Iterator[_Mount]:
    """Yield the mounts of this process, and the mounts of process 1 if they can be read.

    The two lists differ if this process runs in a container or a private mount namespace.
    """
    texts = [_mount_table(root, "1") or ""]
    own = _mount_table(root, "self")
    if own is None:
        found.unknown_disks.append("'/proc/self/mountinfo' can't be read.")
    else:
        texts.append(own)
    seen: set[tuple[str, str]] = set()
    # The kernel escapes spaces, tabs and newlines in mount names, but no other white space. So only
    # spaces separate the fields.
    for line in (line for text in texts for line in text.split("\n") if line):
        fields, _, rest = line.partition(" - ")
        words, tail = fields.split(" "), rest.split(" ")
        if len(words) < 5 or len(tail) < 2:
            found.unknown_disks.append(
                f"A line of '/proc/1/mountinfo' or '/proc/self/mountinfo' can't be parsed: {line}"
            )
            continue
        if (words[2], tail[1]) not in seen:
            seen.add((words[2], tail[1]))
            yield _Mount(
                number=words[2],
                point=_plain(words[4]),
                kind=tail[0],
                source=_plain(tail[1]),
            )


def _mount_table(root: Path, process: str) -> str | None:
    try:
        return (root / f"proc/{process}/mountinfo").read_text(errors="backslashreplace")
    except OSError:
        return None


def _find_block_device(device: Path, reason: str, what: str, found: _Findings) -> None:
    """Add the functions of a block device, also through device mapper, RAID and multipath."""
    try:
        folder = device.resolve(strict=True)
    except OSError:
        found.unknown_disks.append(f"The disk of '{what}' is not in sysfs.")
        return
    if (folder / "partition").exists():
        folder = folder.parent
    address = _pci_address(folder)
    if address is not None:
        found.add(address, reason)
        return
    below = [*_entries(folder / "slaves"), *_nvme_controllers(folder)]
    for each in below:
        _find_block_device(each, reason, what, found)
    is_virtual = "virtual" in folder.parts
    if is_virtual and not below and not _WITHOUT_HARDWARE.fullmatch(folder.name):
        found.unknown_disks.append(f"The disk of '{what}' ({folder.name}) is not known.")


def _nvme_controllers(folder: Path) -> list[Path]:
    """Return the controllers of a multipath NVMe namespace, which has no parent controller."""
    if not folder.parent.name.startswith("nvme-subsys"):
        return []
    return [each for each in _entries(folder.parent) if _NVME_CONTROLLER.fullmatch(each.name)]


def _find_network(root: Path, found: _Findings) -> None:
    for name in _default_interfaces(root, found):
        device = root / "sys/class/net" / name
        addresses = _addresses_below(device, set())
        if not addresses and not device.exists():
            found.unknown_network.append(f"The network interface '{name}' is not in sysfs.")
        for address in addresses:
            found.add(address, f"The default route of the host uses its interface '{name}'.")


def _addresses_below(interface: Path, seen: set[str]) -> list[str]:
    """Return the functions to which an interface leads, also through bonds, bridges and VLANs."""
    if interface.name in seen:
        return []
    seen.add(interface.name)
    address = _pci_address(interface / "device")
    if address is not None:
        return [address]
    lower = [*interface.glob("lower_*"), *_entries(interface / "brif")]
    siblings = (interface.parent / each.name.removeprefix("lower_") for each in lower)
    return [found for each in siblings for found in _addresses_below(each, seen)]


def _default_interfaces(root: Path, found: _Findings) -> list[str]:
    """Return the interfaces that have a default route for IPv4 or IPv6."""
    # Destination and mask are hexadecimal numbers.
    ipv4 = {
        words[0]
        for words in _table(root, "route", found)[1:]
        if len(words) > 7 and words[1] == words[7] == "00000000"
    }
    ipv6 = {
        words[9]
        for words in _table(root, "ipv6_route", found)
        if len(words) > 9 and words[:2] == ["0" * 32, "00"]
    }
    # The kernel writes '*' for a route that rejects packets, such as `unreachable default`.
    return sorted((ipv4 | ipv6) - {"lo", "*"})


def _table(root: Path, name: str, found: _Findings) -> list[list[str]]:
    """Return the words of each line of a file of '/proc/net'."""
    try:
        text = (root / f"proc/net/{name}").read_text(errors="backslashreplace")
    except FileNotFoundError:
        # A kernel without IPv6 has no table of IPv6 routes.
        if name == "route":
            found.unknown_network.append("'/proc/net/route' does not exist.")
        return []
    except OSError as error:
        found.unknown_network.append(f"'/proc/net/{name}' can't be read ({error.strerror}).")
        return []
    return [line.split() for line in text.splitlines()]


def _pci_address(path: Path) -> str | None:
    """Return the function to which a device in sysfs belongs: the last function on its path."""
    try:
        parts = path.resolve(strict=True).parts
    except OSError:
        return None
    return next((part for part in reversed(parts) if is_address(part)), None)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _plain(text: str) -> str:
    r"""Return a word of mountinfo without its octal escapes, such as `\040` for a blank."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
