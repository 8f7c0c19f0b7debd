"""Reads PCI functions and IOMMU groups of this host from sysfs, and judges its GPUs."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, TypeVar

from harness.errors import HarnessError
from harness.gpu.passthrough import (
    BoundDriver,
    HostDevices,
    HostFunction,
    HostGpu,
    IommuGroup,
    is_address,
)
from harness.gpu.passthrough.bars import parse_resource
from harness.gpu.passthrough.device_users import find_device_users
from harness.gpu.passthrough.host_use import find_host_use
from harness.gpu.passthrough.judgement import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

T = TypeVar("T")

PCI = "sys/bus/pci"
_GROUP_FOLDER = "sys/kernel/iommu_groups"
#: The number of bytes of the vendor id and the device id in configuration space.
_IDS_BYTES = 4
_PAGE_BYTES = 4096
#: Ids that mean "no device", as in the kernel (`pci_bus_generic_read_dev_vendor_id` in
#: drivers/pci/probe.c). The last id is read from a function that is not ready yet, for example
#: after a reset.
_NO_IDS = frozenset({0xFFFFFFFF, 0x00000000, 0x0000FFFF, 0xFFFF0000, 0xFFFF0001})
_D3COLD = "D3cold"
#: The content of driver_override if no override is set.
_NULL = "(null)"


def read_host(root: Path) -> HostDevices:
    """Read the PCI functions of the host whose sysfs, procfs and /dev lie below `root`.

    The verdicts depend only on the state of the host, not on the inventory, the quarantine or
    leases.
    """
    functions = read_functions(root)
    groups = _groups(functions.values())
    host_use = find_host_use(root)
    users = find_device_users(root)
    gpus = []
    for function in functions.values():
        if not function.is_gpu:
            continue
        group = None if function.group is None else groups[function.group]
        verdict = judge(function, group, host_use, users, has_iommu=_has_iommu(root))
        gpus.append(HostGpu(function=function, group=group, verdict=verdict))
    return HostDevices(functions=functions, gpus=tuple(gpus))


def read_functions(root: Path) -> Mapping[str, HostFunction]:
    """Return all PCI functions by address, in the order of addresses."""
    folder = root / PCI / "devices"
    if not folder.is_dir():
        return {}
    names = sorted(each.name for each in folder.iterdir() if is_address(each.name))
    found = (read_function(root, name) for name in names)
    return {each.address: each for each in found if each is not None}


def read_function(root: Path, address: str) -> HostFunction | None:
    """Return one PCI function, or None if there is none at this address."""
    return _read_attributes(root, address, functools.partial(_read, root, address))


def read_driver(root: Path, address: str) -> BoundDriver | None:
    """Return the driver of a PCI function, or None if there is no function at this address.

    Unlike `read_function`, this call does not wake a sleeping PCI function.
    """
    return _read_attributes(root, address, _read_driver)


def _read_attributes(root: Path, address: str, read: Callable[[_Attributes], T]) -> T | None:
    """Return the result of `read` for a function's attributes, or None if there is no function."""
    if not is_address(address):
        return None
    folder = root / f"{PCI}/devices/{address}"
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HarnessError(
            f"'{folder}' can't be read: {error.strerror}; check that sysfs is mounted on '/sys'."
        ) from error
    try:
        return read(_Attributes(folder, descriptor))
    except FileNotFoundError:
        # The function left the bus during the call.
        return None
    finally:
        os.close(descriptor)


def _read_driver(attributes: _Attributes) -> BoundDriver:
    override = attributes.text("driver_override")
    return BoundDriver(
        driver=attributes.link("driver"),
        override=None if override in {None, "", _NULL} else override,
    )


def _read(root: Path, address: str, attributes: _Attributes) -> HostFunction:
    bound = _read_driver(attributes)
    return HostFunction(
        address=address,
        vendor=attributes.number("vendor") or 0,
        device=attributes.number("device") or 0,
        subsystem_vendor=attributes.number("subsystem_vendor") or 0,
        subsystem=attributes.number("subsystem_device") or 0,
        class_code=attributes.number("class") or 0,
        driver=bound.driver,
        driver_override=bound.override,
        group=_group_number(attributes),
        reset_methods=_reset_methods(attributes),
        is_boot_vga=attributes.number("boot_vga") == 1,
        rom_bytes=attributes.size("rom"),
        numa_node=_numa_node(attributes),
        power_state=attributes.text("power_state"),
        is_answering=_is_answering(attributes),
        bars=parse_resource(attributes.text("resource") or ""),
        physical_function=attributes.link("physfn"),
        virtual_functions=attributes.links("virtfn"),
        mdev_types=attributes.names("mdev_supported_types"),
        mdevs=_mdevs(root, attributes),
        unreadable=tuple(attributes.unreadable),
    )


class _Attributes:
    """Reads files of one device, and records the files that exist but can't be read.

    Files are opened relative to the `descriptor` of their folder. A host has hundreds of functions
    with twenty files each, and opening every file by its whole path takes several times as long.
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self.unreadable: list[str] = []
        self._descriptor = descriptor
        self._names = os.listdir(descriptor)

    def has(self, name: str) -> bool:
        return name in self._names

    def read(self, name: str, size: int) -> bytes | None:
        """Return the beginning of a file, or None if the file does not exist or can't be read."""
        if name not in self._names:
            return None
        try:
            file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._descriptor)
            try:
                return os.read(file, size)
            finally:
                os.close(file)
        except FileNotFoundError:
            return None
        except OSError:
            self.unreadable.append(name)
            return None

    def text(self, name: str) -> str | None:
        content = self.read(name, _PAGE_BYTES)
        try:
            return None if content is None else content.decode().strip()
        except UnicodeDecodeError:
            self.unreadable.append(name)
            return None

    def number(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return int(text, 0)
        except ValueError:
            self.unreadable.append(name)
            return None

    def link(self, name: str) -> str | None:
        """Return the name of the target of a symbolic link."""
        if name not in self._names:
            return None
        try:
            target = os.readlink(name, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None
        except OSError:
            self.unreadable.append(name)
            return None
        return target.rpartition("/")[2]

    def links(self, prefix: str) -> tuple[str, ...]:
        names = sorted(name for name in self._names if name.startswith(prefix))
        found = (self.link(name) for name in names)
        return tuple(each for each in found if each is not None)

    def names(self, folder: str) -> tuple[str, ...]:
        if folder not in self._names:
            return ()
        try:
            return tuple(sorted(each.name for each in (self.folder / folder).iterdir()))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            self.unreadable.append(folder)
            return ()

    def size(self, name: str) -> int | None:
        """Return the size of a file; the size of sysfs's file 'rom' is the size of the ROM BAR."""
        if name not in self._names:
            return None
        try:
            return os.stat(name, dir_fd=self._descriptor).st_size
        except OSError:
            return None


def _is_answering(attributes: _Attributes) -> bool:
    """Return whether configuration space answers; this read wakes a sleeping function."""
    ids = attributes.read("config", _IDS_BYTES)
    if ids is None or len(ids) < _IDS_BYTES:
        if "config" not in attributes.unreadable:
            attributes.unreadable.append("config")
        return True
    is_there = int.from_bytes(ids, "little") not in _NO_IDS
    return is_there and attributes.text("power_state") != _D3COLD


def _group_number(attributes: _Attributes) -> int | None:
    name = attributes.link("iommu_group")
    if name is None:
        return None
    if not name.isdecimal():
        attributes.unreadable.append("iommu_group")
        return None
    return int(name)


def _reset_methods(attributes: _Attributes) -> tuple[str, ...]:
    methods = attributes.text("reset_method")
    if methods is not None:
        return tuple(methods.split())
    return ("default",) if attributes.has("reset") else ()


def _numa_node(attributes: _Attributes) -> int | None:
    """Return the NUMA node, or None if the kernel's file contains -1: firmware named no node."""
    node = attributes.number("numa_node")
    return None if node is None or node < 0 else node


def _mdevs(root: Path, attributes: _Attributes) -> tuple[str, ...]:
    """Return the mediated devices, whose folders are in the folder of their function."""
    devices = root / "sys/bus/mdev/devices"
    if not devices.is_dir():
        return ()
    parent = attributes.folder.resolve()
    return tuple(
        sorted(each.name for each in devices.iterdir() if each.resolve().parent == parent)
    )


def _groups(functions: Iterable[HostFunction]) -> dict[int, IommuGroup]:
    members: dict[int, list[HostFunction]] = {}
    for function in functions:
        if function.group is not None:
            members.setdefault(function.group, []).append(function)
    return {
        number: IommuGroup(number=number, functions=tuple(found))
        for number, found in members.items()
    }


def _has_iommu(root: Path) -> bool:
    """Return whether the kernel has any IOMMU group."""
    try:
        return any((root / _GROUP_FOLDER).iterdir())
    except OSError:
        return False
