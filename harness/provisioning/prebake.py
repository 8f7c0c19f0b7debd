"""Reads the record of a baked driver, and decides what a boot does with the driver."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from .node_files import UnreadableFileError
from .nvidia import is_same_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from .kernel_modules import ModuleProof
    from .node_files import NodeFiles

RECORD_DIRECTORY = "/opt/azure/aks-gpu"
DEFAULT_RECORD_PATH = f"{RECORD_DIRECTORY}/dkms-marker"
PROVISIONAL_RECORD = "state=building\n"
"""The record that a bake writes before it builds the driver.

The record is corrupt on purpose: after a killed bake, the record tells a node that there are files
to remove.
"""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of a prebake record; a field that is absent, empty or has whitespace is None."""

    kernel: str | None = None
    driver_version: str | None = None
    driver_kind: str | None = None
    arch: str | None = None

    @property
    def is_corrupt(self) -> bool:
        return None in {self.kernel, self.driver_version, self.driver_kind, self.arch}

    def to_json(self) -> dict[str, str | None]:
        return asdict(self)


def parse_record(text: str) -> Record:
    """Parse a prebake record; if the text is not a complete record, the result is a corrupt record.

    If a key occurs more than once, its first value counts, even if the first value is invalid.
    Unknown keys are ignored.
    """
    known = {field.name for field in fields(Record)}
    values: dict[str, str | None] = {}
    for line in text.split("\n"):
        key, separator, value = line.partition("=")
        if separator and key in known and key not in values:
            is_word = value.isprintable() and not any(c.isspace() for c in value)
            values[key] = value if value and is_word else None
    return Record(**values)


def read_record(files: NodeFiles, path: str) -> Record | None:
    """Return the record at `path`, or None if there is no file.

    If the file cannot be read, the result is a record without values, which counts as corrupt.
    """
    try:
        text = files.read(path)
    except UnreadableFileError:
        return Record()
    return None if text is None else parse_record(text)


class Action(enum.Enum):
    """What a boot does with the driver."""

    NOTHING = "nothing"
    TEARDOWN = "teardown"
    TEARDOWN_INSTALL = "teardown-install"
    INSTALL = "install"
    INSTALL_SKIP_BUILD = "install-skip-build"

    @property
    def has_teardown(self) -> bool:
        return self in {Action.TEARDOWN, Action.TEARDOWN_INSTALL}


class Reason(enum.Enum):
    """The reason for a decision: the first row of the decision table that matched."""

    OPTED_OUT = "opted_out"
    NO_RECORD = "no_record"
    CORRUPT = "corrupt"
    KIND = "kind"
    VERSION = "version"
    KERNEL = "kernel"
    ARCH = "arch"
    MODULE = "module"
    VERMAGIC = "vermagic"
    DKMS = "dkms"
    OK = "ok"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a boot does with the driver, and why; `reason` is None if the boot does nothing."""

    action: Action
    reason: Reason | None = None

    def to_json(self) -> dict[str, str | None]:
        return {
            "action": self.action.value,
            "reason": None if self.reason is None else self.reason.value,
        }

    def render_line(self) -> str:
        """Render the log line about the decision, which the fleet's dashboards read."""
        reason = "-" if self.reason is None else self.reason.value
        return f"AKS_GPU_PREBAKE event=decision action={self.action.value} reason={reason}"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The driver that a managed node wants, and the kernel that the node runs."""

    driver_type: str
    driver_version: str
    kernel: str
    arch: str


def decide(
    wanted: Wanted | None, record: Record | None, prove: Callable[[], ModuleProof]
) -> Decision:
    """Decide by the first row of the decision table that matches; never raise.

    `wanted` is None for a node without a GPU and for a node that opted out. `prove` runs commands,
    so `prove` is called only if the record allows an install without a build.
    """
    if wanted is None:
        if record is None:
            return Decision(action=Action.NOTHING)
        return Decision(action=Action.TEARDOWN, reason=Reason.OPTED_OUT)
    reason = _reason_by_record(wanted, record)
    if reason is None and record is not None:
        reason = _reason_by_module(wanted, prove())
    if reason in {Reason.CORRUPT, Reason.KIND, Reason.VERSION}:
        return Decision(action=Action.TEARDOWN_INSTALL, reason=reason)
    if reason is not None:
        return Decision(action=Action.INSTALL, reason=reason)
    return Decision(action=Action.INSTALL_SKIP_BUILD, reason=Reason.OK)


def _reason_by_record(wanted: Wanted, record: Record | None) -> Reason | None:
    if record is None:
        return Reason.NO_RECORD
    if record.driver_kind is None or record.driver_version is None:
        return Reason.CORRUPT
    rows = (
        (Reason.KIND, is_same_kind(record.driver_kind, wanted.driver_type)),
        (Reason.VERSION, record.driver_version == wanted.driver_version),
        (Reason.KERNEL, record.kernel == wanted.kernel),
        (Reason.ARCH, record.arch == wanted.arch),
    )
    return next((reason for reason, is_good in rows if not is_good), None)


def _reason_by_module(wanted: Wanted, proof: ModuleProof) -> Reason | None:
    if not proof.is_linker_ready or proof.file is None:
        return Reason.MODULE
    is_installed = proof.is_installed(
        version=wanted.driver_version, kernel=wanted.kernel, arch=wanted.arch
    )
    rows = (
        (Reason.MODULE, not proof.lost),
        (Reason.MODULE, proof.file.version == wanted.driver_version),
        (Reason.VERMAGIC, proof.file.kernel == wanted.kernel),
        (Reason.DKMS, is_installed),
    )
    return next((reason for reason, is_good in rows if not is_good), None)
