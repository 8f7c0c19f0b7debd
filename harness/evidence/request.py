"""What evidence is gathered on a node: the list of all commands that gathering may run.

All commands of `node_request` only read, and `collection_script` writes nothing on the node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.evidence import (
    CDI_FOLDERS,
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    PCI_FOLDER,
    RECORD_PATH,
    SYSTEMD_PATH,
)
from harness.provisioner import EXIT_CODE_PATH, gpu_node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioner import Provisioner


_DKMS_STATUS = "dkms-status"


@dataclass(frozen=True, kw_only=True)
class EvidenceRequest:
    """What to gather in a guest; paths and files may be patterns with `*` and `?`."""

    commands: Mapping[str, Sequence[str]]
    files: Sequence[str]
    paths: Sequence[str]


def node_request(
    kernels: Sequence[str], provisioner: Provisioner | None = None
) -> EvidenceRequest:
    """Return what is gathered on every GPU node; modinfo is run for each of `kernels`.

    To this is added what the `provisioner` declares, by default that of the harness.
    Gathering must change nothing, so there is no `nvidia-smi`, which loads the module, and no
    `dkms status`, which writes a temporary file (DKMS 3.0.10).
    """
    request = EvidenceRequest(
        commands={
            "uname-r": ["uname", "-r"],
            "lspci": ["lspci", "-nnk"],
            "containerd-config": ["containerd", "config", "dump"],
            "container-images": ["ctr", "-n", "k8s.io", "images", "ls", "-q"],
            "failed-units": ["systemctl", "--failed", "--no-legend", "--plain"],
            "units": ["systemctl", "list-units", "--all", "--no-legend", "--plain"],
            "journal": ["journalctl", "-b", "--no-pager", "-o", "short-precise"],
            "dmesg": ["dmesg"],
            **{f"modinfo-{kernel}": ["modinfo", "-k", kernel, "nvidia"] for kernel in kernels},
        },
        files=[
            EXIT_CODE_PATH,
            RECORD_PATH,
            CLOUD_INIT_RESULT_PATH,
            CLOUD_INIT_OUTPUT_PATH,
            "/run/cloud-init/status.json",
            "/var/log/cloud-init.log",
            "/var/log/nvidia-installer-*.log",
            "/var/lib/dkms/nvidia/*/*/*/log/make.log",
            "/var/lib/dkms/nvidia/*/build/make.log",
            "/proc/modules",
            "/proc/stat",
            "/proc/cmdline",
            "/proc/driver/nvidia/version",
            "/proc/driver/nvidia/gpus/*/information",
            f"{PCI_FOLDER}/*/uevent",
            "/etc/systemd/system/*.service.d/*.conf",
            "/etc/containerd/config.toml",
            *(f"{folder}/*" for folder in CDI_FOLDERS),
        ],
        paths=[
            "/dev/nvidia*",
            "/etc/ld.so.conf.d/nvidia.conf",
            "/lib/modules/*",
            "/lib/modules/*/build",
            "/lib/modules/*/updates/dkms/*",
            "/opt/gpu",
            "/opt/azure/aks-gpu/*",
            "/opt/azure/containers/managed-gpu-experience.enabled",
            SYSTEMD_PATH,
            PCI_FOLDER,
            "/usr/bin/lib64",
            "/usr/bin/nvidia-*",
            "/usr/local/nvidia",
            "/var/lib/dkms/nvidia",
            "/var/lib/dkms/nvidia/*/*/*",
        ],
    )
    if provisioner is None:
        commands: Mapping[str, Sequence[str]] = gpu_node.EVIDENCE.commands
        files = (*gpu_node.OUTCOME.paths, gpu_node.CONFIG_PATH, *gpu_node.EVIDENCE.files)
    else:
        commands = provisioner.evidence.commands
        files = (
            *provisioner.outcome.paths,
            *provisioner.configuration_paths,
            *provisioner.evidence.files,
        )
        for name in commands:
            if name in request.commands or name == _DKMS_STATUS:
                raise BadInputError(
                    "The harness collects the output of a command by this name itself; choose "
                    "another.",
                    source=provisioner.where,
                    key=f"evidence.commands.{name}",
                )
    return replace(
        request,
        commands={**request.commands, **commands},
        files=[*files, *(path for path in request.files if path not in files)],
    )


def guest_request(
    kernels: Sequence[str], provisioner: Provisioner | None = None
) -> EvidenceRequest:
    """Return what is gathered on a machine of the harness, on which more commands may run."""
    request = node_request(kernels, provisioner)
    return replace(request, commands={**request.commands, _DKMS_STATUS: ["dkms", "status"]})
