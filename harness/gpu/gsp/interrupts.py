"""The interrupt tree of GPUs since Turing: vectors in leaves, leaves in subtrees.

Offsets are in the virtual function's registers, `NV_VIRTUAL_FUNCTION_PRIV_CPU_INTR_*`.
"""

from __future__ import annotations

from typing import Final

LEAVES: Final = 8
_PENDING: Final = 0x1000
_ENABLE_SET: Final = 0x1200
_ENABLE_CLEAR: Final = 0x1400
_TOP: Final = 0x1600
_TOP_ENABLE_SET: Final = 0x1608
_TOP_ENABLE_CLEAR: Final = 0x1610
_TRIGGER: Final = 0x1640
_LEAF_END: Final = 4 * LEAVES

FIRST: Final = _PENDING
BEHIND_LAST: Final = _TRIGGER + 4


class InterruptTree:
    """Pending and enabled vectors. `is_raised` says whether the GPU signals its interrupt."""

    def __init__(self) -> None:
        self._pending = [0] * LEAVES
        self._enabled = [0] * LEAVES
        self._top_enabled = 0

    def clear(self) -> None:
        """Clear all pending vectors; enabled vectors stay enabled."""
        self._pending = [0] * LEAVES

    @property
    def top(self) -> int:
        """Return a mask of the subtrees with a vector that is pending and enabled."""
        return sum(
            1 << leaf // 2 if leaf % 2 == 0 or not self._is_active(leaf - 1) else 0
            for leaf in range(LEAVES)
            if self._is_active(leaf)
        )

    def _is_active(self, leaf: int) -> bool:
        return bool(self._pending[leaf] & self._enabled[leaf])

    @property
    def is_raised(self) -> bool:
        return bool(self.top & self._top_enabled)

    def trigger(self, vector: int) -> None:
        """Make a vector pending; vectors that do not exist are ignored."""
        if 0 <= vector < 32 * LEAVES:
            self._pending[vector // 32] |= 1 << vector % 32

    def read(self, offset: int) -> int:
        """Return the register at `offset`."""
        if offset - _PENDING in range(_LEAF_END):
            return self._pending[(offset - _PENDING) // 4]
        for enable in (_ENABLE_SET, _ENABLE_CLEAR):
            if offset - enable in range(_LEAF_END):
                return self._enabled[(offset - enable) // 4]
        if offset == _TOP:
            return self.top
        return self._top_enabled if offset in {_TOP_ENABLE_SET, _TOP_ENABLE_CLEAR} else 0

    def write(self, offset: int, value: int) -> bool:
        """Write the register at `offset`; return whether the caller has to check the interrupt."""
        if offset - _PENDING in range(_LEAF_END):
            self._pending[(offset - _PENDING) // 4] &= ~value
        elif offset - _ENABLE_SET in range(_LEAF_END):
            self._enabled[(offset - _ENABLE_SET) // 4] |= value
            return True
        elif offset - _ENABLE_CLEAR in range(_LEAF_END):
            self._enabled[(offset - _ENABLE_CLEAR) // 4] &= ~value
        elif offset == _TOP_ENABLE_SET:
            self._top_enabled |= value
            return True
        elif offset == _TOP_ENABLE_CLEAR:
            self._top_enabled &= ~value
        elif offset == _TRIGGER:
            self.trigger(value & 0xFF)
            return True
        return False
