"""Fixtures that simulate a host with GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.cli import host_gpus
from harness.gpu.passthrough.pool import GpuPool
from harness.lab import gpu_sources
from suites.unit.cli.gpu_host import AUDIO, GPU, SECOND
from suites.unit.gpu.passthrough.fake_host import AUDIO_CLASS, L4, FakeHost, FakeKernel

if TYPE_CHECKING:
    from pathlib import Path

    from harness.gpu.catalogue import Catalogue
    from harness.settings import Settings


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path / "host")
    host.add_function(GPU, group=5, driver="nvidia")
    host.add_function(AUDIO, group=5, class_code=AUDIO_CLASS)
    host.add_function(SECOND, group=6, device=L4, boot_vga=True)
    return host


@pytest.fixture
def kernel(host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    """Return the simulated kernel that the commands see; leases are in a folder of this test."""
    kernel = FakeKernel(host)
    tmp_path.chmod(0o755)

    def open_pool(settings: Settings, catalogue: Catalogue | None = None) -> GpuPool:
        return GpuPool(
            settings.gpu_pool_folder,
            inventory=gpu_sources.inventory_of(settings, catalogue),
            root=host.root,
            runner=kernel,
        )

    monkeypatch.setenv("HARNESS_GPU_POOL_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr(gpu_sources, "INVENTORY", tmp_path / "absent.yaml")
    monkeypatch.setattr(host_gpus, "open_gpu_pool", open_pool)
    return kernel
