"""The answers to the driver's requests about MIG."""

from __future__ import annotations

import re
import struct

import pytest

from harness.fixtures.recordings import load_recording
from harness.gpu.gsp import state
from harness.gpu.gsp.mig import profiles_of
from harness.gpu.gsp.page_tables import Directory, Space
from harness.gpu.gsp.rpc import ALLOC, Function
from suites.unit.gpu.gsp.drivers import A100, CLIENT, H100, SUBDEVICE, T4, Driver, a_device

CAPACITY, MODE, PROFILES, SET_MODE, SET, LIST, EXPORT, COMPUTE = (
    0x20800181,
    0x20800A4C,
    0x20800A63,
    0x20800AA3,
    0x20800AA5,
    0x20800AA6,
    0x20800AA8,
    0x20800ABA,
)
CREATE, DELETE, EXPORT_COMPUTE = 0xC6370101, 0xC6370102, 0xC6370105
SEGMENT, PARTITIONABLE, RANGES = 0x2080017E, 0x20800A51, 0x20800A66
#: The class of objects that represent a GPU instance.
GPU_INSTANCE = 0xC637
GRAPHICS_INFO = 0x20800A2A
ALL = {"bGetAllPartitionInfo": 1}
#: Flags of GPU instances: an eighth, a quarter, and three compute slices with half of the memory.
EIGHTH, QUARTER, THREE = 3 | 5 << 2, 2 | 3 << 2, 1 | 2 << 2
INSUFFICIENT, INVALID, NOT_SUPPORTED = 0x1A, 0x1F, 0x56


@pytest.fixture
def a100() -> Driver:
    return opened(A100)


def opened(model: str) -> Driver:
    driver = Driver(a_device(model))
    driver.open()
    return driver


def make_instance(driver: Driver, flag: int) -> int:
    answer = driver.ask(
        SET,
        {
            "partitionCount": 1,
            "partitionInfo[0].partitionFlag": flag,
            "partitionInfo[0].bValid": 1,
        },
    )
    return answer.get("partitionInfo[0].swizzId")


def subscribe(driver: Driver, number: int, client: int = CLIENT, handle: int = SUBDEVICE) -> None:
    """Create a client's object for the GPU instance `number`, which `Driver.ask` then uses."""
    parameters = struct.pack("<QII", 0, number, 0)
    words = (client, SUBDEVICE, handle, GPU_INSTANCE, 0, len(parameters), 0, 0)
    result, _ = driver.call(Function.GSP_RM_ALLOC, ALLOC.pack(*words) + parameters)
    assert result == 0


def make_compute_instance(driver: Driver, sms: int, **fields: int) -> int:
    answer = driver.ask(
        CREATE,
        {
            "execPartCount": 1,
            "execPartInfo[0].smCount": sms,
            **{name: value for name, value in fields.items() if name in {"flags", "bQuery"}},
            **{
                f"execPartInfo[0].{name}": value
                for name, value in fields.items()
                if name not in {"flags", "bQuery"}
            },
        },
    )
    return answer.get("execPartId[0]")


def refused(driver: Driver, command: int, size: int, *words: int) -> int:
    """Return the status of a call whose parameters begin with these numbers."""
    asked = struct.pack(f"<{len(words)}I", *words).ljust(size, b"\0")
    return driver.control(command, asked)[0]


def test_initial_mig_mode_is_off_or_not_supported_by_the_model() -> None:
    for model, mode in ((A100, 2), (H100, 2), (T4, 0)):
        assert opened(model).control(MODE, bytes(4)) == (0, struct.pack("<I", mode))
    assert opened(T4).control(SET_MODE, struct.pack("<I", 1))[0] == NOT_SUPPORTED


def test_turning_mig_mode_off_ends_all_instances(a100: Driver) -> None:
    a100.control(SET_MODE, struct.pack("<I", 1))
    assert a100.control(MODE, bytes(4)) == (0, struct.pack("<I", 1))
    make_instance(a100, EIGHTH)

    a100.control(SET_MODE, bytes(4))

    assert a100.control(MODE, bytes(4)) == (0, struct.pack("<I", 2))
    assert a100.ask(LIST, ALL).get("validPartitionCount") == 0


def test_mig_profiles_of_an_a100_match_nvidias_mig_guide(a100: Driver) -> None:
    """The test compares the numbers of instances, SMs and copy engines."""
    answered = a100.ask(PROFILES)

    found = set()
    for index in range(answered.get("count")):
        entry = f"table[{index}]"
        capacity = a100.ask(CAPACITY, {"partitionFlag": answered.get(f"{entry}.partitionFlag")})
        counts = (answered.get(f"{entry}.smCount"), answered.get(f"{entry}.ceCount"))
        found.add((capacity.get("totalPartitionCount"), *counts))
    assert found == {(7, 14, 1), (4, 14, 1), (3, 28, 2), (2, 42, 3), (1, 56, 4), (1, 98, 7)}


def test_profiles_of_an_h100_match_a_real_h100() -> None:
    """The test compares instances, SMs and engines.

    The driver itself adds the profile with media engines.
    """
    lines = load_recording("nvidia-smi/580.159.04-h100-mig-lgip").text
    rows = re.findall(
        r"MIG (\S+) +\d+ +\d+/(\d+) +[\d.]+ +No +(\d+) +(\d+) +0 +\|\n\| +(\d+) +(\d+) +(\d+)",
        lines,
    )
    real = {tuple(map(int, row[1:])) for row in rows if "+me" not in row[0]}
    driver = opened(H100)

    answered = driver.ask(PROFILES)

    found = set()
    for index in range(answered.get("count")):
        entry = f"table[{index}]"
        capacity = driver.ask(CAPACITY, {"partitionFlag": answered.get(f"{entry}.partitionFlag")})
        counts = ("smCount", "nvDecCount", "ceCount", "nvJpgCount", "nvOfaCount")
        found.add(
            (
                capacity.get("totalPartitionCount"),
                *(answered.get(f"{entry}.{name}") for name in counts),
            )
        )
    assert len(real) == 6
    assert found == real


@pytest.mark.parametrize("model", [A100, H100])
def test_memory_of_each_mig_instance_lies_within_the_partitionable_range(model: str) -> None:
    """An H100 failed to open because an instance had more memory segments than exist."""
    driver = opened(model)
    segment = struct.unpack("<Q", driver.control(SEGMENT, bytes(8))[1])[0]
    end = driver.ask(PARTITIONABLE).get("partitionableEndAddr") + 1

    _, answer = driver.control(RANGES, bytes(15 * 16))

    ranges = list(struct.iter_unpack("<QQ", answer))
    # The driver does not divide the segment that contains the last byte.
    segments = (end - 1) // segment
    assert [last - first + 1 for first, last in ranges[7:]] == [
        pytest.approx(segments / 8, abs=1)
    ] * 8
    assert all(last - first + 1 <= segments for first, last in ranges[1:])
    assert max(last for _, last in ranges) <= segments


def test_slices_of_existing_instances_reduce_the_capacity(a100: Driver) -> None:
    first, second = make_instance(a100, QUARTER), make_instance(a100, EIGHTH)

    assert (first, second) == (3, 9)
    assert a100.ask(CAPACITY, {"partitionFlag": QUARTER}).get("partitionCount") == 1
    assert a100.ask(CAPACITY, {"partitionFlag": EIGHTH}).get("partitionCount") == 4
    assert a100.ask(CAPACITY, {"partitionFlag": 0}).get("partitionCount") == 0
    listed = a100.ask(LIST, ALL)
    assert listed.get("validPartitionCount") == 2
    assert listed.get("queryPartitionInfo[0].smCount") == 28
    assert listed.get("queryPartitionInfo[0].bValid") == 1
    assert listed.get("queryPartitionInfo[2].bValid") == 0


def test_slices_of_a_destroyed_instance_are_free_again(a100: Driver) -> None:
    number, _ = make_instance(a100, THREE), make_instance(a100, THREE)

    a100.ask(SET, {"partitionCount": 1, "partitionInfo[0].swizzId": number})

    assert a100.ask(CAPACITY, {"partitionFlag": THREE}).get("partitionCount") == 1
    assert a100.ask(LIST, ALL).get("validPartitionCount") == 1
    # One call may destroy an instance and create other instances.
    other = a100.ask(LIST, ALL).get("queryPartitionInfo[0].swizzId")
    values = {"partitionCount": 3, "partitionInfo[0].swizzId": other}
    for index in (1, 2):
        values |= {
            f"partitionInfo[{index}].partitionFlag": QUARTER,
            f"partitionInfo[{index}].bValid": 1,
        }
    made = a100.ask(SET, values)
    assert [made.get(f"partitionInfo[{index}].swizzId") for index in (1, 2)] == [3, 4]
    assert a100.ask(LIST, ALL).get("validPartitionCount") == 2


def test_capacity_excludes_positions_that_overlap_an_existing_instance(a100: Driver) -> None:
    first, _ = make_instance(a100, EIGHTH), make_instance(a100, EIGHTH)
    a100.ask(SET, {"partitionCount": 1, "partitionInfo[0].swizzId": first})

    assert a100.ask(CAPACITY, {"partitionFlag": QUARTER}).get("partitionCount") == 2


def test_instance_without_free_slices_or_with_an_unknown_profile_is_refused(a100: Driver) -> None:
    make_instance(a100, 0)
    layout = a100.ask(LIST, ALL)
    assert layout.get("validPartitionCount") == 1
    asked = bytearray(0x188)
    struct.pack_into("<I", asked, 0, 1)
    asked[8 + 0x18] = 1

    assert a100.control(SET, bytes(asked))[0] == INSUFFICIENT
    struct.pack_into("<I", asked, 8 + 0x14, 0x1F)
    assert a100.control(SET, bytes(asked))[0] == INVALID
    assert a100.control(CAPACITY, struct.pack("<I", 0x1F).ljust(0x118, b"\0"))[0] == INVALID


def test_instance_request_with_a_count_beyond_its_list_succeeds(
    a100: Driver,
) -> None:
    asked = bytearray(0x188)
    struct.pack_into("<I", asked, 0, 0xFFFFFFFF)

    assert a100.control(SET, bytes(asked))[0] == 0


def test_exported_instances_have_disjoint_engines(a100: Driver) -> None:
    numbers = [make_instance(a100, THREE) for _ in range(2)]

    exported = [a100.ask(EXPORT, {"swizzId": number}) for number in numbers]

    graphics = [each.get("info.enginesMask[0]") & 0x1FE for each in exported]
    assert graphics == [0b111 << 1, 0b111 << 5]
    copies = [each.get("info.enginesMask[0]") >> 9 for each in exported]
    assert copies == [0b11, 0b1100]
    assert exported[0].get("info.gpcMask") & exported[1].get("info.gpcMask") == 0
    assert [each.get("info.veidOffset") for each in exported] == [0, 32]
    assert a100.control(EXPORT, struct.pack("<I", 14).ljust(0x50, b"\0"))[0] == INVALID


def test_list_of_compute_profiles_contains_each_size_once(a100: Driver) -> None:
    answered = a100.ask(COMPUTE)

    sizes = [
        answered.get(f"profiles[{index}].computeSize")
        for index in range(answered.get("profileCount"))
    ]
    assert len(sizes) == len(set(sizes)) == len(profiles_of(a100.device.state))


def test_context_count_of_each_compute_profile_is_a_multiple_of_the_reported_step(
    a100: Driver,
) -> None:
    """With another step, the driver refused compute instances: 'veidEnd < 64'."""
    _, answer = a100.control(GRAPHICS_INFO, bytes(0xE00))
    infos = dict(struct.iter_unpack("<II", answer[: 0xE00 // 8]))
    step, most = infos[0x37], infos[0x2C]
    profiles = a100.ask(COMPUTE)

    for index in range(profiles.get("profileCount")):
        contexts = profiles.get(f"profiles[{index}].veidCount")
        gpcs = profiles.get(f"profiles[{index}].gpcCount")
        assert contexts % step == 0
        assert contexts in {step * gpcs, most}
        assert contexts <= most


def test_client_subscribed_to_an_instance_lists_only_that_instance(a100: Driver) -> None:
    """If the answer has another instance too, an assertion of the driver fails, and a MIG device is missing."""
    numbers = [make_instance(a100, flag) for flag in (THREE, QUARTER)]

    assert a100.ask(LIST).get("validPartitionCount") == 0
    # A client works in the last instance that it opened.
    subscribe(a100, numbers[0], handle=1)
    subscribe(a100, numbers[1])

    listed = a100.ask(LIST)
    assert listed.get("validPartitionCount") == 1
    assert listed.get("queryPartitionInfo[0].swizzId") == numbers[1]
    assert a100.ask(LIST, ALL).get("validPartitionCount") == 2


def test_compute_instance_fills_its_gpu_instance(a100: Driver) -> None:
    numbers = [make_instance(a100, THREE) for _ in range(2)]
    subscribe(a100, numbers[1])

    made = make_compute_instance(a100, 42)

    exported = a100.ask(EXPORT_COMPUTE, {"id": made})
    parent = a100.ask(EXPORT, {"swizzId": numbers[1]})
    assert made == 0
    assert exported.get("info.veidCount") == parent.get("info.veidCount") == 24
    assert exported.get("info.smCount") == 42
    # The compute instance has the first graphics engine of its GPU instance.
    assert exported.get("info.enginesMask[0]") & 0x1FE == 1 << 1
    assert exported.content[8 + 32 : 8 + 48] != parent.content[8 + 32 : 8 + 48]


def test_compute_instances_share_a_gpu_instance(a100: Driver) -> None:
    subscribe(a100, make_instance(a100, THREE))

    made = [make_compute_instance(a100, sms) for sms in (14, 28)]

    spans = [a100.ask(EXPORT_COMPUTE, {"id": number}).get("info.spanStart") for number in made]
    assert (made, spans) == ([0, 1], [0, 1])
    assert refused(a100, CREATE, 460, 0, 0, 1, 1) == INSUFFICIENT
    a100.ask(DELETE, {"execPartCount": 1, "execPartId[0]": 0})
    assert refused(a100, EXPORT_COMPUTE, 96, 0) == INVALID
    assert a100.ask(EXPORT_COMPUTE, {"id": 1}).get("info.smCount") == 28
    assert make_compute_instance(a100, 14) == 0
    # One call may destroy or create several compute instances.
    a100.ask(DELETE, {"execPartCount": 2, "execPartId[0]": 1, "execPartId[1]": 0})
    assert [refused(a100, EXPORT_COMPUTE, 96, number) for number in (0, 1)] == [INVALID] * 2
    sizes = {"execPartInfo[0].smCount": 14, "execPartInfo[1].smCount": 28}
    both = a100.ask(CREATE, {"execPartCount": 2, **sizes})
    assert [both.get(f"execPartInfo[{index}].spanStart") for index in (0, 1)] == [0, 1]


def test_compute_instance_begins_at_the_requested_position(a100: Driver) -> None:
    subscribe(a100, make_instance(a100, THREE))

    made = make_compute_instance(a100, 14, flags=2, spanStart=2)
    other = make_compute_instance(a100, 14, flags=2, veidStartOffset=8)

    starts = [
        a100.ask(EXPORT_COMPUTE, {"id": number}).get("info.veidOffset") for number in (made, other)
    ]
    assert starts == [16, 8]
    assert refused(a100, CREATE, 460, 0, 2, 1, 3) == INSUFFICIENT


def test_capacity_query_creates_no_instance(a100: Driver) -> None:
    subscribe(a100, make_instance(a100, THREE))

    make_compute_instance(a100, 42, bQuery=1)

    assert refused(a100, EXPORT_COMPUTE, 96, 0) == INVALID


def test_compute_instance_is_refused_without_a_gpu_instance_or_with_an_unknown_size(
    a100: Driver,
) -> None:
    assert refused(a100, CREATE, 460, 0, 0, 1, 1) == INVALID
    assert refused(a100, DELETE, 36, 1) == INVALID
    assert refused(a100, EXPORT_COMPUTE, 96, 0) == INVALID
    number = make_instance(a100, THREE)
    subscribe(a100, number)
    assert refused(a100, CREATE, 460, 0, 0, 1, 5) == INVALID
    assert refused(a100, CREATE, 460, 0, 0, 0xFFFFFFFF, 5) == INVALID

    make_compute_instance(a100, 42)
    a100.ask(SET, {"partitionCount": 1, "partitionInfo[0].swizzId": number})

    assert refused(a100, EXPORT_COMPUTE, 96, 0) == INVALID


def test_subscription_to_an_instance_ends_when_its_object_is_freed_or_the_gpu_reboots(
    a100: Driver,
) -> None:
    number = make_instance(a100, THREE)
    subscribe(a100, number)

    a100.call(Function.FREE, struct.pack("<4I", CLIENT, SUBDEVICE, SUBDEVICE, 0))

    assert refused(a100, CREATE, 460, 0, 0, 1, 3) == INVALID
    subscribe(a100, number)
    again = Driver(a100.device)
    again.open()
    assert refused(again, CREATE, 460, 0, 0, 1, 3) == INVALID


def test_number_of_remembered_subscriptions_to_instances_is_bounded(
    a100: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_SUBSCRIPTIONS", 2)

    for handle in range(3):
        subscribe(a100, handle, handle=handle)

    assert list(a100.device.state.subscriptions.values()) == [1, 2]
    subscribe(a100, 5, handle=2)
    assert list(a100.device.state.subscriptions.values()) == [1, 5]


def test_page_table_roots_are_limited_and_roots_of_the_same_client_come_first(
    a100: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_ROOTS", 3)
    known = a100.device.state
    places = [Directory(Space.GUEST, at, 47) for at in range(5)]
    for client, handle, place in ((1, 1, 0), (1, 2, 1), (2, 3, 2), (2, 3, 3)):
        known.add_root(client, handle, places[place])

    assert list(known.roots.values()) == [places[0], places[1], places[3]]
    assert [known.find_root(*each) for each in ((1, 1), (1, 9), (2, 9), (3, 9))] == [
        *(places[0], places[1], places[3], places[3]),
    ]
    known.add_root(4, 4, places[4])
    assert list(known.roots.values()) == [places[1], places[3], places[4]]


def test_instances_of_two_gpus_have_different_uuids() -> None:
    """In a former bug, the instance number replaced the number of the GPU."""
    drivers = [Driver(a_device(A100, number)) for number in (1, 2)]
    uuids = set()
    for driver in drivers:
        driver.open()
        number = make_instance(driver, EIGHTH)
        uuids.add(driver.ask(EXPORT, {"swizzId": number}).content[8:72])
        subscribe(driver, number)
        made = make_compute_instance(driver, 14)
        uuids.add(driver.ask(EXPORT_COMPUTE, {"id": made}).content[40:56])

    assert len(uuids) == 4


def test_smallest_mig_instances_do_not_share_gpcs(a100: Driver) -> None:
    """In a former bug, two instances shared the first GPC, as GPCs were scaled from slices."""
    masks = [
        a100.ask(EXPORT, {"swizzId": make_instance(a100, EIGHTH)}).get("info.gpcMask")
        for _ in range(7)
    ]

    assert sum(masks) == 0x7F
    assert all(mask.bit_count() == 1 for mask in masks)


def test_all_graphics_engines_have_gpcs_only_in_mig_mode(a100: Driver) -> None:
    """If an engine has no GPCs, the driver refuses a second compute instance: 'numGpcs > 0'."""
    for mode, engines in ((1, list(range(8))), (0, [0])):
        a100.control(SET_MODE, struct.pack("<I", mode))
        masks, order = a100.ask(0x20800A26), a100.ask(0x20800A22)

        assert [n for n in range(8) if masks.get(f"floorsweepingMasks[{n}].gpcMask")] == engines
        assert [n for n in range(8) if order.get(f"globalSmOrder[{n}].numSm")] == engines
