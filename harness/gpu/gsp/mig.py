"""Answers to what the driver asks about MIG: the mode, profiles, and GPU instances.

The driver's side keeps the rules; the GSP says what parts there are, and which are taken. Compute instances
are not made.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.call import INVALID_ARGUMENT, NOT_SUPPORTED, OK
from harness.gpu.gsp.state import MIB, GpuInstance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu.gsp.call import Answer, Call
    from harness.gpu.gsp.records import Record
    from harness.gpu.gsp.state import GpuState

#: Of NV2080_CTRL_GPU_PARTITION_FLAG: memory is all, a half, a quarter or an eighth; compute has these and
#: smaller halves and quarters.
_FULL, _HALF, _QUARTER, _EIGHTH = range(4)
_COMPUTE_SHIFT: Final = 2
_MINI_HALF, _COMPUTE_QUARTER, _MINI_QUARTER, _COMPUTE_EIGHTH = 2, 3, 4, 5
_KIND: Final = 0x1F
_SLICES: Final = 8
_INSUFFICIENT_RESOURCES: Final = 0x1A
_ALL_ONES: Final = (1 << 64) - 1
#: Bits of NV2080_ENGINE_TYPE_GR0 and later, and of COPY0 and later.
_GRAPHICS: Final = 1
_COPY: Final = 9
_MOST_COPY: Final = 5


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind of GPU instance; `starts` are the slices of memory at which one can begin."""

    memory: int
    compute: int
    gpcs: int
    sms: int
    copy: int
    decoders: int
    jpeg: int
    ofa: int
    starts: tuple[int, ...]

    @property
    def flag(self) -> int:
        return self.memory | self.compute << _COMPUTE_SHIFT

    @property
    def slices(self) -> int:
        return _SLICES >> self.memory

    @property
    def contexts(self) -> int:
        """Return how many virtual engines it has: eight for each slice of compute."""
        return 64 if self.memory == _FULL else 8 * self.gpcs

    @property
    def first_id(self) -> int:
        """Return the lowest id of such instances (swizzle id)."""
        return (1 << self.memory) - 1


_SHAPES: Final = {
    "7g": ((_FULL, 0, 7), range(1)),
    "4g": ((_HALF, 1, 4), range(1)),
    "3g": ((_HALF, _MINI_HALF, 3), range(0, 8, 4)),
    "2g": ((_QUARTER, _COMPUTE_QUARTER, 2), range(0, 6, 2)),
    "1g with a quarter of memory": ((_QUARTER, _MINI_QUARTER, 1), range(0, 8, 2)),
    "1g": ((_EIGHTH, _COMPUTE_EIGHTH, 1), range(7)),
}


def _profile(name: str, counts: tuple[int, int, int, int, int]) -> Profile:
    (memory, compute, gpcs), starts = _SHAPES[name]
    sms, copy, decoders, jpeg, ofa = counts
    return Profile(
        memory=memory,
        compute=compute,
        gpcs=gpcs,
        sms=sms,
        copy=copy,
        decoders=decoders,
        jpeg=jpeg,
        ofa=ofa,
        starts=tuple(starts),
    )


def _profiles(counts: Mapping[str, tuple[int, int, int, int, int]]) -> tuple[Profile, ...]:
    return tuple(_profile(name, each) for name, each in counts.items())


#: By chip: SMs, copy engines, decoders, JPEG and OFA engines of each profile, as NVIDIA's MIG user
#: guide has them.
_PROFILES: Final[Mapping[str, tuple[Profile, ...]]] = {
    "GA100": _profiles(
        {
            "7g": (98, 7, 5, 1, 1),
            "4g": (56, 4, 2, 0, 0),
            "3g": (42, 3, 2, 0, 0),
            "2g": (28, 2, 1, 0, 0),
            "1g with a quarter of memory": (14, 1, 1, 0, 0),
            "1g": (14, 1, 0, 0, 0),
        }
    ),
}


def profiles_of(state: GpuState) -> tuple[Profile, ...]:
    """Return the kinds of GPU instance that a GPU can have; none without MIG."""
    return _PROFILES.get(state.chip.name, ()) if state.can_have_mig else ()


def _find(state: GpuState, flag: int) -> Profile | None:
    return next((each for each in profiles_of(state) if each.flag == flag & _KIND), None)


def _mode(call: Call) -> int:
    """Answer whether MIG is on (1) or off (2); 0 is for a GPU without it."""
    mode = 0
    if call.state.can_have_mig:
        mode = 1 if call.state.is_mig_enabled else 2
    call.put(0, struct.pack("<I", mode))
    return OK


def _set_mode(call: Call) -> int:
    """Switch MIG on or off; the driver asks for the mode right after, so it changes at once."""
    if not call.state.can_have_mig:
        return NOT_SUPPORTED
    call.state.is_mig_enabled = call.word(0) & 3 != 0
    call.state.instances.clear()
    return OK


def _list_profiles(call: Call) -> int:
    found = profiles_of(call.state)
    if not found:
        return NOT_SUPPORTED
    call.fill({"count": len(found)})
    record = call.record()
    for index, each in enumerate(found):
        values = {
            "partitionFlag": each.flag,
            "grCount": 1,
            "gpcCount": each.gpcs,
            "virtualGpcCount": each.gpcs,
            "veidCount": each.contexts,
            "smCount": each.sms,
            "ceCount": each.copy,
            "nvDecCount": each.decoders,
            "nvJpgCount": each.jpeg,
            "nvOfaCount": each.ofa,
            "validCTSIdMask": _ALL_ONES,
        }
        _put_all(record, f"table[{index}]", values)
    return OK


def _put_all(record: Record, path: str, values: Mapping[str, int | bytes]) -> None:
    for name, value in values.items():
        if f"{path}.{name}" in record:
            record.put(f"{path}.{name}", value)


def _list_compute_profiles(call: Call) -> int:
    by_size = {each.compute: each for each in profiles_of(call.state)}
    call.fill({"profileCount": len(by_size)})
    record = call.record()
    for index, (size, each) in enumerate(by_size.items()):
        values = {
            "computeSize": size,
            "gpcCount": each.gpcs,
            "veidCount": each.contexts,
            "smCount": each.sms,
            "physicalSlots": each.gpcs,
        }
        _put_all(record, f"profiles[{index}]", values)
    return OK


def _engines(call: Call) -> int:
    graphics = ((1 << _SLICES) - 1) << _GRAPHICS
    call.fill({"engineMask[0]": graphics | ((1 << _MOST_COPY) - 1) << _COPY})
    return OK


def _memory_ranges(call: Call) -> int:
    """Answer the pages of 64 KiB of each instance: all, halves, quarters, eighths."""
    pages = call.state.memory_bytes >> 16
    ranges = [
        struct.pack("<QQ", part * pages // parts, (part + 1) * pages // parts - 1)
        for parts in (1, 2, 4, 8)
        for part in range(parts)
    ]
    call.clear()
    call.put(0, b"".join(ranges))
    return OK


def _vmmu_segment(call: Call) -> int:
    call.put(0, struct.pack("<Q", 32 * MIB))
    return OK


def _partitionable(call: Call) -> int:
    end = _partitionable_bytes(call.state)
    record = call.record()
    record.put("partitionableStartAddr", 0)
    record.put("partitionableEndAddr", end - 1)
    record.put("partitionableMemSize", end)
    return OK


def _partitionable_bytes(state: GpuState) -> int:
    return state.memory_bytes - 2048 * MIB


def _free_starts(state: GpuState, profile: Profile) -> list[int]:
    """Return where an instance of this kind can begin now."""
    return [
        start
        for start in profile.starts
        if not any(
            start <= other.last and other.first <= start + profile.slices - 1
            for other in state.instances.values()
        )
    ]


def _capacity(call: Call) -> int:
    """Answer where instances of a kind can be, of all and of those that are free."""
    flag = call.word(0)
    profile = _find(call.state, flag)
    if profile is None:
        return INVALID_ARGUMENT
    free = _free_starts(call.state, profile)
    values: dict[str, int | bytes] = {
        "partitionFlag": flag,
        "partitionCount": len(free),
        "totalPartitionCount": len(profile.starts),
        "availableSpansCount": len(free),
        "totalSpansCount": len(profile.starts),
    }
    for name, starts in (("availableSpans", free), ("totalSpans", profile.starts)):
        for index, start in enumerate(starts):
            values[f"{name}[{index}].lo"] = start
            values[f"{name}[{index}].hi"] = start + profile.slices - 1
    call.fill(values)
    return OK


def _set_instances(call: Call) -> int:
    """Make GPU instances, or end them."""
    record = call.record()
    for index in range(min(call.word(0), _SLICES)):
        path = f"partitionInfo[{index}]"
        if not record.get(f"{path}.bValid"):
            call.state.instances.pop(record.get(f"{path}.swizzId"), None)
            continue
        profile = _find(call.state, record.get(f"{path}.partitionFlag"))
        if profile is None:
            return INVALID_ARGUMENT
        free = _free_starts(call.state, profile)
        if not free:
            return _INSUFFICIENT_RESOURCES
        first = free[0]
        number = profile.first_id + first // profile.slices
        last = first + profile.slices - 1
        call.state.instances[number] = GpuInstance(flag=profile.flag, first=first, last=last)
        values: dict[str, int | bytes] = {
            "swizzId": number,
            "uuid": _instance_uuid(call.state, number),
            "placement.lo": first,
            "placement.hi": last,
        }
        _put_all(record, path, values)
    return OK


def _instance_uuid(state: GpuState, number: int) -> bytes:
    """Return a UUID that is recognisably none of a real instance."""
    return state.uuid.bytes[:15] + bytes([0x80 + number])


def _export_instance(call: Call) -> int:
    number = call.word(0)
    instance = call.state.instances.get(number)
    profile = None if instance is None else _find(call.state, instance.flag)
    if instance is None or profile is None:
        return INVALID_ARGUMENT
    first = instance.first * 7 // _SLICES
    engines = 1 << _GRAPHICS + instance.first
    for copy in range(max(1, _MOST_COPY * profile.slices // _SLICES)):
        engines |= 1 << _COPY + min(_MOST_COPY - 1, instance.first // 2 + copy)
    call.fill(
        {
            "swizzId": number,
            "uuid": _instance_uuid(call.state, number),
            "info.enginesMask[0]": engines,
            "info.partitionFlags": instance.flag,
            "info.gpcMask": ((1 << profile.gpcs) - 1) << first & 0x7F,
            "info.virtualGpcCount": profile.gpcs,
            "info.veidOffset": 8 * instance.first,
            "info.veidCount": profile.contexts,
        }
    )
    return OK


def _list_instances(call: Call) -> int:
    state = call.state
    call.fill({"validPartitionCount": len(state.instances)})
    record = call.record()
    for index, (number, instance) in enumerate(sorted(state.instances.items())):
        profile = _find(state, instance.flag)
        if profile is None:
            continue
        values = {
            "swizzId": number,
            "partitionFlag": instance.flag,
            "grEngCount": 1,
            "veidCount": profile.contexts,
            "smCount": profile.sms,
            "ceCount": profile.copy,
            "nvDecCount": profile.decoders,
            "nvJpgCount": profile.jpeg,
            "nvOfaCount": profile.ofa,
            "gpcCount": profile.gpcs,
            "virtualGpcCount": profile.gpcs,
            "gpcsPerGr[0]": profile.gpcs,
            "virtualGpcsPerGr[0]": profile.gpcs,
            "veidsPerGr[0]": profile.contexts,
            "memSize": _partitionable_bytes(state) >> profile.memory,
            "span.lo": instance.first,
            "span.hi": instance.last,
            "bValid": 1,
            "validCTSIdMask": _ALL_ONES,
        }
        _put_all(record, f"queryPartitionInfo[{index}]", values)
    return OK


MIG: Final[Mapping[int, Answer]] = {
    0x2080017E: _vmmu_segment,
    0x20800181: _capacity,
    0x20800A4C: _mode,
    0x20800A51: _partitionable,
    0x20800A63: _list_profiles,
    0x20800A65: _engines,
    0x20800A66: _memory_ranges,
    0x20800AA3: _set_mode,
    0x20800AA5: _set_instances,
    0x20800AA6: _list_instances,
    0x20800AA8: _export_instance,
    0x20800ABA: _list_compute_profiles,
}
