"""Boots of nodes from those public reports that show the configuration of the node.

Each configuration is in our own words; the ids name the reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.containerd_config import (
    CONTAINERD_CONFIG,
    cri_table,
    default_runtime,
    read_runtimes,
)
from suites.unit.provisioning.containerd_files import CRI, NVIDIA, RUNC

from .fakes import GPU_NODE, Invocation, write_tags
from .simulated_containerd import Release
from .simulation import SimulatedNode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TOOLKIT = NVIDIA.replace("/usr/bin/", "/usr/local/nvidia/toolkit/")
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
IMPORTS = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'


@dataclass(frozen=True, kw_only=True)
class Node:
    """containerd's file on a node with a GPU, and `words` of the boot's error; None means ready."""

    main: str
    files: Mapping[str, str] = field(default_factory=dict)
    release: Release = Release.MIDDLE
    words: str | None = None


NODES: Mapping[str, Node] = {
    "NVIDIA/nvidia-container-toolkit#1430: CRI is disabled, format 1": Node(
        main='disabled_plugins = ["cri"]\n', words="Its CRI plugin is disabled"
    ),
    "NVIDIA/gpu-operator#1323: a short name in a file of format 2": Node(
        main=f'disabled_plugins = ["cri"]\nversion = 2\n{TOOLKIT}',
        words="containerd does not accept its configuration",
    ),
    "containerd/containerd#6389: an imported registry": Node(
        main=IMPORTS + RUNC + NVIDIA,
        files={
            "/etc/containerd/conf.d/registry.toml": "version = 2\n"
            f'[plugins."{CRI}".registry]\nconfig_path = "/etc/containerd/certs.d"\n'
        },
        words="None of its runtimes ['runc']",
    ),
    "NVIDIA/nvidia-container-toolkit#1404: a drop-in that nobody imports": Node(
        main=f"version = 2\n{RUNC}",
        files={"/etc/containerd/config.d/99-nvidia.toml": f"version = 2\n{NVIDIA}"},
    ),
    "Azure/AKSFlexNode#97: a drop-in without a version": Node(
        main=IMPORTS,
        files={DROP_IN: f'[plugins."{CRI}"]\nenable_cdi = true\n{RUNC}{NVIDIA}'},
    ),
    "NVIDIA/nvidia-container-toolkit#1956: a drop-in whose runtime has no type": Node(
        main='version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
        files={
            DROP_IN: "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia"
            ".options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n"
        },
        release=Release.NEW,
    ),
    "NVIDIA/gpu-operator#248: another root, nvidia is the default": Node(
        main=f'version = 2\nroot = "/mnt/containerd"\n[plugins."{CRI}".containerd]\n'
        f'default_runtime_name = "nvidia"\n{NVIDIA}'
    ),
    "google/gvisor#10997: a runtime of gVisor is called nvidia": Node(
        main=f'version = 2\n{RUNC}[plugins."{CRI}".containerd.runtimes.nvidia]\n'
        'runtime_type = "io.containerd.runsc.v1"\n'
        f'[plugins."{CRI}".containerd.runtimes.nvidia.options]\n'
        'TypeUrl = "io.containerd.runsc.v1.options"\nConfigPath = "/etc/containerd/runsc_gpu.toml"\n'
    ),
    "k3s-io/k3s#4391: a shim that containerd 2 does not have": Node(
        main=f"version = 2\n{RUNC}{NVIDIA.replace('runc.v2', 'runc.v1')}", release=Release.NEW
    ),
    "containerd/containerd#3843: a file without a version, for containerd 1.2": Node(
        main="oom_score = 0\n[plugins.cri]\nsystemd_cgroup = true\n"
        '[plugins.cri.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
    ),
    "containerd/containerd#3843: the same file with containerd 2": Node(
        main="oom_score = 0\n[plugins.cri]\nsystemd_cgroup = true\n"
        '[plugins.cri.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n',
        release=Release.NEW,
    ),
}


def test_boot_with_a_reported_containerd_configuration_succeeds_only_with_the_nvidia_runtime(
    tmp_path: Path,
) -> None:
    for number, (name, node) in enumerate(NODES.items()):
        simulated = SimulatedNode(tmp_path / str(number), containerd=node.release)
        invocation = Invocation(simulated.top, simulated)
        for path, text in ({CONTAINERD_CONFIG: node.main} | dict(node.files)).items():
            simulated.files.write(path, text)

        code = invocation.run("boot", GPU_NODE)

        dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
        if node.words is not None:
            assert code == 6, name
            assert node.words in str(invocation.outcome()["error"]), name
            continue
        assert code == 0, name
        cri = cri_table(dump)
        runtimes = [each for each in read_runtimes(dump, cri) if each.is_effective]
        assert "/usr/bin/nvidia-container-runtime" in {each.program for each in runtimes}, name
        assert default_runtime(dump, cri) in {each.name for each in runtimes}, name


OPTED_OUT: Mapping[str, str] = {
    "NVIDIA/k8s-device-plugin#1145: nvidia alone, and the default": "version = 2\n"
    f'[plugins."{CRI}".containerd]\ndefault_runtime_name = "nvidia"\n{NVIDIA}',
    "NVIDIA/gpu-operator#730: the operator's runtimes without runc": f"version = 2\n{TOOLKIT}",
    "NVIDIA/nvidia-docker#1468: the default runtime in a table of its own": "[plugins.opt]\n"
    'path = "/opt/containerd"\n[plugins.cri]\nstream_server_port = "10010"\n'
    "[plugins.cri.containerd.default_runtime]\n"
    'runtime_type = "io.containerd.runtime.v1.linux"\n'
    "[plugins.cri.containerd.default_runtime.options]\n"
    'Runtime = "/usr/bin/nvidia-container-runtime"\n'
    "[plugins.cri.containerd.runtimes.nvidia]\n"
    'runtime_type = "io.containerd.runtime.v1.linux"\n'
    "[plugins.cri.containerd.runtimes.nvidia.options]\n"
    'Runtime = "/usr/bin/nvidia-container-runtime"\n',
}


def test_opted_out_node_with_a_reported_containerd_configuration_has_no_nvidia_runtime(
    tmp_path: Path,
) -> None:
    for number, (name, text) in enumerate(OPTED_OUT.items()):
        simulated = SimulatedNode(tmp_path / str(number))
        write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))
        simulated.files.write(CONTAINERD_CONFIG, text)

        assert Invocation(simulated.top, simulated).run("boot", GPU_NODE) == 0, name

        dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
        cri = cri_table(dump)
        runtimes = {each.name: each.program for each in read_runtimes(dump, cri)}
        assert "nvidia" not in str(list(runtimes.values())), name
        assert default_runtime(dump, cri) in runtimes, name
