"""Reads and writes a guest's memory, as a device does by DMA."""

from __future__ import annotations

import logging
import mmap
from dataclasses import dataclass
from typing import Protocol

_LOG = logging.getLogger(__name__)

#: The maximum size of one access: more than the driver needs for queues, push buffers and copies.
MOST_BYTES = 1 << 20


class GuestMemoryError(Exception):
    """The guest gave an address at which it has no memory."""


class GuestMemory(Protocol):
    """The memory of one guest, by guest-physical address."""

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes; raises GuestMemoryError if the guest has no memory there."""
        ...

    def write(self, address: int, data: bytes) -> None:
        """Write `data`; raises GuestMemoryError if the guest has no memory there."""
        ...

    def post(self, address: int, data: bytes) -> None:
        """Write `data` without waiting; later writes reach the guest's memory only after this write.

        If the guest has no memory there, the write has no effect or raises GuestMemoryError.
        """
        ...


class NoMemory:
    """A placeholder until the transport has described the guest's memory; each access fails."""

    def read(self, address: int, size: int) -> bytes:
        raise _missing(address, size)

    def write(self, address: int, data: bytes) -> None:
        raise _missing(address, len(data))

    post = write


@dataclass(frozen=True, kw_only=True)
class _Region:
    start: int
    end: int
    content: mmap.mmap


class MappedMemory:
    """Guest memory that this process maps; the memory must be shared between processes."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def add(self, address: int, size: int, offset: int, *, fd: int) -> None:
        """Map `size` bytes of `fd`; if that fails, the device can't access these addresses."""
        try:
            content = mmap.mmap(fd, size, offset=offset)
        except (OSError, ValueError, OverflowError) as error:
            _LOG.info("Memory of the guest at %#x can't be mapped: %s", address, error)
            return
        self._regions.append(_Region(start=address, end=address + size, content=content))

    def clear(self) -> None:
        """Unmap all memory; the transport then adds the new memory."""
        for region in self._regions:
            region.content.close()
        self._regions.clear()

    def read(self, address: int, size: int) -> bytes:
        region = self._region(address, size)
        start = address - region.start
        return region.content[start : start + size]

    def write(self, address: int, data: bytes) -> None:
        region = self._region(address, len(data))
        start = address - region.start
        region.content[start : start + len(data)] = data

    post = write

    def _region(self, address: int, size: int) -> _Region:
        if 0 <= size <= MOST_BYTES:
            for region in self._regions:
                if region.start <= address and address + size <= region.end:
                    return region
        raise _missing(address, size)


def _missing(address: int, size: int) -> GuestMemoryError:
    return GuestMemoryError(f"The guest has no {size} bytes of memory at {address:#x}.")
