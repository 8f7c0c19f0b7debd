"""The stand-in driver shows the same facts as NVIDIA's, which `suites/e2e/real_driver` checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.e2e.gpu.driver_facts import FACTS, driver_facts

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab.saved_states import SavedState

_WITHIN_S = 120.0


@pytest.mark.pin_image(reason="the stand-in is the same in each image")
def test_stand_in_looks_like_the_real_driver(
    clone: CloneState, driver_baked: SavedState, h100: GpuModel
) -> None:
    """The stand-in module makes no device nodes and keeps those that programs have made."""
    machine = clone(driver_baked, gpus=[h100])
    machine.wait_for_gpu(h100)

    facts = driver_facts(machine.guest, timeout_s=_WITHIN_S)

    assert facts == FACTS
