"""Judges what NVIDIA's tool `nvidia-smi -q` reports about each GPU.

`nvidia-smi` loads the driver's module if no module is loaded, so the harness runs `nvidia-smi` on
an existing node only on request. https://docs.nvidia.com/deploy/nvidia-smi describes the format of
the report: blocks are indented, and contain lines `name : value`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.expect.driver import part_not_found
from harness.expect.failure import failure, require
from harness.provisioning.driver_messages import find_tool_words
from harness.provisioning.driver_words import (
    LOST_GPU,
    RESET_REQUIRED,
    SMI_EXIT_CODES,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.evidence import Evidence

#: The name of this command in the evidence.
NVIDIA_SMI = "nvidia-smi-q"
ARGV = ("nvidia-smi", "-q")

_ATTACHED = re.compile(r"^Attached GPUs\s*:\s*(\d{1,9})\s*$", re.MULTILINE)
_GPU = re.compile(r"^GPU (?P<address>[0-9A-Fa-f:.]+)\s*$")
_LINE = re.compile(r"^(?P<indent>\s*)(?P<name>\S.*?)(?::(?P<value>\s.*|))?$")
_RESET = "reset the GPU (`nvidia-smi --gpu-reset`)"
#: The fault that the value "Yes" means, by the block and the name of the line; "" stands for any
#: block.
_FAULTS = {
    ("Remapped Rows", "Pending"): f"rows of its memory wait to be remapped: {_RESET}",
    (
        "Remapped Rows",
        "Remapping Failure Occurred",
    ): "a row could not be remapped: replace the GPU",
    (
        "Retired Pages",
        "Pending Page Blacklist",
    ): f"pages of its memory wait to be retired: {_RESET}",
    ("Retired Pages", "Pending"): f"pages of its memory wait to be retired: {_RESET}",
    ("GPU Reset Status", "Reset Required"): f"it has to be reset: {_RESET}",
    ("GPU Reset Status", "Drain and Reset Recommended"): "it should be drained and reset",
    ("", "SRAM Threshold Exceeded"): "its caches have had too many errors: replace the GPU",
    ("", "Channel Repair Pending"): f"a channel of its memory waits to be repaired: {_RESET}",
    ("", "TPC Repair Pending"): f"a processor cluster waits to be repaired: {_RESET}",
    ("", "Unrepairable Memory"): "its memory cannot be repaired: replace the GPU",
}
_NOT_REGISTERED = (
    "it is not registered with the fabric of NVSwitches, so CUDA does not start: look at the unit "
    "nvidia-fabricmanager.service"
)
_DEGRADED = "the fabric of NVSwitches is degraded: reset the GPU, and look at its links"
#: The meaning of values about the GPU's fabric, by block and name. The status is valid once the
#: state is `Completed` (https://docs.nvidia.com/deploy/nvml-api, nvmlGpuFabricInfo_t).
_FABRIC = {
    ("Fabric", "State"): {
        "completed": "",
        "not started": _NOT_REGISTERED,
        "in progress": _NOT_REGISTERED,
    },
    ("Fabric", "Status"): {"success": "", "unknown error": _NOT_REGISTERED},
    ("Health", "Summary"): {"healthy": "", "unhealthy": _DEGRADED, "limited capacity": _DEGRADED},
    ("Health", "Bandwidth"): {"full": "", "degraded": _DEGRADED},
    ("Health", "Route Unhealthy"): {"false": "", "true": _DEGRADED},
    ("Health", "Route Recovery in progress"): {"false": "", "true": _DEGRADED},
    ("Health", "Access Timeout Recovery"): {"false": "", "true": _DEGRADED},
    ("Health", "Incorrect Configuration"): {"none": ""},
    ("Health", "Partition Assigned"): {"true": ""},
}
_RECOVERY = "GPU Recovery Action"
#: Values of _RECOVERY, as `nvidia-smi` or NVML writes them
#: (https://docs.nvidia.com/deploy/nvml-api).
_RECOVERIES = {
    "reset": f"the driver advises to {_RESET}",
    "gpu reset": f"the driver advises to {_RESET}",
    "reboot": "the driver advises to reboot the node",
    "node reboot": "the driver advises to reboot the node",
    "drain p2p": "the driver advises to end work that uses this GPU with other GPUs, and then to reset it",
    "drain and reset": "the driver advises to drain and reset it",
    "system reboot": "the driver advises to reboot the node",
    "bus reset": "the driver advises to reset the GPU's PCIe bus",
    "recover imex domain": "the driver advises to recover the IMEX domain: restart nvidia-imex on its nodes",
}
_LICENSED_PRODUCT = "vGPU Software Licensed Product"
_UNLICENSED = "its vGPU software has no licence, so it works slowly or not at all: look at nvidia-gridd.service"
#: The state of a virtual GPU's licence, without the time of its expiry. Without a licence, a virtual
#: GPU works without restrictions for some minutes (Azure/AKS#4870, NVIDIA/gpu-operator#628).
_LICENCES = {
    "licensed": "",
    "unlicensed (unrestricted)": "",
    "unlicensed (restricted)": _UNLICENSED,
    "unlicensed": _UNLICENSED,
}
#: What the tool prints for a missing value.
_NO_VALUES = {
    "n/a",
    "[n/a]",
    "none",
    "requested functionality has been deprecated",
    "not supported",
}
#: The exit codes of a program that was killed (124: by `timeout`), or that the user has no
#: permission to start.
_NOT_ENDED = {124, 126, 137, 143}
_NO_ANSWER = re.compile(r"ERR!|GPU is lost|Unknown Error")
#: The power draw of a sound GPU may be unreadable for a while (Azure/azhpc-diagnostics#77).
#: 'driver_words' accepts such a value in the tool's table too.
_UNREAD_POWER = re.compile(r"[\w ]*Power Draw: \[?(?:ERR!|Unknown Error)\]?")


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """The faults in the report of one GPU, and the values that the harness does not know."""

    faults: list[str]
    unknown: list[str]


@dataclass(frozen=True, kw_only=True)
class _Value:
    """A line of a GPU's report; `blocks` are the headings of the blocks around it, the outermost first."""

    blocks: tuple[str, ...]
    name: str
    value: str


def driver_reports_health(evidence: Evidence) -> str:
    """Expect `nvidia-smi -q` to report all GPUs on the bus, each without a fault.

    Raises HarnessError if `nvidia-smi` was not run, or if the report has an unknown form.
    """
    if evidence.is_command_absent(NVIDIA_SMI):
        raise part_not_found(
            evidence,
            "the program `nvidia-smi`",
            "`nvidia-smi` was expected to report each GPU, but the node has no such program. Install the "
            "driver's programs.",
        )
    code = evidence.exit_code_of(NVIDIA_SMI)
    report = evidence.output_of(NVIDIA_SMI)
    said = " ".join(report.split())[:300] or "nothing"
    if code in _NOT_ENDED and find_tool_words(report) is None:
        raise HarnessError(
            "Whether the GPUs have faults is unknown, because `nvidia-smi -q` could not be started or did "
            f"not end in time: it exited with {code} and printed: {said}. Look for 'NVRM' in the kernel log.",
            evidence=evidence.folder,
        )
    if code != 0:
        raise failure(
            f"`nvidia-smi -q` was expected to exit with 0, but exited with {code} and printed: {said}. "
            f"{_advice(report, code)}",
            evidence,
        )
    attached = _ATTACHED.search(report)
    gpus = dict(_gpus(report))
    # Indented lines have texts that users chose, such as the names of processes.
    warning = find_tool_words("\n".join(line for line in report.splitlines() if line[:1].strip()))
    if attached is None or len(gpus) != int(attached[1]):
        require(
            warning is None,
            f"`nvidia-smi -q` was expected to report each GPU, but printed: {said}. {_advice(report, code)}",
            evidence,
        )
        raise HarnessError(
            "`nvidia-smi -q` was expected to print 'Attached GPUs' and a block for each GPU, but printed: "
            f"{said}",
            evidence=evidence.folder,
        )
    on_bus = [
        each
        for each in evidence.pci_functions
        if each.driver_in_use == "nvidia" and not each.is_virtual
    ]
    require(
        len(gpus) == len(on_bus),
        f"The driver is bound to {len(on_bus)} GPUs, but `nvidia-smi -q` reports {len(gpus)}: "
        f"{', '.join(gpus) or 'none'}. Look for 'NVRM' in the kernel log.",
        evidence,
    )
    require(
        bool(gpus),
        "`nvidia-smi -q` was expected to report each GPU, but reports none. Look for 'NVRM' in the kernel log.",
        evidence,
    )
    judged = {address: _judge(values) for address, values in gpus.items()}
    faults = [
        f"GPU {address}: {fault}" for address, each in judged.items() for fault in each.faults
    ]
    if warning is not None:
        faults.append(warning.meaning.rstrip("."))
    require(not faults, f"Healthy GPUs were expected, but {'; '.join(faults)}.", evidence)
    unknown = [
        f"GPU {address}: {what}" for address, each in judged.items() for what in each.unknown
    ]
    if unknown:
        raise HarnessError(
            f"`nvidia-smi -q` does not show whether the GPUs have faults: {'; '.join(unknown)}.",
            evidence=evidence.folder,
        )
    plural = "s" * (len(gpus) > 1)
    return f"nvidia-smi reports {len(gpus)} GPU{plural} without a fault."


def _advice(report: str, code: int | None) -> str:
    words = find_tool_words(report) or SMI_EXIT_CODES.get(code or 0)
    if words is None:
        return "Look for 'NVRM' in the kernel log, and check that module and tool have the same version."
    return f"{words.meaning} {words.remedy}"


def _gpus(report: str) -> Iterator[tuple[str, list[_Value]]]:
    """Yield the address of each GPU in the report, and the values that the report has for this GPU."""
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
        indent, name = len(found["indent"]), found["name"].rstrip()
        blocks = [block for block in blocks if block[0] < indent]
        if found["value"] is None:
            blocks.append((indent, name))
            continue
        names = tuple(block for _, block in blocks)
        values.append(_Value(blocks=names, name=name, value=found["value"].strip()))
    if address is not None:
        yield address, values


def _judge(values: list[_Value]) -> _Judged:
    """Judge the report of one GPU."""
    faults: list[str] = []
    unknown: list[str] = []
    is_any_known = False
    is_virtual = any(
        (each.name.lower(), each.value) == ("virtualization mode", "VGPU") for each in values
    )
    # Blocks about processes contain names that users chose. A GPU of the node itself needs no licence.
    ignored = {"Processes"} if is_virtual else {"Processes", _LICENSED_PRODUCT}
    for each in (each for each in values if ignored.isdisjoint(each.blocks)):
        value = each.value.lower().replace("_", " ")
        meanings = _meanings(each)
        # Values about the fabric are not used here: the tool also prints them for a GPU without a
        # fabric. A licence says nothing about the GPU itself.
        is_about_gpu = {"Fabric", _LICENSED_PRODUCT}.isdisjoint(each.blocks)
        is_any_known = is_any_known or (meanings is not None and is_about_gpu)
        if meanings is not None and value in meanings:
            faults += [meanings[value]] if meanings[value] else []
        elif RESET_REQUIRED.pattern.search(each.value):
            faults.append(f"'{each.name}' is '{each.value}': {_RESET}")
        elif _UNREAD_POWER.fullmatch(f"{each.name}: {each.value}"):
            continue
        elif _NO_ANSWER.search(each.value):
            advice = LOST_GPU.remedy.rstrip(".")
            faults.append(f"'{each.name}' is '{each.value}': the GPU does not answer. {advice}")
        elif meanings is not None and value not in _NO_VALUES:
            where = " / ".join((*each.blocks, each.name))
            unknown.append(f"'{each.value}' for '{where}', which the harness does not know")
    if not is_any_known:
        unknown.append("no line about faults that the harness knows")
    return _Judged(faults=faults, unknown=unknown)


def _meanings(value: _Value) -> Mapping[str, str] | None:
    """Return, for a line about faults, the fault of each known value ("" for no fault); otherwise None."""
    where = value.blocks[-1] if value.blocks else ""
    for key in ((where, value.name), ("", value.name)):
        if key in _FAULTS:
            return {"yes": _FAULTS[key], "no": ""}
    if value.name == _RECOVERY:
        return _RECOVERIES
    if (where, value.name) == (_LICENSED_PRODUCT, "License Status"):
        state = value.value.lower()
        known = _LICENCES.get(state.partition(" (expiry")[0])
        return {} if known is None else {state: known}
    if "Fabric" in value.blocks:
        # Every line of `Health` is about a fault, even a line that a later release adds.
        return _FABRIC.get((where, value.name), {} if where == "Health" else None)
    return _meanings_of_count(value.name, value.value) if _counts_uncorrected(value) else None


def _meanings_of_count(name: str, count: str) -> Mapping[str, str]:
    if not count.isdecimal() or not count.strip("0"):
        return {"0": ""}
    words = "errors of its memory were not corrected since the driver was loaded"
    return {count: f"{count} {words} ('{name}')"}


def _counts_uncorrected(value: _Value) -> bool:
    """Return whether a line shows the number of uncorrected errors since the driver was loaded.

    GPUs before Ampere count single-bit and double-bit errors; only single-bit errors are corrected.
    """
    return (
        "ECC Errors" in value.blocks
        and "Volatile" in value.blocks
        and ("Double Bit" in value.blocks or "Uncorrectable" in f"{value.blocks[-1]} {value.name}")
    )
