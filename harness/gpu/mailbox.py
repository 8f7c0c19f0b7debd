"""Registers by which the stand-in driver and an emulated GPU exchange Xids and the MIG mode.

No real GPU has these registers. The registers are at the end of the first 16 MiB of BAR 0;
NVIDIA's own driver was never seen to read these addresses. The stand-in driver's side is
`images/stand-ins/driver/module/nvidia.c`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAGIC = 0xFFF000
XID = 0xFFF004
HEALTH = 0xFFF008
MIG = 0xFFF00C
REGISTERS = frozenset({MAGIC, XID, HEALTH, MIG})

MAGIC_VALUE = 0x47504E48

INFOROM_CORRUPTED = 1 << 0

MIG_ABLE = 1 << 0
MIG_ENABLED = 1 << 1
MIG_PENDING = 1 << 2

#: The maximum number of queued Xids, more than any test needs; only a driver removes Xids from the
#: queue.
_MOST_XIDS = 64


@dataclass(frozen=True, kw_only=True)
class MigMode:
    """Whether MIG mode is on, and whether it will be on after the GPU's next reset."""

    is_enabled: bool
    is_pending: bool


class Mailbox:
    """The state of the registers; not thread-safe, so the GPU serialises the calls."""

    def __init__(self, *, has_mig: bool) -> None:
        self.is_inforom_corrupted = False
        self.mig_needs_reset = False
        self._has_mig = has_mig
        self._is_mig_enabled = False
        self._is_mig_pending = False
        self._xids: deque[int] = deque(maxlen=_MOST_XIDS)

    @property
    def mig_mode(self) -> MigMode:
        return MigMode(is_enabled=self._is_mig_enabled, is_pending=self._is_mig_pending)

    def raise_xid(self, number: int) -> None:
        """Queue an Xid for the driver, behind the Xids that the driver has not read yet."""
        self._xids.append(number)

    def read(self, offset: int) -> int:
        """Return the register at `offset`."""
        if offset == MAGIC:
            return MAGIC_VALUE
        if offset == XID:
            return self._xids[0] if self._xids else 0
        if offset == HEALTH:
            return INFOROM_CORRUPTED * self.is_inforom_corrupted
        return (
            MIG_ABLE * self._has_mig
            | MIG_ENABLED * self._is_mig_enabled
            | MIG_PENDING * self._is_mig_pending
        )

    def write(self, offset: int, value: int) -> None:
        """Handle a write by the driver, which removes the first Xid or sets the next MIG mode."""
        if offset == XID and value == 0 and self._xids:
            self._xids.popleft()
        elif offset == MIG and self._has_mig:
            self._is_mig_pending = bool(value & MIG_PENDING)
            if not self.mig_needs_reset:
                self._is_mig_enabled = self._is_mig_pending

    def reset(self) -> None:
        """Make a pending MIG mode take effect.

        QEMU also resets a device when the device is plugged in.
        """
        self._is_mig_enabled = self._is_mig_pending
