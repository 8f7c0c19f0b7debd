"""Reads the ids, BARs and chip id of a GPU in a guest without a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.gpu.passthrough.bars import parse_resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.api import Node
    from harness.gpu import Bar

_DEVICES = "/sys/bus/pci/devices"
#: Enables the function, maps BAR0, and prints the first register; a disabled function does not
#: respond.
_READ_BAR0 = """
import mmap, os, struct, sys
folder = sys.argv[1]
with open(folder + "/enable", "w") as enable:
    enable.write("1")
handle = os.open(folder + "/resource0", os.O_RDWR | os.O_SYNC)
with mmap.mmap(handle, 4096) as bar:
    print("%08x" % struct.unpack_from("<I", bar)[0])
with open(folder + "/enable", "w") as enable:
    enable.write("0")
"""
#: The value that a read returns if the function is missing or does not decode memory.
NOTHING = {0xFFFFFFFF, 0}


def addresses_of(node: Node, pci: str) -> list[str]:
    """Return the guest's addresses of the functions with these ids, such as `10de:2330`."""
    listed = node.guest.output_of("lspci", "-D", "-n", "-d", pci)
    return [line.split()[0] for line in listed.splitlines()]


def bars_of(node: Node, address: str) -> Mapping[int, Bar]:
    """Return the memory BARs of a function, at the addresses that the guest's kernel assigned."""
    resource = node.guest.output_of("cat", f"{_DEVICES}/{address}/resource")
    return {index: bar.to_bar() for index, bar in parse_resource(resource).items()}


def first_register_of(node: Node, address: str) -> int:
    """Read the register PMC_BOOT_0, which has the chip id, from a function without a driver."""
    printed = node.guest.output_of("python3", "-c", _READ_BAR0, f"{_DEVICES}/{address}")
    return int(printed, 16)
