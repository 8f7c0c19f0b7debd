"""NVIDIA's own driver opens the eight GPUs of one node.

The test runs with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.gpu.trace import IncidentKind
from suites.e2e.real_driver.complaints import complaints_in
from suites.e2e.real_driver.conftest import OPEN_S

if TYPE_CHECKING:
    from harness.gpu import GpuModel
    from suites.e2e.real_driver.conftest import NodeWithDriver

pytestmark = [pytest.mark.real_driver, pytest.mark.slow, pytest.mark.nightly]

_GPUS = 8
_UUID = re.compile(r"UUID: (GPU-00000000-0000-4000-8000-[0-9a-f]{12})")


def test_eight_gpus_are_opened_in_one_guest(
    node_with_driver: NodeWithDriver, a100: GpuModel
) -> None:
    node = node_with_driver(*[a100] * _GPUS)
    limit_s = _GPUS * OPEN_S
    node.guest.output_of("nvidia-smi", "-pm", "1", timeout_s=limit_s)

    listed = node.guest.output_of("nvidia-smi", "-L", timeout_s=limit_s)
    topology = node.guest.output_of("nvidia-smi", "topo", "-m", timeout_s=limit_s)

    assert listed.count(a100.title) == _GPUS
    assert len(set(_UUID.findall(listed))) == _GPUS
    plain = re.sub(r"\x1b\[[0-9;]*m", "", topology)
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d.*\bX\b", line)]
    # Each GPU is behind its own root port, and all root ports are behind one host bridge.
    assert [row[1 : 1 + _GPUS] for row in rows] == [
        ["X" if other == own else "PHB" for other in range(_GPUS)] for own in range(_GPUS)
    ]
    assert complaints_in(node.guest.output_of("dmesg")) == []
    for index in range(_GPUS):
        assert node.gpu(f"gpu{index}").trace.incidents_of(IncidentKind.COMMAND_UNKNOWN) == ()
