"""NVIDIA drivers on AKS nodes: kinds, images and paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

CANONICAL_REGISTRY = "mcr.microsoft.com"
DEFAULT_DRIVER_TYPE = "cuda-lts"

GPU_DEST = "/usr/local/nvidia"
PAYLOAD_DIRECTORY = "/opt/gpu"
ACTIONS_DIRECTORY = "/opt/actions"

DKMS_TREE = "/var/lib/dkms/nvidia"
OTHER_DKMS_TREES = (
    *("nvidia-current*", "nvidia-tesla*", "nvidia-legacy-*"),
    *("nvidia-srv*", "nvidia-open*"),
)
"""Patterns of the driver's other names in DKMS: Debian's names, Ubuntu's name for servers
(`nvidia-srv`), and the name that NVIDIA and Arch use for the open modules
(NVIDIA/open-gpu-kernel-modules 567)."""
SOURCES_DIRECTORY = "/usr/src"
KERNELS_DIRECTORY = "/lib/modules"
STAGED_LIBRARIES = "/usr/bin/lib64"
LINKER_CONFIGURATION = "/etc/ld.so.conf.d/nvidia.conf"
PROBE_PROGRAM = "/usr/bin/nvidia-modprobe"
CONTAINER_RUNTIME = "/usr/bin/nvidia-container-runtime"
BOTTLEROCKET_RUNTIME = "nvidia-oci"
"""The runtime program of older Bottlerocket images, in place of NVIDIA's program."""
DRIVER_PROGRAMS = (
    "/usr/bin/nvidia-smi",
    "/usr/bin/nvidia-debugdump",
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nvidia-cuda-mps-control",
    "/usr/bin/nvidia-cuda-mps-server",
    PROBE_PROGRAM,
    "/usr/bin/nvidia-bug-report.sh",
    "/usr/bin/nvidia-powerd",
    "/usr/bin/nvidia-ngx-updater",
    "/usr/bin/nvidia-sleep.sh",
)

_RTX_PRO_6000_SIZE = re.compile(r"standard_\w+_rtxpro6000bse_v6")
_A10_SIZES = frozenset(
    {
        "standard_nv6ads_a10_v5",
        "standard_nv12ads_a10_v5",
        "standard_nv18ads_a10_v5",
        "standard_nv36ads_a10_v5",
        "standard_nv36adms_a10_v5",
        "standard_nv72ads_a10_v5",
        "standard_nc8ads_a10_v4",
        "standard_nc16ads_a10_v4",
        "standard_nc32ads_a10_v4",
    }
)


def driver_kind(driver_type: str | None) -> str | None:
    """Return the kind of a driver type, for comparison of types, or None if there is no type.

    `cuda` and `cuda-lts` are the same kind. If a node wants `cuda-lts`, its prebake record contains
    `cuda`: a direct comparison of the types would never match, and a baked driver would never be
    used (AgentBaker 8787).
    """
    if not driver_type:
        return None
    for kind in ("cuda", "grid"):
        if driver_type.startswith(kind):
            return kind
    return driver_type


def is_same_kind(one: str | None, other: str) -> bool:
    """Return whether two driver types have the same kind; unknown kinds never match."""
    kind = driver_kind(one)
    return kind is not None and kind == driver_kind(other)


def driver_type_for(vm_size: str) -> str:
    """Return the driver type that AKS chooses for a VM size."""
    size = vm_size.lower()
    if _RTX_PRO_6000_SIZE.fullmatch(size):
        return "grid-v20"
    if size in _A10_SIZES:
        return "grid"
    if size.startswith("standard_nc") and "_v" not in size:
        return "cuda"
    return DEFAULT_DRIVER_TYPE


@dataclass(frozen=True, kw_only=True)
class DriverImage:
    """The container image of one driver.

    The image's canonical name is the same in every cloud. In a sovereign cloud, a node pulls the
    image from that cloud's registry and tags it with the canonical name, which all later steps use.
    """

    driver_type: str
    version: str
    sha: str
    registry: str = CANONICAL_REGISTRY

    @property
    def tag(self) -> str:
        return f"{self.version}-{self.sha}"

    @property
    def name(self) -> str:
        """Return the image's canonical name, which is the same in every cloud."""
        return f"{CANONICAL_REGISTRY}/aks/aks-gpu-{self.driver_type}:{self.tag}"

    @property
    def pull_reference(self) -> str:
        """Return the image's name in the registry from which this node pulls."""
        return f"{self.registry.rstrip('/')}/aks/aks-gpu-{self.driver_type}:{self.tag}"
