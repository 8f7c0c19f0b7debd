"""A simulated host whose GPUs are leased."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.gpu.passthrough.pool import GpuPool
from suites.unit.gpu.passthrough.fake_host import (
    AUDIO_CLASS,
    L4,
    FakeHost,
    FakeKernel,
)
from suites.unit.gpu.passthrough.leasing import AUDIO, GPU, SECOND

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host with an H100 that has an audio function, and an L4."""
    host = FakeHost(tmp_path / "host")
    host.add_function(GPU, group=5, driver="nvidia")
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS, driver="snd_hda_intel")
    host.add_function(SECOND, group=6, device=L4)
    return host


@pytest.fixture
def kernel(host: FakeHost) -> FakeKernel:
    return FakeKernel(host, matching={GPU: "nvidia", AUDIO: "snd_hda_intel"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "leases"
    folder.mkdir()
    folder.chmod(0o2770)
    return folder


@pytest.fixture
def pool(host: FakeHost, kernel: FakeKernel, folder: Path) -> GpuPool:
    return GpuPool(folder, root=host.root, runner=kernel, process=1)
