"""Working nodes whose driver was not installed by the harness get no false verdict.

The layouts come from public descriptions: packages.debian.org and the Debian wiki (NvidiaGraphicsDrivers),
packages.ubuntu.com (linux-modules-nvidia, nvidia-utils), NVIDIA's README of the runfile, the GPU operator's
documentation of driver containers, Azure/AgentBaker and Azure/aks-gpu, and awslabs/amazon-eks-ami (nodeadm).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.evidence import RECORD_PATH
from harness.expect.every_node import VerdictState, judge_node, node_expectations
from harness.expect.runtime import MANAGED_MARKER
from suites.unit.evidence.folders import (
    CONTAINERD_CONFIG,
    KERNEL,
    MODULE,
    OTHER_KERNEL,
    VERSION,
    EvidenceFolder,
    a_serving_node,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MET, NOT_MET, UNKNOWN = VerdictState.MET, VerdictState.NOT_MET, VerdictState.UNKNOWN
MODULES = f"/lib/modules/{KERNEL}"
GONE = "modinfo: ERROR: Module nvidia not found.\n"
CURRENT = f"{MODULES}/updates/dkms/nvidia-current.ko"
PLUGIN_SPEC = json.dumps(
    {
        "cdiVersion": "0.5.0",
        "kind": "k8s.device-plugin.nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    }
)
EKS_DUMP = CONTAINERD_CONFIG.replace("version = 2", "version = 3").replace(
    "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
)
AKS_DUMP = CONTAINERD_CONFIG.replace("runtimes.nvidia", "runtimes.nvidia-container-runtime")


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where a node has its driver, and the verdicts that are not 'met'.

    `modinfo` has the output of modinfo for each module by name; modinfo finds no other module.
    """

    modinfo: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...]
    dump: str = CONTAINERD_CONFIG
    cdi: Mapping[str, str] | None = None
    verdicts: Mapping[str, VerdictState] = field(default_factory=dict)

    def write(self, folder: EvidenceFolder) -> EvidenceFolder:
        """Change the evidence of a node that the harness provisioned to this layout."""
        lines = (folder.root / "stat.txt").read_text().splitlines()
        kept = [
            line
            for line in lines
            if not any(part in line for part in (MODULE, "/usr/bin/", RECORD_PATH, "/opt/azure"))
        ]
        folder.paths(*kept, *(f"f 755 0 1.0 {path}" for path in self.paths))
        folder.without(f"files{RECORD_PATH}").command("containerd-config", self.dump)
        for name in ("nvidia", "nvidia-current"):
            command = f"modinfo-{KERNEL}" if name == "nvidia" else f"{name}-modinfo-{KERNEL}"
            output = self.modinfo.get(name)
            folder.command(command, output or GONE, 1 if output is None else 0)
        if self.cdi is not None:
            folder.without("files/run/cdi/nvidia.yaml")
            for path, text in self.cdi.items():
                folder.file(path, text)
        return folder.command(
            "units",
            "containerd.service loaded active running containerd\n"
            "kubelet.service loaded active running kubelet\n",
        )


def modinfo(path: str) -> str:
    return (
        f"filename: {path}\nversion:        {VERSION}\nvermagic:       {KERNEL} SMP mod_unload\n"
    )


WEAK = (
    f"filename:       {MODULES}/weak-updates/nvidia.ko.xz\nversion:        {VERSION}\n"
    f"vermagic:       {OTHER_KERNEL} SMP preempt mod_unload modversions \n"
)
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-modprobe")
LAYOUTS: Mapping[str, Layout] = {
    "Debian's packages": Layout(
        modinfo={"nvidia-current": modinfo(CURRENT)},
        paths=(CURRENT, *PROGRAMS, "/usr/bin/nvidia-persistenced"),
    ),
    "Debian's packages without nvidia-modprobe": Layout(
        modinfo={"nvidia-current": modinfo(CURRENT)},
        paths=(CURRENT, PROGRAMS[0]),
        verdicts={"tools": UNKNOWN},
    ),
    "Ubuntu's packages": Layout(
        modinfo={"nvidia": modinfo(f"{MODULES}/kernel/nvidia-580/nvidia.ko")},
        paths=PROGRAMS,
    ),
    "runfile": Layout(
        modinfo={"nvidia": modinfo(f"{MODULES}/kernel/drivers/video/nvidia.ko")},
        paths=(*PROGRAMS, "/usr/bin/nvidia-uninstall"),
    ),
    "operator's container": Layout(
        paths=tuple(f"/run/nvidia/driver{path}" for path in PROGRAMS),
        dump=CONTAINERD_CONFIG.replace("/usr/bin/nvidia", "/usr/local/nvidia/toolkit/nvidia"),
        cdi={
            "/run/cdi/management.nvidia.com-gpu.yaml": "cdiVersion: 0.5.0\n"
            "kind: management.nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits: {env: [A=1]}\n",
            "/run/cdi/k8s.device-plugin.nvidia.com-gpu.json": PLUGIN_SPEC,
        },
        verdicts={"module": UNKNOWN},
    ),
    "operator's container beside an older driver of the node": Layout(
        modinfo={"nvidia": modinfo(MODULE).replace(VERSION, "535.1.1")},
        paths=(*(f"/run/nvidia/driver{path}" for path in PROGRAMS), *PROGRAMS),
        verdicts={"module": UNKNOWN},
    ),
    "AKS's image": Layout(
        modinfo={"nvidia": modinfo(MODULE)},
        paths=(MODULE, *PROGRAMS),
        dump=AKS_DUMP,
    ),
    "AKS's image, programs in the folder of its own": Layout(
        modinfo={"nvidia": modinfo(MODULE)},
        paths=(MODULE, *(f"/usr/local/nvidia{path.removeprefix('/usr')}" for path in PROGRAMS)),
        dump=AKS_DUMP,
    ),
    "RHEL's packages, weak module of another kernel": Layout(
        modinfo={"nvidia": WEAK},
        paths=PROGRAMS,
    ),
    "SUSE's packages, weak module of another kernel": Layout(
        modinfo={"nvidia": WEAK.replace("weak-updates/", "weak-updates/updates/")},
        paths=PROGRAMS,
    ),
    "SUSE's packages where modules are below /usr": Layout(
        modinfo={"nvidia": WEAK.replace("/lib/", "/usr/lib/")},
        paths=PROGRAMS,
    ),
    "EKS's image": Layout(
        modinfo={"nvidia": modinfo(f"{MODULES}/extra/nvidia.ko")},
        paths=PROGRAMS,
        dump=EKS_DUMP,
    ),
}


def test_working_node_of_each_installation_layout_gets_the_expected_verdicts(
    tmp_path: Path,
) -> None:
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        verdicts = judge_node(layout.write(a_serving_node(tmp_path / str(number))).evidence)

        sentences = [verdict.sentence for verdict in verdicts]
        assert not any("Install the driver" in sentence for sentence in sentences), name
        said = {verdict.expectation.name: verdict for verdict in verdicts}
        record = said.pop("record")
        assert {each: verdict.state for each, verdict in said.items()} == {
            **dict.fromkeys(said, MET),
            **layout.verdicts,
        }, (name, sentences)
        # No layout has a record, and the sentence says that this may be intended.
        assert record.state is NOT_MET
        assert "If this is intended, ignore this result" in record.sentence


def test_driver_programs_in_a_container_require_both_programs_and_a_loaded_driver(
    tmp_path: Path,
) -> None:
    layout = LAYOUTS["operator's container"]
    whole = layout.write(a_serving_node(tmp_path / "whole"))
    half = replace(layout, paths=layout.paths[:1]).write(a_serving_node(tmp_path / "half"))
    unloaded = layout.write(a_serving_node(tmp_path / "unloaded")).without(
        "files/proc/driver/nvidia/version"
    )

    assert state_of(whole, "tools") is MET
    assert state_of(half, "tools") is UNKNOWN
    assert state_of(unloaded, "tools") is NOT_MET
    assert state_of(unloaded, "module") is NOT_MET


def test_modinfo_of_nvidia_current_decides_the_module_verdict_for_debian_packages(
    tmp_path: Path,
) -> None:
    layout = LAYOUTS["Debian's packages"]
    other = modinfo(CURRENT).replace(VERSION, "535.1.1")
    folder = replace(layout, modinfo={"nvidia-current": other}).write(a_serving_node(tmp_path))

    assert state_of(folder, "module") is NOT_MET
    folder.without(f"commands/nvidia-current-modinfo-{KERNEL}")
    assert state_of(folder, "module") is UNKNOWN
    folder.without("files/proc/driver/nvidia/version")
    folder.command(f"nvidia-current-modinfo-{KERNEL}", "modinfo: not found\n", 127)
    assert state_of(folder, "module") is UNKNOWN


def test_module_of_another_kernel_is_accepted_only_as_a_weak_module_with_modversions(
    tmp_path: Path,
) -> None:
    """A kernel without `modversions` refuses modules of other kernels, also weak modules."""
    folder = a_serving_node(tmp_path)
    for words, other in (("weak-updates/", "extra/"), (" modversions", "")):
        folder.command(f"modinfo-{KERNEL}", WEAK.replace(words, other))
        assert state_of(folder, "module") is NOT_MET, words


def test_cdi_spec_of_a_resource_claim_may_offer_fewer_gpus_than_the_node_has(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).without("files/run/cdi/nvidia.yaml")
    folder.more_paths("c 666 0 1.0 /dev/nvidia1")
    for kind, state in (("k8s.gpu.nvidia.com/claim", MET), ("k8s.gpu.nvidia.com/device", NOT_MET)):
        spec = PLUGIN_SPEC.replace("k8s.device-plugin.nvidia.com/gpu", kind)
        assert state_of(folder.file("/run/cdi/x.json", spec), "cdi") is state, kind


def test_only_known_variants_of_the_nvidia_runtime_are_accepted(tmp_path: Path) -> None:
    folder = a_serving_node(tmp_path)
    for program, state in (
        ("nvidia-container-runtime.cdi", MET),
        ("nvidia-container-runtime.legacy", MET),
        ("nvidia-oci", MET),
        ("nvidia-container-runtime.bak", NOT_MET),
        ("nvidia-container-runtime-hook", NOT_MET),
        ("x-nvidia-container-runtime", NOT_MET),
    ):
        dump = CONTAINERD_CONFIG.replace("nvidia-container-runtime", program)
        assert state_of(folder.command("containerd-config", dump), "runtime") is state, program


def test_runtime_verdict_is_unknown_only_if_another_pod_runtime_is_active(
    tmp_path: Path,
) -> None:
    folder = a_serving_node(tmp_path).command("containerd-config", "not found\n", 127)
    without_marker(folder)
    for unit, active, runtime, services in (
        ("crio.service", "active", UNKNOWN, MET),
        ("snap.microk8s.daemon-containerd.service", "active", UNKNOWN, MET),
        ("k3s.service", "inactive", NOT_MET, NOT_MET),
    ):
        folder.command("units", f"{unit} loaded {active} x x\n")
        assert state_of(folder, "runtime") is runtime, unit
        assert state_of(folder, "services") is services, unit


def without_marker(folder: EvidenceFolder) -> EvidenceFolder:
    lines = (folder.root / "stat.txt").read_text().splitlines()
    return folder.paths(*(line for line in lines if MANAGED_MARKER not in line))


def state_of(folder: EvidenceFolder, name: str) -> VerdictState:
    (verdict,) = judge_node(folder.evidence, node_expectations([name], source="the test"))
    return verdict.state


def test_device_nodes_in_the_driver_container_are_accepted(tmp_path: Path) -> None:
    """NVIDIA/gpu-operator#1741: the node's own '/dev' has none."""
    node = LAYOUTS["operator's container"].write(a_serving_node(tmp_path))
    stat = (node.root / "stat.txt").read_text()

    own = stat.replace(" /dev/nvidia", " /run/nvidia/driver/dev/nvidia")
    assert state_of(node.paths(*own.splitlines()), "driver") is MET
    # Without a driver container, these device nodes are leftovers of a removed container.
    left = own.replace("/run/nvidia/driver/usr", "/usr")
    assert state_of(node.paths(*left.splitlines()), "driver") is NOT_MET
    none = [line for line in own.splitlines() if "/dev/nvidia" not in line]
    assert state_of(node.paths(*none), "driver") is NOT_MET
