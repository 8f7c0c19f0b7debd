"""NVIDIA's own driver opens emulated GPUs, and NVIDIA's own tools show the facts of the models.

The tests run with `--gpu-emulation=gsp` and an image with NVIDIA's user space: `--image=debian-13-nvidia`.
"""

from __future__ import annotations

import csv
import json
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.bench.time_to_gpu.node_tools import guest_wheels
from harness.gpu.trace import IncidentKind
from harness.plugin.select import requirements
from harness.provisioning.command import LocalRunner
from suites.e2e.real_driver.cdi import ask_nvml, asking_for, offer_by_cdi
from suites.e2e.real_driver.complaints import UNNAMED, complaints_in
from suites.e2e.real_driver.conftest import LOAD_S, OPEN_S
from suites.e2e.runtime.kubelet import Container, Kubelet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.gpu import GpuModel
    from harness.lab.node import Node
    from harness.provisioning.command import CommandResult
    from harness.settings import Settings

pytestmark = [pytest.mark.real_driver, pytest.mark.slow]

_HERE = Path(__file__).parent
_TOOLS = "/root/monitors"
_UUID = re.compile(r"GPU-00000000-0000-4000-8000-[0-9a-f]{12}")
#: Fields of `nvidia-smi -q` whose calls no public header documents, so the device refuses them.
_UNANSWERED = frozenset(
    {
        *("encoder_util", "decoder_util", "jpeg_util", "ofa_util"),
        *("addressing_mode", "max_link_width", "current_link_width"),
    }
)
_UNPACK = (
    "import sys, zipfile\n"
    "for wheel in sys.argv[2:]:\n"
    "    zipfile.ZipFile(wheel).extractall(sys.argv[1])\n"
)
_PYTHON = "import sys; print('%d.%d' % sys.version_info[:2])"


@pytest.fixture(scope="module")
def models(a100: GpuModel, h100: GpuModel) -> tuple[GpuModel, ...]:
    """Return the models of the node's GPUs, in the order of their slots."""
    return (a100, h100)


@pytest.fixture(scope="module")
def smi_report(opened_node: Node) -> list[ET.Element]:
    """Return the output of `nvidia-smi -q` for each GPU, in the order of their slots."""
    text = opened_node.guest.output_of("nvidia-smi", "-q", "-x", timeout_s=OPEN_S)
    return list(ET.fromstring(text).iter("gpu"))  # noqa: S314 - as above


def fields(report: list[ET.Element], path: str) -> list[str | None]:
    """Return the text at `path` for each GPU, or None for a GPU without this text."""
    return [gpu.findtext(path) for gpu in report]


def test_nvidia_smi_list_has_name_and_invented_uuid_of_each_gpu(
    opened_node: Node, models: tuple[GpuModel, ...]
) -> None:
    lines = opened_node.guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S).splitlines()

    uuids = [found[0] for line in lines if (found := _UUID.search(line))]
    assert lines == [
        f"GPU {index}: {model.title} (UUID: {uuid})"
        for index, (model, uuid) in enumerate(zip(models, uuids, strict=True))
    ]
    assert len(set(uuids)) == len(models)


def test_driver_has_the_same_uuids_as_its_tools(opened_node: Node) -> None:
    guest = opened_node.guest
    listed = _UUID.findall(guest.output_of("nvidia-smi", "-L", timeout_s=OPEN_S))

    information = guest.output_of("sh", "-c", "cat /proc/driver/nvidia/gpus/*/information")

    assert _UUID.findall(information) == listed


def test_report_has_name_and_pci_address_of_each_gpu(
    smi_report: list[ET.Element], models: tuple[GpuModel, ...]
) -> None:
    assert fields(smi_report, "product_name") == [model.title for model in models]
    assert fields(smi_report, "pci/pci_device_id") == [
        f"{model.pci.device:04X}{model.pci.vendor:04X}" for model in models
    ]
    assert fields(smi_report, "pci/pci_sub_system_id") == [
        f"{model.pci.subsystem:04X}{model.pci.subsystem_vendor:04X}" for model in models
    ]
    assert fields(smi_report, "pci/pci_bus_id") == ["00000000:02:00.0", "00000000:03:00.0"]


@pytest.mark.parametrize(
    "path",
    [
        "uuid",
        "product_brand",
        "vbios_version",
        "fb_memory_usage/total",
        "bar1_memory_usage/total",
        "ecc_mode/current_ecc",
        "remapped_rows/remapped_row_corr",
    ],
)
def test_report_has_a_value_for_each_known_field(smi_report: list[ET.Element], path: str) -> None:
    """nvidia-smi shows 'N/A' for unknown values and 'ERR!' for invalid answers of the GPU."""
    for value in fields(smi_report, path):
        assert value is not None
        assert value not in {"N/A", "ERR!", "Unknown Error", "[Unknown Error]"}


def test_only_fields_that_need_undocumented_calls_show_errors(
    smi_report: list[ET.Element],
) -> None:
    wrong = {
        each.tag
        for gpu in smi_report
        for each in gpu.iter()
        if each.text is not None and ("ERR!" in each.text or "Unknown Error" in each.text)
    }

    assert wrong <= _UNANSWERED


def test_report_has_the_mig_mode_of_each_gpu(smi_report: list[ET.Element]) -> None:
    assert fields(smi_report, "mig_mode/current_mig") == ["Disabled", "Disabled"]


def test_nvidia_smi_query_returns_the_requested_fields(
    opened_node: Node, models: tuple[GpuModel, ...]
) -> None:
    output = opened_node.guest.output_of(
        "nvidia-smi", "--query-gpu=index,name,pci.bus_id", "--format=csv", timeout_s=OPEN_S
    )

    rows = list(csv.DictReader(output.splitlines(), skipinitialspace=True))
    assert [row["name"] for row in rows] == [model.title for model in models]
    assert [row["index"] for row in rows] == ["0", "1"]


def test_topology_has_a_row_for_each_gpu(opened_node: Node) -> None:
    topology = opened_node.guest.output_of("nvidia-smi", "topo", "-m", timeout_s=OPEN_S)

    plain = re.sub(r"\x1b\[[0-9;]*m", "", topology)
    # The header line has no X; an X marks the cell of a GPU with itself.
    rows = [line.split() for line in plain.splitlines() if re.match(r"GPU\d.*\bX\b", line)]
    assert [row[0] for row in rows] == ["GPU0", "GPU1"]
    assert [row[1 + index] for index, row in enumerate(rows)] == ["X", "X"]
    # Each GPU is behind its own root port, and both root ports are behind one host bridge.
    assert (rows[0][2], rows[1][1]) == ("PHB", "PHB")


def test_program_with_nvidias_bindings_gets_the_models_facts(
    opened_node: Node, models: tuple[GpuModel, ...]
) -> None:
    answer = ask_nvml(opened_node)

    assert [device["name"] for device in answer["devices"]] == [model.title for model in models]
    assert [device["compute_capability"] for device in answer["devices"]] == [[8, 0], [9, 0]]
    assert [device["processes"] for device in answer["devices"]] == [[], []]


@pytest.fixture(scope="module")
def monitors(
    opened_node: Node, settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Node:
    """Copy two GPU monitors from PyPI into the guest."""
    guest = opened_node.guest
    built = tmp_path_factory.mktemp("gpustat")
    with requirements(settings):
        wheels = list(
            guest_wheels(
                settings.cache,
                guest.output_of("python3", "-c", _PYTHON).strip(),
                _HERE / "monitors.txt",
            )
        )
    # This package has no wheel.
    argv = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={built}"]
    LocalRunner().run([*argv, "gpustat==1.1.1"], timeout_s=300).check("Fetching gpustat")
    paths = []
    deadline = opened_node.machine.deadline(60.0)
    for wheel in [*wheels, *built.glob("*.whl")]:
        paths.append(f"{_TOOLS}/{wheel.name}")
        opened_node.machine.agent.write_bytes(paths[-1], wheel.read_bytes(), deadline)
    guest.output_of("python3", "-c", _UNPACK, f"{_TOOLS}/packages", *paths, timeout_s=LOAD_S)
    return opened_node


def monitor(node: Node, *words: str) -> str:
    """Return the output of a monitor."""
    return node.guest.output_of(
        *(
            "env",
            f"PYTHONPATH={_TOOLS}/packages",
            "TERM=xterm",
            "LANG=C.UTF-8",
            "python3",
            "-B",
            "-m",
        ),
        *words,
        timeout_s=OPEN_S,
    )


def test_gpustat_shows_each_gpu(monitors: Node, models: tuple[GpuModel, ...]) -> None:
    report = json.loads(monitor(monitors, "gpustat", "--json"))

    assert [gpu["name"] for gpu in report["gpus"]] == [model.title for model in models]
    assert all(_UUID.fullmatch(gpu["uuid"]) for gpu in report["gpus"])


def test_nvitop_shows_each_gpu(monitors: Node, models: tuple[GpuModel, ...]) -> None:
    shown = monitor(monitors, "nvitop", "-1", "--colorful")

    for model in models:
        # nvitop shortens names to the width of the column.
        assert model.title.removeprefix("NVIDIA ")[:10] in shown


@pytest.fixture(scope="module")
def container_root(opened_node: Node) -> str:
    """Return a root file system for containers: the node's own, without other mounts below it."""
    root = "/mnt/container-root"
    opened_node.guest.output_of("sh", "-euc", f"mkdir {root}; mount --bind / {root}")
    return root


def run_container(node: Node, root: str, devices: Sequence[str]) -> CommandResult:
    """Run `nvidia-smi -L` in a container that requests these devices."""
    asked = [word for device in devices for word in ("--device", device)]
    return node.guest.run(
        *(
            "ctr",
            "run",
            "--rm",
            *asked,
            "--rootfs",
            root,
            f"smi-{len(devices)}",
            "/usr/bin/nvidia-smi",
            "-L",
        ),
        timeout_s=OPEN_S,
    )


def test_container_gets_the_gpu_that_it_requests(
    opened_node: Node, container_root: str, models: tuple[GpuModel, ...]
) -> None:
    # The order in which the driver probes GPUs decides their minor numbers.
    information = opened_node.guest.output_of(
        "cat", "/proc/driver/nvidia/gpus/0000:02:00.0/information"
    )
    minor = re.search(r"Device Minor:\s*(\d+)", information)
    assert minor is not None, information

    asked = run_container(
        opened_node, container_root, ["/dev/nvidiactl", f"/dev/nvidia{minor[1]}"]
    )

    assert asked.ok, asked.render()
    assert models[0].title in asked.stdout
    assert models[1].title not in asked.stdout


def test_container_that_requests_no_gpu_gets_no_gpu(
    opened_node: Node, container_root: str
) -> None:
    """The container has NVIDIA's files, but the kernel denies access to the device nodes."""
    refused = run_container(opened_node, container_root, [])

    assert not refused.ok
    assert refused.stdout.strip(), f"nvidia-smi did not run.\n{refused.render()}"
    assert "GPU 0" not in refused.stdout


def test_pod_has_only_the_gpu_that_it_requests_by_cdi(
    opened_node: Node, models: tuple[GpuModel, ...], settings: Settings
) -> None:
    offer_by_cdi(opened_node)
    uuid = ask_nvml(opened_node)["devices"][1]["uuid"]
    asks = Container(script="nvidia-smi -L", config=asking_for(uuid))

    answers = Kubelet(opened_node, settings).run_pod(
        {"asks": asks, "silent": Container(script="nvidia-smi -L")}
    )

    assert answers["asks"].ok, answers
    assert answers["asks"].stdout.splitlines() == [f"GPU 0: {models[1].title} (UUID: {uuid})"]
    assert not answers["silent"].ok


def test_driver_logs_no_complaint_about_the_emulated_gpus(opened_node: Node) -> None:
    """This test runs last, so the log has the messages that all other tests caused."""
    log = opened_node.guest.output_of("dmesg")

    assert complaints_in(log) == []


def test_driver_sent_no_unknown_command_to_the_emulated_gpus(opened_node: Node) -> None:
    for device_id in ("gpu0", "gpu1"):
        trace = opened_node.gpu(device_id).trace
        unknown = {one.words for one in trace.incidents_of(IncidentKind.COMMAND_UNKNOWN)}
        assert unknown <= set(UNNAMED)
        assert not trace.dropped_incidents
