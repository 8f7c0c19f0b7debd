"""Answers the driver's commands about MIG: mode, profiles, GPU instances and compute instances.

The driver enforces MIG's rules. The GSP stores which parts the GPU has, and which parts are in
use.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.call import INVALID_ARGUMENT, NOT_SUPPORTED, OK
from harness.gpu.gsp.state import MIB, ComputeInstance, GpuInstance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu.gsp.call import Answer, Call
    from harness.gpu.gsp.records import Record
    from harness.gpu.gsp.state import GpuState

#: Values of NV2080_CTRL_GPU_PARTITION_FLAG: all of the memory, a half, a quarter or an eighth.
#: Compute has the same sizes, and also a smaller half and a smaller quarter.
_FULL, _HALF, _QUARTER, _EIGHTH = range(4)
_COMPUTE_SHIFT: Final = 2
_MINI_HALF, _COMPUTE_QUARTER, _MINI_QUARTER, _COMPUTE_EIGHTH = 2, 3, 4, 5
_KIND: Final = 0x1F
_SLICES: Final = 8
#: The unit in which memory is divided (VMMU segment).
_SEGMENT: Final = 32 * MIB
_INSUFFICIENT_RESOURCES: Final = 0x1A
_ALL_ONES: Final = (1 << 64) - 1
#: The first bits of NV2080_ENGINE_TYPE_GR* and NV2080_ENGINE_TYPE_COPY* in a mask of engine types.
_GRAPHICS: Final = 1
_COPY: Final = 9
_MOST_COPY: Final = 5
#: The number of subcontexts (VEIDs) in each GPC, which determines the layout of compute instances.
CONTEXTS_PER_GPC: Final = 8
#: A flag of NVC637_CTRL_DMA_EXEC_PARTITIONS_CREATE_REQUEST: the request names the first GPC.
_AT_SPAN: Final = 2


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind of GPU instance; `starts` are the memory slices at which an instance can begin."""

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
        """Return the number of subcontexts of an instance: eight for each compute slice."""
        return 64 if self.memory == _FULL else CONTEXTS_PER_GPC * self.gpcs

    @property
    def first_id(self) -> int:
        """Return the lowest id (swizzle id) of instances of this kind."""
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


#: For each profile of a chip, the numbers of SMs, copy engines, decoders, JPEG engines and OFA
#: engines. Sources: NVIDIA's MIG guide for GA100, `nvidia-smi mig -lgip` of a real H100 for GH100.
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
    "GH100": _profiles(
        {
            "7g": (132, 8, 7, 7, 1),
            "4g": (64, 4, 4, 4, 0),
            "3g": (60, 3, 3, 3, 0),
            "2g": (32, 2, 2, 2, 0),
            "1g with a quarter of memory": (26, 1, 1, 1, 0),
            "1g": (16, 1, 1, 1, 0),
        }
    ),
}


def profiles_of(state: GpuState) -> tuple[Profile, ...]:
    """Return the kinds of GPU instance that a GPU can have; none without MIG."""
    return _PROFILES.get(state.chip.name, ()) if state.can_have_mig else ()


def _find(state: GpuState, flag: int) -> Profile | None:
    return next((each for each in profiles_of(state) if each.flag == flag & _KIND), None)


def _mode(call: Call) -> int:
    """Answer 1 if MIG is on, 2 if MIG is off, and 0 if the GPU has no MIG."""
    mode = 0
    if call.state.can_have_mig:
        mode = 1 if call.state.is_mig_enabled else 2
    call.put(0, struct.pack("<I", mode))
    return OK


def _set_mode(call: Call) -> int:
    """Switch MIG on or off immediately, since the driver queries the mode right afterwards."""
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
            "grCount": each.gpcs,
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
    by_size = _by_compute_size(call.state)
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
    """Answer with the memory ranges, in segments, of all possible instances, the largest first.

    The driver reads these ranges for Hopper only, and checks that they are within the partitionable
    memory.
    """
    segments = _partitionable_bytes(call.state) // _SEGMENT
    ranges = [
        struct.pack("<QQ", part * segments // parts, (part + 1) * segments // parts - 1)
        for parts in (1, 2, 4, 8)
        for part in range(parts)
    ]
    call.clear()
    call.put(0, b"".join(ranges))
    return OK


def _vmmu_segment(call: Call) -> int:
    call.put(0, struct.pack("<Q", _SEGMENT))
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
    """Return the slices at which an instance of this kind can begin now."""
    return [
        start
        for start in profile.starts
        if not any(
            start <= other.last and other.first <= start + profile.slices - 1
            for other in state.instances.values()
        )
    ]


def _capacity(call: Call) -> int:
    """Answer with the slices that an instance can occupy now, and can occupy on an empty GPU."""
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
    """Create or destroy GPU instances."""
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


def _instance_uuid(state: GpuState, number: int, compute: int | None = None) -> bytes:
    """Return a UUID that no real instance has; the UUID ends with the GPU's number."""
    parts = bytes([0x80 + number, 0 if compute is None else 1 + compute])
    return state.uuid.bytes[:12] + parts + state.uuid.bytes[14:]


def _export_instance(call: Call) -> int:
    number = call.word(0)
    instance = call.state.instances.get(number)
    profile = None if instance is None else _find(call.state, instance.flag)
    if instance is None or profile is None:
        return INVALID_ARGUMENT
    engines = _bits(instance.first, profile.gpcs) << _GRAPHICS
    for copy in range(_copy_engines(profile)):
        engines |= 1 << _COPY + min(_MOST_COPY - 1, instance.first // 2 + copy)
    call.fill(
        {
            "swizzId": number,
            "uuid": _instance_uuid(call.state, number),
            "info.enginesMask[0]": engines,
            "info.partitionFlags": instance.flag,
            "info.gpcMask": _bits(instance.first, profile.gpcs),
            "info.virtualGpcCount": profile.gpcs,
            "info.veidOffset": CONTEXTS_PER_GPC * instance.first,
            "info.veidCount": profile.contexts,
        }
    )
    return OK


def _bits(first: int, count: int) -> int:
    return ((1 << count) - 1) << first


def _copy_engines(profile: Profile) -> int:
    return max(1, _MOST_COPY * profile.slices // _SLICES)


def _subscribed(call: Call) -> tuple[int, GpuInstance, Profile] | None:
    """Return the GPU instance that the call's object represents."""
    number = call.state.subscriptions.get((call.client, call.handle), -1)
    instance = call.state.instances.get(number)
    profile = None if instance is None else _find(call.state, instance.flag)
    return None if instance is None or profile is None else (number, instance, profile)


def _by_compute_size(state: GpuState) -> Mapping[int, Profile]:
    """Return profiles by the size of compute instances, one profile for each size."""
    return {each.compute: each for each in profiles_of(state)}


def _make_compute_instances(call: Call) -> int:
    """Create all requested compute instances in a GPU instance, or create none."""
    found = _subscribed(call)
    if found is None:
        return INVALID_ARGUMENT
    _, instance, parent = found
    record = call.record()
    made = dict(instance.compute)
    for index in range(min(record.get("execPartCount"), _SLICES)):
        path = f"execPartInfo[{index}]"
        kind = _compute_kind(
            call.state, record.get(f"{path}.smCount"), record.get(f"{path}.gpcCount")
        )
        if kind is None:
            return INVALID_ARGUMENT
        starts = range(parent.gpcs - kind.gpcs + 1)
        if record.get("flags") & _AT_SPAN:
            start = record.get(f"{path}.spanStart") or (
                record.get(f"{path}.veidStartOffset") // CONTEXTS_PER_GPC
            )
            starts = range(start, start + 1) if start in starts else range(0)
        taken = sum(_bits(each.first, each.gpcs) for each in made.values())
        free = [start for start in starts if not taken & _bits(start, kind.gpcs)]
        if not free:
            return _INSUFFICIENT_RESOURCES
        number = next(each for each in range(_SLICES) if each not in made)
        made[number] = ComputeInstance(
            size=kind.compute,
            first=free[0],
            gpcs=kind.gpcs,
            shared_engines=record.get(f"{path}.sharedEngFlag"),
        )
        values = {
            "gpcCount": kind.gpcs,
            "smCount": kind.sms,
            "veidCount": kind.contexts,
            "spanStart": free[0],
            "computeSize": kind.compute,
        }
        _put_all(record, path, values)
        record.put(f"execPartId[{index}]", number)
    if not record.get("bQuery"):
        instance.compute.update(made)
    return OK


def _compute_kind(state: GpuState, sms: int, gpcs: int) -> Profile | None:
    """Return the kind of compute instance with `sms` SMs, else the kind with `gpcs` GPCs."""
    kinds = _by_compute_size(state).values()
    by_sms = next((each for each in kinds if sms and each.sms == sms), None)
    return by_sms or next((each for each in kinds if each.gpcs == gpcs), None)


def _export_compute_instance(call: Call) -> int:
    found = _subscribed(call)
    number = call.word(0)
    made = None if found is None else found[1].compute.get(number)
    if found is None or made is None:
        return INVALID_ARGUMENT
    parent, _, profile = found
    kind = _by_compute_size(call.state)[made.size]
    call.fill(
        {
            "id": number,
            # Engines are counted from the GPU instance's first engine; compute instances share all
            # copy engines.
            "info.enginesMask[0]": 1 << _GRAPHICS + made.first
            | _bits(0, _copy_engines(profile)) << _COPY,
            "info.uuid": _instance_uuid(call.state, parent, number),
            "info.sharedEngFlags": made.shared_engines,
            "info.gpcMask": _bits(made.first, made.gpcs),
            "info.veidOffset": CONTEXTS_PER_GPC * made.first,
            "info.veidCount": kind.contexts,
            "info.smCount": kind.sms,
            "info.spanStart": made.first,
            "info.computeSize": made.size,
        }
    )
    return OK


def _end_compute_instances(call: Call) -> int:
    found = _subscribed(call)
    if found is None:
        return INVALID_ARGUMENT
    record = call.record()
    for index in range(min(record.get("execPartCount"), _SLICES)):
        found[1].compute.pop(record.get(f"execPartId[{index}]"), None)
    return OK


def _list_instances(call: Call) -> int:
    """Answer with all GPU instances, or with only the caller's instance."""
    state = call.state
    listed = sorted(state.instances.items())
    if not call.record().get("bGetAllPartitionInfo"):
        own = state.instance_of(call.client)
        listed = [each for each in listed if each[0] == own]
    call.fill({"validPartitionCount": len(listed)})
    record = call.record()
    for index, (number, instance) in enumerate(listed):
        profile = _find(state, instance.flag)
        if profile is None:
            continue
        values = {
            "swizzId": number,
            "partitionFlag": instance.flag,
            "grEngCount": profile.gpcs,
            "veidCount": profile.contexts,
            "smCount": profile.sms,
            "ceCount": profile.copy,
            "nvDecCount": profile.decoders,
            "nvJpgCount": profile.jpeg,
            "nvOfaCount": profile.ofa,
            "gpcCount": profile.gpcs,
            "virtualGpcCount": profile.gpcs,
            "memSize": _partitionable_bytes(state) >> profile.memory,
            "span.lo": instance.first,
            "span.hi": instance.last,
            "bValid": 1,
            "validCTSIdMask": _ALL_ONES,
        }
        for engine in range(profile.gpcs):
            values |= {
                f"gpcsPerGr[{engine}]": 1,
                f"virtualGpcsPerGr[{engine}]": 1,
                f"veidsPerGr[{engine}]": CONTEXTS_PER_GPC,
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
    0xC6370101: _make_compute_instances,
    0xC6370102: _end_compute_instances,
    0xC6370105: _export_compute_instance,
}
