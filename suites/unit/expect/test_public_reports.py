"""Nodes from public reports get the true verdict on the facts that their report states.

Each node is described in our own words; `source` names the report. The kernel, the versions and the
addresses come from the evidence folder that a test changes, and not from the report.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.expect.every_node import VerdictState, judge_node, node_expectations
from suites.unit.evidence.folders import (
    CONTAINERD_CONFIG,
    EvidenceFolder,
    a_serving_node,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Change = Callable[[EvidenceFolder], EvidenceFolder]

MET, NOT_MET, UNKNOWN = VerdictState.MET, VerdictState.NOT_MET, VerdictState.UNKNOWN
SPEC = "files/run/cdi/nvidia.yaml"
GPU = "GPU-00000000-1111-2222-3333-444444444444"


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report, the change that makes a node as in the report, and the true verdict on that node."""

    source: str
    expectation: str
    change: Change
    state: VerdictState
    words: str = ""


def without_paths(folder: EvidenceFolder, *parts: str) -> EvidenceFolder:
    lines = (folder.root / "stat.txt").read_text().splitlines()
    return folder.paths(*(line for line in lines if not any(part in line for part in parts)))


def cdi(path: str, kind: str, *names: str) -> Change:
    """Return a change that replaces the CDI spec by this one, whose devices have the GPU's node."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
        for name in names
    ]
    spec = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})
    return lambda folder: folder.without(SPEC).file(path, spec)


def dump(text: str) -> Change:
    return lambda folder: folder.command("containerd-config", text)


def beside(folder: EvidenceFolder, *units: str) -> EvidenceFolder:
    """Replace the running units by these units, so that containerd has no unit."""
    lines = (f"{unit} loaded active running x\n" for unit in units)
    return folder.command("units", "".join(lines))


NEW_DUMP = """version = 3
disabled_plugins = []

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true
    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      default_runtime_name = 'nvidia'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
          runtime_type = 'io.containerd.runc.v2'
          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
            BinaryName = '/usr/bin/nvidia-container-runtime'
"""
NAMED_ALONE = (
    CONTAINERD_CONFIG.replace("runtimes.nvidia", "runtimes.nvidia-container-runtime")
    .replace('default_runtime_name = "runc"', 'default_runtime_name = "nvidia-container-runtime"')
    .replace('BinaryName = "/usr/bin/nvidia-container-runtime"', 'BinaryName = ""')
)
DISABLED = CONTAINERD_CONFIG.replace("_plugins = []", '_plugins = ["cri"]')

REPORTS = (
    # -- the nvidia runtime ---------------------------------------------------------------------
    Report(
        source="leptonai/gpud#1242, containerd 2 with a drop-in of the operator",
        expectation="runtime",
        change=dump(NEW_DUMP),
        state=MET,
    ),
    Report(
        source="NVIDIA/k8s-device-plugin#182, a runtime that is only called so",
        expectation="runtime",
        change=dump(NAMED_ALONE),
        state=NOT_MET,
        words="not the program of any runtime",
    ),
    Report(
        source="NVIDIA/nvidia-container-toolkit#1956, a drop-in whose runtime has no type",
        expectation="runtime",
        change=dump(NEW_DUMP.replace("'io.containerd.runc.v2'", "''")),
        state=NOT_MET,
        words="of any runtime whose type",
    ),
    Report(
        source="k3s-io/k3s#4391, a shim that containerd 2 does not have",
        expectation="runtime",
        change=dump(NEW_DUMP.replace("runc.v2", "runc.v1")),
        state=NOT_MET,
        words="whose type is a runc shim",
    ),
    Report(
        source="NVIDIA/container-config#7, k3s beside Docker's containerd",
        expectation="runtime",
        change=lambda f: beside(
            f.command("containerd-config", DISABLED), "k3s.service", "containerd.service"
        ),
        state=UNKNOWN,
        words="The unit 'k3s.service' runs the node's pods",
    ),
    Report(
        source="NVIDIA/gpu-operator#473, RKE2 has no unit containerd",
        expectation="services",
        change=lambda f: beside(f, "rke2-agent.service", "nvidia-device-plugin.service"),
        state=MET,
    ),
    Report(
        source="NVIDIA/gpu-operator#173, MicroK8s runs its own containerd",
        expectation="services",
        change=lambda f: beside(
            f, "snap.microk8s.daemon-containerd.service", "nvidia-device-plugin.service"
        ),
        state=MET,
    ),
    Report(
        source="NVIDIA/gpu-operator#1323, k0s has a containerd in its own program",
        expectation="runtime",
        change=lambda f: beside(
            f.command("containerd-config", "not found\n", 127), "k0sworker.service"
        ),
        state=UNKNOWN,
        words="The unit 'k0sworker.service' runs the node's pods",
    ),
    # -- CDI specs ------------------------------------------------------------------------------
    Report(
        source="kubernetes-sigs/dra-driver-nvidia-gpu#736, the driver's own spec",
        expectation="cdi",
        change=cdi(
            "/var/run/cdi/x.yaml".removeprefix("/var"), "k8s.gpu.nvidia.com/device", "gpu-0"
        ),
        state=MET,
    ),
    Report(
        source="NVIDIA/k8s-device-plugin#332, WSL has one node for all GPUs",
        expectation="cdi",
        change=lambda f: f.without(SPEC).file(
            "/etc/cdi/nvidia.yaml",
            "cdiVersion: 0.3.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n"
            "    deviceNodes:\n    - path: /dev/dxg\n",
        ),
        state=MET,
    ),
    Report(
        source="NVIDIA/nvidia-container-toolkit#1895, a spec of the device plugin beside the toolkit's",
        expectation="cdi",
        change=lambda f: cdi(
            "/run/cdi/k8s.device-plugin.nvidia.com-gpu.json",
            "k8s.device-plugin.nvidia.com/gpu",
            GPU,
        )(f).file(
            "/run/cdi/management.nvidia.com-gpu.yaml",
            "cdiVersion: 0.5.0\nkind: management.nvidia.com/gpu\ndevices:\n- name: all\n"
            "  containerEdits: {deviceNodes: [{path: /dev/nvidiactl}]}\n",
        ),
        state=MET,
    ),
    # -- drivers of others ----------------------------------------------------------------------
    Report(
        source="NVIDIA/gpu-operator#659, GKE has the programs in a folder of its own",
        expectation="tools",
        change=lambda f: without_paths(f, "/usr/bin/nvidia-").more_paths(
            *(
                f"f 755 0 1.0 /home/kubernetes/bin/nvidia/bin/{name}"
                for name in ("nvidia-smi", "nvidia-modprobe")
            )
        ),
        state=MET,
        words="'/home/kubernetes/bin/nvidia/bin'",
    ),
)


def test_node_of_each_public_report_gets_the_expected_verdict(tmp_path: Path) -> None:
    for number, report in enumerate(REPORTS):
        folder = report.change(a_serving_node(tmp_path / str(number)))

        (verdict,) = judge_node(
            folder.evidence, node_expectations([report.expectation], source="the report")
        )

        assert (report.source, verdict.state) == (report.source, report.state), verdict.sentence
        assert report.words in verdict.sentence
