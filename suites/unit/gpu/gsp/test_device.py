"""A GPU as NVIDIA's driver uses it: registers, boot, calls, faults, unload and reset."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from harness.gpu.gsp.answers import ANSWERS
from harness.gpu.gsp.queues import SLOTS
from harness.gpu.gsp.rpc import Function
from harness.limits import GPU_MEMORY
from suites.unit.gpu.gsp.drivers import A100, ARGUMENTS, FSP_ARGUMENTS, H100, T4, Driver, a_device
from suites.unit.gpu.gsp.driverside import DriverSide, Ram, message

if TYPE_CHECKING:
    from harness.gpu.gsp.address_space import Memories

NAME, GID, BARS = 0x20800110, 0x2080014A, 0x20801803
UNKNOWN = 0x2080FFFF
ECC_STATUS, REMAPPED_ROWS, BIOS_INFO = 0x2080012F, 0x20801344, 0x20800810


@pytest.fixture
def opened() -> Driver:
    driver = Driver(a_device())
    driver.open()
    return driver


def test_registers_report_the_chip_and_the_memory_size_and_a_halted_gsp() -> None:
    """The size of the memory has a magnitude and a scale, except on Hopper."""
    for model, chip, register, size in (
        (A100, 0x170, 0x100CE0, 40 << 4 | 10),
        (T4, 0x164, 0x100CE0, 15 << 4 | 10),
        (H100, 0x180, 0x1183A4, 81559),
    ):
        driver = Driver(a_device(model))

        assert driver.read(0x0) == chip << 20 | 0xA1
        assert driver.read(0xA00) == chip << 20 | 0xA1000
        assert driver.read(0x118128) & 1
        assert driver.read(0x110100) & 0x10
        assert driver.read(register) == size


def test_register_shows_whether_the_falcon_loads_its_code_by_dma() -> None:
    for model, loads in ((A100, 0), ("a10-24gb", 1 << 31)):
        assert Driver(a_device(model)).read(0x1100F4) == loads | 1 << 10


def test_video_bios_and_configuration_space_can_be_read_through_registers() -> None:
    driver = Driver(a_device())

    assert driver.read(0x300000) & 0xFFFF == 0xAA55
    assert driver.read(0x88000) == 0x20B0_10DE
    assert Driver(a_device(H100)).read(0x92000) == 0x2330_10DE


def test_pramin_window_shows_the_frame_buffer_from_the_address_in_the_window_register() -> None:
    for model, register in ((A100, 0x1700), (H100, 0x10FD40)):
        device = a_device(model)
        driver = Driver(device)

        driver.write(register, 0x1234)
        device.write(0, 0x700010, 0x1122334455667788, 8)
        driver.write(register, 0x1235)

        assert device.read(0, 0x700010, 4) == 0
        # The bits from 24 on select a memory; the device ignores them, and always shows the GPU's
        # memory.
        driver.write(register, 1 << 24 | 0x1234)
        assert device.read(0, 0x700014, 4) == 0x11223344
        device.reset()
        driver.write(register, 0x1234)
        assert device.read(0, 0x700014, 4) == 0


def test_single_byte_of_a_register_can_be_written_and_read() -> None:
    device = a_device()

    device.write(0, 0x110080, 0x11223344, 4)
    device.write(0, 0x110081, 0xAB, 1)

    assert device.read(0, 0x110080, 4) == 0x1122AB44
    assert device.read(0, 0x110081, 1) == 0xAB


def test_gpu_timer_advances_in_steps_of_32_nanoseconds() -> None:
    """Two registers have the lower 32 bits; another register has the upper bits."""
    driver = Driver(a_device())

    for low, high in ((0x9400, 0x9410), (0xBB0080, 0xBB0084)):
        assert {driver.read(low) % 32 for _ in range(9)} == {0}
        assert driver.read(high) == time.time_ns() >> 32


def test_number_of_stored_guest_register_writes_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(a_device())
    driver.write(0x110048, 1)
    monkeypatch.setattr("harness.gpu.gsp.device._REGISTER_LIMIT", 0)

    for register in (0x110048, 0x11004C):
        driver.write(register, 2)

    assert (driver.read(0x110048), driver.read(0x11004C)) == (2, 0)


def test_gsp_stops_if_the_booter_gets_an_invalid_address_of_the_boot_data() -> None:
    for address in (0, 0xFF, 0x5_0000_00FF):
        driver = Driver(a_device())
        driver.open()
        driver.write(0x840040, address & 0xFFFFFFFF)
        driver.write(0x840044, address >> 32)
        driver.write(0x840100, 2)
        driver.work()

        driver.side.put(message(Function.FREE, bytes(16)))
        driver.write(0x110C00, 0)
        driver.work()

        assert driver.events() == []
        registers = (0x111240, 0x111388, 0x1FA824, 0x1FA828)
        assert [driver.read(each) for each in registers] == [0] * 4


def test_booter_register_reads_as_busy_until_the_booter_has_run() -> None:
    driver = Driver(a_device())
    driver.lay_out()
    driver.write(0x840040, 0x9000)
    driver.write(0x110040, ARGUMENTS)

    driver.write(0x840100, 2)

    assert driver.read(0x840100) == 0
    driver.work()
    assert driver.read(0x840100) == 0x10
    assert driver.read(0x840040) == 0
    assert driver.read(0x1FA824) == 0x9F00000
    assert driver.read(0x1FA828) == 0x9FF0000


def test_gsp_does_not_start_without_an_entry_for_its_message_queues() -> None:
    driver = Driver(a_device())
    driver.lay_out()
    driver.ram.write(ARGUMENTS, bytes(8))
    lay_out, driver.lay_out = driver.lay_out, lambda: None  # type: ignore[method-assign]

    driver.boot()
    assert driver.events() == []

    assert driver.read(0x111240) == 0

    lay_out()
    driver.boot()
    assert driver.events() == [(Function.GSP_INIT_DONE, 0, bytes(4))]
    assert driver.read(0x111240) == 1


def _boot_by_fsp(driver: Driver) -> None:
    """Send FSP the message that boots the GSP."""
    driver.lay_out()
    driver.ram.write(FSP_ARGUMENTS + 0x30, struct.pack("<Q", ARGUMENTS))
    payload = bytearray(868)
    struct.pack_into("<II", payload, 0, 3 << 30, 0x14 << 24 | 0x10DE7E)
    struct.pack_into("<Q", payload, 8 + 0x354, FSP_ARGUMENTS)
    driver.write(0x8F2AC0, 1 << 24)
    for (word,) in struct.iter_unpack("<I", payload):
        driver.write(0x8F2AC4, word)
    assert driver.read(0x8F2AC0) == 1 << 24 | len(payload)
    driver.write(0x8F2C04, len(payload) - 4)
    driver.write(0x8F2C00, 0)


def test_hopper_stays_in_lockdown_until_its_gsp_runs() -> None:
    """The driver waits for the end of the lockdown and then checks once whether the GSP runs."""
    driver = Driver(a_device(H100))
    locked_down = 1 << 13

    _boot_by_fsp(driver)

    assert driver.read(0x1100F4) & locked_down
    driver.work()
    # A write to the head of the other queue sends no message.
    driver.write(0x8F2C80, 0)
    assert not driver.read(0x1100F4) & locked_down
    assert driver.read(0x111388) == 1 << 7


def test_hopper_gsp_boots_after_a_boot_message_to_fsp() -> None:
    driver = Driver(a_device(H100))

    _boot_by_fsp(driver)
    driver.work()

    assert driver.events() == [(Function.GSP_INIT_DONE, 0, bytes(4))]
    driver.write(0x8F2AC0, 1 << 25)
    answer = [driver.read(0x8F2AC4) for _ in range(5)]
    assert answer == [3 << 30, 0x15 << 24 | 0x10DE7E, 0, 0x14, 0]
    assert driver.read(0x8F2C84) == 16


def test_message_to_fsp_without_boot_arguments_does_not_boot_the_gsp() -> None:
    """The arguments' address has two words; a message with only one of the words boots nothing."""
    for words in (2, 216):
        driver = Driver(a_device(H100))
        message_words = [3 << 30, 0x14 << 24 | 0x10DE7E, *[FSP_ARGUMENTS] * (words - 2)]
        for offset, value in (
            *((0x8F2AC0, 1 << 24), *((0x8F2AC4, word) for word in message_words)),
            *((0x8F2C04, 4 * words - 4), (0x8F2C00, 0)),
        ):
            driver.write(offset, value)
        driver.ram.reads.clear()

        driver.work()

        assert driver.ram.reads == []


def test_hopper_mailbox_shows_no_error_during_a_second_boot() -> None:
    """The driver polls the mailbox while the device waits for the guest's memory."""
    driver = Driver(a_device(H100))
    _boot_by_fsp(driver)
    driver.work()
    driver.events()
    driver.call(Function.UNLOADING_GUEST_DRIVER, bytes(8))
    again = Driver(driver.device)
    seen = []

    class Watched(Ram):
        @override
        def read(self, address: int, size: int) -> bytes:
            seen.append(again.read(0x110040))
            return super().read(address, size)

    again.ram = Watched()
    again.side = DriverSide(again.ram)
    seen.clear()
    _boot_by_fsp(again)
    again.work()

    assert set(seen) == {0}


def test_fwsec_of_turing_reserves_memory_before_the_boot() -> None:
    driver = Driver(a_device(T4))
    data = bytearray(0x100)
    struct.pack_into("<I", data, 0x40 + 0x2C, 0x15)
    struct.pack_into("<II", data, 0x80 + 0x20, 0x3BFE00, 0x100)
    driver.ram.write(0x5000, bytes(data))
    driver.write(0x1101C0, 1 << 24 | 0x40)
    driver.write(0x1101C4, 0x5000)
    driver.write(0x1101C4, 0)

    driver.write(0x110100, 2)
    driver.work()

    assert driver.read(0x1FA824) == 0x3BFE000
    assert driver.read(0x1FA828) == 0x3BFF000
    assert driver.read(0x110100) == 0x10


def test_ampere_transfers_fwsec_by_dma() -> None:
    driver = Driver(a_device("a10-24gb"))
    data = bytearray(0x100)
    struct.pack_into("<I", data, 0x40 + 0x2C, 0x15)
    struct.pack_into("<II", data, 0x80 + 0x20, 0x59E000, 0x100)
    driver.ram.write(0x5000, bytes(data))
    driver.write(0x111668, 0)
    assert driver.read(0x111668) & 1

    for to, at, command in ((0, 0x60, 0x610), (0, 0, 0x600), (0x100, 0x100, 0x600)):
        driver.write(0x110110, 0x50)
        driver.write(0x110128, 0)
        driver.write(0x110114, to)
        driver.write(0x11011C, at)
        driver.write(0x110118, command)
        assert driver.read(0x110118) == 2
    driver.write(0x110100, 2)
    driver.work()

    assert driver.read(0x1FA824) == 0x59E0000
    assert driver.read(0x1FA828) == 0x59E1000


def test_gsp_answers_queries_for_the_name_and_the_uuid() -> None:
    uuid = struct.pack("<I", 16) + bytes.fromhex("00000000000040008000000000000007")
    for release in ("550.163.01", "535.261.03"):
        driver = Driver(a_device(), release)
        driver.open()

        status, name = driver.control(NAME, bytes(132))
        _, gid = driver.control(GID, struct.pack("<III256x", 0, 2, 0))

        assert status == 0
        assert name[4:].rstrip(b"\0") == b"NVIDIA A100-SXM4-40GB"
        _, wide = driver.control(NAME, struct.pack("<I", 1).ljust(132, b"\xff"))
        assert wide[4:].decode("utf-16-le").rstrip("\0") == "NVIDIA A100-SXM4-40GB"
        _, text = driver.control(GID, struct.pack("<III256x", 0, 1, 0))
        assert text[12:53] == b"GPU-00000000-0000-4000-8000-000000000007\0"
        assert gid[8:28] == uuid


def test_answer_never_contains_the_drivers_uninitialised_stack(opened: Driver) -> None:
    status, parameters = opened.control(BARS, b"\xff" * 200)

    assert status == 0
    assert struct.unpack_from("<I", parameters) == (4,)
    assert parameters[80:] == bytes(120)
    # These commands have no handler: two commands read data, and one command sets data.
    assert opened.control(0x102, b"\xff" * 8) == (0, bytes(8))
    assert opened.control(0x279, b"\xff" * 8) == (0, bytes(8))
    assert opened.control(0x132, b"\xff" * 8) == (0, b"\xff" * 8)


def test_raised_xid_sends_the_driver_an_event_and_an_interrupt(opened: Driver) -> None:
    raised = []
    opened.device.signal = lambda: raised.append(True)
    opened.write(0xB81200 + 4 * 4, 1 << 25)
    opened.write(0xB81608, 1 << 2)

    opened.call(Function.GET_GSP_STATIC_INFO, bytes(2184))
    opened.device.raise_xid(48, "DBE")
    opened.work()

    ((function, _, body),) = opened.events()
    assert function == Function.OS_ERROR_LOG
    assert struct.unpack_from("<I", body) == (48,)
    assert body[12:].startswith(b"DBE\0")
    assert raised
    raised.clear()
    # The device signals a pending interrupt again when the driver rearms MSI.
    opened.write(0x88000 + 0x704, 0)
    assert raised
    opened.write(0x110008, 0x50)
    opened.write(0x110004, 0x10)
    assert opened.read(0x110008) == 0x40
    # From these registers, the driver learns that the GSP raised the interrupt. The driver reads
    # the first two registers on GA100, and the last two registers on GA102 and later.
    masks = [opened.read(register) for register in (0x1112B4, 0x1112B8, 0x111528, 0x11152C)]
    assert all(mask & 0x40 for mask in masks)


def test_memory_errors_that_a_test_sets_are_reported(opened: Driver) -> None:
    errors = opened.device.memory_errors
    errors.corrected, errors.uncorrected = 3, 2
    errors.rows_after_uncorrected = 1
    errors.is_remapping_pending = True

    _, status = opened.control(ECC_STATUS, bytes(1024))
    _, rows = opened.control(REMAPPED_ROWS, b"\xff" * 6152)

    assert struct.unpack_from("<Q", status, 8) == (2,)
    assert struct.unpack_from("<Q", status, 24) == (3,)
    assert struct.unpack_from("<IB", rows) == (1, 1)
    assert rows[8 + 10] == 3


def test_number_of_remapped_rows_is_limited_by_the_size_of_the_answer(opened: Driver) -> None:
    opened.device.memory_errors.rows_after_corrected = 10_000

    _, rows = opened.control(REMAPPED_ROWS, bytes(6152))

    assert struct.unpack_from("<I", rows) == (512,)


def test_bios_info_request_is_answered_for_each_requested_index(opened: Driver) -> None:
    asked = struct.pack("<I6I", 3, 1, 99, 1 << 31, 99, 7, 99).ljust(124, b"\xff")

    _, answer = opened.control(BIOS_INFO, asked)

    assert struct.unpack_from("<I6I", answer) == (3, 1, 4, 0, 0x92003600, 7, 0)
    assert answer[28:] == asked[28:]
    endless = struct.pack("<I", 0xFFFFFFFF).ljust(124, b"\0")
    assert opened.control(BIOS_INFO, endless)[0] == 0


def test_xid_is_not_sent_before_the_driver_knows_the_gpu() -> None:
    driver = Driver(a_device())
    driver.device.raise_xid(79, "gone")
    driver.open()
    assert driver.events() == []

    driver.side.put(message(Function.GET_GSP_STATIC_INFO, bytes(2184)))
    driver.write(0x110C00, 0)
    driver.work()

    functions = [function for function, _, _ in driver.events()]
    assert functions == [Function.GET_GSP_STATIC_INFO, Function.OS_ERROR_LOG]


def test_queued_xids_are_sent_after_the_driver_has_read_earlier_messages(opened: Driver) -> None:
    opened.static_info()
    for number in range(1, SLOTS + 1):
        opened.device.raise_xid(number, "x")
        opened.work()
    first = opened.events()
    opened.write(0x110C00, 0)
    opened.work()

    numbers = [struct.unpack_from("<I", body)[0] for _, _, body in first + opened.events()]
    assert len(first) < SLOTS
    assert numbers == list(range(1, SLOTS + 1))


def test_gsp_does_not_answer_after_a_simulated_hang(opened: Driver) -> None:
    opened.device.hang()

    with pytest.raises(IndexError):
        opened.control(NAME, bytes(132))


def test_gsp_stops_answering_when_the_driver_unloads_and_can_boot_again(opened: Driver) -> None:
    opened.write(0xB81640, 153)

    # The GSP does not answer a call that follows the unload in the queue.
    for function in (Function.UNLOADING_GUEST_DRIVER, Function.FREE):
        opened.side.put(message(function, bytes(8)))
    opened.write(0x110C00, 0)
    opened.work()

    assert [function for function, _, _ in opened.events()] == [Function.UNLOADING_GUEST_DRIVER]
    assert opened.read(0xB81000 + 4 * 4) == 0
    assert opened.read(0x110040) == 0x80000000
    opened.write(0x110C00, 0)
    opened.work()
    assert opened.events() == []

    again = Driver(opened.device)
    again.boot()
    again.events()
    # The device forgot the release of the earlier driver, so the command is not supported.
    assert again.control(NAME, bytes(132))[0] == 0x56
    again = Driver(opened.device)
    again.open()
    assert again.control(NAME, bytes(132))[0] == 0


def test_reset_clears_interrupts_and_the_gsp_stops_answering(opened: Driver) -> None:
    opened.write(0xB81200 + 4 * 4, 1 << 25)
    opened.write(0xB81640, 153)
    assert opened.read(0xB81600) == 1 << 2

    opened.device.reset()
    assert (opened.read(0xB81000 + 4 * 4), opened.read(0xB81200 + 4 * 4)) == (0, 0)

    opened.side.put(b"")
    opened.write(0x110C00, 0)
    opened.work()

    assert opened.events() == []
    assert opened.read(0x1FA828) == 0


def test_gpu_fails_if_the_guest_fills_more_memory_than_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(GPU_MEMORY.variable, "1")
    device = a_device()

    for window in range(17):
        device.write(0, 0x1700, window, 4)
        for page in range(0, 1 << 16, 4096):
            device.write(0, 0x700000 + page, 1, 4)

    assert device.failure is not None
    assert "gpu-memory-mib" in device.failure
    assert device.read(0, 0, 4) == 0xFFFFFFFF


_ACCESSES = st.tuples(
    st.sampled_from([0, 1, 3]),
    st.one_of(
        st.integers(0, (1 << 24) - 8),
        st.sampled_from([0x110100, 0x840100, 0x110C00, 0xBB0090, 0x8F2C00, 0x8F2AC4, 0x700000]),
    ),
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([1, 2, 4, 8]),
)


@settings(deadline=None)
@given(st.sampled_from([A100, H100, T4]), st.lists(_ACCESSES, max_size=30))
def test_accesses_by_a_hostile_guest_do_not_harm_the_device(
    model: str, accesses: list[tuple[int, int, int, int]]
) -> None:
    driver = Driver(a_device(model))
    for bar, offset, value, size in accesses:
        driver.device.write(bar, offset, value & (1 << 8 * size) - 1, size)
        assert 0 <= driver.device.read(bar, offset, size) < 1 << 8 * size
    driver.work()


@settings(deadline=None, max_examples=4 * settings().max_examples)
@given(
    st.lists(
        st.tuples(st.integers(0, 110), st.integers(0, 0xFFFFFFFF), st.binary(max_size=400)),
        max_size=6,
    )
)
def test_rpc_calls_by_a_hostile_guest_do_not_harm_the_gsp(
    calls: list[tuple[int, int, bytes]],
) -> None:
    driver = Driver(a_device())
    driver.open()
    commands = sorted(ANSWERS)
    for function, choice, body in calls:
        head = struct.pack("<6I", 1, 2, commands[choice % len(commands)], 0, len(body), 0)
        for kind, content in ((76, head + body), (103, body), (function, body)):
            driver.side.put(message(kind, content))
            driver.write(0x110C00, 0)
            driver.work()
            driver.events()


@pytest.mark.parametrize("bar", [1, 3])
def test_access_to_a_virtual_memory_bar_is_translated_by_page_tables_until_a_reset(
    bar: int,
) -> None:
    """BAR 1 has a page directory at a fixed address; the driver sets the directory of BAR 2 (index 3)."""
    device = a_device()
    # A reset drops all translations, even if the next directory has the same address.
    for _ in range(2):
        driver = Driver(device)
        driver.open()
        dual, table, data = 0x10000, 0x20000, 0x40000
        directories = (0x30000, 0x31000)
        for at, below in zip((*directories, dual + 8), (directories[1], dual, table), strict=True):
            device.write(0, 0x700000 + at, below >> 12 << 8 | 2, 8)
        device.write(0, 0x700000 + table, data >> 12 << 8 | 1, 8)
        root = directories[0] >> 12 << 8 | 2
        driver.call(Function.UPDATE_BAR_PDE, struct.pack("<I4xQQ", 1, root, 47))
        driver.call(Function.UPDATE_BAR_PDE, struct.pack("<I4xQQ", 0, 0, 47))
        window = device.state.bar1_root >> 16
        driver.write(0x1700, window)
        device.write(0, 0x700000, root, 8)
        driver.write(0x1700, 0)

        device.write(bar, 0, ord("h"), 1)
        device.write(0, 0x700000 + table, (data + 0x1000) >> 12 << 8 | 1, 8)
        device.write(bar, 1, ord("i"), 1)
        driver.write(0xB830B0, 1 << 31)
        device.write(bar, 0, ord("a"), 1)

        assert device.read(0, 0x700000 + data, 2) == int.from_bytes(b"hi", "little")
        assert device.read(0, 0x700000 + data + 0x1000, 1) == ord("a")
        # The driver gives BAR 2 another directory, which is empty.
        driver.call(Function.UPDATE_BAR_PDE, struct.pack("<I4xQQ", 1, 0x50000 >> 12 << 8 | 2, 47))
        assert device.read(bar, 0, 1) == (0xFF if bar == 3 else ord("a"))
        driver.call(Function.UPDATE_BAR_PDE, struct.pack("<I4xQQ", 1, root, 47))
        assert device.read(bar, 0, 1) == ord("a")
        device.reset()
        assert device.read(bar, 0, 1) == 0xFF


def test_waiting_jobs_are_limited_in_number_and_are_dropped_when_the_gpu_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.gpu.gsp.device._MOST_POSTED", 2)
    monkeypatch.setenv(GPU_MEMORY.variable, "1")
    device, done = a_device(), []

    def fill(memories: Memories) -> None:
        done.append("fill")
        memories.frame_buffer.write(0, b"\1" * (2 << 20))

    assert [device.post(fill, name) for name in ("a", "b", "c")] == [True, True, False]
    device.work(Ram())
    assert done == ["fill"]


def test_job_is_not_queued_twice_before_it_starts() -> None:
    device = a_device()
    done: list[bool | None] = []

    def job(_memories: Memories) -> None:
        done.append(device.post(job, "x") if len(done) < 2 else None)

    assert [device.post(job, "x"), device.post(job, "x")] == [True, False]
    device.work(Ram())
    assert done == [True, True, None]


class LateRam(Ram):
    """Guest memory that performs posted writes only at the next read or ordinary write."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[int, bytes]] = []

    @override
    def post(self, address: int, data: bytes) -> None:
        self.late.append((address, data))

    @override
    def read(self, address: int, size: int) -> bytes:
        self._catch_up()
        return super().read(address, size)

    @override
    def write(self, address: int, data: bytes) -> None:
        self._catch_up()
        super().write(address, data)

    def _catch_up(self) -> None:
        late, self.late = self.late, []
        for address, data in late:
            super().write(address, data)


def test_message_is_in_memory_before_its_interrupt_is_raised() -> None:
    driver = Driver(a_device())
    driver.ram = ram = LateRam()
    driver.side = DriverSide(ram)
    driver.open()
    driver.call(Function.GET_GSP_STATIC_INFO, bytes(2184))
    late: list[int] = []
    driver.device.signal = lambda: late.append(len(ram.late))
    driver.write(0xB81200 + 4 * 4, 1 << 25)
    driver.write(0xB81608, 1 << 2)

    driver.device.raise_xid(48, "DBE")
    driver.work()

    assert late == [0]
