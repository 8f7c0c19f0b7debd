"""Kinds of containerd configurations on nodes, and the expected result of a boot for each kind.

Each configuration follows public descriptions: AgentBaker's templates and pull 3131 (AKS), nodeadm of
amazon-eks-ami (EKS), docker/containerd-packaging, nvidia-container-toolkit 1067, 1260 and 1430, gpu-operator
188, 301 and 730, containerd 3843, 6389, 8139 and 10905, k8s-device-plugin 1145.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.provisioning.cdi import Engine, detect_support
from harness.provisioning.containerd_config import (
    CONTAINERD_CONFIG,
    WantedRuntimes,
    readable_dump,
)
from harness.provisioning.retry import StepFailedError
from harness.provisioning.toml_text import TomlTextError
from harness.provisioning.toolkit import (
    RuntimeFacts,
    configure_containerd,
    expect_in_effect,
    gpu_configuration,
    non_gpu_configuration,
    wanted_of_gpu_node,
)

from .simulated_containerd import Release

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.node_context import NodeContext

CRI = "io.containerd.grpc.v1.cri"
_T = f'[plugins."{CRI}"'
_RUNTIMES = f"{_T}.containerd.runtimes"
_RUNC_TYPE = 'runtime_type = "io.containerd.runc.v2"\n'
RUNC = f"{_RUNTIMES}.runc]\n{_RUNC_TYPE}"
NVIDIA = (
    f"{_RUNTIMES}.nvidia]\n{_RUNC_TYPE}"
    f'{_RUNTIMES}.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
)
NVIDIA_CDI = NVIDIA.replace("runtimes.nvidia", "runtimes.nvidia-cdi").replace(
    'runtime"', 'runtime.cdi"'
)
DOCKER = 'disabled_plugins = ["cri"]\n\n#root = "/var/lib/containerd"\n#[grpc]\n#  uid = 0\n'
AKS = f"""version = 2
oom_score = -999
{_T}]
  sandbox_image = "mcr.example/pause:3.6"
  {_T}.containerd]
    default_runtime_name = "nvidia-container-runtime"
    {_RUNTIMES}.nvidia-container-runtime]
      {_RUNC_TYPE}\
    {_RUNTIMES}.nvidia-container-runtime.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
      SystemdCgroup = true
    {_RUNTIMES}.untrusted]
      {_RUNC_TYPE}\
    {_RUNTIMES}.untrusted.options]
      BinaryName = "/usr/bin/nvidia-container-runtime"
"""
AKS_ON_2 = AKS.replace(CRI, "io.containerd.cri.v1.runtime").replace("sandbox_image", "#")
"""With the names of format 3, as AgentBaker writes it for containerd 2."""
EKS = f"""version = 2
{_T}.containerd]
default_runtime_name = "nvidia"
{_RUNTIMES}.nvidia]
{_RUNC_TYPE}base_runtime_spec = "/etc/containerd/base-runtime-spec.json"
{_RUNTIMES}.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
SystemdCgroup = true
"""
IMPORTS = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
MIRROR = (
    f'version = 2\n{_T}.registry.mirrors."mirror.example"]\nendpoint = ["http://mirror.example"]\n'
)
DROP_IN = "/etc/containerd/conf.d/mine.toml"
INLINE = (
    f"version = 2\n{_T}.containerd]\nruntimes = {{ runc = {{ runtime_type = "
    '"io.containerd.runc.v2" }, nvidia = { runtime_type = "io.containerd.runc.v2", options = { '
    'BinaryName = "/usr/bin/nvidia-container-runtime" } } }\n'
)

REFUSED = "containerd does not accept its configuration."
DISABLED = "Its CRI plugin is disabled"
NONE = "None of its runtimes"
OFF = "Its 'enable_cdi' is not true."
NO_DEFAULT = "is not one of its runtimes"
NO_TOML = "cannot be edited"


@dataclass(frozen=True, kw_only=True)
class ContainerdFiles:
    """A configuration, and words of the expected error for each release that has an error.

    `releases` are the releases of containerd whose nodes have such a configuration.
    """

    main: str | None
    files: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[Release, str] = field(default_factory=dict)
    opted_out: Mapping[Release, str] = field(default_factory=dict)
    releases: Sequence[Release] = tuple(Release)

    @property
    def texts(self) -> Mapping[str, str]:
        own = {} if self.main is None else {"/etc/containerd/config.toml": self.main}
        return {**own, **self.files}


def _all(words: str) -> Mapping[Release, str]:
    return dict.fromkeys(Release, words)


def _before_2(words: str) -> Mapping[Release, str]:
    return {Release.OLD: words, Release.MIDDLE: words}


KINDS: Mapping[str, ContainerdFiles] = {
    "no file": ContainerdFiles(main=None),
    "empty": ContainerdFiles(main=""),
    "package of Docker": ContainerdFiles(main=DOCKER, gpu=_all(DISABLED)),
    "short names": ContainerdFiles(main='disabled_plugins = [\n  "aufs", # old\n  "zfs",\n]\n'),
    "short name that is required": ContainerdFiles(main='required_plugins = ["cri"]\n'),
    "short name in format 2": ContainerdFiles(
        main='version = 2\ndisabled_plugins = ["cri"]\n', gpu=_all(REFUSED)
    ),
    "CRI is disabled in format 2": ContainerdFiles(
        main=f'version = 2\ndisabled_plugins = ["{CRI}"]\n', gpu=_all(DISABLED)
    ),
    "format 2": ContainerdFiles(main="version = 2\n"),
    "format 3": ContainerdFiles(
        main="version = 3\n", gpu={Release.OLD: NONE, Release.MIDDLE: REFUSED}
    ),
    "tables of format 1": ContainerdFiles(main='[plugins.cri]\nsandbox_image = "pause"\n'),
    "names of format 2 without a version": ContainerdFiles(main=RUNC),
    "AKS": ContainerdFiles(main=AKS),
    "AKS, containerd 2": ContainerdFiles(main=AKS_ON_2, releases=[Release.NEW]),
    "AKS, containerd 2, without a GPU": ContainerdFiles(
        main=AKS_ON_2.replace("nvidia-container-runtime", "runc"), releases=[Release.NEW]
    ),
    "EKS": ContainerdFiles(main=EKS),
    "Bottlerocket": ContainerdFiles(
        main=EKS.replace("/usr/bin/nvidia-container-runtime", "nvidia-oci")
    ),
    "operator's three": ContainerdFiles(main=f"version = 2\n{RUNC}{NVIDIA}{NVIDIA_CDI}"),
    "CDI variant alone": ContainerdFiles(main=f"version = 2\n{RUNC}{NVIDIA_CDI}"),
    "commented out": ContainerdFiles(
        main=f"version = 2\n{RUNC}" + "".join(f"#{line}\n" for line in NVIDIA.splitlines())
    ),
    "nvidia alone": ContainerdFiles(main=f"version = 2\n{NVIDIA}"),
    "written inline": ContainerdFiles(main=INLINE, opted_out=_all(NO_TOML)),
    "runtime without a type": ContainerdFiles(
        main=f"version = 2\n{RUNC}{NVIDIA}".replace(f".nvidia]\n{_RUNC_TYPE}", ".nvidia]\n")
    ),
    "imported runtime without a type": ContainerdFiles(
        main=IMPORTS,
        files={
            DROP_IN: f"version = 2\n{RUNC}{NVIDIA}".replace(
                f".nvidia]\n{_RUNC_TYPE}", ".nvidia]\n"
            )
        },
        gpu=_before_2(NONE),
    ),
    "default that is missing": ContainerdFiles(
        main=f'version = 2\n{_T}.containerd]\ndefault_runtime_name = "kata"\n{NVIDIA}',
        gpu=_all(NO_DEFAULT),
        opted_out=_all(NO_DEFAULT),
    ),
    "imported mirror": ContainerdFiles(
        main=IMPORTS + RUNC, files={DROP_IN: MIRROR}, gpu=_before_2(NONE)
    ),
    "imported mirror, runtime in the file": ContainerdFiles(
        main=IMPORTS + RUNC + NVIDIA, files={DROP_IN: MIRROR}, gpu=_before_2(NONE)
    ),
    "imported log level": ContainerdFiles(
        main=IMPORTS + RUNC, files={DROP_IN: 'version = 2\n[debug]\nlevel = "warn"\n'}
    ),
    "imported runtime": ContainerdFiles(
        main=IMPORTS,
        files={DROP_IN: f"version = 2\n{RUNC}{NVIDIA}"},
        gpu={Release.MIDDLE: OFF},
    ),
    "imported file disables CRI": ContainerdFiles(
        main=IMPORTS,
        files={DROP_IN: f'version = 2\ndisabled_plugins = ["{CRI}"]\n'},
        gpu=_all(DISABLED),
    ),
    "imported file of format 1": ContainerdFiles(
        main=IMPORTS,
        files={DROP_IN: '[plugins.cri]\nsandbox_image = "pause"\n'},
        gpu=_before_2(REFUSED),
    ),
    "imported file of format 3": ContainerdFiles(
        main=IMPORTS,
        files={
            DROP_IN: "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = 'x'\n"
        },
        gpu={Release.MIDDLE: REFUSED, Release.NEW: NONE},
    ),
    "imported file is missing": ContainerdFiles(
        main='version = 2\nimports = ["gone.toml"]\n', gpu=_before_2(REFUSED)
    ),
    "imports its own folder": ContainerdFiles(main=f'version = 2\nimports = ["*.toml"]\n{RUNC}'),
    "no TOML": ContainerdFiles(main="version = 2\n[broken\n", gpu=_all(NO_TOML)),
    "wrong type": ContainerdFiles(main='version = 2\noom_score = "high"\n', gpu=_all(REFUSED)),
}


def configure(node: NodeContext, *, is_opted_out: bool) -> str | None:
    """Configure containerd as a boot does, and return why that failed, or None."""
    dump = readable_dump(node.answer("containerd", "config", "dump"))
    version = node.answer("containerd", "--version")
    facts = RuntimeFacts(
        text=node.files.read(CONTAINERD_CONFIG),
        cdi=detect_support(Engine.CONTAINERD, dump=dump, version=version),
        dump=dump,
    )
    try:
        wanted = WantedRuntimes(has_nvidia=False) if is_opted_out else wanted_of_gpu_node(facts)
        text = (non_gpu_configuration if is_opted_out else gpu_configuration)(facts)
        if text is not None:
            configure_containerd(text, wanted).function(node)
        if text is not None or not is_opted_out:
            expect_in_effect(wanted).function(node)
    except TomlTextError as error:
        return f"It cannot be edited: {error}."
    except StepFailedError as error:
        return str(error)
    return None
