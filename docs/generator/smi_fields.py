"""Generates the page with the fields of `nvidia-smi -q` for emulated GPUs.

The page marks each field as true, invented or not available. The outputs are recordings. If a field
has no mark here, the build of the documentation and a test fail.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import HarnessError
from harness.fixtures.recordings import load_recording
from harness.gpu.catalogue import find_model
from harness.reference.markdown import code, page, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from harness.gpu import GpuModel, GspFacts

#: For each model, the recording of an emulated GPU; `_REAL` names recordings of real cards.
EMULATED: Final[Mapping[str, str]] = {
    "a100-sxm4-40gb": "nvidia-smi/550.163.01-emulated-a100-q",
    "h100-sxm5-80gb": "nvidia-smi/550.163.01-emulated-h100-q",
}
_REAL: Final = {"h100-sxm5-80gb": "nvidia-smi/580.159.04-h100-q"}
#: Published values of a real card that are not in the model's file; the file names their source.
_PUBLISHED: Final[Mapping[str, Mapping[str, str]]] = {
    "a100-sxm4-40gb": {
        "Product Brand": "NVIDIA",
        "Display Mode": "Enabled",
        "MultiGPU Board": "No",
        "Module ID": "4",
        "PCI / GPU Link Info / Link Width / Max": "16x",
        "PCI / GPU Link Info / Link Width / Current": "16x",
        "Performance State": "P0",
    }
}

_FIELD: Final = re.compile(r" *(?P<name>\S.*?) +: ?(?P<value>.*)")
_INDENT: Final = 4
#: The words that `nvidia-smi` prints in place of a missing value.
_NO_VALUES: Final = frozenset({"N/A", "Not Found", "Unknown Error"})


class Mark(enum.Enum):
    """Whether a value is true, invented or not available."""

    TRUE = "true"
    INVENTED = "invented"
    NOT_AVAILABLE = "N/A"


class Origin(enum.Enum):
    """The source of a value, and the mark that follows from it."""

    REAL = "a real GPU shows the same value", Mark.TRUE
    MODEL = "the model's file, which names its sources", Mark.TRUE
    MACHINE = "the machine: its driver and its PCI tree", Mark.TRUE
    STATE = (
        "the state of the emulated GPU: it does no work, and has only the errors that a test raises",
        Mark.TRUE,
    )
    INVENTED = "", Mark.INVENTED
    NONE = "", Mark.NOT_AVAILABLE

    def __init__(self, words: str, mark: Mark) -> None:
        self.words = words
        self.mark = mark


@dataclass(frozen=True, kw_only=True)
class Field:
    """A field of a GPU; the path contains the names of the field's sections and of the field."""

    path: str
    value: str
    origin: Origin


def read_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each field in an output of `nvidia-smi -q` for one GPU."""
    sections: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        found = _FIELD.fullmatch(line)
        del sections[(len(line) - len(line.lstrip())) // _INDENT :]
        if found is not None:
            # The first section is the GPU's address.
            yield " / ".join([*sections[1:], found["name"]]), found["value"].strip()
        # A line with a value can also be the heading of a section.
        sections.append(line.strip() if found is None else found["name"])


def marked(model_name: str) -> list[Field]:
    """Return each field in the recording of an emulated model, with its mark.

    Raises HarnessError for a field without a mark, and for a value that differs from the model's data.
    """
    model = find_model(model_name)
    real = _shown_by_real(model_name)
    return [
        Field(path=path, value=value, origin=_origin(path, value, model, real.get(path)))
        for path, value in read_fields(load_recording(EMULATED[model_name]).text)
    ]


def _shown_by_real(model_name: str) -> Mapping[str, str]:
    """Return the known values that a real card of the model shows, by the path of the field."""
    if model_name in _PUBLISHED:
        return _PUBLISHED[model_name]
    return dict(read_fields(load_recording(_REAL[model_name]).text))


def _origin(path: str, value: str, model: GpuModel, real: str | None) -> Origin:
    known = _ORIGINS.get(path)
    expected = _OF_MODEL.get(path)
    if known is None and expected is None:
        raise HarnessError(
            f"Field '{path}' of `nvidia-smi -q` is not marked; add it to docs/generator/smi_fields.py."
        )
    if value in _NO_VALUES:
        return Origin.NONE
    if expected is not None and model.gsp is not None:
        if value != expected(model, model.gsp):
            raise HarnessError(
                f"Field '{path}' was expected to be '{expected(model, model.gsp)}' as model '{model.name}' "
                f"says, but `nvidia-smi -q` showed '{value}'."
            )
        return Origin.MODEL
    if known is Origin.REAL:
        return Origin.REAL if value == real else Origin.INVENTED
    return known or Origin.INVENTED


def _degrees(limit: Callable[[GspFacts], int | None]) -> Callable[[GpuModel, GspFacts], str]:
    return lambda _model, facts: f"{limit(facts)} C"


def _watts(limit: Callable[[GspFacts], int | None]) -> Callable[[GpuModel, GspFacts], str]:
    return lambda _model, facts: f"{limit(facts)}.00 W"


def _version(part: Callable[[GspFacts], tuple[int, int]]) -> Callable[[GpuModel, GspFacts], str]:
    return lambda _model, facts: ".".join(map(str, part(facts)))


def _generation(model: GpuModel, _facts: GspFacts) -> str:
    return str(model.pcie_generation)


#: For some fields, a function that returns the value according to the model's file.
_OF_MODEL: Final[Mapping[str, Callable[[GpuModel, GspFacts], str]]] = {
    "Product Name": lambda model, _: model.title,
    "Product Architecture": lambda model, _: model.architecture,
    "VBIOS Version": lambda _, facts: facts.vbios,
    "Board Part Number": lambda _, facts: facts.part_number,
    "GPU Part Number": lambda model, facts: (
        f"{model.pci.device:04X}-{facts.sku}-{model.pci.revision:02X}"
    ),
    "Inforom Version / Image Version": lambda _, facts: facts.inforom,
    "Inforom Version / OEM Object": _version(lambda facts: facts.inforom_oem),
    "Inforom Version / ECC Object": _version(lambda facts: facts.inforom_ecc),
    "PCI / Base Classcode": lambda model, _: f"{model.pci.class_code >> 16:#x}",
    "PCI / Sub Classcode": lambda model, _: f"{model.pci.class_code >> 8 & 0xFF:#x}",
    "PCI / Device Id": lambda model, _: f"0x{model.pci.device:04X}{model.pci.vendor:04X}",
    "PCI / Sub System Id": lambda model, _: (
        f"0x{model.pci.subsystem:04X}{model.pci.subsystem_vendor:04X}"
    ),
    **dict.fromkeys(
        (
            f"PCI / GPU Link Info / PCIe Generation / {name}"
            for name in ("Max", "Current", "Device Current", "Device Max")
        ),
        _generation,
    ),
    "FB Memory Usage / Total": lambda _, facts: f"{facts.memory_mib} MiB",
    "Remapped Rows / Bank Remap Availability Histogram / Max": lambda _, facts: (
        f"{facts.memory_banks} bank(s)"
    ),
    "Temperature / GPU Shutdown Temp": _degrees(lambda facts: facts.shutdown_c),
    "Temperature / GPU Slowdown Temp": _degrees(lambda facts: facts.slowdown_c),
    "Temperature / GPU Max Operating Temp": _degrees(lambda facts: facts.operating_c),
    **dict.fromkeys(
        (
            f"GPU Power Readings / {name} Power Limit"
            for name in ("Current", "Requested", "Default", "Max")
        ),
        _watts(lambda facts: facts.power_limit_w),
    ),
    "GPU Power Readings / Min Power Limit": _watts(lambda facts: facts.least_power_limit_w),
}


def _under(section: str, names: str) -> tuple[str, ...]:
    """Return the paths of the fields of a section; commas separate the names."""
    return tuple(f"{section} / {name.strip()}" for name in names.split(","))


_COUNTS: Final = (
    "SRAM Correctable, SRAM Uncorrectable Parity, SRAM Uncorrectable SEC-DED, DRAM Correctable, "
    "DRAM Uncorrectable"
)
_LIMITS: Final = "Current Power Limit, Requested Power Limit, Default Power Limit, Min Power Limit, Max Power Limit"

#: The origin of each field's value. If no real card shows the value, REAL counts as INVENTED.
_ORIGINS: Final[Mapping[str, Origin]] = {
    path: origin
    for origin, paths in {
        Origin.MACHINE: (
            *("Timestamp", "Driver Version", "CUDA Version", "Attached GPUs"),
            *("Display Active", "Persistence Mode", "Addressing Mode", "Minor Number", "Board ID"),
            *("Accounting Mode", "Accounting Mode Buffer Size", "Compute Mode"),
            "GPU Virtualization Mode / Virtualization Mode",
            "GSP Firmware Version",
            *_under("PCI", "Bus, Device, Domain, Bus Id"),
            "PCI / GPU Link Info / PCIe Generation / Host Max",
            *_under("FB Memory Usage", "Reserved, Used, Free"),
            *_under("BAR1 Memory Usage", "Total, Used, Free"),
            *_under("Conf Compute Protected Memory Usage", "Total, Used, Free"),
            "Processes",
        ),
        Origin.STATE: (
            *_under("MIG Mode", "Current, Pending"),
            *_under("GPU Reset Status", "Reset Required, Drain and Reset Recommended"),
            *_under("PCI", "Replays Since Reset, Replay Number Rollovers"),
            *_under("Utilization", "Gpu, Memory, Encoder, Decoder, JPEG, OFA"),
            *_under("Encoder Stats", "Active Sessions, Average FPS, Average Latency"),
            *_under("FBC Stats", "Active Sessions, Average FPS, Average Latency"),
            *_under("ECC Mode", "Current, Pending"),
            *_under("ECC Errors / Volatile", _COUNTS),
            *_under("ECC Errors / Aggregate", f"{_COUNTS}, SRAM Threshold Exceeded"),
            *_under(
                "ECC Errors / Aggregate Uncorrectable SRAM Sources",
                "SRAM L2, SRAM SM, SRAM Microcontroller, SRAM PCIE, SRAM Other",
            ),
            *_under("Remapped Rows", "Correctable Error, Uncorrectable Error, Pending"),
            *_under("Remapped Rows", "Remapping Failure Occurred"),
            *_under(
                "Remapped Rows / Bank Remap Availability Histogram", "High, Partial, Low, None"
            ),
        ),
        Origin.REAL: (
            *("Product Brand", "Display Mode", "MultiGPU Board", "Module ID", "GPU C2C Mode"),
            *_under("PCI / GPU Link Info / Link Width", "Max, Current"),
            *("Performance State", "Sparse Operation Mode"),
            "Temperature / GPU Max Operating T.Limit Temp",
        ),
        Origin.INVENTED: (
            *("Serial Number", "GPU UUID"),
            *_under("PCI", "Tx Throughput, Rx Throughput"),
            *_under("Temperature", "GPU Current Temp, GPU T.Limit Temp"),
            "GPU Power Readings / Instantaneous Power Draw",
        ),
        Origin.NONE: (
            *_under("Driver Model", "Current, Pending"),
            "FRU Part Number",
            "Inforom Version / Power Management Object",
            *_under("Inforom BBX Object Flush", "Latest Timestamp, Latest Duration"),
            *_under("GPU Operation Mode", "Current, Pending"),
            *_under("GPU Virtualization Mode", "Host VGPU Mode, vGPU Heterogeneous Mode"),
            "IBMNPU / Relaxed Ordering Mode",
            *_under("PCI / Bridge Chip", "Type, Firmware"),
            *_under("PCI", "Atomic Caps Inbound, Atomic Caps Outbound"),
            *("Fan Speed", "Clocks Event Reasons"),
            *_under("Retired Pages", "Single Bit ECC, Double Bit ECC, Pending Page Blacklist"),
            "Remapped Rows / Bank Remap Availability Histogram",
            *_under("Temperature", "GPU Shutdown T.Limit Temp, GPU Slowdown T.Limit Temp"),
            *_under("Temperature", "GPU Target Temperature, Memory Current Temp"),
            *_under("Temperature", "Memory Max Operating Temp, Memory Max Operating T.Limit Temp"),
            "GPU Power Readings / Average Power Draw",
            *_under("GPU Memory Power Readings", "Average Power Draw, Instantaneous Power Draw"),
            *_under(
                "Module Power Readings",
                f"Average Power Draw, Instantaneous Power Draw, {_LIMITS}",
            ),
            *_under("Clocks", "Graphics, SM, Memory, Video"),
            *_under("Applications Clocks", "Graphics, Memory"),
            *_under("Default Applications Clocks", "Graphics, Memory"),
            "Deferred Clocks / Memory",
            *_under("Max Clocks", "Graphics, SM, Memory, Video"),
            "Max Customer Boost Clocks / Graphics",
            *_under("Clock Policy", "Auto Boost, Auto Boost Default"),
            "Voltage / Graphics",
            *_under("Fabric", "State, Status, CliqueId, ClusterUUID"),
            "Fabric / Health / Bandwidth",
        ),
    }.items()
    for path in paths
}


def field_page() -> str:
    """Return the page with the tables."""
    by_model = {name: marked(name) for name in EMULATED}
    return page(
        "Fields of nvidia-smi",
        "The tables show the recorded output of `nvidia-smi -q` of NVIDIA's driver 550.163.01 for [an emulated "
        "GPU](../gpus.md#a-gpu-that-nvidias-driver-opens). Each value has one of these marks:\n",
        "* **true**: the value is in the model's file, whose sources are public; or a real GPU shows the same "
        "value (driver 580.159.04); or the value describes the machine or the emulated GPU itself;\n"
        "* **invented**: the value looks like a real value, but no real GPU has it;\n"
        "* **N/A**: `nvidia-smi` shows no value. If the column 'Real GPU' has a value, a real GPU shows "
        "that value.\n",
        *(
            f"## {find_model(name).title}\n\n" + _field_table(name, fields)
            for name, fields in by_model.items()
        ),
    )


def _field_table(model_name: str, fields: list[Field]) -> str:
    real = _shown_by_real(model_name)
    return table(
        ("Field", "Value", "Real GPU", "Source", "Mark"),
        (
            (
                each.path,
                code(each.value),
                code(real[each.path]) if each.path in real else "",
                each.origin.words,
                each.origin.mark.value,
            )
            for each in fields
        ),
    )
