"""A GPU's channels, by which the driver submits work, and the copy engine that does this work.

Only the work that the driver itself submits is done: copies, fills and semaphores. NVIDIA's
published class headers (`clc56f.h`, `clc6b5.h`, `clc8b5.h`) define the methods of channels.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.frame_buffer import PAGE
from harness.gpu.gsp.page_tables import Space

if TYPE_CHECKING:
    from harness.gpu.gsp.address_space import AddressSpace, Memories

_GP_GET: Final = 0x88
_GP_PUT: Final = 0x8C
#: The maximum number of ring entries that one run carries out; for more entries, the device starts
#: another run.
_MOST_ENTRIES: Final = 4096
_ENTRY: Final = struct.Struct("<II")
_MOST_DWORDS: Final = 1 << 18
#: How many bytes are copied or filled in one step.
_PIECE: Final = 1 << 16
#: The maximum number of bytes of a copy or fill; the driver needs less. Fills with zeros have no
#: limit, since they are cheap.
_MOST_COPIED: Final = 64 << 20
_MOST_LINES: Final = 1 << 16

_INCREMENTING: Final = 1
_NON_INCREMENTING: Final = 3
_IMMEDIATE: Final = 4
_INCREMENT_ONCE: Final = 5

# Methods of the host (GPFIFO) class.
_SEM_ADDRESS: Final = (0x60, 0x5C)
_SEM_PAYLOAD: Final = (0x68, 0x64)
_SEM_EXECUTE: Final = 0x6C
# Methods of the copy class.
_SEMAPHORE: Final = (0x240, 0x244)
_SEMAPHORE_PAYLOAD: Final = 0x248
_SOURCE_PHYSICAL: Final = 0x260
_DESTINATION_PHYSICAL: Final = 0x264
_LAUNCH: Final = 0x300
_SOURCE: Final = (0x400, 0x404)
_DESTINATION: Final = (0x408, 0x40C)
_SOURCE_PITCH: Final = 0x410
_DESTINATION_PITCH: Final = 0x414
_LINE_LENGTH: Final = 0x418
_LINE_COUNT: Final = 0x41C
_REMAP_CONSTANT: Final = 0x700
_REMAP: Final = 0x708
_ADDRESS_HIGH: Final = 0x1FFFF


class ChannelError(Exception):
    """The guest submitted work that this GPU does not support."""


@dataclass(frozen=True, kw_only=True)
class ChannelPlace:
    """The addresses of a channel's parts, from its parameters."""

    entries_at: int
    """The virtual address of the ring of entries."""
    entries: int
    state_in: Space
    state_at: int
    """The physical address of the channel's USERD, in the memory `state_in`."""


class Channel:
    """One channel; `run` carries out the entries that the guest has put into its ring."""

    def __init__(
        self, place: ChannelPlace, space: AddressSpace, memories: Memories, *, can_scrub: bool
    ) -> None:
        self._place = place
        self._space = space
        self._memories = memories
        self._engine = CopyEngine(space, memories, can_scrub=can_scrub)
        self._next = 0
        self._methods: dict[int, int] = {}

    def run(self) -> bool:
        """Carry out a limited number of new entries; return whether there are more.

        Raises ChannelError, UnmappedError, GuestMemoryError and LimitError.
        """
        place = self._place
        put = int.from_bytes(self._state(_GP_PUT), "little")
        if put >= place.entries:
            raise ChannelError(
                f"The put pointer is {put}, but the ring has {place.entries} entries."
            )
        done = 0
        while self._next != put and done < _MOST_ENTRIES:
            entries = self._read_entries(put)
            done += len(entries)
            for low, high in entries:
                self._next = (self._next + 1) % place.entries
                self._push((low & ~3) | (high & 0xFF) << 32, high >> 10 & 0x1FFFFF)
        if done:
            at = place.state_at + _GP_GET
            self._memories.write(place.state_in, at, struct.pack("<I", self._next))
        return self._next != put

    def _read_entries(self, put: int) -> list[tuple[int, int]]:
        """Read the new entries of one page in a single read, because each read is a message to QEMU."""
        start = self._place.entries_at + _ENTRY.size * self._next
        behind = put if put > self._next else self._place.entries
        in_page = max(1, (PAGE - start % PAGE) // _ENTRY.size)
        count = min(behind - self._next, in_page)
        return list(_ENTRY.iter_unpack(self._space.read(start, _ENTRY.size * count)))

    def _state(self, offset: int) -> bytes:
        return self._memories.read(self._place.state_in, self._place.state_at + offset, 4)

    def _push(self, address: int, dwords: int) -> None:
        if dwords > _MOST_DWORDS:
            raise ChannelError(f"A push buffer has {dwords} words, more than {_MOST_DWORDS}.")
        words = struct.unpack(f"<{dwords}I", self._space.read(address, 4 * dwords))
        index = 0
        while index < dwords:
            header = words[index]
            index += 1
            index += self._method(header, words, index)

    def _method(self, header: int, words: tuple[int, ...], start: int) -> int:
        """Carry out a header's methods with the words from `start` on.

        Return the number of used words.
        """
        opcode, count = header >> 29, header >> 16 & 0x1FFF
        method = (header & 0xFFF) << 2
        if opcode == _IMMEDIATE:
            self._call(method, count)
            return 0
        if opcode not in {_INCREMENTING, _NON_INCREMENTING, _INCREMENT_ONCE}:
            if header:
                raise ChannelError(f"{header:#010x} is not a method header.")
            return 0
        for step, value in enumerate(words[start : start + count]):
            most = {_INCREMENTING: step, _NON_INCREMENTING: 0}.get(opcode, min(step, 1))
            self._call(method + 4 * most, value)
        return count

    def _call(self, method: int, value: int) -> None:
        self._methods[method] = value
        if method == _SEM_EXECUTE:
            self._release(value)
        elif method == _LAUNCH:
            self._engine.launch(self._methods, value)

    def _release(self, execute: int) -> None:
        if execute & 7 != 1:
            return
        methods = self._methods
        address = _joined(methods, _SEM_ADDRESS, high_mask=0xFF) & ~3
        payload = _joined(methods, _SEM_PAYLOAD, high_mask=0xFFFFFFFF)
        is_wide = execute >> 24 & 1
        self._space.write(address, payload.to_bytes(8, "little")[: 8 if is_wide else 4])


class CopyEngine:
    """Copies and fills memory, and releases semaphores."""

    def __init__(self, space: AddressSpace, memories: Memories, *, can_scrub: bool) -> None:
        self._space = space
        self._memories = memories
        self._can_scrub = can_scrub

    def launch(self, methods: dict[int, int], launch: int) -> None:
        """Carry out LAUNCH_DMA."""
        if launch & 3:
            destination = _joined(methods, _DESTINATION)
            if self._can_scrub and launch >> 23 & 1:
                self._memories.frame_buffer.zero(destination, methods.get(_LINE_LENGTH, 0))
            elif launch >> 10 & 1:
                self._fill(methods, launch, destination)
            else:
                self._copy(methods, launch, destination)
        self._release(methods, launch >> 3 & 3)

    def _fill(self, methods: dict[int, int], launch: int, destination: int) -> None:
        remap = methods.get(_REMAP, 0)
        component, components = (remap >> 16 & 3) + 1, (remap >> 24 & 3) + 1
        size = methods.get(_LINE_LENGTH, 0) * component * components
        constant = methods.get(_REMAP_CONSTANT, 0).to_bytes(4, "little")
        target = self._target(methods, _DESTINATION_PHYSICAL, is_physical=bool(launch >> 13 & 1))
        if target is Space.FRAME_BUFFER and not any(constant):
            self._memories.frame_buffer.zero(destination, size)
            return
        _check_size(size)
        pattern = (constant[:component] * components) * (_PIECE // (component * components) + 1)
        whole = _PIECE // (component * components) * (component * components)
        for start in range(0, size, whole):
            piece = pattern[: min(whole, size - start)]
            self._write(target, destination + start, piece)

    def _copy(self, methods: dict[int, int], launch: int, destination: int) -> None:
        length = methods.get(_LINE_LENGTH, 0)
        lines = methods.get(_LINE_COUNT, 1) if launch >> 9 & 1 else 1
        if lines > _MOST_LINES:
            raise ChannelError(f"A copy has {lines} lines, more than {_MOST_LINES}.")
        _check_size(length * lines)
        origin = _joined(methods, _SOURCE)
        source = self._target(methods, _SOURCE_PHYSICAL, is_physical=bool(launch >> 12 & 1))
        target = self._target(methods, _DESTINATION_PHYSICAL, is_physical=bool(launch >> 13 & 1))
        for line in range(lines):
            read_at = origin + line * methods.get(_SOURCE_PITCH, 0)
            write_at = destination + line * methods.get(_DESTINATION_PITCH, 0)
            for start in range(0, length, _PIECE):
                piece = self._read(source, read_at + start, min(_PIECE, length - start))
                self._write(target, write_at + start, piece)

    def _release(self, methods: dict[int, int], kind: int) -> None:
        if not kind:
            return
        payload = methods.get(_SEMAPHORE_PAYLOAD, 0)
        data = struct.pack("<I", payload) if kind == 1 else struct.pack("<QQ", payload, 0)
        self._space.write(_joined(methods, _SEMAPHORE), data)

    @staticmethod
    def _target(methods: dict[int, int], mode: int, *, is_physical: bool) -> Space | None:
        """Return the memory to which a physical address belongs, or None for a virtual address."""
        if not is_physical:
            return None
        return Space.GUEST if methods.get(mode, 0) & 3 else Space.FRAME_BUFFER

    def _read(self, space: Space | None, address: int, size: int) -> bytes:
        if space is None:
            return self._space.read(address, size)
        return self._memories.read(space, address, size)

    def _write(self, space: Space | None, address: int, data: bytes) -> None:
        if space is None:
            self._space.write(address, data)
        else:
            self._memories.write(space, address, data)


def _check_size(size: int) -> None:
    if size > _MOST_COPIED:
        raise ChannelError(f"{size} bytes are more than the driver copies at once.")


def _joined(
    methods: dict[int, int], halves: tuple[int, int], *, high_mask: int = _ADDRESS_HIGH
) -> int:
    high, low = halves
    return methods.get(low, 0) | (methods.get(high, 0) & high_mask) << 32
