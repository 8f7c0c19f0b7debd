"""A driver baked into an image."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .fakes import IMAGE, KERNEL, OTHER_KERNEL, RECORD_PATH, SHA, VERSION, Invocation
from .simulation import SimulatedNode, module_path

if TYPE_CHECKING:
    from pathlib import Path

BAKE = {
    "gpu_driver_version": VERSION,
    "gpu_image_sha": SHA,
    "feature_flags": "X,NVIDIA_CUDA_PREBAKE",
}


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(tmp_path, has_gpu=False, kernel=OTHER_KERNEL)


@pytest.fixture
def invocation(simulated: SimulatedNode) -> Invocation:
    return Invocation(simulated.top, simulated)


def test_bake_builds_for_the_newest_kernel_and_keeps_the_image(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    assert invocation.run("bake", BAKE) == 0

    assert simulated.root.exists(module_path(KERNEL))
    assert simulated.images == {IMAGE}
    assert invocation.outcome()["record"] == {
        "kernel": KERNEL,
        "driver_version": VERSION,
        "driver_kind": "cuda",
        "arch": "x86_64",
    }
    assert f"  - nvidia-cuda-driver-prebaked={VERSION}-{SHA} (kernel {KERNEL})" in invocation.log()


def test_bake_without_the_flag_only_fetches_the_image(
    simulated: SimulatedNode, invocation: Invocation
) -> None:
    flags = "XNVIDIA_CUDA_PREBAKE,NVIDIA_CUDA_PREBAKE_NOT"

    assert invocation.run("bake", {**BAKE, "feature_flags": flags}) == 0

    assert list(invocation.steps()) == ["fetch-driver-image", "list-driver-image"]
    assert not simulated.root.exists(RECORD_PATH)


def test_failed_build_leaves_no_record(simulated: SimulatedNode, invocation: Invocation) -> None:
    simulated.image_actions = ("install",)

    assert invocation.run("bake", BAKE) == 1

    assert not simulated.root.exists(RECORD_PATH)
