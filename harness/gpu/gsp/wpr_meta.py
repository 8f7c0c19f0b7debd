"""Parses the driver's description of the memory that only the GSP can access (WPR2)."""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = 0xDC3AAE21371A60B3
SIZE: Final = 256
#: Offsets in `GspFwWprMeta`, the same in all known releases.
_START_AND_END: Final = {"gspFwWprStart": 0x70, "gspFwWprEnd": 0xA8}


class WprError(Exception):
    """The driver's description of the protected memory is invalid."""


def parse_wpr_meta(data: bytes) -> tuple[int, int]:
    """Return the beginning and the end of the protected memory; raises WprError."""
    if len(data) < SIZE or int.from_bytes(data[:8], "little") != MAGIC:
        raise WprError("The booter got no description of the protected memory.")
    start, end = (struct.unpack_from("<Q", data, at)[0] for at in _START_AND_END.values())
    return start, end
