"""What a boot depends on, sampled before anything is changed."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import services, toolkit
from .cdi import Engine, detect_support
from .exit_codes import ExitCode, ProvisioningError
from .families import OS_RELEASE, Family, family_of
from .kernel_modules import prove_module
from .nvidia import DEFAULT_DRIVER_TYPE, driver_type_for, is_same_kind
from .prebake import Decision, Wanted, decide, read_record
from .root import UnreadableFileError
from .tags import MANAGED_TAG, SKIP_DRIVER_TAG, Metadata, TagLookupError, read_metadata
from .teardown import Scope, choose_removal, observe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .configuration import Configuration
    from .node import Node
    from .prebake import Record

ARM64 = frozenset({"aarch64", "arm64"})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a boot depends on, sampled before anything is changed."""

    kernel: str
    arch: str
    node_name: str
    family: Family
    is_opted_out: bool
    mode: services.Mode | None
    driver_type: str
    record: Record | None
    decision: Decision | None
    """None on a node whose processor there is no driver image for."""
    runtime: toolkit.RuntimeFacts | None
    """None where containerd's configuration is none of our business: a node without a GPU."""
    removal: tuple[str, ...]
    """What a teardown would take away, for the reader of a plan."""

    @property
    def is_kind_recorded(self) -> bool:
        """Tell whether the record is of a driver of the kind that this node is to have."""
        return self.record is not None and is_same_kind(self.record.driver_kind, self.driver_type)

    def render_readiness(self) -> str:
        """Render the line that tells how many nodes find a bake that fits them.

        It tells the sample taken before the install: images write a record after every full
        build, so a later look would call a node baked that was not.
        """
        return (
            f"AKS_GPU_PREBAKE event=managed_gpu driver_type={self.driver_type}"
            f" marker_present={word(self.record is not None)}"
            f" driver_kind_match={word(self.is_kind_recorded)}"
        )


def look(node: Node, configuration: Configuration, *, is_read_only: bool) -> Facts:
    """Sample what the plan depends on.

    Raises ProvisioningError 224 or 230 where the machine's tags are not known, 123 for two
    managed modes, and ConfigurationError where the fields that name the driver are not set.
    """
    kernel, arch = node.kernel(), node.answer("uname", "-m") or ""
    metadata, is_opted_out = look_up_opt_out(node, configuration)
    mode = None
    if not is_opted_out:
        with _lookup(ExitCode.LOOKUP_ENABLE_MANAGED_GPU_EXPERIENCE_TAG):
            mode = services.choose_mode(configuration, is_tagged=metadata.is_on(MANAGED_TAG))
    driver_type = configuration.gpu_driver_type or _type_by_size(metadata)
    record = read_record(node.root, configuration.gpu_dkms_marker_file)
    decision = None
    if is_opted_out or arch not in ARM64:
        wanted = None if is_opted_out else _wanted(configuration, driver_type, kernel, arch)
        decision = decide(
            wanted,
            record,
            lambda: prove_module(node.runner, kernel, is_read_only=is_read_only),
        )
    scope = teardown_scope(configuration, is_opted_out=is_opted_out)
    has_teardown = decision is not None and decision.action.has_teardown
    return Facts(
        kernel=kernel,
        arch=arch,
        node_name=(node.answer("uname", "-n") or "").lower(),
        family=family_of(node.root.read_or_empty(OS_RELEASE)),
        is_opted_out=is_opted_out,
        mode=mode,
        driver_type=driver_type,
        record=record,
        decision=decision,
        runtime=_look_at_runtime(node) if configuration.gpu_node else None,
        removal=choose_removal(scope, observe(node, scope)).describe() if has_teardown else (),
    )


def look_up_opt_out(node: Node, configuration: Configuration) -> tuple[Metadata, bool]:
    """Return the metadata, and whether this node is to have no driver; without a GPU it is.

    Raises ProvisioningError 224 where the machine's tags are not known.
    """
    if not configuration.gpu_node:
        return Metadata(), True
    with _lookup(ExitCode.NVIDIA_DRIVER_INSTALL):
        metadata = read_metadata(node.root)
        return metadata, metadata.is_on(SKIP_DRIVER_TAG)


@contextmanager
def _lookup(code: ExitCode) -> Iterator[None]:
    """Give a failed lookup its exit code; upstream swallows it and guesses."""
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


def _look_at_runtime(node: Node) -> toolkit.RuntimeFacts:
    try:
        text = node.root.read(toolkit.CONTAINERD_CONFIG)
    except UnreadableFileError as error:
        raise ProvisioningError(
            ExitCode.FILE_WATCH_TIMEOUT, f"containerd's configuration is not usable: {error}"
        ) from error
    return toolkit.RuntimeFacts(
        text=text,
        cdi=detect_support(
            Engine.CONTAINERD,
            dump=node.answer("containerd", "config", "dump"),
            version=node.answer("containerd", "--version"),
        ),
    )


def teardown_scope(configuration: Configuration, *, is_opted_out: bool) -> Scope:
    """Return how far a teardown goes on this node."""
    return Scope(
        is_opted_out=is_opted_out,
        is_gpu_node=configuration.gpu_node,
        record_path=configuration.gpu_dkms_marker_file,
        caches=services.CACHE_DIRECTORIES,
    )


def word(value: bool) -> str:  # a predicate's answer as text
    """Render a predicate's answer as log lines have it."""
    return "true" if value else "false"
