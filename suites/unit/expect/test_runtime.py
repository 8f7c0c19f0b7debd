"""Expectations on the container runtime, with other CDI specs, runtimes or units on the node."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness import expect
from harness.errors import ExpectationError
from suites.unit.evidence.folders import CONTAINERD_CONFIG, VERSION, a_cdi_spec, a_serving_node

if TYPE_CHECKING:
    from pathlib import Path


def spec_with(kind: str, *nodes: str) -> str:
    edits = {"deviceNodes": [{"path": node} for node in nodes]}
    return json.dumps(
        {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": "0", "containerEdits": edits}]}
    )


def test_gpu_device_node_is_missing_if_only_specs_that_no_pod_uses_list_the_node(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).more_paths("c 666 0 1.0 /dev/nvidia1")
    for kind in ("k8s.gpu.nvidia.com/claim", "management.nvidia.com/gpu", "vendor.example/nic"):
        folder.file("/etc/cdi/x.json", spec_with(kind, "/dev/nvidia1"))
        with pytest.raises(ExpectationError, match=r"but \['/dev/nvidia1'\] are in none of"):
            expect.cdi_offers_gpus(folder.evidence)

    folder.file("/etc/cdi/x.json", spec_with("k8s.gpu.nvidia.com/device", "/dev/nvidia1"))
    assert expect.cdi_offers_gpus(folder.evidence)


def test_cdi_spec_without_gpu_device_nodes_may_offer_fewer_gpus_than_the_node_has(
    tmp_path: Path,
) -> None:
    spec = spec_with("nvidia.com/gpu", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0x")
    folder = a_serving_node(tmp_path).more_paths("c 666 0 1.0 /dev/nvidia1")

    assert expect.cdi_offers_gpus(folder.file("/run/cdi/nvidia.yaml", spec).evidence)


def spec_of_driver(version: str, *, name: str = "0") -> str:
    library = f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}"
    edits = {"mounts": [{"hostPath": library, "containerPath": library}]}
    devices = [{"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}]
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": devices,
            "containerEdits": edits,
        }
    )


def test_cdi_spec_of_an_earlier_driver_is_refused(tmp_path: Path) -> None:
    """The spec's libraries are gone after an update of the driver, so no container starts."""
    folder = a_serving_node(tmp_path).file(
        "/etc/cdi/x.json", spec_of_driver("535.54.03", name="1")
    )
    with pytest.raises(
        ExpectationError, match=r"{'/etc/cdi/x.json': \['535\.54\.03'\]} mount libraries of other"
    ):
        expect.cdi_offers_gpus(folder.evidence)

    folder.file("/etc/cdi/x.json", spec_of_driver(VERSION, name="1"))
    assert expect.cdi_offers_gpus(folder.evidence)


def test_newer_cdi_spec_in_run_cdi_overrides_an_old_spec_in_etc_cdi(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).file("/etc/cdi/x.json", spec_of_driver("535.54.03"))

    assert expect.cdi_offers_gpus(folder.evidence)


def test_cdi_spec_may_name_gpus_that_the_node_lacks(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path).file("/run/cdi/nvidia.yaml", json.dumps(a_cdi_spec(3)))

    assert expect.cdi_offers_gpus(folder.evidence)


def test_nvidia_runtime_without_a_type_is_refused_if_another_runtime_has_a_type(
    tmp_path: Path,
) -> None:
    typed = '          runtime_type = "io.containerd.runc.v2"\n'
    folder = a_serving_node(tmp_path)

    folder.command("containerd-config", CONTAINERD_CONFIG.replace(typed, "", 1))
    with pytest.raises(ExpectationError, match="of any runtime whose type"):
        expect.runtime_hands_out_gpus(folder.evidence)
    head, _, tail = CONTAINERD_CONFIG.rpartition(typed)
    assert expect.runtime_hands_out_gpus(folder.command("containerd-config", head + tail).evidence)


def test_nvidia_runtime_may_be_the_last_runtime_in_the_containerd_configuration(
    tmp_path: Path,
) -> None:
    dump = CONTAINERD_CONFIG.replace('"/usr/bin/nvidia-container-runtime"', '"/usr/bin/runc"')
    dump = dump.replace('BinaryName = ""', 'BinaryName = "nvidia-container-runtime"')

    assert expect.runtime_hands_out_gpus(
        a_serving_node(tmp_path).command("containerd-config", dump).evidence
    )


def test_containerds_nvidia_runtime_is_accepted_even_if_another_pod_runtime_runs(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path)
    for unit in ("k3s.service", "cri-docker.service"):
        rows = f"containerd.service loaded active running x\n{unit} loaded active running x\n"
        assert expect.runtime_hands_out_gpus(folder.command("units", rows).evidence)


PLUGIN = "nvidia-device-plugin.service loaded active running x\n"


@pytest.mark.parametrize("source", ["units", "failed-units"])
def test_failed_containerd_is_a_fault_only_if_a_runtime_uses_it(
    tmp_path: Path, source: str
) -> None:
    state = "failed" if source == "units" else "inactive"
    folder = a_serving_node(tmp_path)
    if source == "failed-units":
        folder.command("failed-units", "containerd.service loaded failed failed x\n")

    for unit in ("crio.service", "k3s.service", "cri-docker.service"):
        folder.command(
            "units",
            f"containerd.service loaded {state} x x\n{unit} loaded active running x\n{PLUGIN}",
        )
        if unit != "cri-docker.service":
            assert unit in expect.gpu_services_up(folder.evidence)
    with pytest.raises(ExpectationError, match=r"but \['containerd\.service'\] have"):
        expect.gpu_services_up(folder.evidence)


def test_failed_device_plugin_is_reported_even_if_the_dra_driver_runs(tmp_path: Path) -> None:
    rows = (
        "containerd.service loaded active running x\ndra-driver-nvidia-gpu.service loaded active running x\n"
        "nvidia-device-plugin.service loaded failed failed x\n"
    )

    with pytest.raises(ExpectationError, match=r"but \['nvidia-device-plugin\.service'\] have"):
        expect.gpu_services_up(a_serving_node(tmp_path).command("units", rows).evidence)
