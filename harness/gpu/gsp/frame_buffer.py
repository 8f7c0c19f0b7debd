"""A GPU's own memory; only pages that were written are stored."""

from __future__ import annotations

from typing import Final

from harness.limits import GPU_MEMORY

PAGE: Final = 4096
_ZEROS: Final = bytes(PAGE)


class FrameBuffer:
    """Sparse memory; unwritten bytes read as zeros.

    Any address is valid, since page tables may lie beyond the end of the memory that is reported
    to the driver. The number of stored pages has a limit.
    """

    def __init__(self, *, source: str) -> None:
        """`source` names the GPU in the error about the limit."""
        self._source = source
        self._pages: dict[int, bytearray] = {}

    @property
    def kept_bytes(self) -> int:
        """Return the size of the stored pages in bytes."""
        return len(self._pages) * PAGE

    def clear(self) -> None:
        """Drop all content, as a loss of power does."""
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes."""
        pieces: list[bytes | bytearray] = []
        while size > 0:
            offset = address % PAGE
            length = min(size, PAGE - offset)
            page = self._pages.get(address // PAGE, _ZEROS)
            pieces.append(page[offset : offset + length])
            address += length
            size -= length
        return b"".join(pieces)

    def write(self, address: int, data: bytes) -> None:
        """Write `data`; raises LimitError if the stored pages would exceed the limit."""
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
        """Set `size` bytes to zero; the range may be the whole memory."""
        end = address + size
        first, behind = -(-address // PAGE), end // PAGE
        if first > behind:
            self.write(address, bytes(size))
            return
        self.write(address, bytes(first * PAGE - address))
        self.write(behind * PAGE, bytes(end - behind * PAGE))
        if behind - first < len(self._pages):
            for number in range(first, behind):
                self._pages.pop(number, None)
        else:
            for number in [each for each in self._pages if first <= each < behind]:
                del self._pages[number]
