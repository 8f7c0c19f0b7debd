"""Reads and writes fields of a driver release's structures within bytes; a path names a field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.layouts import MissingNameError

if TYPE_CHECKING:
    from harness.gpu.gsp.layouts import Layouts

_PART: Final = re.compile(r"([^.\[\]]+)(?:\[(\d+)\])?")


class Record:
    """One structure within `data`, from `start` on.

    A path is for example `gidInfo.data` or `tpcInfo[3].tpcMask`. The data may be shorter than the
    structure, since the guest decides its size. Fields beyond the end of the data read as 0, and
    writes to these fields are ignored.
    """

    def __init__(self, layouts: Layouts, name: str, data: bytearray, start: int = 0) -> None:
        self._layouts = layouts
        self._name = name
        self._data = data
        self._start = start

    @property
    def content(self) -> bytes:
        return bytes(self._data[self._start :])

    def text(self, path: str) -> str:
        """Return the text of a field, up to its first zero byte."""
        return bytes(self._data[self.offset(path) :]).split(b"\0")[0].decode("ascii", "replace")

    def get(self, path: str) -> int:
        """Return a number."""
        offset, size = self._place(path)
        return int.from_bytes(self._data[offset : offset + size], "little")

    def put(self, path: str, value: int | bytes) -> None:
        """Write a number or bytes into a field."""
        offset, size = self._place(path)
        if isinstance(value, int):
            value = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        end = min(offset + len(value), len(self._data))
        if offset < end:
            self._data[offset:end] = value[: end - offset]

    def offset(self, path: str) -> int:
        """Return the offset of a field in the data."""
        return self._place(path)[0]

    def __contains__(self, path: str) -> bool:
        """Return whether this release's structure has the field."""
        try:
            self._place(path)
        except MissingNameError:
            return False
        return True

    def _place(self, path: str) -> tuple[int, int]:
        """Return the offset and the size of one element; raises MissingNameError for an unknown path."""
        offset, size, name = self._start, 0, self._name
        for found in _PART.finditer(path):
            field = self._layouts.struct(name).fields.get(found[1])
            if field is None:
                raise MissingNameError(f"{name}.{found[1]}")
            offset += field.offset + field.size * int(found[2] or 0)
            size, name = field.size, field.type
        return offset, size
