"""`harness gpu host`: GPUs of a simulated host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from harness.cli import main
from suites.unit.cli.gpu_host import AUDIO, GPU

if TYPE_CHECKING:
    from suites.unit.gpu.passthrough.fake_host import FakeHost


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("arguments", [[], [f"--address={GPU}"], ["--count=1"]])
def test_gpu_host_run_binds_the_gpu_to_vfio_pci_during_the_command(
    host: FakeHost, arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    driver = host.device(GPU) / "driver"
    code = (
        "import os, pathlib, sys; "
        f"print(os.environ['HARNESS_GPU_ADDRESSES'], pathlib.Path('{driver}').readlink().name); "
        "sys.exit(7)"
    )

    assert main(["gpu", "host", "run", *arguments, "--", sys.executable, "-c", code]) == 7

    assert capfd.readouterr().out == f"{GPU},{AUDIO} vfio-pci\n"
    assert host.driver_of(GPU) == "nvidia"
