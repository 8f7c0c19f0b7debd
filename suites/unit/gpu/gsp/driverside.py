"""The driver's end of the message queues, in guest memory that a test provides."""

from __future__ import annotations

import mmap
import struct

from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.gsp.queues import ELEMENT_HEADER, PAGE, QUEUE_BYTES, SLOTS, QueueArguments
from harness.gpu.gsp.rpc import HEADER, SIGNATURE, VERSION

PAGES = 129
TABLE = 0x100000
COMMANDS = PAGE
STATUSES = PAGE + QUEUE_BYTES
#: An address beyond the end of the memory.
NOWHERE = 1 << 40


class Ram:
    """Guest memory for a test; by default 4 MiB."""

    def __init__(self, size: int = 4 << 20) -> None:
        # The kernel allocates only the pages that a test uses, so large memory costs no time.
        self.content = mmap.mmap(-1, size)
        self.reads: list[int] = []
        """The address of each read."""

    def read(self, address: int, size: int) -> bytes:
        self._check(address, size)
        self.reads.append(address)
        return self.content[address : address + size]

    def write(self, address: int, data: bytes) -> None:
        self._check(address, len(data))
        self.content[address : address + len(data)] = data

    post = write

    def _check(self, address: int, size: int) -> None:
        if not 0 <= address <= address + size <= len(self.content):
            raise GuestMemoryError(f"nothing at {address:#x}")


class DriverSide:
    """The driver's queues; their pages are in reverse order, since pages need not be contiguous."""

    def __init__(self, ram: Ram | None = None) -> None:
        self.ram = ram or Ram()
        later = [TABLE + PAGE * (2 * PAGES - index) for index in range(1, PAGES)]
        self.pages = [TABLE, *later]
        self.ram.write(TABLE, struct.pack(f"<{PAGES}Q", *self.pages))
        self.written = 0
        self.read = 0

    @property
    def arguments(self) -> QueueArguments:
        return QueueArguments(table=TABLE, pages=PAGES, commands=COMMANDS, statuses=STATUSES)

    def place(self, offset: int) -> int:
        return self.pages[offset // PAGE] + offset % PAGE

    def put(self, body: bytes, *, units: int | None = None) -> None:
        """Send a message, or a message with the wrong length `units`."""
        count = -(-(ELEMENT_HEADER + len(body)) // PAGE)
        element = bytearray(count * PAGE)
        struct.pack_into("<III", element, 32, 0, 0, count if units is None else units)
        element[ELEMENT_HEADER : ELEMENT_HEADER + len(body)] = body
        for index in range(count):
            slot = (self.written + index) % SLOTS
            piece = bytes(element[index * PAGE : (index + 1) * PAGE])
            self.ram.write(self.place(COMMANDS + PAGE + slot * PAGE), piece)
        self.point_to((self.written + count) % SLOTS)

    def point_to(self, pointer: int) -> None:
        self.written = pointer
        self.ram.write(self.place(COMMANDS + 16), struct.pack("<I", pointer & 0xFFFFFFFF))

    def take(self) -> bytes | None:
        """Return the next message from the device, and advance the read pointer."""
        (written,) = struct.unpack("<I", self.ram.read(self.place(STATUSES + 16), 4))
        if written == self.read:
            return None
        element = self.slot(self.read)
        (units,) = struct.unpack_from("<I", element, 40)
        for index in range(1, units):
            element += self.slot(self.read + index)
        self.read = (self.read + units) % SLOTS
        self.ram.write(self.place(COMMANDS + 32), struct.pack("<I", self.read))
        return element

    def slot(self, index: int) -> bytes:
        return self.ram.read(self.place(STATUSES + PAGE + index % SLOTS * PAGE), PAGE)


def message(function: int, body: bytes, *, size: int | None = None, sequence: int = 0) -> bytes:
    """Return a message of this function, or a message with the wrong length `size`."""
    length = HEADER.size + len(body) if size is None else size
    return HEADER.pack(VERSION, SIGNATURE, length, function, 0, 0, sequence, 0) + body
