"""NVIDIA's own driver probes every model of the catalogue, and binds to each supported model."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pynvml
import pytest

from harness import expect
from suites.e2e.real_driver.expected import NAMES

if TYPE_CHECKING:
    from harness.evidence import Evidence
    from harness.gpu import GpuModel
    from harness.gpu.catalogue import Catalogue
    from harness.lab.node import Node

pytestmark = pytest.mark.real_driver

QUERIES = "name,uuid,driver_version,mig.mode.current,pci.bus_id,memory.total"


def gathered(node: Node) -> Evidence:
    return node.gathered[-1]


def supported(catalogue: Catalogue) -> list[GpuModel]:
    """Return the models that the driver supports, in the order of their slots."""
    return [model for name, model in catalogue.models.items() if NAMES[name] is not None]


def device_ids(models: list[GpuModel]) -> list[str]:
    return [f"{model.pci.device:04x}" for model in models]


def test_node_has_a_gpu_of_every_model_of_the_catalogue(gpu_catalogue: Catalogue) -> None:
    """These tests automatically cover each new model of the catalogue."""
    assert set(gpu_catalogue.models) == set(NAMES)


def test_driver_binds_to_each_model_that_it_supports(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    evidence = gathered(node_of_every_model)

    expect.gpus_on_bus(evidence, *device_ids(list(gpu_catalogue.models.values())))
    expect.gpus_driven(evidence, *device_ids(supported(gpu_catalogue)))


def test_driver_has_the_right_name_for_each_gpu(node_of_every_model: Node) -> None:
    expect.driver_names_gpus(
        gathered(node_of_every_model), *(name for name in NAMES.values() if name is not None)
    )


def test_newer_gpu_is_refused_with_the_message_of_the_driver(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    refused = [model for name, model in gpu_catalogue.models.items() if NAMES[name] is None]

    expect.gpus_refused(gathered(node_of_every_model), *device_ids(refused))


def test_every_gpu_has_a_device_node(node_of_every_model: Node, gpu_catalogue: Catalogue) -> None:
    paths = gathered(node_of_every_model).paths

    wanted = {f"/dev/nvidia{minor}" for minor in range(len(supported(gpu_catalogue)))}
    assert wanted | {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(paths)


def test_nvidia_smi_shows_every_gpu_in_its_table(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    table = node_of_every_model.guest.output_of("nvidia-smi")

    assert "| NVIDIA-SMI 535.309.01             Driver Version: 535.309.01 " in table
    names = re.findall(r"^\|\s+\d+\s+(.+?)\s+N/A\s+\| 0000", table, re.MULTILINE)
    assert names == [model.title for model in supported(gpu_catalogue)]


def test_nvidia_smi_lists_every_gpu_with_its_uuid(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    lines = node_of_every_model.guest.output_of("nvidia-smi", "-L").splitlines()

    pattern = re.compile(
        r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)"
    )
    found = [match.groups() for match in map(pattern.fullmatch, lines) if match is not None]
    assert [(index, name) for index, name, _ in found] == [
        (str(index), model.title) for index, model in enumerate(supported(gpu_catalogue))
    ]
    assert len({uuid for *_, uuid in found}) == len(lines)


def test_nvidia_smi_query_has_a_row_for_each_gpu(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    evidence = gathered(node_of_every_model)
    answer = node_of_every_model.guest.output_of(
        "nvidia-smi", f"--query-gpu={QUERIES}", "--format=csv,noheader"
    )

    rows = list(csv.reader(answer.splitlines(), skipinitialspace=True))
    models = supported(gpu_catalogue)
    assert [row[0] for row in rows] == [model.title for model in models]
    assert {row[2] for row in rows} == {"535.309.01"}
    assert [row[3] for row in rows] == [
        "Disabled" if model.has_mig else "[N/A]" for model in models
    ]
    addresses = [f"0000{address}" for address in evidence.driver_gpu_names]
    assert [row[4].lower() for row in rows] == addresses
    assert all(re.fullmatch(r"[1-9]\d+ MiB", row[5]) for row in rows)


def test_nvidias_python_bindings_find_every_gpu(
    node_of_every_model: Node, gpu_catalogue: Catalogue
) -> None:
    """A program that uses NVML gets a value, or the error 'not supported' for an unknown value."""
    guest = node_of_every_model.guest
    for source in (Path(pynvml.__file__), Path(__file__).parent / "ask_nvml.py"):
        guest.write_text(f"/root/nvml/{source.name}", source.read_text())

    answer = json.loads(guest.output_of("python3", "/root/nvml/ask_nvml.py"))

    models = supported(gpu_catalogue)
    assert answer["driver"] == "535.309.01"
    assert [device["name"] for device in answer["devices"]] == [model.title for model in models]
    assert [device["mig"] for device in answer["devices"]] == [
        [0, 0] if model.has_mig else "error 3" for model in models
    ]
    assert {device["temperature"] for device in answer["devices"]} == {"error 3"}
