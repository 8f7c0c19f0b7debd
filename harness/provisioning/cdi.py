"""How containers get their GPU: by CDI, natively or through the nvidia runtime, or by hand.

Pure decisions. `toolkit` brings them to a node's files and units.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .toml_text import Key, values_below

if TYPE_CHECKING:
    from collections.abc import Mapping

Version = tuple[int, int, int]

CRI_PLUGINS: dict[int, Key] = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
}
"""Where containerd's configuration keeps its CRI settings, by the file's version."""

NATIVE_PREFIX = "cdi.k8s.io/"
LEGACY_PREFIX = "nvidia.cdi.k8s.io/"
_VERSION = re.compile(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?")


class Engine(enum.Enum):
    """A container runtime that serves Kubernetes."""

    CONTAINERD = "containerd"
    CRI_O = "cri-o"


class CdiSupport(enum.Enum):
    """What a container runtime makes of a CDI device that a pod asks for."""

    NATIVE = "native"
    CAPABLE = "capable"
    """It can, and is told not to: enabling it and a restart make it native."""
    ABSENT = "absent"


def parse_version(text: str) -> Version | None:
    """Read the version out of `containerd --version`, forks such as `1.7.34-2` included."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0)


def detect_support(
    engine: Engine, *, dump: str | None = None, version: str | None = None
) -> CdiSupport:
    """Tell a runtime's support by what it says of itself; its version is a fallback only.

    `dump` is `containerd config dump` and `version` `containerd --version`, None where they
    failed; a version that is not known counts as older than any. containerd 2.4 dropped the key
    `enable_cdi` since CDI is always on there (containerd 14166), so a missing key means opposite
    things in old and new releases.
    """
    if engine is Engine.CRI_O:
        return CdiSupport.NATIVE
    number = None if version is None else parse_version(version)
    if dump is None:
        return CdiSupport.CAPABLE if _is_at_least(number, (1, 7, 0)) else CdiSupport.ABSENT
    keys: dict[str, str] = {}
    for plugin in CRI_PLUGINS.values():
        keys.update(values_below(dump, plugin))
    if "enable_cdi" in keys:
        return CdiSupport.NATIVE if keys["enable_cdi"] == "true" else CdiSupport.CAPABLE
    if "cdi_spec_dirs" in keys or _is_at_least(number, (2, 4, 0)):
        return CdiSupport.NATIVE
    return CdiSupport.ABSENT


def _is_at_least(number: Version | None, wanted: Version) -> bool:
    return number is not None and number >= wanted


@dataclass(frozen=True, kw_only=True)
class RuntimeChoice:
    """How a node's containers get devices.

    `mode` is that of the nvidia runtime, None where the node has no such runtime and a prestart
    hook does the work. `device_list` is what the device plugin hands out.
    """

    mode: str | None
    is_default: bool
    runtime_class: str | None
    device_list: tuple[str, ...]
    annotation_prefix: str | None = None


def choose_runtime(engine: Engine, *, is_cdi_enabled: bool, is_native: bool) -> RuntimeChoice:
    """Choose by the operator's decision table.

    Native nodes get what the operator ships since v25.10 (gpu-operator 1578). It sets the same
    everywhere, which leaves pods on older runtimes without a GPU; those get the row that the
    proposal had for them (gpu-operator 1285).
    """
    if not is_cdi_enabled:
        if engine is Engine.CRI_O:
            return RuntimeChoice(
                mode=None, is_default=False, runtime_class=None, device_list=("envvar",)
            )
        return RuntimeChoice(
            mode="auto", is_default=True, runtime_class="nvidia", device_list=("envvar",)
        )
    if is_native:
        return RuntimeChoice(
            mode="cdi",
            is_default=False,
            runtime_class="nvidia",
            device_list=("cdi-annotations", "cdi-cri"),
            annotation_prefix=NATIVE_PREFIX,
        )
    return RuntimeChoice(
        mode="cdi",
        is_default=True,
        runtime_class="nvidia",
        device_list=("envvar", "cdi-annotations"),
        annotation_prefix=LEGACY_PREFIX,
    )


def toolkit_environment(
    choice: RuntimeChoice, user: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the container toolkit's environment; what the user set applies last."""
    environment: dict[str, str] = {}
    if choice.annotation_prefix is not None:
        environment["CDI_ENABLED"] = "true"
    if choice.mode is None:
        environment["CRIO_CONFIG_MODE"] = "hook"
    else:
        environment["NVIDIA_RUNTIME_SET_AS_DEFAULT"] = "true" if choice.is_default else "false"
        environment["NVIDIA_CONTAINER_RUNTIME_MODE"] = choice.mode
        environment["CRIO_CONFIG_MODE"] = "config"
    if choice.annotation_prefix == LEGACY_PREFIX:
        environment["NVIDIA_CONTAINER_RUNTIME_MODES_CDI_ANNOTATION_PREFIXES"] = LEGACY_PREFIX
    return {**environment, **(user or {})}


def plugin_environment(
    choice: RuntimeChoice,
    *,
    toolkit_directory: str | None = None,
    user: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the device plugin's environment; what the user set applies last.

    `toolkit_directory` is where the toolkit is installed, None on a node without one.
    """
    environment = {"DEVICE_LIST_STRATEGY": ",".join(choice.device_list)}
    if choice.annotation_prefix is not None:
        environment["CDI_ENABLED"] = "true"
        environment["CDI_ANNOTATION_PREFIX"] = choice.annotation_prefix
        if toolkit_directory is not None:
            environment["NVIDIA_CDI_HOOK_PATH"] = f"{toolkit_directory}/toolkit/nvidia-cdi-hook"
    return {**environment, **(user or {})}
