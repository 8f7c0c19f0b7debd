"""Answers the driver's control calls by handlers; a policy answers calls without a handler.

The driver's resource manager (RM) passes partly uninitialised parameters on its stack, and trusts
the answer. So the answer to a command that reads data has zeros instead of the command's
parameters. The answer to a command that sets data repeats the parameters. A command that the
release's headers do not name is recorded, and gets the status "not supported".
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.call import INVALID_ARGUMENT, NOT_SUPPORTED, OK
from harness.gpu.gsp.engines import interrupt_table, pack_subtrees
from harness.gpu.gsp.guest_memory import MOST_BYTES
from harness.gpu.gsp.mig import CONTEXTS_PER_GPC, MIG
from harness.gpu.gsp.page_tables import Directory, Space
from harness.gpu.gsp.records import Record
from harness.gpu.gsp.sensors import SENSORS
from harness.gpu.gsp.state import MIB
from harness.gpu.gsp.static_info import gpc_masks
from harness.gpu.gsp.vbios import parse_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu.gsp.call import Answer, Call
    from harness.gpu.gsp.layouts import Command

#: The numbers of internal commands, which only the GSP carries out; the headers do not name all of
#: them.
_INTERNAL: Final = range(0x20800A00, 0x20800B80)
_NOT_THERE: Final = 0xFFFFFFFF
#: The bit that marks an unknown index in the answer to a list of {index, data}.
_UNKNOWN_INDEX: Final = 1 << 31


def answer(call: Call) -> tuple[int, bool]:
    """Answer a call; return the status, and whether the command was known."""
    handler = ANSWERS.get(call.command)
    if handler is not None:
        return handler(call), True
    known = call.layouts.command(call.command)
    if known is not None:
        _answer_by_policy(call, known)
        return OK, True
    if call.command in _INTERNAL:
        call.clear()
        return OK, True
    return NOT_SUPPORTED, False


def _answer_by_policy(call: Call, known: Command) -> None:
    name = known.name.lower()
    if name.endswith("infov2"):
        _answer_list(call)
    elif "get" in name or "static" in name or "query" in name:
        call.clear()


def _answer_list(call: Call, values: Mapping[int, int] | None = None) -> None:
    """Fill a list of {index, data} with these values, and with 0 for other indices."""
    count = min(call.word(0), max(0, len(call.parameters) - 4) // 8)
    for at in range(4, 4 + 8 * count, 8):
        index = call.word(at) & ~_UNKNOWN_INDEX
        call.put(at, struct.pack("<II", index, (values or {}).get(index, 0)))


def _chip_info(call: Call) -> int:
    pci = call.state.model.pci
    # Base addresses of register groups: graphics, timer, master control, user mode.
    bases = {1: 0x400000, 2: 0x9000, 3: 0, 4: 0xBB0000}
    values: dict[str, int | bytes] = {
        "pciDeviceId": pci.device << 16 | pci.vendor,
        "pciSubDeviceId": pci.subsystem << 16 | pci.subsystem_vendor,
        "pciRevisionId": pci.revision,
    }
    values |= {f"regBases[{index}]": bases.get(index, _NOT_THERE) for index in range(16)}
    call.fill(values)
    return OK


def _bar_info(call: Call) -> int:
    """Answer with the BARs in order; the driver calls them 0, 1 and 2."""
    values: dict[str, int | bytes] = {"pciBarCount": 4}
    for position, index in enumerate(sorted(call.state.bars)):
        bar = call.state.bars[index]
        values[f"pciBarInfo[{position}].barSize"] = bar.mib
        values[f"pciBarInfo[{position}].barSizeBytes"] = bar.size
        values[f"pciBarInfo[{position}].barOffset"] = call.state.bar_address(index) or 0
    call.fill(values)
    return OK


def _device_table(call: Call) -> int:
    if call.word(0):
        # The driver asks for a later part of the table; that part is empty.
        call.clear(4)
        return OK
    found = call.engines
    call.fill({"numEntries": len(found)})
    record = call.record()
    for position, engine in enumerate(found):
        entry = record.offset(f"entries[{position}]")
        data, pbdma = engine.pack(position)
        call.put(entry, data + pbdma)
        record.put(f"entries[{position}].engineName", engine.name.encode())
    return OK


def _interrupts(call: Call) -> int:
    table = list(interrupt_table(call.layouts, call.engines))
    call.fill({"tableLen": len(table), "subtreeMap": pack_subtrees()})
    record = call.record()
    for position, (source, stall, other) in enumerate(table):
        packed = struct.pack("<HxxIII", source, 0, stall, other)
        call.put(record.offset(f"table[{position}]"), packed)
    return OK


def _memory_system(call: Call) -> int:
    call.fill(
        {
            "l2CacheSize": call.state.facts.l2_cache_mib * MIB,
            "bFbpaPresent": 1,
            "comprPageSize": 0x10000,
            "comprPageShift": 16,
            "ramType": call.state.chip.memory_type,
            "ltcCount": 20,
            "ltsPerLtcCount": 4,
            "bUseRawModeComptaglineAllocation": 1,
        }
    )
    return OK


def _page_tables(call: Call) -> int:
    """Answer that fault buffers are small, because the driver clears each buffer word by word."""
    call.fill(
        {
            "replayableFaultBufferSize": 0x20000,
            "replayableShadowFaultBufferMetadataSize": 0x1000,
            "nonReplayableFaultBufferSize": 0x8000,
            "nonReplayableShadowFaultBufferMetadataSize": 0x1000,
        }
    )
    return OK


def _channel_count(call: Call) -> int:
    call.record().put("numChannels", 2048)
    return OK


def _copy_engine_hubs(call: Call) -> int:
    call.fill({"hshubPceMasks[0]": 0xF, "fbhubPceMask": 0xF0})
    return OK


def _graphics_info(call: Call) -> int:
    """Fill a list of NV2080_CTRL_GR_INFO_INDEX_* with values that all graphics engines share."""
    facts, chip = call.state.facts, call.state.chip
    most_tpcs = max(mask.bit_length() for mask in gpc_masks(facts.gpcs, facts.tpcs))
    values = {
        0x03: 32,
        0x04: 32,
        0x07: facts.gpcs,
        0x09: facts.tpcs,
        0x0C: chip.sm_version,
        0x0D: chip.warps_per_sm,
        0x0E: 32,
        0x11: 1,
        0x12: 1,
        0x13: 64,
        0x14: max(8, facts.gpcs),
        0x15: 12,
        0x16: 4,
        0x17: most_tpcs,
        0x18: 1,
        0x19: 1,
        0x1A: 1,
        0x1B: 24,
        0x1C: 3,
        0x1D: facts.tpcs * 2 * 64,
        0x1E: 3,
        0x20: 2,
        0x23: facts.tpcs * 8,
        0x24: 8,
        0x25: 24,
        0x26: 4,
        0x27: 1,
        0x28: 2,
        0x2A: most_tpcs,
        0x2B: 2,
        0x2C: 64,
        0x2D: 2,
        0x2E: 64,
        0x32: 4,
        0x35: 8,
        0x36: 8,
        0x37: CONTEXTS_PER_GPC,
    }
    per_engine = len(call.parameters) // 8
    for engine in range(8):
        for index in range(per_engine // 8):
            pair = struct.pack("<II", index, values.get(index, 0))
            call.put(engine * per_engine + 8 * index, pair)
    return OK


def _floorsweeping(call: Call) -> int:
    facts = call.state.facts
    masks = gpc_masks(facts.gpcs, facts.tpcs)
    gpcs = (1 << facts.gpcs) - 1
    values: dict[str, int | bytes] = {}
    for engine in _graphics_engines(call):
        path = f"floorsweepingMasks[{engine}]"
        values |= {f"{path}.gpcMask": gpcs, f"{path}.physGpcMask": gpcs}
        for index, mask in enumerate(masks):
            values |= {
                f"{path}.tpcMask[{index}]": mask,
                f"{path}.tpcCount[{index}]": mask.bit_length(),
                f"{path}.mmuPerGpc[{index}]": 1,
                f"{path}.numPesPerGpc[{index}]": 3,
                f"{path}.zcullMask[{index}]": 0xF,
            }
    call.fill(values)
    return OK


def _graphics_engines(call: Call) -> range:
    """Return the graphics engines that have GPCs; with MIG, each compute instance has one graphics engine."""
    return range(8 if call.state.is_mig_enabled else 1)


def _sm_order(call: Call) -> int:
    tpcs = call.state.facts.tpcs
    call.fill(
        {
            f"globalSmOrder[{engine}].{name}": count
            for engine in _graphics_engines(call)
            for name, count in (("numSm", 2 * tpcs), ("numTpc", tpcs))
        }
    )
    return OK


def _words(value: int) -> Answer:
    """Return a handler that answers with the same number for each of eight graphics engines."""

    def put(call: Call) -> int:
        call.put(0, struct.pack("<I", value) * 8)
        return OK

    return put


def _context_buffers(call: Call) -> int:
    """Answer with the size and alignment of every buffer; each buffer is small, to save memory."""
    call.put(0, struct.pack("<II", 0x1000, 0x1000) * (len(call.parameters) // 8))
    return OK


def _properties(call: Call) -> int:
    call.put(0, b"\1" * 8)
    return OK


def _fields(**values: int) -> Answer:
    """Return a handler that sets these fields, and sets all other bytes to zero."""

    def put(call: Call) -> int:
        call.fill(values)
        return OK

    return put


def _refuse(_call: Call) -> int:
    return NOT_SUPPORTED


def _name(call: Call) -> int:
    encoding = "utf-16-le" if call.word(0) & 1 else "ascii"
    call.clear(4)
    call.put(4, call.state.model.title.encode(encoding, "replace"))
    return OK


def _short_name(call: Call) -> int:
    call.clear()
    call.put(0, call.state.chip.name.encode())
    return OK


def _gid(call: Call) -> int:
    """Answer with the UUID, in binary if the flags request binary, else as text."""
    is_binary = call.word(4) & 2
    data = call.state.uuid.bytes if is_binary else f"GPU-{call.state.uuid}\0".encode()
    call.put(8, struct.pack("<I", len(data)) + data)
    return OK


def _root_directory(call: Call) -> int:
    """Store the root directory that the driver states for an address space."""
    record = Record(
        call.layouts, "NV90F1_CTRL_VASPACE_COPY_SERVER_RESERVED_PDES_PARAMS", call.parameters
    )
    space = Space.FRAME_BUFFER if record.get("levels[0].aperture") == 1 else Space.GUEST
    shift = call.state.chip.page_tables.root_shift
    root = Directory(space, record.get("levels[0].physAddress"), shift)
    call.state.add_root(call.client, call.handle, root)
    return OK


def _transfer(call: Call) -> int:
    """Copy or set memory on behalf of the driver."""
    record = call.record()
    size = record.get("transferSize")
    if size > MOST_BYTES:
        return INVALID_ARGUMENT

    def side(name: str) -> tuple[Space, int]:
        is_here = record.get(f"{name}.aperture") == _IN_FRAME_BUFFER
        address = record.get(f"{name}.baseAddr") + record.get(f"{name}.offset")
        return Space.FRAME_BUFFER if is_here else Space.GUEST, address

    if record.get("memop") == _SET:
        data = bytes([record.get("value") & 0xFF]) * size
    else:
        data = call.memories.read(*side("src"), size)
    call.memories.write(*side("dst"), data)
    return OK


_IN_FRAME_BUFFER: Final = 2
_SET: Final = 1


def _ecc_status(call: Call) -> int:
    """Answer that ECC is on in all units; only the first unit, which is the memory, has errors."""
    errors = call.state.memory_errors
    call.clear()
    record = call.record()
    units = call.layouts.struct(_ECC_STATUS).fields["units"].count
    for index in range(units):
        for name in ("enabled", "scrubComplete", "supported"):
            path = f"units[{index}].{name}"
            if path in record:
                record.put(path, 1)
    for path, value in (
        ("units[0].sbe.count", errors.corrected),
        ("units[0].dbe.count", errors.uncorrected),
    ):
        if path in record:
            record.put(path, value)
    return OK


def _remapped_rows(call: Call) -> int:
    errors = call.state.memory_errors
    after = [_SINGLE_BIT] * errors.rows_after_corrected
    after += [_DOUBLE_BIT] * errors.rows_after_uncorrected
    del after[_MOST_ROWS:]
    flags = errors.is_remapping_pending | errors.has_remapping_failed << 1
    values: dict[str, int | bytes] = {"entryCount": len(after), "flags": flags}
    for index, source in enumerate(after):
        values[f"entries[{index}].source"] = source
    call.fill(values)
    return OK


#: NV2080_CTRL_FB_REMAPPED_ROW_SOURCE_*_FIELD: rows that were remapped after the GPU was sold.
_SINGLE_BIT: Final = 2
_DOUBLE_BIT: Final = 3
_MOST_ROWS: Final = 512


def _bios_info(call: Call) -> int:
    version, oem = parse_version(call.state.facts.vbios)
    _answer_list(call, {0: version, 1: oem})
    return OK


def _gpu_info(call: Call) -> int:
    """Fill a list of NV2080_CTRL_GPU_INFO_INDEX_*.

    The headers do not name index 0x11, by which `nvidia-smi` distinguishes the brands NVIDIA and
    GeForce.
    """
    _answer_list(call, {0x11: 1, 0x2C: call.state.chip.sm_version})
    return OK


def _board_info(call: Call) -> int:
    state = call.state
    part_number = state.facts.part_number.encode()
    call.fill(
        {
            "serialNumber": state.serial.encode(),
            "productPartNumber": part_number,
            "board699PartNumber": part_number,
        }
    )
    return OK


def _chip_details(call: Call) -> int:
    pci = call.state.model.pci
    call.fill(
        {
            "pciDevId": pci.device,
            "chipSku": call.state.facts.sku.encode(),
            "chipMajor": pci.revision >> 4,
            "chipMinor": pci.revision & 0xF,
        }
    )
    return OK


def _inforom_object(call: Call) -> int:
    """Answer with the version of the object OBD (`nvidia-smi` shows it as OEM) or ECC (error counts)."""
    facts = call.state.facts
    version = {b"OBD": facts.inforom_oem, b"ECC": facts.inforom_ecc}.get(
        bytes(call.parameters[:3])
    )
    if version is None:
        return NOT_SUPPORTED
    call.put(3, bytes(version))
    return OK


def _inforom_image(call: Call) -> int:
    inforom = call.state.facts.inforom
    if not inforom:
        return NOT_SUPPORTED
    call.fill({"version": inforom.encode()})
    return OK


def _row_histogram(call: Call) -> int:
    """Answer that no bank has used a spare row."""
    if not call.state.facts.memory_banks:
        return NOT_SUPPORTED
    call.fill({"histogram[0]": call.state.facts.memory_banks})
    return OK


_GENERATION_INFO: Final = 0x2D


def _bus_info(call: Call) -> int:
    """Fill a list of NV2080_CTRL_BUS_INFO_INDEX_*; the driver needs the link's generation."""
    generation = call.state.model.pcie_generation
    index = generation - 1
    # The link's highest speed and width; the link's highest and present generation of PCI Express;
    # the GPU's generation of PCI Express.
    link = generation | 16 << 4 | index << 12 | index << 16 | index << 20
    _answer_list(call, {_GENERATION_INFO: link})
    return OK


def _video_sample(call: Call) -> int:
    """Answer that a video engine was idle for 1/6 s; the call's first number selects the engine."""
    call.put(4, struct.pack("<II", 0, 166_667))
    return OK


#: The size of the driver's ring of utilization samples, which covers the last ten seconds.
_SAMPLES: Final = 72
_SAMPLE_NS: Final = 10_000_000_000 // _SAMPLES
_NO_PROCESS: Final = 0xFFFFFFFF
_SAMPLED: Final = ("fb", "gr", "nvenc", "nvdec", "nvjpg", "nvofa")


def _utilization_samples(call: Call) -> int:
    """Answer that each engine was idle for the last ten seconds.

    With MIG the driver has no samples. An empty list would make `nvidia-smi` divide by zero.
    """
    record = call.record()
    if call.state.is_mig_enabled or "samples[0].gr.util" not in record:
        return NOT_SUPPORTED
    call.clear(8)
    record.put("count", _SAMPLES)
    now = time.time_ns()
    for index in range(_SAMPLES):
        path = f"samples[{index}]"
        record.put(f"{path}.base.timeStamp", now - (_SAMPLES - 1 - index) * _SAMPLE_NS)
        for engine in (each for each in _SAMPLED if f"{path}.{each}" in record):
            record.put(f"{path}.{engine}.procId", _NO_PROCESS)
            record.put(f"{path}.{engine}.subProcessID", _NO_PROCESS)
    return OK


def _firmware(call: Call) -> int:
    """Answer with the version of the firmware, which equals the version of the driver."""
    call.fill({"bValid": 1, "firmwareVersion": call.layouts.release.encode()})
    return OK


_ECC_STATUS: Final = "NV2080_CTRL_GPU_QUERY_ECC_STATUS_PARAMS"

#: The commands to which the driver or nvidia-smi needs true answers.
ANSWERS: Final[Mapping[int, Answer]] = {
    0x20800102: _gpu_info,
    0x20800110: _name,
    0x20800111: _short_name,
    0x2080012F: _ecc_status,
    0x20800133: _fields(currentConfiguration=1, defaultConfiguration=1),
    0x2080013F: _board_info,
    0x2080014A: _gid,
    0x2080014B: _inforom_object,
    0x20800156: _inforom_image,
    0x208001A4: _chip_details,
    0x20800810: _bios_info,
    0x20800A1C: _memory_system,
    0x20800A22: _sm_order,
    0x20800A26: _floorsweeping,
    0x20800A2A: _graphics_info,
    0x20800A32: _context_buffers,
    0x20800A36: _chip_info,
    0x20800A3D: _words(512),
    0x20800A48: _properties,
    0x20800A59: _page_tables,
    0x20800A5C: _interrupts,
    0x20800A61: _channel_count,
    0x20800A9F: _root_directory,
    0x20800AFA: _transfer,
    0x20801112: _device_table,
    # Page retirement: only GPUs without row remapping retire pages. In the catalogue, only the T4
    # lacks row remapping.
    0x20801322: _refuse,
    0x20801344: _remapped_rows,
    0x20801347: _row_histogram,
    0x20801803: _bar_info,
    0x20801823: _bus_info,
    # The atomic operations that the bus supports; the recordings of real GPUs do not contain this
    # answer.
    0x20801829: _refuse,
    0x20802068: _fields(currPstate=1),
    0x20802087: _video_sample,
    0x20802096: _utilization_samples,
    0x20802A08: _fields(size=0x2000),
    0x20802A09: _copy_engine_hubs,
    0x20803601: _firmware,
    # The time of the last write to the infoROM's black box; the recordings of real GPUs do not
    # contain this answer.
    0x90E70113: _refuse,
    0x90F10106: _root_directory,
    **MIG,
    **SENSORS,
}
