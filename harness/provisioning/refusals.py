"""What NVIDIA's driver says in the kernel's log of a GPU that it does not take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .plan import Do, Verdict
from .tries import StepFailedError

if TYPE_CHECKING:
    from .command import CommandResult
    from .node import Node

_STAMP = re.compile(r"^(?:\[[^\]]*\])? *", re.MULTILINE)
"""`dmesg` gives a stamp to the first line of a message, and indents the others."""
_REFUSAL = re.compile(
    r"NVRM: The NVIDIA GPU (?P<address>\S+) \(PCI ID: (?P<device>[0-9a-f]{4}:[0-9a-f]{4})\)\n"
    r"NVRM: installed in this system is not supported by the\n"
    r"NVRM: NVIDIA (?P<version>\d+(?:\.\d+)+) driver release\."
)
"""Three lines of the drivers 535. A release that says it otherwise is not understood."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A GPU that a release of the driver called not supported."""

    address: str
    device: str
    version: str

    def describe(self) -> str:
        return (
            f"NVIDIA's driver {self.version} does not support the GPU {self.address} "
            f"({self.device}): it is too new for this release, or too old. Choose a release that "
            "supports it, or a node with another GPU."
        )


def parse_refusals(log: str) -> tuple[Refusal, ...]:
    """Find the driver's refusals in the kernel's log, each once, in their order."""
    found = (
        Refusal(address=match["address"], device=match["device"], version=match["version"])
        for match in _REFUSAL.finditer(_STAMP.sub("", log))
    )
    return tuple(dict.fromkeys(found))


def read_refusals(node: Node) -> tuple[Refusal, ...]:
    """Ask the node for its kernel's log; where it gives none, nothing is known to be refused."""
    log = node.answer("dmesg")
    return () if log is None else parse_refusals(log)


def judge_refusal(node: Node, result: CommandResult) -> Verdict | None:
    """See that no further try of a probe can help: the driver itself has refused the GPU."""
    if result.ok:
        return None
    refusals = read_refusals(node)
    if not refusals:
        return None
    return Verdict(message=" ".join(refusal.describe() for refusal in refusals))


def expect_no_refusal(version: str) -> Do:
    """Return the action that ends a step where this version of the driver has refused a GPU.

    What was built for the running kernel would be refused again once it is built anew.
    """

    def look(node: Node) -> None:
        ours = [
            refusal.describe() for refusal in read_refusals(node) if refusal.version == version
        ]
        if ours:
            raise StepFailedError(" ".join(ours))

    return Do(words=(f"expect that the driver {version} has refused no GPU",), function=look)
