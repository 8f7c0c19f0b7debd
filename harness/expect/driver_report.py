"""What NVIDIA's own tool reports of each GPU: `nvidia-smi -q`.

The tool loads the driver's module where it is not loaded, so an existing node is asked only where its
user wants that. The format is that of https://docs.nvidia.com/deploy/nvidia-smi: blocks by
indentation, and `name : value` in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.expect.failure import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.evidence import Evidence

#: The name of the gathered command.
NVIDIA_SMI = "nvidia-smi-q"
ARGV = ("nvidia-smi", "-q")

_ATTACHED = re.compile(r"^Attached GPUs\s*:\s*(\d+)\s*$", re.MULTILINE)
_GPU = re.compile(r"^GPU (?P<address>[0-9A-Fa-f:.]+)\s*$")
_LINE = re.compile(r"^(?P<indent>\s*)(?P<name>\S.*?)\s*(?::\s(?P<value>.*))?$")
#: What a value of "Yes" means, by its block and name.
_FAULTS = {
    ("Remapped Rows", "Pending"): "rows of its memory wait to be remapped: reset the GPU",
    (
        "Remapped Rows",
        "Remapping Failure Occurred",
    ): "a row could not be remapped: replace the GPU",
    (
        "Retired Pages",
        "Pending Page Blacklist",
    ): "pages of its memory wait to be retired: reset the GPU",
    ("GPU Reset Status", "Reset Required"): "it has to be reset: `nvidia-smi --gpu-reset`",
    ("GPU Reset Status", "Drain and Reset Recommended"): "it should be drained and reset",
}
_LOST = re.compile(r"ERR!|GPU is lost|Unknown Error|GPU requires reset")


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A line of a GPU's report; `blocks` are the headings above it, the outermost first."""

    blocks: tuple[str, ...]
    name: str
    value: str


def driver_reports_health(evidence: Evidence) -> str:
    """Expect `nvidia-smi -q` to report as many GPUs as the bus has, and no fault of any.

    Raises HarnessError where it was not run, or its report can't be read.
    """
    require(
        not evidence.is_command_absent(NVIDIA_SMI),
        "`nvidia-smi` was expected to report each GPU, but the node has no such program. Install the "
        "driver's programs.",
        evidence,
    )
    code = evidence.exit_code_of(NVIDIA_SMI)
    report = evidence.output_of(NVIDIA_SMI)
    said = " ".join(report.split())[:300] or "nothing"
    require(
        code == 0,
        f"`nvidia-smi -q` was expected to end with 0, but ended with {code} and printed: {said}. "
        "Look for 'NVRM' in the kernel log, and whether module and tool have the same version.",
        evidence,
    )
    attached = _ATTACHED.search(report)
    gpus = dict(_gpus(report))
    if attached is None or len(gpus) != int(attached[1]):
        raise HarnessError(
            "`nvidia-smi -q` was expected to print 'Attached GPUs' and a block for each, but printed: "
            f"{said}",
            evidence=evidence.folder,
        )
    on_bus = [each for each in evidence.pci_functions if each.driver_in_use == "nvidia"]
    require(
        len(gpus) == len(on_bus),
        f"The driver is bound to {len(on_bus)} GPUs, but `nvidia-smi -q` reports {len(gpus)}: "
        f"{', '.join(gpus) or 'none'}. Look for 'NVRM' in the kernel log.",
        evidence,
    )
    faults = [
        f"GPU {address}: {fault}" for address, values in gpus.items() for fault in _faults(values)
    ]
    require(not faults, f"Healthy GPUs were expected, but {'; '.join(faults)}.", evidence)
    return f"nvidia-smi reports no fault of {len(gpus)} GPUs."


def _gpus(report: str) -> Iterator[tuple[str, list[_Value]]]:
    """Return the values of each GPU, by its address."""
    address: str | None = None
    values: list[_Value] = []
    blocks: list[tuple[int, str]] = []
    for line in report.splitlines():
        started = _GPU.match(line)
        if started is not None:
            if address is not None:
                yield address, values
            address, values, blocks = started["address"], [], []
            continue
        found = _LINE.match(line)
        if address is None or found is None:
            continue
        indent = len(found["indent"])
        blocks = [block for block in blocks if block[0] < indent]
        if found["value"] is None:
            blocks.append((indent, found["name"]))
            continue
        names = tuple(name for _, name in blocks)
        values.append(_Value(blocks=names, name=found["name"], value=found["value"].strip()))
    if address is not None:
        yield address, values


def _faults(values: list[_Value]) -> Iterator[str]:
    for each in values:
        where = each.blocks[-1] if each.blocks else ""
        if _LOST.search(each.value):
            yield f"'{each.name}' is '{each.value}': it does not answer, so power the node off and on"
        elif (where, each.name) in _FAULTS and each.value.lower() == "yes":
            yield _FAULTS[where, each.name]
        elif _is_uncorrected(each):
            yield (
                f"{each.value} errors of its memory were not corrected since the driver was loaded "
                f"('{each.name}')"
            )


def _is_uncorrected(value: _Value) -> bool:
    """Return whether this counts errors of memory since the driver was loaded, and found some."""
    return (
        "ECC Errors" in value.blocks
        and "Volatile" in value.blocks
        and "Uncorrectable" in f"{value.blocks[-1]} {value.name}"
        and value.value.isdecimal()
        and int(value.value) > 0
    )
