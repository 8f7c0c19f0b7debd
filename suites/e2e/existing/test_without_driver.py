"""The report by SSH lists what is missing on a machine that was not provisioned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.expect.every_node import VerdictState, judge_node
from harness.lab.existing_node import ExistingNode
from suites.e2e.existing.address import address_of, by_name, let_in

if TYPE_CHECKING:
    from pathlib import Path

    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.lab import Lab
    from harness.lab.saved_states import SavedState


@pytest.mark.slow
def test_verdicts_on_a_node_without_a_driver_say_what_is_missing(
    lab: Lab, clone: CloneState, cloud_init_done: SavedState, h100: GpuModel, tmp_path: Path
) -> None:
    """The machine has a GPU and was not provisioned; each message is true for the machine."""
    machine = clone(cloud_init_done, gpus=[h100])
    machine.wait_for_gpu(h100)
    let_in(machine, lab.identity)
    node = ExistingNode(address_of(machine, lab.identity, tmp_path))

    verdicts = by_name(judge_node(node.collect(tmp_path / "evidence")))

    states = {name: verdict.state for name, verdict in verdicts.items()}
    assert {name for name, state in states.items() if state is VerdictState.MET} == {
        "gpu",
        "log",
        "services",
    }, verdicts
    assert VerdictState.UNKNOWN not in states.values()
    assert "no module 'nvidia' is loaded. Install a driver" in verdicts["driver"].sentence
    assert "modinfo finds none" in verdicts["module"].sentence
    assert "'/usr/bin/nvidia-smi'" in verdicts["tools"].sentence
    assert "no driver was baked into the node's image" in verdicts["record"].sentence
    assert "there is none" in verdicts["cdi"].sentence
    assert "'nvidia-container-runtime' was expected in" in verdicts["runtime"].sentence
