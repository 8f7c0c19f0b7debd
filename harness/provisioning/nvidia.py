"""Facts about NVIDIA drivers on AKS nodes: kinds, images, where things lie."""

from __future__ import annotations

import re
from dataclasses import dataclass

CANONICAL_REGISTRY = "mcr.microsoft.com"
DEFAULT_DRIVER_TYPE = "cuda-lts"

GPU_DEST = "/usr/local/nvidia"
PAYLOAD_DIRECTORY = "/opt/gpu"
ACTIONS_DIRECTORY = "/opt/actions"

DKMS_TREE = "/var/lib/dkms/nvidia"
KERNELS_DIRECTORY = "/lib/modules"
STAGED_LIBRARIES = "/usr/bin/lib64"
LINKER_CONFIGURATION = "/etc/ld.so.conf.d/nvidia.conf"
PROBE_PROGRAM = "/usr/bin/nvidia-modprobe"
CONTAINER_RUNTIME = "/usr/bin/nvidia-container-runtime"
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
    """Map a driver type to the kind that types are compared by; None for none or an empty one.

    `cuda` and `cuda-lts` are the same kind of driver. A record says `cuda` where the node asks
    for `cuda-lts`; compared raw they never match and the fast path never fires (AgentBaker
    8787).
    """
    if not driver_type:
        return None
    for kind in ("cuda", "grid"):
        if driver_type.startswith(kind):
            return kind
    return driver_type


def is_same_kind(one: str | None, other: str) -> bool:
    """Tell whether two driver types are of one kind; unknown kinds are never the same."""
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
    """The container image that carries one driver.

    Its canonical name is the same in every cloud; a sovereign cloud pulls it from a registry
    of its own and re-tags it, so that every later step knows it by one name.
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
        """Return the canonical reference."""
        return f"{CANONICAL_REGISTRY}/aks/aks-gpu-{self.driver_type}:{self.tag}"

    @property
    def pull_reference(self) -> str:
        """Return the reference that this node's registry answers to."""
        return f"{self.registry.rstrip('/')}/aks/aks-gpu-{self.driver_type}:{self.tag}"
