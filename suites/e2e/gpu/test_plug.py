"""A running machine sees a GPU that is plugged, and no longer sees a GPU that is unplugged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab.saved_states import SavedState


@pytest.mark.slow
def test_gpu_is_plugged_and_unplugged_while_the_machine_runs(
    clone: CloneState, cloud_init_done: SavedState, h100: GpuModel, a100: GpuModel
) -> None:
    """Two different GPUs are plugged and unplugged without a reboot."""
    machine = clone(cloud_init_done)
    listed = ("lspci", "-n", "-d", "10de:")
    assert machine.guest.output_of(*listed) == ""

    first = machine.hot_plug(h100)
    machine.hot_plug(a100)
    machine.wait_for_gpu(h100)
    machine.wait_for_gpu(a100)
    machine.hot_unplug(first)

    (left,) = machine.guest.output_of(*listed).splitlines()
    assert "10de:20b0" in left
