"""Nodes of public reports, as far as they say what the node has: what a boot makes of them.

Each is in our own words; the ids name the reports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import CommandResult
from harness.provisioning.containerd_config import (
    CONTAINERD_CONFIG,
    cri_table,
    default_runtime,
    read_runtimes,
)
from harness.provisioning.precompiled import PrecompiledImage, os_tag
from suites.unit.provisioning.containerd_files import CRI, NVIDIA, RUNC

from .fakes import GPU_NODE, KERNEL, VERSION, Invocation, write_tags
from .simulated_containerd import Release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .simulation import SimulatedNode

TOOLKIT = NVIDIA.replace("/usr/bin/", "/usr/local/nvidia/toolkit/")
DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
IMPORTS = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'


@dataclass(frozen=True, kw_only=True)
class Node:
    """containerd's file on a node with a GPU, and how its boot ends: ready, or with these words."""

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


@pytest.mark.parametrize("name", NODES)
def test_node_of_a_report_is_ready_only_with_the_runtime(
    simulated: SimulatedNode, invocation: Invocation, name: str
) -> None:
    node = NODES[name]
    simulated.containerd = node.release
    for path, text in ({CONTAINERD_CONFIG: node.main} | dict(node.files)).items():
        simulated.files.write(path, text)

    code = invocation.run("boot", GPU_NODE)

    dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
    if node.words is not None:
        assert code == 6
        assert node.words in str(invocation.outcome()["error"])
        return
    assert code == 0
    cri = cri_table(dump)
    programs = {each.name: each.program for each in read_runtimes(dump, cri) if each.has_type}
    assert "/usr/bin/nvidia-container-runtime" in programs.values()
    assert default_runtime(dump, cri) in programs


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


@pytest.mark.parametrize("name", OPTED_OUT)
def test_opted_out_node_of_a_report_runs_its_pods(
    simulated: SimulatedNode, invocation: Invocation, name: str
) -> None:
    write_tags(simulated.files, ("SkipGpuDriverInstall", "true"))
    simulated.files.write(CONTAINERD_CONFIG, OPTED_OUT[name])

    assert invocation.run("boot", GPU_NODE) == 0

    dump = simulated.run(("containerd", "config", "dump"), timeout_s=1).stdout
    cri = cri_table(dump)
    runtimes = {each.name: each.program for each in read_runtimes(dump, cri)}
    assert "nvidia" not in str(list(runtimes.values()))
    assert default_runtime(dump, cri) in runtimes


@pytest.mark.parametrize(
    ("os_release", "kernel", "tag"),
    [
        pytest.param(
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.4"\n',
            "4.18.0-305.el8.x86_64",
            "4.18.0-305.el8.x86_64-rocky8",
            id="NVIDIA/gpu-operator#264",
        ),
        pytest.param(
            'ID="rhel"\nVERSION_ID="8.9"\n',
            "4.18.0-513.el8.x86_64",
            "4.18.0-513.el8.x86_64-rhel8.9",
            id="NVIDIA/gpu-operator#635",
        ),
        pytest.param(
            'ID="rhcos"\nVERSION_ID="4.9"\n',
            "4.18.0-305.el8.x86_64",
            "4.18.0-305.el8.x86_64-rhcos4.9",
            id="NVIDIA/gpu-operator#244",
        ),
        pytest.param(
            "ID=talos\nVERSION_ID=v1.6.1\n",
            "6.1.69-talos",
            "6.1.69-talos-talosv1.6.1",
            id="NVIDIA/gpu-operator#647",
        ),
        pytest.param(
            'ID=ubuntu\nVERSION_ID="22.04"\n',
            "5.15.0-118-generic",
            "5.15.0-118-generic-ubuntu22.04",
            id="NVIDIA/gpu-operator#910",
        ),
    ],
)
def test_precompiled_driver_of_a_report_has_the_operators_tag(
    os_release: str, kernel: str, tag: str
) -> None:
    image = PrecompiledImage(
        repository="nvcr.io/nvidia",
        image="driver",
        version="535",
        kernel=kernel,
        os_tag=os_tag(os_release),
    )

    assert image.reference == f"nvcr.io/nvidia/driver:535-{tag}"


NAME = f"registry.example/gpu/driver:{VERSION}-{KERNEL}-debian12"
PRECOMPILED = {**GPU_NODE, "precompiled_image": "registry.example/gpu/driver"}


@pytest.mark.parametrize(
    ("answer", "is_missing"),
    [
        pytest.param(
            f'ctr: apply layer error for "{NAME}": failed to extract layer sha256:4d: NotFound: failed to '
            "get reader from content store: content digest sha256:51: not found",
            False,
            id="moby/moby#52411",
        ),
        pytest.param(
            "ctr: failed to unpack image on snapshotter overlayfs: content digest sha256:73: not found",
            False,
            id="prometheus/pushgateway#278",
        ),
        pytest.param(
            'ctr: failed to prepare extraction snapshot "extract-7 sha256:92": parent snapshot sha256:0b '
            "does not exist: not found",
            False,
            id="containerd/containerd#8173",
        ),
        pytest.param(
            f'ctr: failed to pull and unpack image "{NAME}": failed to resolve reference "{NAME}": {NAME}: '
            "not found",
            True,
            id="NVIDIA/gpu-operator#595",
        ),
    ],
)
def test_pull_of_a_report_is_understood(
    simulated: SimulatedNode, invocation: Invocation, answer: str, *, is_missing: bool
) -> None:
    simulated.images.clear()
    simulated.failing["ctr -n k8s.io image pull"] = CommandResult(
        argv=(), exit_code=1, stdout="", stderr=answer
    )

    assert invocation.run("boot", {**PRECOMPILED, "precompiled_fallback": False}) == 84

    pulls = [call for call in simulated.calls if call[3:5] == ("image", "pull")]
    says = f"The registry has no '{NAME}'" in str(invocation.outcome()["error"])
    assert (says, len(pulls)) == ((True, 1) if is_missing else (False, 3))
