"""What runs on a node: containerd's images, and systemd's units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.evidence import CDI_FOLDERS, SYSTEMD_PATH
from harness.expect.claim import claim

if TYPE_CHECKING:
    from harness.evidence import Evidence

CDI_KIND = "nvidia.com/gpu"
NVIDIA_RUNTIME = "nvidia-container-runtime"
MANAGED_MARKER = "/opt/azure/containers/managed-gpu-experience.enabled"
#: Of these, a managed node has one: it gives the GPUs to pods.
_GPU_OWNERS = ("nvidia-device-plugin.service", "dra-driver-nvidia-gpu.service")
#: Units that serve GPUs to workloads; a node has those that its kind of management takes.
GPU_UNITS = (
    "containerd.service",
    "kubelet.service",
    "nvidia-cdi-refresh.service",
    "nvidia-dcgm.service",
    "nvidia-dcgm-exporter.service",
    "nvidia-device-plugin.service",
    "dra-driver-nvidia-gpu.service",
    "nvidia-fabricmanager.service",
    "nvidia-modprobe.service",
    "nvidia-persistenced.service",
)


def image_present(evidence: Evidence, reference: str) -> None:
    """Expect containerd to have the image."""
    images = evidence.container_images
    claim(
        reference in images,
        f"containerd was expected to have '{reference}', but has {images}.",
        evidence,
    )


def image_absent(evidence: Evidence, reference: str) -> None:
    """Expect containerd not to have the image."""
    claim(
        reference not in evidence.container_images,
        f"containerd was expected to have '{reference}' no longer, but has it.",
        evidence,
    )


def unit_state(evidence: Evidence, unit: str, *, active: str) -> None:
    """Expect a systemd unit in the active state `active`."""
    seen = evidence.unit_states.get(unit)
    claim(
        seen == active,
        f"The unit '{unit}' was expected to be '{active}', but is '{seen}'.",
        evidence,
    )


def cdi_offers_gpus(evidence: Evidence) -> str:
    """Expect a CDI spec that offers a GPU to containers, written since this boot or by hand."""
    specs = evidence.cdi_devices
    broken = [path for path, devices in specs.items() if devices is None]
    claim(
        not broken,
        f"CDI specs were expected in {broken}, but what lies there is none, and container "
        "runtimes leave it out. Write it anew by `nvidia-ctk cdi generate`.",
        evidence,
    )
    gpus = {
        path: [name for name in devices or () if name.startswith(f"{CDI_KIND}=")]
        for path, devices in specs.items()
    }
    offered = {path: names for path, names in gpus.items() if names}
    claim(
        bool(offered),
        f"A CDI spec that offers a '{CDI_KIND}' was expected in {' or '.join(CDI_FOLDERS)}, but "
        f"{f'only {sorted(specs)} are there, which offer none' if specs else 'there is none'}. "
        "Start nvidia-cdi-refresh.service, or run "
        "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`.",
        evidence,
    )
    return " ".join(f"'{path}' offers {', '.join(names)}." for path, names in offered.items())


def runtime_hands_out_gpus(evidence: Evidence) -> str:
    """Expect containerd to know the nvidia runtime, as it is configured."""
    claim(
        not evidence.is_command_absent("containerd-config"),
        "containerd was expected to run the node's containers, but it is not installed. Install "
        "it, and configure the nvidia runtime.",
        evidence,
    )
    configuration = evidence.answer_of("containerd-config")
    claim(
        NVIDIA_RUNTIME in configuration,
        f"containerd's configuration was expected to name '{NVIDIA_RUNTIME}', but does not. "
        "Provision the node, or run `nvidia-ctk runtime configure --runtime=containerd`, and "
        "restart containerd.",
        evidence,
    )
    return f"containerd's configuration names '{NVIDIA_RUNTIME}'."


def gpu_services_up(evidence: Evidence) -> str:
    """Expect none of the units that serve GPUs to have failed, and containerd to be active."""
    claim(
        SYSTEMD_PATH in evidence.paths,
        f"systemd was expected to run the node's services, but does not: there is no "
        f"'{SYSTEMD_PATH}'. Judge the node itself, and not a container on it.",
        evidence,
    )
    failed = [unit for unit in GPU_UNITS if unit in evidence.failed_units]
    claim(
        not failed,
        f"No unit that serves GPUs was expected to have failed, but {failed} have. Read "
        f"`journalctl -b -u {failed[0] if failed else ''}` on the node.",
        evidence,
    )
    unit_state(evidence, "containerd.service", active="active")
    states = evidence.unit_states
    claim(
        MANAGED_MARKER not in evidence.paths
        or any(states.get(unit) == "active" for unit in _GPU_OWNERS),
        f"One of {list(_GPU_OWNERS)} was expected to be active, since '{MANAGED_MARKER}' is there, "
        "but none is, and no pod gets a GPU. Read their journals on the node.",
        evidence,
    )
    active = [unit for unit in GPU_UNITS if states.get(unit) == "active"]
    return f"These are active, and none has failed: {', '.join(active)}."
