"""NVIDIA's open modules open an emulated GPU on a node that has only free software.

The tests run with `--gpu-emulation=gsp`. The driver accepts a firmware file of our own for each family of
chips; `open_gpus.py` is the only client.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.gpu.gsp import open_gpus
from harness.gpu.trace import IncidentKind
from harness.lab.node_request import NodeRequest
from harness.plugin.select import requirements
from suites.e2e.real_driver.complaints import complaints_in
from suites.e2e.real_driver.conftest import EMULATION, LOAD_S, OPEN_S

if TYPE_CHECKING:
    from harness.fixtures.machines import BootNode
    from harness.gpu import GpuModel
    from harness.image import Image
    from harness.lab import Lab
    from harness.settings import Settings

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_FREE_IMAGE = "debian-13-nvidia-free"
_CLIENT = "/root/open_gpus.py"


@pytest.fixture
def free_image(pytestconfig: pytest.Config, lab: Lab, settings: Settings) -> Image:
    """Return the image with the free parts of NVIDIA's driver."""
    option, word = EMULATION
    if pytestconfig.getoption(option, None) != word:
        pytest.skip(f"NVIDIA's driver opens a GPU only with {option}={word}.")
    with requirements(settings):
        return lab.node_image(_FREE_IMAGE)


def test_nvidias_open_source_modules_open_gpus_with_firmware_files_of_the_harness(
    boot_node: BootNode, free_image: Image, a100: GpuModel, h100: GpuModel
) -> None:
    """An A100 and an H100 load different firmware files."""
    request = NodeRequest(
        name="free", image=free_image, command=None, gpus=(a100, h100), skip_cloud_init=True
    )
    node = boot_node(request)
    node.guest.write_text(_CLIENT, Path(open_gpus.__file__).read_text())
    node.guest.output_of("nvidia-modprobe", "-u", "-c0", timeout_s=LOAD_S)

    answers = node.guest.output_of("python3", _CLIENT, timeout_s=OPEN_S)

    opened = [json.loads(line) for line in answers.splitlines()]
    assert [gpu["address"] for gpu in opened] == ["0000:02:00.0", "0000:03:00.0"]
    assert all(gpu["GPU UUID"].startswith("GPU-00000000-0000-4000-8000-") for gpu in opened)
    assert {gpu["GPU Firmware"] for gpu in opened} == {"550.163.01"}
    assert not node.guest.run("which", "nvidia-smi").ok
    assert complaints_in(node.guest.output_of("dmesg")) == []
    for device_id in ("gpu0", "gpu1"):
        assert node.gpu(device_id).trace.incidents_of(IncidentKind.COMMAND_UNKNOWN) == ()
