"""Facts on which the plan of a boot depends, collected before anything is changed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import services, toolkit
from .cdi import Engine, detect_support
from .containerd_config import CONTAINERD_CONFIG, readable_dump
from .exit_codes import ExitCode, ProvisioningError
from .families import OS_RELEASE, Family, family_of
from .kernel_modules import prove_module
from .node_files import UnreadableFileError
from .nvidia import DEFAULT_DRIVER_TYPE, driver_type_for, is_same_kind
from .prebake import Decision, Wanted, decide, read_record
from .tags import MANAGED_TAG, SKIP_DRIVER_TAG, Metadata, TagLookupError, read_metadata
from .teardown import Scope, choose_removal, observe, render_bool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .configuration import Configuration
    from .node_context import NodeContext
    from .prebake import Record

ARM64 = frozenset({"aarch64", "arm64"})


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """The facts on which the plan of a boot depends."""

    kernel: str
    arch: str
    node_name: str
    family: Family
    os_release: str
    is_opted_out: bool
    mode: services.Mode | None
    driver_type: str
    record: Record | None
    decision: Decision | None
    """None if there is no driver image for the node's processor."""
    runtime: toolkit.RuntimeFacts | None
    """None on a node without a GPU, on which provisioning does not configure containerd."""
    removal: tuple[str, ...]
    """The paths and modules that a teardown would remove, as `plan` prints them."""

    @property
    def is_kind_recorded(self) -> bool:
        """Return whether the prebake record names the kind of driver that this node wants."""
        return self.record is not None and is_same_kind(self.record.driver_kind, self.driver_type)

    def render_readiness(self) -> str:
        """Render the log line about readiness, which shows whether the node was baked.

        The share of baked nodes is counted from the log lines about readiness. The line describes
        the prebake record as it was before the install, because a full build writes a new record.
        """
        return (
            f"AKS_GPU_PREBAKE event=managed_gpu driver_type={self.driver_type}"
            f" marker_present={render_bool(self.record is not None)}"
            f" driver_kind_match={render_bool(self.is_kind_recorded)}"
        )


def collect_facts(
    node: NodeContext, configuration: Configuration, *, is_read_only: bool
) -> NodeFacts:
    """Collect the facts on which the plan depends.

    Raises ProvisioningError with code 224 or 230 if the machine's tags are unknown, or with code
    123 if the modes for the device plugin and for DRA are both on. Raises ConfigurationError if the
    fields that name the driver are not set.
    """
    kernel, arch = node.kernel(), node.answer("uname", "-m") or ""
    metadata, is_opted_out = look_up_opt_out(node, configuration)
    mode = None
    if not is_opted_out:
        with _lookup(ExitCode.LOOKUP_ENABLE_MANAGED_GPU_EXPERIENCE_TAG):
            mode = services.choose_mode(configuration, is_tagged=metadata.is_on(MANAGED_TAG))
    driver_type = configuration.gpu_driver_type or _type_by_size(metadata)
    record = read_record(node.files, configuration.gpu_dkms_marker_file)
    decision = None
    if is_opted_out or arch not in ARM64:
        wanted = None if is_opted_out else _wanted(configuration, driver_type, kernel, arch)
        decision = decide(
            wanted,
            record,
            lambda: prove_module(node.runner, node.files, kernel, is_read_only=is_read_only),
        )
    os_release = node.files.read_or_empty(OS_RELEASE)
    scope = teardown_scope(configuration, is_opted_out=is_opted_out)
    has_teardown = decision is not None and decision.action.has_teardown
    return NodeFacts(
        kernel=kernel,
        arch=arch,
        node_name=(node.answer("uname", "-n") or "").lower(),
        family=family_of(os_release),
        os_release=os_release,
        is_opted_out=is_opted_out,
        mode=mode,
        driver_type=driver_type,
        record=record,
        decision=decision,
        runtime=_runtime_facts(node, configuration) if configuration.gpu_node else None,
        removal=choose_removal(scope, observe(node, scope)).describe() if has_teardown else (),
    )


def look_up_opt_out(node: NodeContext, configuration: Configuration) -> tuple[Metadata, bool]:
    """Return the metadata, and True if this node gets no driver, for example without a GPU.

    Raises ProvisioningError with code 224 if the machine's tags are unknown.
    """
    if not configuration.gpu_node:
        return Metadata(), True
    with _lookup(ExitCode.NVIDIA_DRIVER_INSTALL):
        metadata = read_metadata(node.files)
        return metadata, metadata.is_on(SKIP_DRIVER_TAG)


@contextmanager
def _lookup(code: ExitCode) -> Iterator[None]:
    """Turn a failed lookup of tags into an error with `code`; upstream ignores such a failure."""
    try:
        yield
    except TagLookupError as error:
        raise ProvisioningError(
            code, f"The machine's tags cannot be looked up. {error}"
        ) from error


def _type_by_size(metadata: Metadata) -> str:
    return DEFAULT_DRIVER_TYPE if metadata.vm_size is None else driver_type_for(metadata.vm_size)


def _wanted(configuration: Configuration, driver_type: str, kernel: str, arch: str) -> Wanted:
    version = configuration.image(driver_type).version
    return Wanted(driver_type=driver_type, driver_version=version, kernel=kernel, arch=arch)


def _runtime_facts(node: NodeContext, configuration: Configuration) -> toolkit.RuntimeFacts:
    if configuration.container_runtime is Engine.CRI_O:
        return toolkit.RuntimeFacts(
            text=None,
            cdi=detect_support(Engine.CRI_O),
            engine=Engine.CRI_O,
            is_cdi_enabled=configuration.cdi_enabled,
        )
    try:
        text = node.files.read_whole(CONTAINERD_CONFIG)
    except UnreadableFileError as error:
        raise ProvisioningError(
            ExitCode.FILE_WATCH_TIMEOUT, f"containerd's configuration is not usable. {error}"
        ) from error
    dump = readable_dump(node.answer("containerd", "config", "dump"))
    return toolkit.RuntimeFacts(
        text=text,
        cdi=detect_support(
            Engine.CONTAINERD, dump=dump, version=node.answer("containerd", "--version")
        ),
        dump=dump,
        is_cdi_enabled=configuration.cdi_enabled,
        is_stale=node.files.is_newer(CONTAINERD_CONFIG, toolkit.CONTAINERD_SOCKET),
    )


def teardown_scope(configuration: Configuration, *, is_opted_out: bool) -> Scope:
    """Return the scope of a teardown on this node."""
    return Scope(
        is_opted_out=is_opted_out,
        is_gpu_node=configuration.gpu_node,
        record_path=configuration.gpu_dkms_marker_file,
        caches=services.CACHE_DIRECTORIES,
    )
