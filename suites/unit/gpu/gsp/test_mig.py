"""What the driver is answered about MIG."""

from __future__ import annotations

import struct

import pytest

from harness.gpu.gsp.mig import profiles_of
from suites.unit.gpu.gsp.drivers import A100, H100, T4, Driver, a_device

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
GRAPHICS_INFO = 0x20800A2A
#: Flags of GPU instances: an eighth, a quarter, and three slices of a half.
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


@pytest.mark.parametrize(("model", "mode"), [(A100, 2), (H100, 0), (T4, 0)])
def test_mode_is_off_or_there_is_none(model: str, mode: int) -> None:
    assert opened(model).control(MODE, bytes(4)) == (0, struct.pack("<I", mode))


def test_mode_is_on_at_once_and_off_ends_all_instances(a100: Driver) -> None:
    a100.control(SET_MODE, struct.pack("<I", 1))
    assert a100.control(MODE, bytes(4)) == (0, struct.pack("<I", 1))
    make_instance(a100, EIGHTH)

    a100.control(SET_MODE, bytes(4))

    assert a100.control(MODE, bytes(4)) == (0, struct.pack("<I", 2))
    assert a100.ask(LIST).get("validPartitionCount") == 0


def test_gpu_without_mig_refuses_the_mode() -> None:
    assert opened(T4).control(SET_MODE, struct.pack("<I", 1))[0] == NOT_SUPPORTED


def test_profiles_of_an_a100_are_those_of_the_guide(a100: Driver) -> None:
    """Instances, SMs and copy engines."""
    answered = a100.ask(PROFILES)

    found = set()
    for index in range(answered.get("count")):
        entry = f"table[{index}]"
        capacity = a100.ask(CAPACITY, {"partitionFlag": answered.get(f"{entry}.partitionFlag")})
        counts = (answered.get(f"{entry}.smCount"), answered.get(f"{entry}.ceCount"))
        found.add((capacity.get("totalPartitionCount"), *counts))
    assert found == {(7, 14, 1), (4, 14, 1), (3, 28, 2), (2, 42, 3), (1, 56, 4), (1, 98, 7)}


def test_instances_take_slices_that_are_then_gone(a100: Driver) -> None:
    first, second = make_instance(a100, QUARTER), make_instance(a100, EIGHTH)

    assert (first, second) == (3, 9)
    assert a100.ask(CAPACITY, {"partitionFlag": QUARTER}).get("partitionCount") == 1
    assert a100.ask(CAPACITY, {"partitionFlag": EIGHTH}).get("partitionCount") == 4
    assert a100.ask(CAPACITY, {"partitionFlag": 0}).get("partitionCount") == 0
    listed = a100.ask(LIST)
    assert listed.get("validPartitionCount") == 2
    assert listed.get("queryPartitionInfo[0].smCount") == 28
    assert listed.get("queryPartitionInfo[0].bValid") == 1
    assert listed.get("queryPartitionInfo[2].bValid") == 0


def test_instance_that_ended_leaves_its_slices(a100: Driver) -> None:
    number = make_instance(a100, THREE)

    a100.ask(SET, {"partitionCount": 1, "partitionInfo[0].swizzId": number})

    assert a100.ask(CAPACITY, {"partitionFlag": THREE}).get("partitionCount") == 2


def test_no_room_and_unknown_kinds_are_refused(a100: Driver) -> None:
    make_instance(a100, 0)
    layout = a100.ask(LIST)
    assert layout.get("validPartitionCount") == 1
    asked = bytearray(0x188)
    struct.pack_into("<I", asked, 0, 1)
    asked[8 + 0x18] = 1

    assert a100.control(SET, bytes(asked))[0] == INSUFFICIENT
    struct.pack_into("<I", asked, 8 + 0x14, 0x1F)
    assert a100.control(SET, bytes(asked))[0] == INVALID
    assert a100.control(CAPACITY, struct.pack("<I", 0x1F).ljust(0x118, b"\0"))[0] == INVALID


def test_more_instances_than_the_list_has_room_for_do_no_harm(a100: Driver) -> None:
    asked = bytearray(0x188)
    struct.pack_into("<I", asked, 0, 0xFFFFFFFF)

    assert a100.control(SET, bytes(asked))[0] == 0


def test_exported_instance_has_engines_of_its_own(a100: Driver) -> None:
    numbers = [make_instance(a100, THREE) for _ in range(2)]

    exported = [a100.ask(EXPORT, {"swizzId": number}) for number in numbers]

    graphics = [each.get("info.enginesMask[0]") & 0x1FE for each in exported]
    assert graphics == [1 << 1, 1 << 5]
    assert exported[0].get("info.gpcMask") & exported[1].get("info.gpcMask") == 0
    assert a100.control(EXPORT, struct.pack("<I", 14).ljust(0x50, b"\0"))[0] == INVALID


def test_compute_profiles_have_each_size_once(a100: Driver) -> None:
    answered = a100.ask(COMPUTE)

    sizes = [
        answered.get(f"profiles[{index}].computeSize")
        for index in range(answered.get("profileCount"))
    ]
    assert len(sizes) == len(set(sizes)) == len(profiles_of(a100.device.state))


def test_contexts_of_each_profile_are_whole_steps(a100: Driver) -> None:
    """With another step the driver found no room for a compute instance: 'veidEnd < 64'."""
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
