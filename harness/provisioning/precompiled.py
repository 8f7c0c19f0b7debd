"""Precompiled driver containers: one image and one DaemonSet for each kernel in a cluster.

These are the decisions of the GPU operator as pure functions: group nodes by kernel, choose the
precompiled image or the build on the node, and delete a DaemonSet that serves no node. A node's boot
(`precompiled_driver`) chooses as the only node of its group.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .families import os_release_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KERNEL_LABEL = "feature.node.kubernetes.io/kernel-version.full"
_ARCHITECTURE = re.compile(r"[.-]?(?:x86_64|amd64|aarch64|arm64)")
#: What neither a tag of an image nor the value of a label may have.
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.-]")


class PrecompiledError(ValueError):
    """The precompiled driver of a node cannot be determined; the message names the node."""


@dataclass(frozen=True, kw_only=True)
class PrecompiledImage:
    """A driver that was compiled for one kernel of one distribution."""

    repository: str
    image: str
    version: str
    kernel: str
    os_tag: str

    @property
    def reference(self) -> str:
        kernel = label_value(self.kernel)
        return f"{self.repository}/{self.image}:{self.version}-{kernel}-{self.os_tag}"

    @property
    def name(self) -> str:
        """Return what containerd calls it, which is the name in its registry."""
        return self.reference

    @property
    def pull_reference(self) -> str:
        return self.reference


def os_tag(os_release: str) -> str:
    """Return the tag of a system, such as `ubuntu22.04`, by its os-release file.

    Raises PrecompiledError if the file has no name or version.
    """
    fields = os_release_fields(os_release)
    name, version = fields.get("ID"), fields.get("VERSION_ID")
    if not name or not version:
        raise PrecompiledError("The os-release file has no ID or no VERSION_ID.")
    return name + version


def label_value(kernel: str) -> str:
    """Return a kernel as labels and tags spell it: `_` for each `+` of Debian 13's versions.

    Node feature discovery writes its label in this way, and a registry refuses any other tag.
    """
    return _NOT_IN_A_TAG.sub("_", kernel)


def kernel_suffix(kernel: str) -> str:
    """Return the suffix of a DaemonSet's name: the kernel, as a valid DNS name."""
    return _ARCHITECTURE.sub("", label_value(kernel)).replace("_", ".").lower()


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A node as the cluster describes it."""

    name: str
    os_tag: str
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class KernelGroup:
    """The nodes of one kernel, and the selector that finds them."""

    kernel: str
    os_tag: str
    nodes: tuple[str, ...]

    @property
    def selector(self) -> dict[str, str]:
        return {KERNEL_LABEL: self.kernel}


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The groups of a cluster, and a warning for each node that is in none."""

    groups: tuple[KernelGroup, ...]
    warnings: tuple[str, ...] = ()


def group_by_kernel(nodes: Iterable[ClusterNode], *, is_label_required: bool) -> Grouping:
    """Group nodes by their kernel's label, in the order in which the kernels first appear.

    A node without the label is an error under a ClusterPolicy (`is_label_required`) and is left
    out with a warning under an NVIDIADriver.

    Raises PrecompiledError, also for one kernel on two distributions, because a DaemonSet has
    only one driver image.
    """
    members: dict[str, list[ClusterNode]] = {}
    warnings = []
    for node in nodes:
        kernel = node.labels.get(KERNEL_LABEL)
        if not kernel:
            message = f"The node '{node.name}' has no label '{KERNEL_LABEL}'."
            if is_label_required:
                raise PrecompiledError(message)
            warnings.append(f"{message} It is left out.")
            continue
        members.setdefault(kernel, []).append(node)
    groups = []
    for kernel, group in members.items():
        systems = sorted({node.os_tag for node in group})
        if len(systems) > 1:
            raise PrecompiledError(
                f"The kernel '{kernel}' runs on several systems: {', '.join(systems)}."
            )
        names = tuple(node.name for node in group)
        groups.append(KernelGroup(kernel=kernel, os_tag=systems[0], nodes=names))
    return Grouping(groups=tuple(groups), warnings=tuple(warnings))


@dataclass(frozen=True, kw_only=True)
class DriverChoice:
    """How one group gets its driver; `image` is None if it is compiled on the node."""

    group: KernelGroup
    image: PrecompiledImage | None
    message: str


def choose_driver(
    group: KernelGroup,
    *,
    repository: str,
    image: str,
    version: str,
    is_available: Callable[[str], bool],
    has_fallback: bool = True,
) -> DriverChoice:
    """Choose the precompiled image, or the conventional build if the registry has none.

    Upstream has no fallback: the pods of the group would wait for an image that does not exist.
    Without one (`has_fallback`) the message says what to do.
    """
    precompiled = PrecompiledImage(
        repository=repository,
        image=image,
        version=version,
        kernel=group.kernel,
        os_tag=group.os_tag,
    )
    if is_available(precompiled.reference):
        return DriverChoice(
            group=group,
            image=precompiled,
            message=f"'{precompiled.reference}' was compiled for the kernel '{group.kernel}'.",
        )
    nodes = f"the {len(group.nodes)} node(s) of the kernel '{group.kernel}'"
    consequence = (
        f"the driver is built on {nodes}."
        if has_fallback
        else f"{nodes} get no driver. Publish the image, or set 'precompiled_fallback'."
    )
    return DriverChoice(
        group=group,
        image=None,
        message=f"The registry has no '{precompiled.reference}': {consequence}",
    )


def may_delete(*, desired: int, misscheduled: int) -> bool:
    """Return whether a DaemonSet may be deleted: no node wants it and none runs it."""
    return desired == 0 and misscheduled == 0
