"""One control call of the driver, and its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from harness.gpu.gsp.engines import engines
from harness.gpu.gsp.layouts import MissingNameError
from harness.gpu.gsp.records import Record

if TYPE_CHECKING:
    from harness.gpu.gsp.address_space import Memories
    from harness.gpu.gsp.engines import Engine
    from harness.gpu.gsp.layouts import Layouts
    from harness.gpu.gsp.state import GpuState

OK: Final = 0
INVALID_ARGUMENT: Final = 0x1F
NOT_SUPPORTED: Final = 0x56


@dataclass(frozen=True, kw_only=True)
class Call:
    """One control call; the answer overwrites `parameters`."""

    state: GpuState
    layouts: Layouts
    memories: Memories
    command: int
    client: int
    handle: int
    parameters: bytearray

    def record(self) -> Record:
        """Return the parameters as the structure that the headers define."""
        known = self.layouts.command(self.command)
        name = known.struct if known is not None else None
        return Record(self.layouts, name or "", self.parameters)

    def clear(self, start: int = 0) -> None:
        """Set all parameters from `start` on to zero."""
        self.parameters[start:] = bytes(max(0, len(self.parameters) - start))

    def fill(self, values: Mapping[str, int | bytes]) -> None:
        """Set each of these fields that exists in the release, and set all other parameters to zero."""
        self.clear()
        record = self.record()
        for path, value in values.items():
            with contextlib.suppress(MissingNameError):
                record.put(path, value)

    def put(self, offset: int, data: bytes) -> None:
        """Write into the parameters; bytes beyond their end are dropped."""
        end = min(offset + len(data), len(self.parameters))
        if offset < end:
            self.parameters[offset:end] = data[: end - offset]

    def word(self, offset: int) -> int:
        """Return the 32-bit number at `offset`; 0 beyond the end."""
        return int.from_bytes(self.parameters[offset : offset + 4], "little")

    @property
    def engines(self) -> list[Engine]:
        return gpu_engines(self.state, self.layouts)


Answer: TypeAlias = Callable[[Call], int]


def gpu_engines(state: GpuState, layouts: Layouts) -> list[Engine]:
    """Return the engines of a GPU; a GPU with MIG has seven more graphics engines."""
    graphics = 8 if state.can_have_mig and "MC_ENGINE_IDX_GR7" in layouts.constants else 1
    return engines(layouts, copy_engines=state.facts.copy_engines, graphics=graphics)
