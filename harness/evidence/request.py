"""Lists the evidence that is gathered on a node, and all commands that gather evidence.

All commands of `node_request` only read, and `collection_script` writes nothing on the node.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.argv import check_argv
from harness.errors import BadInputError
from harness.evidence import (
    CDI_FOLDERS,
    CLOUD_INIT_OUTPUT_PATH,
    CLOUD_INIT_RESULT_PATH,
    DEBIAN_MODULE,
    DRIVER_CONTAINER,
    OTHER_PROGRAM_FOLDERS,
    PCI_CONFIG,
    PCI_FOLDER,
    RECORD_PATH,
    SYSTEMD_PATH,
)
from harness.evidence.node_state import LOCKS_SCRIPT, PCI_CONFIG_SCRIPT
from harness.provisioner import EXIT_CODE_PATH, RUNS_FOLDER, gpu_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.provisioner import Provisioner
    from harness.provisioning.command import Argv


#: A command's name is also the name of the file with the command's output.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXIT_CODE = ".exit-code"


@dataclass(frozen=True, kw_only=True)
class AdditionalEvidence:
    """Evidence to gather in addition to the evidence of every node.

    `files` are absolute paths in the guest, which may be patterns with `*` and `?`. `commands` maps
    names to argument lists; `Evidence.output_of` finds a command's output by the command's name.
    Error messages name `source`. Raises BadInputError for an invalid path or name.
    """

    files: Sequence[str] = ()
    commands: Mapping[str, Argv] = field(default_factory=dict)
    source: str = "node.evidence"

    def __post_init__(self) -> None:
        files: object = self.files
        if isinstance(files, str) or not isinstance(files, Iterable):
            raise self._bad("files", f"{files!r} is not a list of paths; write [{files!r}].")
        for index, path in enumerate(files):
            self._check_file(path, f"files[{index}]")
        commands: object = self.commands
        if not isinstance(commands, Mapping):
            raise self._bad(
                "commands",
                f"{commands!r} does not map names to commands; write each command as a list of words, "
                "such as {'uptime': ['uptime', '-p']}.",
            )
        for name, argv in commands.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith(_EXIT_CODE):
                raise self._bad(
                    "commands",
                    f"{name!r} can't be the name of a command, because the file with the command's output "
                    "has this name; use letters, digits, '.', '_' and '-', and do not end the name "
                    f"with '{_EXIT_CODE}'.",
                )
            check_argv(argv, source=self.source, key=f"commands.{name}")

    def _check_file(self, path: object, key: str) -> None:
        if not isinstance(path, str) or not path.startswith("/"):
            raise self._bad(key, f"{path!r} is not an absolute path in the guest.")
        if not path.isprintable() or {"", ".", ".."} & set(path.split("/")[1:]):
            raise self._bad(
                key,
                f"{path!r} names no file; write a path that has no part '.' or '..', no empty part, and no "
                "control character.",
            )

    def _bad(self, key: str, sentence: str) -> BadInputError:
        return BadInputError(sentence, source=self.source, key=key)

    def merged(self, other: AdditionalEvidence) -> AdditionalEvidence:
        """Return this request joined with `other`; `other` replaces commands of the same name."""
        return AdditionalEvidence(
            files=tuple(dict.fromkeys((*self.files, *other.files))),
            commands={**self.commands, **other.commands},
            source=other.source,
        )


_DKMS_STATUS = "dkms-status"


NOTHING_MORE = AdditionalEvidence()


@dataclass(frozen=True, kw_only=True)
class EvidenceRequest:
    """The evidence to gather in a guest; paths and files may be patterns with `*` and `?`."""

    commands: Mapping[str, Argv]
    files: Sequence[str]
    paths: Sequence[str]

    def extended(self, additional: AdditionalEvidence) -> EvidenceRequest:
        """Return this request with the commands and files of `additional`.

        The files of `additional` are added to both `files` and `paths`. Raises BadInputError if a
        command of `additional` has the name of a command in this request.
        """
        taken = [name for name in additional.commands if name in self.commands]
        if taken:
            raise BadInputError(
                f"The output of '{shlex.join(self.commands[taken[0]])}' is already gathered under this "
                "name; choose another name.",
                source=additional.source,
                key=f"commands.{taken[0]}",
            )
        return EvidenceRequest(
            commands={**self.commands, **additional.commands},
            files=[*self.files, *additional.files],
            paths=[*self.paths, *additional.files],
        )


def node_request(
    kernels: Sequence[str], provisioner: Provisioner | None = None
) -> EvidenceRequest:
    """Return the evidence to gather on every GPU node; modinfo is run for each of `kernels`.

    The declaration of the `provisioner` adds files and commands; the default is the provisioner of
    the harness. Gathering must not change the node, so the request has neither `nvidia-smi`, which
    loads the driver's module, nor `dkms status`, which writes a temporary file (DKMS 3.0.10).
    """
    request = EvidenceRequest(
        commands={
            "uname-r": ["uname", "-r"],
            # With -v, lspci reads the header of each function from the device, not from the kernel.
            "lspci": ["lspci", "-nnkv"],
            PCI_CONFIG: ["sh", "-c", PCI_CONFIG_SCRIPT],
            "containerd-config": ["containerd", "config", "dump"],
            "container-images": ["ctr", "-n", "k8s.io", "images", "ls", "-q"],
            "failed-units": ["systemctl", "--failed", "--no-legend", "--plain"],
            "units": ["systemctl", "list-units", "--all", "--no-legend", "--plain"],
            "journal": ["journalctl", "-b", "--no-pager", "-o", "short-precise"],
            "dmesg": ["dmesg"],
            "locks": ["sh", "-c", LOCKS_SCRIPT],
            **{f"modinfo-{kernel}": ["modinfo", "-k", kernel, "nvidia"] for kernel in kernels},
            **{
                f"{DEBIAN_MODULE}-modinfo-{kernel}": ["modinfo", "-k", kernel, DEBIAN_MODULE]
                for kernel in kernels
            },
        },
        files=[
            EXIT_CODE_PATH,
            f"{RUNS_FOLDER}/*/*",
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
            f"{DRIVER_CONTAINER}/dev/nvidia*",
            "/etc/ld.so.conf.d/nvidia.conf",
            "/lib/modules/*",
            "/lib/modules/*/build",
            "/lib/modules/*/updates/dkms/*",
            "/lib/modules/*/updates/nvidia*.ko*",
            "/lib/modules/*/extra/nvidia*.ko*",
            "/opt/gpu",
            "/opt/azure/aks-gpu/*",
            "/opt/azure/containers/managed-gpu-experience.enabled",
            SYSTEMD_PATH,
            PCI_FOLDER,
            f"{PCI_FOLDER}/*/physfn",
            "/usr/bin/lib64",
            "/usr/bin/nvidia-*",
            *(f"{folder}/nvidia-*" for folder in OTHER_PROGRAM_FOLDERS),
            "/usr/local/nvidia",
            "/usr/src/nvidia-*",
            "/var/lib/dkms/nvidia",
            "/var/lib/dkms/nvidia/*/*/*",
            "/var/lib/dkms/nvidia/*/*/*/module/*",
        ],
    )
    if provisioner is None:
        commands: Mapping[str, Argv] = gpu_node.EVIDENCE.commands
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
                    f"The harness uses the name '{name}' for the output of a command of its own; choose "
                    "another name.",
                    source=provisioner.where,
                    key=f"evidence.commands.{name}",
                )
    return replace(
        request,
        commands={**request.commands, **commands},
        files=[*files, *(path for path in request.files if path not in files)],
        paths=[*request.paths, *(() if provisioner is None else provisioner.evidence.files)],
    )


def result_request(provisioner: Provisioner) -> EvidenceRequest:
    """Return the request for only the results of a provisioner's runs."""
    return EvidenceRequest(
        commands={},
        files=[
            *provisioner.outcome.paths,
            EXIT_CODE_PATH,
            f"{RUNS_FOLDER}/*/*",
            CLOUD_INIT_OUTPUT_PATH,
        ],
        paths=[],
    )


def guest_request(
    kernels: Sequence[str], provisioner: Provisioner | None = None
) -> EvidenceRequest:
    """Return the request for a machine of the harness: `node_request`, and `dkms status`."""
    request = node_request(kernels, provisioner)
    return replace(request, commands={**request.commands, _DKMS_STATUS: ["dkms", "status"]})
