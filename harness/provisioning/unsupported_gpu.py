"""Detection of a GPU that the NVIDIA driver does not support, in the kernel log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import Do, PermanentFailure
from .retry import StepFailedError

if TYPE_CHECKING:
    from .command import CommandResult
    from .node_context import NodeContext

_STAMP = re.compile(r"^(?:\[[^\]]*\])? *", re.MULTILINE)
"""`dmesg` prints a timestamp on the first line of a message and indents the others."""
_REFUSAL = re.compile(
    r"NVRM: The NVIDIA GPU (?P<address>\S+) \(PCI ID: (?P<device>[0-9a-f]{4}:[0-9a-f]{4})\)\n"
    r"NVRM: installed in this system is not supported by the\n"
    r"NVRM: NVIDIA (?P<version>\d+(?:\.\d+)+) driver release\."
)
"""The three lines that driver 535 prints. Another text is not recognised."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A GPU that a release of the driver reported as not supported."""

    address: str
    device: str
    version: str

    def describe(self) -> str:
        return (
            f"The NVIDIA driver {self.version} does not support the GPU {self.address} "
            f"({self.device}): it is too new or too old for this release. Choose a release that "
            "supports it, or a node with another GPU."
        )


def parse_refusals(log: str) -> tuple[Refusal, ...]:
    """Return the unsupported GPUs in the kernel log, each once, in order."""
    found = (
        Refusal(address=match["address"], device=match["device"], version=match["version"])
        for match in _REFUSAL.finditer(_STAMP.sub("", log))
    )
    return tuple(dict.fromkeys(found))


def read_refusals(node: NodeContext, version: str | None = None) -> tuple[Refusal, ...]:
    """Return the unsupported GPUs in the kernel log; none if the log cannot be read.

    With a `version`, refusals by other releases are left out: a driver that was replaced since may
    have logged them earlier in this boot.
    """
    log = node.answer("dmesg")
    refusals = () if log is None else parse_refusals(log)
    return tuple(refusal for refusal in refusals if version in {None, refusal.version})


def judge_refusal(
    node: NodeContext, result: CommandResult, *, version: str | None = None
) -> PermanentFailure | None:
    """Detect that a retry cannot help, because the driver does not support the GPU.

    Without a `version`, which release is installed is not known, and a refusal by any counts.
    """
    if result.ok:
        return None
    refusals = read_refusals(node, version)
    if not refusals:
        return None
    return PermanentFailure(message=" ".join(refusal.describe() for refusal in refusals))


def expect_no_refusal(version: str) -> Do:
    """Return the action that fails if this version of the driver does not support a GPU.

    A new build of the same version would not support it either.
    """

    def look(node: NodeContext) -> None:
        ours = read_refusals(node, version)
        if ours:
            raise StepFailedError(" ".join(refusal.describe() for refusal in ours))

    return Do(description=(f"expect that the driver {version} supports all GPUs",), function=look)
