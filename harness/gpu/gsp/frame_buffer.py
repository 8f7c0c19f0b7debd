"""A GPU's own memory, of which only the pages that hold something are kept."""

from __future__ import annotations

from typing import Final

from harness.limits import GPU_MEMORY

PAGE: Final = 4096
_ZEROS: Final = bytes(PAGE)


class FrameBuffer:
    """Sparse memory; what was never written reads as zeros.

    Any address can be used, since the driver's page tables may lie behind the end of the memory that
    the driver is told of. What is kept is limited.
    """

    def __init__(self, *, source: str) -> None:
        """`source` names the GPU in the error about the limit."""
        self._source = source
        self._pages: dict[int, bytearray | memoryview] = {}
        self._lent: set[int] = set()

    @property
    def kept_bytes(self) -> int:
        """Return how many bytes of memory the pages take."""
        return len(self._pages) * PAGE

    def clear(self) -> None:
        """Forget everything, as a loss of power does."""
        self._pages.clear()
        self._lent.clear()

    def lend(self, number: int, place: memoryview, *, is_zero: bool) -> None:
        """Keep the page of that number at `place`, which is zeros where `is_zero`."""
        page = self._pages.get(number)
        if page is not None:
            place[:] = page
        elif not is_zero:
            place[:] = _ZEROS
        self._pages[number] = place
        self._lent.add(number)

    def take_back(self, number: int) -> None:
        """Keep the page of that number here again. Raises LimitError where that is too much to keep."""
        self._lent.discard(number)
        content = bytearray(self._pages.pop(number, _ZEROS))
        if content != _ZEROS:
            GPU_MEMORY.check_bytes(self.kept_bytes + PAGE, self._source)
            self._pages[number] = content

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes."""
        pieces: list[bytes | bytearray | memoryview] = []
        while size > 0:
            offset = address % PAGE
            length = min(size, PAGE - offset)
            page = self._pages.get(address // PAGE, _ZEROS)
            pieces.append(page[offset : offset + length])
            address += length
            size -= length
        return b"".join(pieces)

    def write(self, address: int, data: bytes) -> None:
        """Write `data`. Raises LimitError where that is too much to keep."""
        done = 0
        while done < len(data):
            offset = address % PAGE
            piece = data[done : done + PAGE - offset]
            number = address // PAGE
            page = self._pages.get(number)
            if page is None and piece.strip(b"\0"):
                GPU_MEMORY.check_bytes(self.kept_bytes + PAGE, self._source)
                page = self._pages[number] = bytearray(PAGE)
            if page is not None:
                page[offset : offset + len(piece)] = piece
            address += len(piece)
            done += len(piece)

    def zero(self, address: int, size: int) -> None:
        """Set `size` bytes, which may be all of the memory, to zero."""
        end = address + size
        first, behind = -(-address // PAGE), end // PAGE
        if first > behind:
            self.write(address, bytes(size))
            return
        self.write(address, bytes(first * PAGE - address))
        self.write(behind * PAGE, bytes(end - behind * PAGE))
        if behind - first < len(self._pages):
            kept = [number for number in range(first, behind) if number in self._pages]
        else:
            kept = [number for number in self._pages if first <= number < behind]
        for number in kept:
            if number in self._lent:
                self._pages[number][:] = _ZEROS
            else:
                del self._pages[number]
