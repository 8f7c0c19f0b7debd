"""A node of eight GPUs out of a clone: hot-plugged one after the other, listed together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from harness.lab import saved_states

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image

#: What the project promises. It is the median of a run's clones that counts, not the worst.
_MOST_S = 3.0


@pytest.mark.slow
def test_eight_gpus_are_listed_within_seconds_of_their_plugging(
    clone: CloneState, node_image: Image, gpu_catalogue: Catalogue
) -> None:
    """The slots of one node are plugged like those of a rack: all at once, as far as QMP goes."""
    node = gpu_catalogue.node("nd96isr-h100-v5")
    machine = clone(
        saved_states.cloud_init_done(saved_states.booted(node_image, slots=node.count))
    )

    started = time.monotonic()
    for model in node.gpus:
        machine.hot_plug(model)
    machine.wait_for_gpu(node.model, count=node.count)
    took_s = time.monotonic() - started

    listed = machine.guest.output_of("lspci", "-n", "-d", str(node.model.pci)).splitlines()
    assert len(listed) == node.count
    assert took_s < _MOST_S, f"Eight GPUs were listed after {took_s:.1f} s."
    for number in range(node.count):
        assert machine.gpu(f"gpu{number}").trace.bar_accesses() == ()
