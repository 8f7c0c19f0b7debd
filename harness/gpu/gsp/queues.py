"""The two message queues in a guest's memory: commands from the driver, and messages to the driver.

The format is `src/common/shared/msgq` of the open kernel modules. All data from the guest is
checked.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.gpu.gsp.guest_memory import GuestMemory

PAGE: Final = 4096
QUEUE_BYTES: Final = 0x40000
SLOTS: Final = QUEUE_BYTES // PAGE - 1
#: The maximum size of the queues' memory, in pages: more than two queues and their page table
#: need.
MOST_PAGES: Final = 1024
#: The maximum number of units in a message; longer content is split into several messages.
MOST_UNITS: Final = 16
ELEMENT_HEADER: Final = 48
MOST_BODY: Final = MOST_UNITS * PAGE - ELEMENT_HEADER
#: The maximum number of messages that wait for a driver that does not read its queue.
MOST_WAITING: Final = 256

#: Offsets in a queue's header. Flag 1 swaps the read pointers: each side writes its read pointer into
#: the header of the queue to which it sends.
_WRITE_POINTER: Final = 16
_READ_POINTER: Final = 32
_FIRST_SLOT: Final = PAGE
_CHECKSUM: Final = 32

_ARGUMENTS: Final = struct.Struct("<QI4xQQ")


class QueueError(Exception):
    """The driver violates the protocol of the queues."""


@dataclass(frozen=True, kw_only=True)
class QueueArguments:
    """Where the driver's queues are: the table of their pages, and the offsets of the queues."""

    table: int
    pages: int
    commands: int
    statuses: int

    @classmethod
    def parse(cls, data: bytes) -> QueueArguments:
        """Parse the beginning of GSP_ARGUMENTS_CACHED; raises QueueError."""
        if len(data) < _ARGUMENTS.size:
            raise QueueError(f"The queues' arguments have only {len(data)} bytes.")
        table, pages, commands, statuses = _ARGUMENTS.unpack_from(data)
        if not 1 <= pages <= MOST_PAGES:
            raise QueueError(f"The queues have {pages} pages, but 1 to {MOST_PAGES} are possible.")
        for offset in (commands, statuses):
            if offset % PAGE or offset + QUEUE_BYTES > pages * PAGE:
                raise QueueError(f"A queue at {offset:#x} is not within {pages} pages.")
        return cls(table=table, pages=pages, commands=commands, statuses=statuses)


class Pages:
    """A range of guest memory whose pages are listed in a table and need not be contiguous."""

    def __init__(self, memory: GuestMemory, pages: Sequence[int]) -> None:
        self._memory = memory
        self._pages = pages

    @classmethod
    def by_table(cls, memory: GuestMemory, table: int, count: int) -> Pages:
        """Read a table of `count` page addresses; the first pages contain the table itself."""
        per_page = PAGE // 8
        found: list[int] = []
        while len(found) < count:
            page = table if not found else found[len(found) // per_page]
            wanted = min(per_page, count - len(found))
            found += struct.unpack(f"<{wanted}Q", memory.read(page, 8 * wanted))
        return cls(memory, found)

    def read(self, offset: int, size: int) -> bytes:
        pieces: list[bytes] = []
        while size:
            inside = offset % PAGE
            length = min(size, PAGE - inside)
            pieces.append(self._memory.read(self._pages[offset // PAGE] + inside, length))
            offset += length
            size -= length
        return b"".join(pieces)

    def write(self, offset: int, data: bytes) -> None:
        """Write data into one page."""
        self._memory.write(self._pages[offset // PAGE] + offset % PAGE, data)

    def post(self, offset: int, data: bytes) -> None:
        """Write data into one page without waiting; later writes reach the memory only after this write."""
        self._memory.post(self._pages[offset // PAGE] + offset % PAGE, data)


class Queues:
    """Receives messages from one queue, and sends messages into the other."""

    def __init__(self, memory: GuestMemory, arguments: QueueArguments) -> None:
        self._pages = Pages.by_table(memory, arguments.table, arguments.pages)
        self._commands = arguments.commands
        self._statuses = arguments.statuses
        self._taken = 0
        #: The value of the driver's read pointer when the pointer was last read.
        self._read = 0
        self._put = 0
        self._sequence = 0
        self._waiting: deque[bytes] = deque()
        header = struct.pack("<8I", 0, QUEUE_BYTES, PAGE, SLOTS, 0, 1, _READ_POINTER, _FIRST_SLOT)
        self._pages.write(self._statuses, header + bytes(4))

    def take(self) -> Iterator[bytes]:
        """Yield the content of each message that has arrived, without the element's header.

        Raises QueueError for a malformed message; the queue can't be read after that.
        """
        written = self._pointer(self._commands + _WRITE_POINTER)
        while written != self._taken:
            yield self._take(there=(written - self._taken) % SLOTS)

    def _take(self, *, there: int) -> bytes:
        element = self._slot(self._taken)
        (units,) = struct.unpack_from("<I", element, 40)
        if not 1 <= units <= min(MOST_UNITS, there):
            raise QueueError(f"A message has {units} units, but only {there} units were written.")
        element += b"".join(self._slot(self._taken + index) for index in range(1, units))
        self._taken = (self._taken + units) % SLOTS
        self._pages.post(self._statuses + _READ_POINTER, struct.pack("<I", self._taken))
        return element[ELEMENT_HEADER:]

    def send(self, body: bytes) -> None:
        """Queue a message of at most MOST_BODY bytes; the message waits until the queue has room.

        Raises QueueError if too many messages wait.
        """
        if len(body) > MOST_BODY:
            raise ValueError(f"A message may have at most {MOST_BODY} bytes, but has {len(body)}.")
        if len(self._waiting) >= MOST_WAITING:
            raise QueueError(
                f"The driver does not read its messages; {MOST_WAITING} messages are waiting."
            )
        self._waiting.append(body)
        self.flush()

    def flush(self) -> None:
        """Write the waiting messages for which the queue has room now."""
        while self._waiting:
            units = -(-(ELEMENT_HEADER + len(self._waiting[0])) // PAGE)
            if units > self._room:
                self._read = self._pointer(self._commands + _READ_POINTER)
            if units > self._room:
                return
            self._put_now(self._waiting.popleft(), units)

    @property
    def _room(self) -> int:
        return SLOTS - 1 - (self._put - self._read) % SLOTS

    def _put_now(self, body: bytes, units: int) -> None:
        element = bytearray(units * PAGE)
        struct.pack_into("<III", element, _CHECKSUM, 0, self._sequence, units)
        element[ELEMENT_HEADER : ELEMENT_HEADER + len(body)] = body
        struct.pack_into("<I", element, _CHECKSUM, checksum(element))
        for index in range(units):
            slot = element[index * PAGE : (index + 1) * PAGE]
            self._pages.post(self._slot_offset(self._statuses, self._put + index), bytes(slot))
        self._put = (self._put + units) % SLOTS
        self._sequence = self._sequence + 1 & 0xFFFFFFFF
        self._pages.post(self._statuses + _WRITE_POINTER, struct.pack("<I", self._put))

    def settle(self) -> None:
        """Wait until the sent messages are in the guest's memory."""
        self._read = self._pointer(self._commands + _READ_POINTER)

    def _slot(self, index: int) -> bytes:
        return self._pages.read(self._slot_offset(self._commands, index), PAGE)

    @staticmethod
    def _slot_offset(queue: int, index: int) -> int:
        return queue + _FIRST_SLOT + index % SLOTS * PAGE

    def _pointer(self, offset: int) -> int:
        (value,) = struct.unpack("<I", self._pages.read(offset, 4))
        if value >= SLOTS:
            raise QueueError(f"A queue's pointer is {value}, but there are {SLOTS} slots.")
        return int(value)


def checksum(element: bytes | bytearray) -> int:
    """Return the XOR of all 32-bit words, which is 0 for an element that contains its checksum."""
    folded = int.from_bytes(element, "little")
    bits = 8 * len(element)
    # The padding to a power of two is zero, so it does not change the result.
    half = 1 << max(5, (bits - 1).bit_length()) - 1
    while half >= 32:
        folded = folded >> half ^ folded & (1 << half) - 1
        half //= 2
    return folded
