"""Describes the faults that a GPU has from the moment when it is plugged in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu.emulated import EmulatedGpu


@dataclass(frozen=True, kw_only=True)
class GpuScript:
    """The faults of one GPU; by default, the GPU has no faults.

    If `is_dead`, the GPU is on the bus, but its BARs read as all ones. `answers` maps offsets in
    BAR 0 to the values of 32-bit registers. `xids` are the Xids that the stand-in driver logs, the
    oldest first. If `mig_needs_reset`, a new MIG mode takes effect at the GPU's next reset.
    """

    is_dead: bool = False
    is_inforom_corrupted: bool = False
    mig_needs_reset: bool = False
    xids: tuple[int, ...] = ()
    answers: Mapping[int, int] = field(default_factory=dict)

    def apply(self, gpu: EmulatedGpu) -> None:
        """Apply the script to `gpu`, which is not plugged in yet."""
        if self.is_dead:
            gpu.die()
        if self.is_inforom_corrupted:
            gpu.corrupt_inforom()
        if self.mig_needs_reset:
            gpu.let_mig_need_reset()
        for number in self.xids:
            gpu.raise_xid(number)
        for offset, value in self.answers.items():
            gpu.answer(offset, value)
