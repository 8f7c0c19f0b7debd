"""Each model of the catalogue, plugged into a node whose driver is loaded: opened, or refused by the driver.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.bench.gpu_open import with_driver_loaded
from harness.gpu.catalogue import load_catalogue
from harness.lab.saved_states import booted
from suites.e2e.real_driver.conftest import OPEN_S

if TYPE_CHECKING:
    from harness.fixtures.saved_states import CloneState
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.image import Image

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_OPENED = sorted(name for name, model in load_catalogue().models.items() if model.gsp is not None)
_FACTS = "--query-gpu=name,uuid,memory.total,pci.bus_id"
#: It is too new, has no GSP, or, with the proprietary modules, does not answer as its registers should.
_REFUSALS = r"is not supported by|does not include the required GPU|RmInitAdapter failed"
#: What the driver keeps of a GPU's memory for itself, at most.
_OWN_MIB = 1024


@pytest.mark.parametrize("name", _OPENED)
def test_model_is_opened_after_the_restore_of_a_node_with_the_driver_loaded(
    clone: CloneState,
    opened_gpu_image: Image,
    gpu_catalogue: Catalogue,
    a100: GpuModel,
    name: str,
) -> None:
    """Name, UUID and memory are as the model says."""
    model = gpu_catalogue.get(name)
    machine = clone(with_driver_loaded(booted(opened_gpu_image), a100))

    machine.hot_plug(model)
    machine.wait_for_gpu(model)
    row = machine.guest.output_of(
        "nvidia-smi", _FACTS, "--format=csv,noheader,nounits", timeout_s=OPEN_S
    )

    assert model.gsp is not None
    title, uuid, memory, bus_id = row.strip().split(", ")
    assert title == model.title
    assert uuid.startswith("GPU-00000000-0000-4000-8000-")
    assert model.gsp.memory_mib - _OWN_MIB <= int(memory) <= model.gsp.memory_mib
    assert bus_id == "00000000:02:00.0"


@pytest.mark.parametrize("name", sorted(set(load_catalogue().models) - set(_OPENED)))
def test_model_without_an_emulated_gsp_is_refused_by_the_driver_itself(
    clone: CloneState,
    opened_gpu_image: Image,
    gpu_catalogue: Catalogue,
    a100: GpuModel,
    name: str,
) -> None:
    model = gpu_catalogue.get(name)
    machine = clone(with_driver_loaded(booted(opened_gpu_image), a100))

    machine.hot_plug(model)
    machine.wait_for_gpu(model)
    query = machine.guest.run("nvidia-smi", "-L", timeout_s=OPEN_S)

    assert model.title not in query.stdout
    log = machine.guest.output_of("dmesg")
    assert re.search(_REFUSALS, log), log[-2000:]
