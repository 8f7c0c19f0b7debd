"""The engines of a GPU, and the vectors of their interrupts."""

from __future__ import annotations

import pytest

from harness.gpu.gsp.engines import engine_mask, engines, interrupt_table
from harness.gpu.gsp.layouts import known_releases, read_layouts


@pytest.mark.parametrize("release", known_releases())
def test_engines_of_a_gpu_with_mig_have_different_numbers_and_interrupts(release: str) -> None:
    layouts = read_layouts(release)
    found = engines(layouts, copy_engines=5, graphics=8)

    driven = [each for each in found if each.pbdma is not None]
    assert [each.name for each in found if each not in driven] == ["SW"]
    for fact in ("name", "runlist", "pbdma", "fault_id", "rm_type", "mc_index", "descriptor"):
        assert len({getattr(each, fact) for each in driven}) == 5 + 8, fact
    assert engine_mask(found) == sum(1 << each.rm_type for each in driven)
    table = list(interrupt_table(layouts, found))
    assert len({source for source, _, _ in table}) == len(table)
    assert len({stall for _, stall, _ in table}) == len(table)
    assert [(source, other) for source, _, other in table if other != 0xFFFFFFFF] == [
        (each.mc_index, position) for position, each in enumerate(driven)
    ]
