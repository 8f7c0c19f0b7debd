"""A clone gets eight GPUs by hot-plug, one after the other, and lists all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.lab import saved_states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image

#: Seven GPUs would take seven times as long as one if the harness waited after each.
_MOST_TIMES = 4.0


@pytest.mark.nightly
def test_harness_waits_once_for_all_gpus_of_a_node(
    clone: CloneState, node_image: Image, gpu_catalogue: Catalogue
) -> None:
    """All GPUs of a node are plugged in before the harness waits for them."""
    node = gpu_catalogue.node("nd96isr-h100-v5")
    machine = clone(
        saved_states.cloud_init_done(saved_states.booted(node_image, slots=node.count))
    )

    def plug(models: Sequence[GpuModel], *, count: int) -> float:
        started = time.monotonic()
        for model in models:
            machine.hot_plug(model)
        machine.wait_for_gpu(node.model, count=count)
        return time.monotonic() - started

    first_s = plug(node.gpus[:1], count=1)
    rest_s = plug(node.gpus[1:], count=node.count)

    listed = machine.guest.output_of("lspci", "-n", "-d", str(node.model.pci)).splitlines()
    assert len(listed) == node.count
    assert rest_s < _MOST_TIMES * first_s, (
        f"one GPU: {first_s:.2f} s, {node.count - 1}: {rest_s:.2f} s"
    )
    for number in range(node.count):
        assert machine.gpu(f"gpu{number}").trace.bar_accesses() == ()
