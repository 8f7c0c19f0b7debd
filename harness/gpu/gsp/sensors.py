"""Answers commands that the release's headers do not name: temperatures, power, displays.

The meaning of the commands was found by varying the answers and reading the output of `nvidia-smi`
550.163.01; no program was disassembled. If the parameters of a command have an unexpected size,
the command is not supported, since the layout may differ in another release.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.call import NOT_SUPPORTED, OK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.gpu.gsp.call import Answer, Call
    from harness.gpu.gsp.state import GpuState


def _words(
    size: int, values_of: Callable[[GpuState], Mapping[int, int] | None], *others: int
) -> Answer:
    """Return a handler for parameters of `size` bytes, or of another size in `others`.

    `values_of` returns 32-bit numbers by offset, or None for a GPU whose numbers are not known. All
    other bytes of the answer are zero.
    """

    def put(call: Call) -> int:
        values = values_of(call.state)
        if len(call.parameters) not in {size, *others} or values is None:
            return NOT_SUPPORTED
        call.clear()
        for offset, value in values.items():
            call.put(offset, struct.pack("<I", value & 0xFFFFFFFF))
        return OK

    return put


#: The offset of the list of instructions; the header before the list states its size and length.
_INSTRUCTIONS_AT: Final = 0x18
_INSTRUCTION_BYTES: Final = 0x2C
_MOST_INSTRUCTIONS: Final = 32
#: The kind of a sensor's target: the GPU.
_GPU: Final = 1


def _read_sensors(call: Call) -> int:
    """Carry out a list of instructions for the sensors; the GPU has one sensor."""
    if len(call.parameters) != _INSTRUCTIONS_AT + _INSTRUCTION_BYTES * _MOST_INSTRUCTIONS:
        return NOT_SUPPORTED
    count = min(call.word(0x14), _MOST_INSTRUCTIONS)
    call.put(0x10, struct.pack("<I", count))
    for index in range(count):
        at = _INSTRUCTIONS_AT + _INSTRUCTION_BYTES * index
        operands = at + 12
        status = OK
        match call.word(at + 8):
            case 0x100:  # the number of targets
                call.put(operands, struct.pack("<I", 1))
            case 0x101:  # the kind of one target
                call.put(operands + 4, struct.pack("<I", _GPU))
            case 0x1500:  # the reading of the target's sensor
                call.put(operands + 4, struct.pack("<i", call.state.readings.temperature_c))
            case _:
                status = NOT_SUPPORTED
        # The instruction's status, and a flag which says that the instruction was carried out.
        call.put(at, struct.pack("<II", status, 1))
    return OK


def _celsius(degrees: int) -> int:
    """Convert a temperature to units of 1/256 degree."""
    return degrees << 8


def _temperature_limit(call: Call) -> int:
    """Answer with one temperature limit, which the call selects by index."""
    facts = call.state.facts
    limit = {0x16: facts.shutdown_c, 0x04: facts.slowdown_c}.get(call.word(0))
    if len(call.parameters) != 0x18 or limit is None:
        return NOT_SUPPORTED
    call.put(4, struct.pack("<i", _celsius(limit)))
    return OK


def _temperature_policies(state: GpuState) -> Mapping[int, int] | None:
    """Return the policies for reporting the temperature limit or the distance to this limit."""
    if state.facts.operating_c is None:
        return None
    # There is one policy. It has an index for the operating limit, and on some chips also an index
    # for the distance from this limit.
    return {0: 1, 0x14: 1} if state.chip.has_temperature_margin else {0: 1}


def _temperature_margin(state: GpuState) -> Mapping[int, int] | None:
    limit = state.facts.operating_c
    if limit is None or not state.chip.has_temperature_margin:
        return None
    return {0x110: _celsius(limit - state.readings.temperature_c)}


def _operating_limit(state: GpuState) -> Mapping[int, int] | None:
    limit = state.facts.operating_c
    return None if limit is None else {0x10: _celsius(limit)}


#: The index that stands for no policy or no channel.
_NONE: Final = 0xFF


def _power_channels(state: GpuState) -> Mapping[int, int] | None:
    """Return the channels that measure power: one for the whole GPU, none for a module."""
    return None if state.facts.power_limit_w is None else {0: 1, 0x10: _NONE << 8}


def _power_readings(state: GpuState) -> Mapping[int, int] | None:
    if state.facts.power_limit_w is None:
        return None
    return {0x24: round(1000 * state.readings.power_w)}


def _power_policies(state: GpuState) -> Mapping[int, int] | None:
    """Return the power limits in mW: one policy for the whole GPU, and none for a module."""
    facts = state.facts
    if facts.power_limit_w is None or facts.least_power_limit_w is None:
        return None
    most = 1000 * facts.power_limit_w
    limits = {0x5C: 1000 * facts.least_power_limit_w, 0x60: most, 0x64: most}
    return {0: 1, 0x04: 1, 0x48: _NONE << 24, **limits}


def _power_limit(at: int) -> Callable[[GpuState], Mapping[int, int] | None]:
    """Return a function that returns the current power limit at the offset `at`."""

    def values_of(state: GpuState) -> Mapping[int, int] | None:
        limit = state.facts.power_limit_w
        return None if limit is None else {at: 1000 * limit}

    return values_of


#: The refused commands, each with the output of `nvidia-smi` that needs the command's answer. A
#: command that is neither in this table nor in the headers counts as unknown.
REFUSED: Final[Mapping[int, str]] = {
    0x2080852E: "the speed of fans, which no GPU of the catalogue has",
    0x20808536: "no output was observed",
    0x20809009: "no output was observed",
    0x2080A068: "no output was observed",
    0x2080A06E: "no output was observed",
    0x2080A080: "no output was observed",
    0x2080A084: "no output was observed",
    0x2080A087: "no output was observed",
    0x2080A0A7: "clocks, whose layout was not found",
    0x2080A60B: "samples of power",
    0x2080A61D: "no output was observed",
    0x2080A637: "no output was observed",
    0x2080B201: "no output was observed",
    0x2080853A: "limits of temperature as distances, whose layout was not found",
    0x20810108: "licences of virtual GPUs",
    0x20810110: "whether a display is active",
    0x20810111: "whether a display is attached",
}


def _refuse(_call: Call) -> int:
    return NOT_SUPPORTED


SENSORS: Final[Mapping[int, Answer]] = {
    **dict.fromkeys(REFUSED, _refuse),
    0x20808513: _read_sensors,
    0x2080852A: _words(0x5D8, _temperature_policies),
    0x2080852B: _words(0x614, _temperature_margin),
    0x2080852C: _words(0x58C, _operating_limit),
    0x20808546: _temperature_limit,
    # Sparse operation is off.
    0x20809038: _words(4, lambda _state: {}),
    0x2080A612: _words(0xE18, _power_channels),
    # The second size is for driver 535; the offset is the same.
    0x2080A613: _words(0x3B14, _power_readings, 0xC14),
    0x2080A618: _words(0x1B28, _power_policies),
    0x2080A61A: _words(0x94C, _power_limit(0x18)),
    0x2080A61F: _words(0x8, _power_limit(0x4)),
}
