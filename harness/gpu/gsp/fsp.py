"""Channel 0 of the processor FSP, through which the driver boots the GSP of a Hopper GPU.

The registers are `NV_PFSP_*`. Each message is one MCTP packet, as `src/kernel/gpu/fsp` of the open
kernel modules sends it.
"""

from __future__ import annotations

import struct
from typing import Final

_CONTROL: Final = 0x8F2AC0
_DATA: Final = 0x8F2AC4
_QUEUE_HEAD: Final = 0x8F2C00
_QUEUE_TAIL: Final = 0x8F2C04
_MESSAGE_HEAD: Final = 0x8F2C80
_MESSAGE_TAIL: Final = 0x8F2C84

_OFFSET: Final = 0xFFFC
_INCREMENT_ON_WRITE: Final = 1 << 24
_INCREMENT_ON_READ: Final = 1 << 25

#: The flags of a packet with a whole message, and the type of NVIDIA's vendor message.
_WHOLE: Final = 1 << 31 | 1 << 30
_VENDOR: Final = 0x10DE << 8 | 0x7E
_TYPE_SHIFT: Final = 24
_CHAIN_OF_TRUST: Final = 0x14
_RESPONSE: Final = 0x15
#: The offset of the boot arguments' address in the message.
_BOOT_ARGUMENTS: Final = 8 + 0x354


class FspQueue:
    """The memory that the driver and the FSP share, and the pointers of the two queues in it."""

    def __init__(self) -> None:
        self.has_message = False
        self._memory = bytearray(_OFFSET + 4)
        self._control = 0
        self._pointers = dict.fromkeys((_QUEUE_HEAD, _QUEUE_TAIL, _MESSAGE_HEAD, _MESSAGE_TAIL), 0)

    def read(self, offset: int) -> int | None:
        """Return a register, or None if the register does not belong to this queue."""
        if offset == _DATA:
            at = self._control & _OFFSET
            self._advance(_INCREMENT_ON_READ)
            return int.from_bytes(self._memory[at : at + 4], "little")
        return self._control if offset == _CONTROL else self._pointers.get(offset)

    def write(self, offset: int, value: int) -> bool:
        """Write a register; return whether the register belongs to this queue."""
        if offset == _CONTROL:
            self._control = value
        elif offset == _DATA:
            at = self._control & _OFFSET
            self._memory[at : at + 4] = value.to_bytes(4, "little")
            self._advance(_INCREMENT_ON_WRITE)
        elif offset in self._pointers:
            self._pointers[offset] = value
            self.has_message = self.has_message or offset == _QUEUE_HEAD
        else:
            return False
        return True

    def _advance(self, flag: int) -> None:
        if self._control & flag:
            self._control = self._control & ~0xFFFF | self._control + 4 & 0xFFFF

    def take(self) -> int | None:
        """Answer the message; return the address of its boot arguments, or None if there are none."""
        self.has_message = False
        size = min(self._pointers[_QUEUE_TAIL] + 4, len(self._memory))
        message = bytes(self._memory[:size])
        kind = message[7] if size >= 8 else 0
        answer = struct.pack("<5I", _WHOLE, _RESPONSE << _TYPE_SHIFT | _VENDOR, 0, kind, 0)
        self._memory[: len(answer)] = answer
        self._pointers = {
            _QUEUE_HEAD: 0,
            _QUEUE_TAIL: 0,
            _MESSAGE_HEAD: 0,
            _MESSAGE_TAIL: len(answer) - 4,
        }
        if kind != _CHAIN_OF_TRUST or size < _BOOT_ARGUMENTS + 8:
            return None
        return int.from_bytes(message[_BOOT_ARGUMENTS : _BOOT_ARGUMENTS + 8], "little")
