"""Parses the memory BARs of a PCI function from sysfs, on a host or in a guest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from harness.errors import HarnessError
from harness.gpu import MIB, Bar

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Flags from include/linux/ioport.h.
_MEMORY, _MEMORY_64 = 0x200, 0x100000
#: The number of lines for BARs; the lines after these are for the ROM and for a bridge's windows.
_BARS = 6


@dataclass(frozen=True, kw_only=True)
class MemoryBar:
    """A memory BAR: its size in bytes, and whether it may lie above 4 GiB."""

    size: int
    bits: Literal[32, 64]

    def to_bar(self) -> Bar:
        """Return the BAR with its size in MiB, at least 1."""
        return Bar(mib=max(1, self.size // MIB), bits=self.bits)


def parse_resource(text: str) -> Mapping[int, MemoryBar]:
    """Parse the file `resource` of a function; leave out BARs that have no address.

    Each line has the first address, the last address and the flags, in the order of the BARs.
    Raises HarnessError for a line of any other form.
    """
    bars: dict[int, MemoryBar] = {}
    for index, line in enumerate(text.splitlines()[:_BARS]):
        try:
            first, last, flags = (int(word, 16) for word in line.split())
        except ValueError:
            raise HarnessError(
                f"Three hexadecimal numbers were expected in line {index + 1} of a PCI function's "
                f"'resource', but the line is {line!r}."
            ) from None
        if flags & _MEMORY and last > first:
            bits: Literal[32, 64] = 64 if flags & _MEMORY_64 else 32
            bars[index] = MemoryBar(size=last - first + 1, bits=bits)
    return bars
