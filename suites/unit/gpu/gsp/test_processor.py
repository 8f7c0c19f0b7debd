"""Channels from their allocation by the driver to their end."""

from __future__ import annotations

import struct

import pytest

from harness.gpu.gsp.channels import Channel
from harness.gpu.gsp.layouts import read_layouts
from harness.gpu.gsp.page_tables import Space, Version
from harness.gpu.gsp.records import Record
from harness.gpu.gsp.rpc import ALLOC, CONTROL, Function
from suites.unit.gpu.gsp.drivers import CLIENT, SUBDEVICE, Driver, a_device

CHANNEL, PARAMETERS = 0xC56F, "NV_CHANNEL_ALLOC_PARAMS"
ROOT_DIRECTORY = "NV90F1_CTRL_VASPACE_COPY_SERVER_RESERVED_PDES_PARAMS"
DIRECTORIES = 0x10000
#: Addresses in the guest's memory, which are equal to the virtual addresses. Each channel has its
#: own page.
RINGS, STATES, PUSHES, SEMAPHORES = 0x40000, 0x50000, 0x60000, 0x70000
#: A virtual address that is mapped to an address beyond the end of the guest's memory.
NOWHERE = 0x200000


@pytest.fixture
def driver() -> Driver:
    """Return a driver with one address space."""
    driver = Driver(a_device())
    driver.open()
    at = DIRECTORIES
    for _ in Version.V2.value:
        driver.device.write(0, 0x700000 + at, (at + 0x1000) >> 12 << 8 | 1 << 1, 8)
        at += 0x1000
    driver.device.write(0, 0x700000 + at, 1 | 2 << 1, 8)
    driver.device.write(0, 0x700000 + at + 16, 1 | 2 << 1 | (1 << 40) >> 12 << 8, 8)
    values = {"levels[0].aperture": 1, "levels[0].physAddress": DIRECTORIES}
    assert driver.control(0x90F10106, filled(driver, ROOT_DIRECTORY, values))[0] == 0
    return driver


def filled(driver: Driver, struct_name: str, values: dict[str, int]) -> bytes:
    layouts = read_layouts(driver.release)
    size = layouts.struct(struct_name).size
    record = Record(layouts, struct_name, bytearray(size))
    for path, value in values.items():
        record.put(path, value)
    return record.content


def allocate(driver: Driver, number: int, *, state_in: int = 1) -> None:
    values = {
        "hVASpace": SUBDEVICE,
        "gpFifoOffset": RINGS + 0x1000 * number,
        "gpFifoEntries": 16,
        "userdMem.addressSpace": state_in,
        "userdMem.base": STATES + 0x1000 * number,
    }
    parameters = filled(driver, PARAMETERS, values)
    words = (CLIENT, SUBDEVICE, number, CHANNEL, 0, len(parameters), 0, 0)
    result, answer = driver.call(Function.GSP_RM_ALLOC, ALLOC.pack(*words) + parameters)
    assert (result, ALLOC.unpack_from(answer)[4]) == (0, 0)


def submit(driver: Driver, number: int, entry: int, *, push: int | None = None) -> None:
    """Put the release of a semaphore, with `entry` + 1 as its payload, into a channel's ring."""
    at = PUSHES + 0x1000 * number if push is None else push
    words = (1 << 29 | 5 << 16 | 0x5C >> 2, SEMAPHORES + 0x1000 * number, 0, entry + 1, 0, 1)
    if push is None:
        driver.ram.write(at, struct.pack("<6I", *words))
    driver.ram.write(RINGS + 0x1000 * number + 8 * entry, struct.pack("<II", at, 6 << 10))
    driver.ram.write(STATES + 0x1000 * number + 0x8C, struct.pack("<I", entry + 1))


def ring(driver: Driver) -> list[int]:
    """Ring the doorbell; return the semaphores of the channels 1 and 2."""
    driver.write(0xBB0090, 0)
    driver.work()
    return [
        struct.unpack("<I", driver.ram.read(SEMAPHORES + 0x1000 * number, 4))[0]
        for number in (1, 2)
    ]


def test_each_channel_does_its_own_work_until_it_is_freed(driver: Driver) -> None:
    for number in (1, 2):
        allocate(driver, number)
        submit(driver, number, 0)
    assert ring(driver) == [1, 1]

    # Another client's object has the same handle.
    driver.call(Function.FREE, struct.pack("<4I", CLIENT + 1, SUBDEVICE, 1, 0))
    submit(driver, 1, 1)
    assert ring(driver) == [2, 1]

    driver.call(Function.FREE, struct.pack("<4I", CLIENT, SUBDEVICE, 1, 0))
    submit(driver, 1, 2)
    submit(driver, 2, 1)

    assert ring(driver) == [2, 2]


def test_channel_runs_with_its_state_in_gpu_memory(driver: Driver) -> None:
    allocate(driver, 1, state_in=2)
    submit(driver, 1, 0)
    assert ring(driver) == [0, 0]

    driver.device.write(0, 0x700000 + STATES + 0x1000 + 0x8C, 1, 4)

    assert ring(driver) == [1, 0]
    assert driver.device.read(0, 0x700000 + STATES + 0x1000 + 0x88, 4) == 1


def test_channel_ignores_a_page_directory_that_was_set_for_another_address_space(
    driver: Driver,
) -> None:
    values = {"levels[0].aperture": 1, "levels[0].physAddress": 0x90000}
    parameters = filled(driver, ROOT_DIRECTORY, values)
    words = (CLIENT, SUBDEVICE + 1, 0x90F10106, 0, len(parameters), 0)
    driver.call(Function.GSP_RM_CONTROL, CONTROL.pack(*words) + parameters)
    allocate(driver, 1)
    submit(driver, 1, 0)

    assert ring(driver) == [1, 0]


def test_page_directory_is_found_in_gpu_memory_or_guest_memory(driver: Driver) -> None:
    for aperture, space in ((1, Space.FRAME_BUFFER), (2, Space.GUEST)):
        values = {"levels[0].aperture": aperture, "levels[0].physAddress": 0x90000}
        driver.control(0x90F10106, filled(driver, ROOT_DIRECTORY, values))

        found = driver.device.state.find_root(CLIENT, SUBDEVICE)
        assert found is not None
        assert (found.space, found.address) == (space, 0x90000)


def test_channel_does_not_run_in_an_address_space_of_an_earlier_boot(driver: Driver) -> None:
    again = Driver(driver.device)
    again.open()
    allocate(again, 1)
    submit(again, 1, 0)

    assert ring(again) == [0, 0]


@pytest.mark.parametrize("push", [NOWHERE, 2 * NOWHERE, 1 << 21 | 1 << 30])
def test_channel_with_invalid_work_stops_and_other_channels_continue(
    driver: Driver, push: int
) -> None:
    for number in (1, 2):
        allocate(driver, number)
    submit(driver, 1, 0, push=push)
    submit(driver, 2, 0)

    assert ring(driver) == [0, 1]
    submit(driver, 1, 0)
    submit(driver, 2, 1)
    assert ring(driver) == [0, 2]


def test_channel_with_much_work_does_not_block_other_channels(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Channel] = []

    def run(channel: Channel) -> bool:
        ran.append(channel)
        return len(ran) == 1

    for number in (1, 2):
        allocate(driver, number)
    monkeypatch.setattr(Channel, "run", run)

    ring(driver)

    assert len(set(ran[:2])) == 2
    assert len(ran) == 4
