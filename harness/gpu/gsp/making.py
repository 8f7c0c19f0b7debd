"""Makes the engine of a GPU model, or raises an error if the harness can't emulate the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import RequirementError, listed
from harness.gpu.gsp.chips import CHIPS
from harness.gpu.gsp.device import GspDevice
from harness.gpu.gsp.state import GpuState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.gpu import Bars, GpuModel
    from harness.gpu.config_space import ConfigSpace


def make_engine(
    model: GpuModel, bars: Bars, number: int, model_folders: tuple[Path, ...] = ()
) -> Callable[[ConfigSpace], GspDevice]:
    """Return a function that makes the engine; `number` becomes part of the GPU's invented UUID.

    `model_folders` are the user's folders of GPU models, which may have data of driver releases.
    Raises RequirementError for a model without a GSP, and for a chip that is not emulated.
    """
    facts = model.gsp
    if facts is None:
        raise RequirementError(
            f"GPU model '{model.name}' has no emulated system processor (GSP), so "
            "NVIDIA's driver can't open this GPU; use emulation 'identity', or a model whose file has the key "
            "'gsp'."
        )
    chip = CHIPS.get(model.chip)
    if chip is None:
        known = listed(sorted(each.name for each in CHIPS.values()))
        raise RequirementError(
            f"GPU model '{model.name}' has chip {model.chip:#x}, whose boot the harness does not "
            f"emulate; the emulated chips are {known}. Use emulation 'identity'."
        )

    def make(config: ConfigSpace) -> GspDevice:
        state = GpuState(
            model=model,
            facts=facts,
            chip=chip,
            bars=bars,
            number=number,
            model_folders=model_folders,
            bar_address=config.bar_address,
        )
        return GspDevice(state, read_config=config.read)

    return make
