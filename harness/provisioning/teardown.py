"""Removal of a baked driver that this node will not use."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .kernel_modules import (
    MODULE,
    QUERY_TIMEOUT_S,
    LoadedModule,
    installed_files,
    is_busy,
    kernels,
    module_directory,
    parse_modinfo,
    read_loaded,
    read_resident_version,
)
from .nvidia import (
    ACTIONS_DIRECTORY,
    DKMS_TREE,
    DRIVER_PROGRAMS,
    GPU_DEST,
    LINKER_CONFIGURATION,
    OTHER_DKMS_TREES,
    PAYLOAD_DIRECTORY,
    PROBE_PROGRAM,
    SOURCES_DIRECTORY,
    STAGED_LIBRARIES,
    driver_kind,
)
from .prebake import RECORD_DIRECTORY, read_record

if TYPE_CHECKING:
    from .node_context import NodeContext
    from .node_files import NodeFiles
    from .prebake import Record

COMMAND_TIMEOUT_S = 25.0


class TeardownStatus(enum.Enum):
    """How a teardown ended."""

    NOTHING = "nothing"
    """There was no record, so there is no baked driver."""
    CLEANED = "cleaned"
    INCOMPLETE = "incomplete"
    """Something could not be removed; the record is kept, and the next run retries."""
    PRESERVED = "preserved_customer_driver"


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a teardown may remove; `is_opted_out` is set for a node that gets no driver.

    Only an opted-out node may have a customer's own driver, which a teardown keeps. A teardown
    removes the driver image's payload, its actions and the package caches only from an opted-out
    node.
    """

    is_opted_out: bool
    is_gpu_node: bool
    record_path: str
    caches: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Residue:
    """The parts of a driver that are on the node."""

    record: Record | None
    loaded: tuple[LoadedModule, ...]
    resident_version: str | None
    dkms_versions: tuple[str, ...]
    other_dkms_versions: tuple[str, ...]
    """The versions of the driver from the distribution's packages, which provisioning did not install."""
    dkms_links: tuple[tuple[str, str], ...]
    module_files: tuple[str, ...]
    sources: tuple[str, ...]
    """The folders of the module's source from which DKMS builds."""
    present: tuple[str, ...]
    """The existing paths that a teardown may remove, including DKMS tree, sources and module files."""
    installed_version: str | None = None
    """The version of the running kernel's module, as `modinfo` prints it; only on opted-out nodes."""
    record_version_files: tuple[str, ...] = ()
    """The module files of the record's version; only if there is a customer's driver."""

    @property
    def is_ours_loaded(self) -> bool:
        """Return whether the loaded driver is the record's driver, not the same version from a package."""
        return (
            self.record is not None
            and self.resident_version == self.record.driver_version
            and self.resident_version not in self.other_dkms_versions
        )


@dataclass(frozen=True, kw_only=True)
class RemovalPlan:
    """The modules that a teardown unloads, and the paths that it deletes."""

    unload: tuple[str, ...]
    paths: tuple[str, ...]
    depmod_kernels: tuple[str, ...] = ()
    customer_version: str | None = None
    known_by_tree: tuple[str, ...] = ()
    """Sources that only DKMS's tree lists for removal; the tree is kept while any of them is left."""

    @property
    def emptied(self) -> tuple[str, ...]:
        """Return the folders that DKMS made for modules; such a folder is removed if it is empty."""
        return tuple(
            folder
            for kernel in self.depmod_kernels
            for folder in (module_directory(kernel), module_directory(kernel).rpartition("/")[0])
        )

    def describe(self) -> tuple[str, ...]:
        return (
            *(f"rmmod {name}" for name in self.unload),
            *(f"rm -rf {path}" for path in self.paths),
            *(f"rmdir --ignore-fail-on-non-empty {path}" for path in self.emptied),
            *(f"depmod -a {kernel}" for kernel in self.depmod_kernels),
            "ldconfig",
        )


def observe(node: NodeContext, scope: Scope) -> Residue:
    """Return the parts of a driver that are on the node; change nothing."""
    residue = _observe_files(node, scope)
    record = residue.record
    if not scope.is_opted_out or record is None:
        return residue
    installed = node.answer("modinfo", "-F", "version", MODULE) or None
    residue = replace(residue, installed_version=installed)
    if customer_version(residue) is None:
        return residue
    ours = tuple(
        path
        for path in residue.module_files
        if _module_version(node, path) == record.driver_version
        and not _is_of_a_package(node.files, path, record.driver_version)
    )
    return replace(residue, record_version_files=ours)


def _observe_files(node: NodeContext, scope: Scope) -> Residue:
    """Return the parts of a driver that can be found in files, without running a command."""
    files = node.files
    module_files = tuple(
        path for kernel in kernels(files) for path in installed_files(files, kernel)
    )
    listed: tuple[str, ...] = (DKMS_TREE, STAGED_LIBRARIES, LINKER_CONFIGURATION, *DRIVER_PROGRAMS)
    if scope.is_opted_out:
        listed += (GPU_DEST, PAYLOAD_DIRECTORY, ACTIONS_DIRECTORY, *scope.caches)
    entries = {name: f"{DKMS_TREE}/{name}" for name in files.names(DKMS_TREE)}
    # Besides folders of versions, DKMS has links `kernel-<kernel>-<arch>` and `original_module`.
    dkms_versions = tuple(
        name
        for name, path in entries.items()
        if name != "original_module" and files.is_directory(path)
    )
    others = (
        path
        for tree in _other_trees(files)
        for path in files.matching(tree, "*")
        if files.is_directory(path)
    )
    record = read_record(files, scope.record_path)
    sources = _sources(files, record, dkms_versions)
    return Residue(
        record=record,
        loaded=read_loaded(files),
        resident_version=read_resident_version(files),
        dkms_versions=dkms_versions,
        other_dkms_versions=tuple(path.rpartition("/")[2] for path in others),
        dkms_links=tuple(
            (path, target)
            for path in entries.values()
            if (target := files.link_target(path)) is not None
        ),
        module_files=module_files,
        sources=sources,
        present=(*(path for path in listed if files.exists(path)), *sources, *module_files),
    )


def _is_of_a_package(files: NodeFiles, path: str, version: str | None) -> bool:
    """Return whether DKMS built a module of this name and version for a package of the distribution."""
    name = path.rpartition("/")[2].partition(".")[0]
    return any(
        built.partition(".")[0] == name
        for tree in _other_trees(files)
        for kernel in files.names(f"{tree}/{version}")
        for arch in files.names(f"{tree}/{version}/{kernel}")
        for built in files.names(f"{tree}/{version}/{kernel}/{arch}/module")
    )


def _other_trees(files: NodeFiles) -> tuple[str, ...]:
    folder = DKMS_TREE.rpartition("/")[0]
    return tuple(tree for pattern in OTHER_DKMS_TREES for tree in files.matching(folder, pattern))


def _sources(
    files: NodeFiles, record: Record | None, dkms_versions: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the driver's source folders of the record's version and of versions in DKMS.

    If the record has no version, it does not identify the source folders, so the result contains
    all source folders of the driver.
    """
    found = {
        path: _source_version(path) for path in files.matching(SOURCES_DIRECTORY, "nvidia-[0-9]*")
    }
    recorded = None if record is None else record.driver_version
    if recorded is None:
        return tuple(found)
    return tuple(path for path, version in found.items() if version in {recorded, *dkms_versions})


def _source_version(path: str) -> str:
    return path.removeprefix(f"{SOURCES_DIRECTORY}/nvidia-")


def _module_version(node: NodeContext, path: str) -> str | None:
    result = node.runner.run(("modinfo", str(node.files.at(path))), timeout_s=QUERY_TIMEOUT_S)
    return parse_modinfo(result.stdout).version if result.ok else None


def customer_version(residue: Residue) -> str | None:
    """Return the version of a driver that the customer installed, or None.

    If any part of a driver on the node has another version than the record, the customer installed
    that version, even if parts of the baked version exist too. A version from the distribution's
    packages always counts as the customer's version; the module of a distribution's package has
    another name in the DKMS tree. If the record has no version, the baked driver cannot be
    distinguished from the customer's driver, so the result is None, and a teardown removes all
    parts.
    """
    if residue.record is None or residue.record.driver_version is None:
        return None
    ours = residue.record.driver_version
    signals = (
        residue.resident_version,
        residue.installed_version,
        *residue.dkms_versions,
        *residue.other_dkms_versions,
    )
    another = next((v for v in signals if v is not None and v != ours), None)
    return another or next(iter(residue.other_dkms_versions), None)


def choose_removal(scope: Scope, residue: Residue) -> RemovalPlan:
    """Choose the parts to remove, without side effects, so that `plan` can print the choice."""
    idle = () if is_busy(residue.loaded) else tuple(m.name for m in residue.loaded)
    version = customer_version(residue) if scope.is_opted_out else None
    ours = None if residue.record is None else residue.record.driver_version
    if version is None or ours is None:
        return RemovalPlan(
            unload=idle,
            paths=tuple(sorted(residue.present, key=lambda path: path == DKMS_TREE)),
            depmod_kernels=_kernels_of(residue.module_files),
            known_by_tree=tuple(
                path for path in residue.sources if ours not in {None, _source_version(path)}
            ),
        )
    folders = tuple(f"{DKMS_TREE}/{v}" for v in residue.dkms_versions if v == ours)
    links = tuple(path for path, target in residue.dkms_links if ours in target.split("/"))
    sources = tuple(path for path in residue.sources if _source_version(path) == ours)
    staged = tuple(path for path in residue.present if path == STAGED_LIBRARIES)
    return RemovalPlan(
        unload=idle if residue.is_ours_loaded else (),
        paths=(*folders, *links, *sources, *staged, *residue.record_version_files),
        depmod_kernels=_kernels_of(residue.record_version_files),
        customer_version=version,
    )


def _kernels_of(module_files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({path.split("/")[3] for path in module_files}))


def tear_down(node: NodeContext, scope: Scope) -> TeardownStatus:
    """Remove the baked driver, log one line, and remove the record if no part is left.

    If a path cannot be removed, no error is raised: the status is `INCOMPLETE`, and the record is
    kept, so that the next run retries. This function deletes DKMS's tree in half a second, because
    `dkms remove --all` would take half a minute.
    """
    before = observe(node, scope)
    if before.record is None:
        return TeardownStatus.NOTHING
    removal = choose_removal(scope, before)
    _carry_out_removal(node, removal)
    after = _observe_files(node, scope)
    is_clean = _has_nothing_left(node, after, removal) and _is_removed(node, scope.record_path)
    if is_clean:
        node.files.remove_empty_folder(RECORD_DIRECTORY)
    if removal.customer_version is not None and is_clean:
        node.journal.line(
            f"AKS_GPU_PREBAKE event=teardown gpu_node={render_bool(scope.is_gpu_node)}"
            f" status={TeardownStatus.PRESERVED.value}"
            f" marker_version={before.record.driver_version}"
            f" installed_version={removal.customer_version}"
        )
        return TeardownStatus.PRESERVED
    status = TeardownStatus.CLEANED if is_clean else TeardownStatus.INCOMPLETE
    node.journal.line(
        f"AKS_GPU_PREBAKE event=teardown gpu_node={render_bool(scope.is_gpu_node)}"
        f" status={status.value}"
        f" dkms_before={render_bool(DKMS_TREE in before.present)}"
        f" module_before={render_bool(bool(before.loaded))}"
        f" module_after={render_bool(bool(after.loaded))}"
        f" marker_after={render_bool(node.files.exists(scope.record_path))}"
        f" dkms_after={render_bool(DKMS_TREE in after.present)}"
        f" modprobe_after={render_bool(PROBE_PROGRAM in after.present)}"
    )
    return status


def _carry_out_removal(node: NodeContext, removal: RemovalPlan) -> None:
    for name in removal.unload:
        if not node.runner.run(("rmmod", name), timeout_s=COMMAND_TIMEOUT_S).ok:
            break
    for path in removal.paths:
        if path != DKMS_TREE or not any(map(node.files.exists, removal.known_by_tree)):
            _is_removed(node, path)
    for path in removal.emptied:
        node.files.remove_empty_folder(path)
    for kernel in removal.depmod_kernels:
        node.runner.run(("depmod", "-a", kernel), timeout_s=COMMAND_TIMEOUT_S)
    node.runner.run(("ldconfig",), timeout_s=COMMAND_TIMEOUT_S)


def _is_removed(node: NodeContext, path: str) -> bool:
    try:
        node.files.remove(path)
    except OSError as error:
        node.journal.line(f"'{path}' could not be removed: {error}.")
        return False
    return True


def _has_nothing_left(node: NodeContext, after: Residue, removal: RemovalPlan) -> bool:
    if any(node.files.exists(path) for path in removal.paths):
        return False
    if removal.customer_version is None:
        return not after.loaded and not after.present
    return not (after.loaded and after.is_ours_loaded)


def render_grid_line(driver_type: str, record: Record | None) -> str:
    """Render the log line that says why a node for a GRID driver removes a CUDA driver."""
    kind = None if record is None else record.driver_kind
    return (
        f"AKS_GPU_PREBAKE event=grid_cuda_prebake_teardown driver_type={driver_type}"
        f" marker_kind={kind or 'none'} node_kind={driver_kind(driver_type)} action=teardown"
    )


def render_bool(value: bool) -> str:  # positional: every caller passes a predicate
    """Render a boolean in the form of the log lines."""
    return "true" if value else "false"
