"""Decides how containers get their GPU: by CDI (natively or by the nvidia runtime), or by a hook.

The functions are pure; `toolkit` applies their decisions to the files and units of a node.
"""

from __future__ import annotations

import enum
import json
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
"""The table of CRI settings in containerd's configuration, by the version of the file.

Later versions use the table of version 3 (containerd-config.toml(5) of containerd 2.3).
"""

NATIVE_PREFIX = "cdi.k8s.io/"
LEGACY_PREFIX = "nvidia.cdi.k8s.io/"
_VERSION = re.compile(r"\bv?(\d+)\.(\d+)(?:\.(\d+))?")
_YAML_KEY = re.compile(r"([\"']?)(?P<key>[A-Za-z]+)\1:(?:[ \t]+(?P<value>.*))?")
_YAML_ITEM = re.compile(r"[ \t]*-(?:[ \t]|$)")


class Engine(enum.Enum):
    """A container runtime that serves Kubernetes."""

    CONTAINERD = "containerd"
    CRI_O = "cri-o"


class CdiSupport(enum.Enum):
    """How a container runtime supports a CDI device that a pod requests."""

    NATIVE = "native"
    CAPABLE = "capable"
    """CDI is supported but switched off; a changed configuration and a restart make it native."""
    ABSENT = "absent"


def parse_version(text: str) -> Version | None:
    """Parse the version in the output of `containerd --version`, even a fork's `1.7.34-2`."""
    match = _VERSION.search(text)
    if match is None:
        return None
    return int(match[1]), int(match[2]), int(match[3] or 0)


def detect_support(
    engine: Engine, *, dump: str | None = None, version: str | None = None
) -> CdiSupport:
    """Detect a runtime's CDI support from the configuration, or else from the version.

    `dump` is the output of `containerd config dump`, and `version` is the output of `containerd
    --version`; each of the two outputs is None if its command failed. An unknown version counts as
    the oldest version. In containerd 2.4 and later, CDI is always on, and the key `enable_cdi` does
    not exist (containerd 14166). So a missing key `enable_cdi` means that CDI is on in new
    releases, and that CDI is absent in old releases.
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


def offers_device(spec: str, kind: str) -> bool:
    """Return whether a CDI spec is of the kind `kind` and lists a device.

    A CDI spec is JSON, or YAML as nvidia-ctk writes it: each device is an item on lines of its own.
    Python has no YAML parser, so a YAML list of devices in any other form counts as empty.
    """
    if spec.lstrip().startswith("{"):
        return _offers_device_in_json(spec, kind)
    kinds: list[str] = []
    key, has_device = "", False
    for line in spec.splitlines():
        found = _YAML_KEY.fullmatch(line.rstrip())
        if found is not None:
            key = found["key"]
            if key == "kind":
                kinds.append((found["value"] or "").partition(" #")[0].strip(" \t\"'"))
        elif key == "devices" and _YAML_ITEM.match(line):
            has_device = True
    return has_device and kinds == [kind]


def _offers_device_in_json(spec: str, kind: str) -> bool:
    try:
        document = json.loads(spec)
    except (ValueError, RecursionError):
        return False
    devices = document.get("devices")
    return document.get("kind") == kind and isinstance(devices, list) and devices != []


@dataclass(frozen=True, kw_only=True)
class RuntimeChoice:
    """How a node's containers get devices.

    `mode` is the mode of the nvidia runtime, or None if the node uses a prestart hook instead.
    `device_list` contains the ways in which the device plugin passes devices to containers.
    """

    mode: str | None
    is_default: bool
    runtime_class: str | None
    device_list: tuple[str, ...]
    annotation_prefix: str | None = None


def choose_runtime(engine: Engine, *, is_cdi_enabled: bool, is_native: bool) -> RuntimeChoice:
    """Choose how containers get devices, by the decision table of the GPU operator.

    Nodes whose runtime supports CDI natively get the settings that the GPU operator uses since
    v25.10 (gpu-operator 1578). The GPU operator uses the settings of v25.10 on all nodes, so pods
    get no GPU on nodes with older runtimes. On nodes with older runtimes, this function chooses the
    settings of a proposal (gpu-operator 1285).
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
    """Return the container toolkit's environment; a user's settings override the variables."""
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
    """Return the device plugin's environment; a user's settings override the variables.

    `toolkit_directory` is the folder of the installed toolkit, or None.
    """
    environment = {"DEVICE_LIST_STRATEGY": ",".join(choice.device_list)}
    if choice.annotation_prefix is not None:
        environment["CDI_ENABLED"] = "true"
        environment["CDI_ANNOTATION_PREFIX"] = choice.annotation_prefix
        if toolkit_directory is not None:
            environment["NVIDIA_CDI_HOOK_PATH"] = f"{toolkit_directory}/toolkit/nvidia-cdi-hook"
    return {**environment, **(user or {})}
