"""Offers a node's GPUs and MIG devices to containers by CDI, as NVML lists them on the node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pynvml
import pytest

from suites.e2e.real_driver.conftest import OPEN_S

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.lab.node import Node

_KIND = "nvidia.com/gpu"
#: The folders and files of the node that nvidia-smi needs in a container: path on the node and
#: there.
_MOUNTS = {
    "/usr": "/usr",
    "/usr/lib": "/lib",
    "/usr/lib64": "/lib64",
    "/etc/ld.so.cache": "/etc/ld.so.cache",
}
_CONFIG = """\
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
"""
_CAPABILITIES = "/proc/driver/nvidia/capabilities"


def ask_nvml(node: Node) -> dict[str, Any]:
    """Return the NVML results that a program with NVIDIA's bindings gets in the guest."""
    for source in (Path(pynvml.__file__), Path(__file__).parent / "ask_nvml.py"):
        node.guest.write_text(f"/root/nvml/{source.name}", source.read_text())
    answer = node.guest.output_of("python3", "/root/nvml/ask_nvml.py", timeout_s=OPEN_S)
    return cast("dict[str, Any]", json.loads(answer))


def offer_by_cdi(node: Node) -> None:
    """Write the node's CDI spec and switch CDI on; skip the test if containerd does not support CDI."""
    guest = node.guest
    if " 1.6." in guest.output_of("containerd", "--version"):
        pytest.skip("containerd 1.6 does not support CDI.")
    guest.write_text("/etc/cdi/nvidia.json", json.dumps(_specification(node)))
    guest.write_text("/etc/containerd/config.toml", _CONFIG)
    guest.output_of("systemctl", "restart", "containerd")


def asking_for(uuid: str) -> Mapping[str, object]:
    """Return the fields of a container's ContainerConfig that request one device."""
    return {"CDI_devices": [{"name": f"{_KIND}={uuid}"}]}


def _specification(node: Node) -> Mapping[str, object]:
    """Return a CDI spec in which the name of each device is its UUID."""
    return {
        "cdiVersion": "0.5.0",
        "kind": _KIND,
        "devices": [
            {
                "name": uuid,
                "containerEdits": {"deviceNodes": [{"path": path} for path in paths]},
            }
            for uuid, paths in _device_nodes(node)
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl"}],
            "mounts": [
                {"hostPath": host, "containerPath": path, "options": ["ro", "rbind"]}
                for host, path in _MOUNTS.items()
            ],
        },
    }


def _device_nodes(node: Node) -> Iterator[tuple[str, list[str]]]:
    """Yield each UUID with its device nodes; a MIG device needs a capability for each instance."""
    for gpu in ask_nvml(node)["devices"]:
        own = f"/dev/nvidia{gpu['minor']}"
        yield gpu["uuid"], [own]
        # Without MIG, the result is the number of an error.
        parts = gpu["mig_devices"] if isinstance(gpu["mig_devices"], list) else []
        for part in parts:
            instance = f"gpu{gpu['minor']}/mig/gi{part['gpu_instance']}"
            compute = f"{instance}/ci{part['compute_instance']}"
            yield part["uuid"], [own, _capability(node, instance), _capability(node, compute)]


def _capability(node: Node, path: str) -> str:
    """Return the device node of a capability; the driver makes such a node on demand."""
    file = f"{_CAPABILITIES}/{path}/access"
    node.guest.output_of("nvidia-modprobe", "-f", file)
    told = dict(
        line.split(": ", 1) for line in node.guest.output_of("cat", file).splitlines() if line
    )
    return f"/dev/nvidia-caps/nvidia-cap{told['DeviceFileMinor'].strip()}"
