"""Precompiled driver containers: one image and one DaemonSet for each kernel, processor and system.

Pure functions make the same decisions as the GPU operator (`internal/state/nodepool.go`): they
group nodes, choose the precompiled image or a build on the node, and decide whether a DaemonSet may
be deleted. A booting node (`precompiled_driver`) chooses its own driver, as a group of one node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .families import os_release_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

KERNEL_LABEL = "feature.node.kubernetes.io/kernel-version.full"
ARCHITECTURE_LABEL = "kubernetes.io/arch"
SYSTEM_LABELS = (
    "feature.node.kubernetes.io/system-os_release.ID",
    "feature.node.kubernetes.io/system-os_release.VERSION_ID",
)
#: Matches the processor in a kernel's name on systems with RPM packages. Debian's `amd64` is not
#: matched, since it is the name of a kernel flavour too.
_ARCHITECTURE = re.compile(r"(?P<machine>x86_64|aarch64)(?P<pages>_64k)?")
#: Processors as named in Kubernetes' labels, by their names in kernel names.
_KUBERNETES_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Systems whose minor versions share drivers, with the first major version for which this is true.
_MAJOR_VERSION_ONLY = {"ol": 0, "rocky": 0, "rhel": 10}
#: Characters that are not allowed in an image's tag or a label's value.
_NOT_IN_A_TAG = re.compile(r"[^A-Za-z0-9_.-]")


class PrecompiledError(ValueError):
    """The precompiled driver of a node cannot be determined; the message names the node."""


@dataclass(frozen=True, kw_only=True)
class PrecompiledImage:
    """An image with a driver that was compiled for one kernel of one distribution."""

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
        """Return the image's name in containerd, which equals its name in the registry."""
        return self.reference

    @property
    def pull_reference(self) -> str:
        return self.reference


def os_tag(os_release: str) -> str:
    """Return the tag of a system, such as `ubuntu22.04`, from the system's os-release file.

    For Oracle Linux, Rocky Linux, and RHEL 10 and later, the tag contains only the system's major
    version.

    Raises PrecompiledError if the os-release file has no ID or no VERSION_ID.
    """
    fields = os_release_fields(os_release)
    name, version = fields.get("ID"), fields.get("VERSION_ID")
    if not name or not version:
        raise PrecompiledError("The os-release file has no ID or no VERSION_ID.")
    major = version.partition(".")[0]
    first = _MAJOR_VERSION_ONLY.get(name)
    has_major_only = first is not None and major.isdecimal() and int(major) >= first
    return name + (major if has_major_only else version)


def label_value(kernel: str) -> str:
    """Return a kernel's name as in labels and tags: `_` replaces each forbidden character, such as `+`.

    Node feature discovery replaces characters in its label in the same way, and strips forbidden
    characters at both ends, for example the `+` at the end of a kernel's name on
    Container-Optimized OS. A registry refuses a tag with forbidden characters.
    """
    return _NOT_IN_A_TAG.sub("_", kernel).strip("-_.")


def kernel_suffix(kernel: str) -> str:
    """Return the suffix of a DaemonSet's name: the kernel, as a valid DNS name.

    The GPU operator uses a similar suffix. In the operator, the two DaemonSets for one kernel
    version with pages of 4 KiB and with pages of 64 KiB have the same name, and the name for
    `5.14.0-427.el9.x86_64+rt` is invalid.
    """
    name = _ARCHITECTURE.sub("", label_value(kernel)).replace("_", ".").lower()
    return ".".join(part for each in name.split(".") if (part := each.strip("-")))


@dataclass(frozen=True, kw_only=True)
class ClusterNode:
    """A node as the cluster describes it."""

    name: str
    os_tag: str
    labels: Mapping[str, str]

    @property
    def architecture(self) -> str | None:
        """Return the node's processor, from a label or else from the name of the node's kernel."""
        label = self.labels.get(ARCHITECTURE_LABEL)
        named = _ARCHITECTURE.search(self.labels.get(KERNEL_LABEL, ""))
        if label or named is None:
            return label or None
        return _KUBERNETES_ARCHITECTURES[named["machine"]]

    @property
    def selector(self) -> dict[str, str]:
        """Return the labels of the node by which a compiled driver for the node is chosen."""
        keys = (KERNEL_LABEL, ARCHITECTURE_LABEL, *SYSTEM_LABELS)
        return {key: self.labels[key] for key in keys if key in self.labels}


@dataclass(frozen=True, kw_only=True)
class KernelGroup:
    """The nodes with one kernel, processor and system, and the labels that select these nodes.

    `architecture` is Kubernetes' name for the processor, or None if it is unknown.
    """

    kernel: str
    os_tag: str
    nodes: tuple[str, ...]
    architecture: str | None = None
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def name_suffix(self) -> str:
        """Return the suffix of the name of the group's DaemonSet, which differs for each group.

        The suffix for a kernel with pages of 64 KiB differs from the suffix for the same kernel
        version with smaller pages.
        """
        named = _ARCHITECTURE.search(label_value(self.kernel))
        pages = "64k" if named is not None and named["pages"] else None
        parts = (self.os_tag, kernel_suffix(self.kernel), self.architecture, pages)
        return "-".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The groups of a cluster's nodes, and warnings, for example about a node in no group."""

    groups: tuple[KernelGroup, ...]
    warnings: tuple[str, ...] = ()


def group_by_kernel(nodes: Iterable[ClusterNode], *, is_label_required: bool) -> Grouping:
    """Group nodes by kernel, processor and system, in the order of each group's first node.

    A node without the kernel's label is an error under a ClusterPolicy (`is_label_required`) and is
    left out with a warning under an NVIDIADriver. If labels cannot distinguish two groups, the
    result contains a warning about these groups, because a DaemonSet has only one driver image.

    Raises PrecompiledError if a required label is missing.
    """
    members: dict[tuple[str, str | None, str], list[ClusterNode]] = {}
    warnings = []
    for node in nodes:
        kernel = node.labels.get(KERNEL_LABEL)
        if not kernel:
            message = f"The node '{node.name}' has no label '{KERNEL_LABEL}'."
            if is_label_required:
                raise PrecompiledError(message)
            warnings.append(f"{message} The node is left out.")
            continue
        key = (kernel, node.architecture, node.os_tag)
        members.setdefault(key, []).append(node)
    groups = tuple(
        KernelGroup(
            kernel=kernel,
            os_tag=system,
            nodes=tuple(node.name for node in group),
            architecture=architecture,
            selector=_shared(group),
        )
        for (kernel, architecture, system), group in members.items()
    )
    return Grouping(groups=groups, warnings=(*warnings, *_overlaps(groups)))


def _overlaps(groups: Sequence[KernelGroup]) -> Iterator[str]:
    for group in groups:
        for other in groups:
            if group is not other and group.selector.items() <= other.selector.items():
                yield (
                    f"The labels {dict(group.selector)} of the group '{group.name_suffix}' select the nodes "
                    f"of '{other.name_suffix}' too: {', '.join(other.nodes)}. Let node feature discovery "
                    "label the nodes with their system."
                )


def _shared(nodes: Sequence[ClusterNode]) -> dict[str, str]:
    """Return the labels that all nodes of a group have with the same value."""
    first, *others = (node.selector for node in nodes)
    return {key: value for key, value in first.items() if all(o.get(key) == value for o in others)}


@dataclass(frozen=True, kw_only=True)
class DriverChoice:
    """The choice of a group's driver; `image` is None if the driver is compiled on the node."""

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
    """Choose the precompiled image, or the conventional build if the registry lacks the image.

    The GPU operator has no fallback: if the image does not exist, the driver's pods wait for the
    image. If `has_fallback` is false, the message names a remedy.
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
    """Return whether a DaemonSet may be deleted, because no node runs it and no node should run it."""
    return desired == 0 and misscheduled == 0
