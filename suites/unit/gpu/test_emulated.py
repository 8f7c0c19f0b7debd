"""The emulated GPU as a guest sees it, and as a test scripts it."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu import emulated
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.trace import NO_BAR, IncidentKind
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock
from suites.unit.gpu.fake_engine import CopyingEngine
from suites.unit.gpu.models import BAR_0, BAR_1, MIB, a_gpu, a_model, configure


def test_boot_registers_are_read_and_cannot_be_written() -> None:
    """The other BAR has registers of its own."""
    gpu = configure(a_gpu())

    for _ in range(2):
        assert gpu.memory_read(BAR_0, 4) == 0x180000A1
        assert gpu.memory_read(BAR_0 + 0xA00, 4) == 0x180A1000
        for bar in (BAR_0, BAR_1):
            gpu.memory_write(bar, 0xDEADBEEF, 4)
    assert gpu.memory_read(BAR_1, 4) == 0xDEADBEEF


def test_registers_can_be_read_and_written_by_accesses_of_any_width() -> None:
    gpu = configure(a_gpu())
    gpu.memory_write(BAR_0 + 0x100, 0x7766554433221100, 8)
    values = {
        (0x100, 4): 0x33221100,
        (0x101, 1): 0x11,
        (0x102, 2): 0x3322,
        (0x100, 8): 0x7766554433221100,
        (0x103, 4): 0x66554433,
        (0x107, 1): 0x77,
    }

    assert {
        (offset, size): gpu.memory_read(BAR_0 + offset, size) for offset, size in values
    } == values
    # A narrow write does not change the neighbouring bytes.
    gpu.memory_write(BAR_0 + 0x102, 0xAB, 1)
    assert gpu.memory_read(BAR_0 + 0x100, 8) == 0x7766554433AB1100


def test_address_that_no_bar_claims_reads_as_all_ones() -> None:
    gpu = configure(a_gpu())
    outside = BAR_1 + 16 * MIB

    gpu.memory_write(outside, 1, 4)

    assert gpu.memory_read(outside, 4) == 0xFFFFFFFF
    # If the transport names the BAR, an access that ends beyond the BAR is also unclaimed.
    gpu.bar_write(1, 16 * MIB - 2, 1, 4)
    assert gpu.bar_read(1, 16 * MIB - 2, 4) == 0xFFFFFFFF
    seen = [access.offset for access in gpu.trace.bar_accesses(NO_BAR)]
    assert seen == [outside, outside, 16 * MIB - 2, 16 * MIB - 2]


def test_trace_records_the_bytes_that_were_written() -> None:
    gpu = configure(a_gpu())

    gpu.config_write(0x3C, 0x1FF05, 1)
    gpu.memory_write(BAR_0 + 0x100, 0x1FF06, 1)

    assert [access.value for access in gpu.trace.accesses[-2:]] == [5, 6]


def test_reset_discards_values_that_the_guest_wrote_but_keeps_scripted_values() -> None:
    gpu = configure(a_gpu())
    gpu.memory_write(BAR_0 + 0x100, 1, 4)
    gpu.answer(0x200, 0x55)

    gpu.reset()

    assert gpu.memory_read(BAR_0 + 0x100, 4) == 0xFFFFFFFF
    configure(gpu)
    assert gpu.memory_read(BAR_0 + 0x100, 4) == 0
    assert gpu.memory_read(BAR_0 + 0x200, 4) == 0x55
    assert len(gpu.trace.resets()) == 1


def test_register_has_its_scripted_value_until_that_value_is_cleared() -> None:
    gpu = configure(a_gpu())

    gpu.answer(0xA00, 0)
    gpu.memory_write(BAR_0 + 0xA00, 7, 4)
    assert gpu.memory_read(BAR_0 + 0xA00, 4) == 0

    gpu.clear_answer(0xA00)
    assert gpu.memory_read(BAR_0 + 0xA00, 4) == 0x180A1000


def test_scripted_value_overrides_the_value_of_an_engine() -> None:
    model = a_model()
    gpu = EmulatedGpu(model, bars=model.bars.mpqemu, engine=lambda _: CopyingEngine())

    gpu.answer(0x84, 0x11223344)

    assert gpu.bar_read(0, 0x80, 4) == 0x80
    assert (gpu.bar_read(0, 0x84, 4), gpu.bar_read(0, 0x86, 2)) == (0x11223344, 0x1122)
    gpu.clear_answer(0x84)
    assert gpu.bar_read(0, 0x84, 4) == 0x84


def test_missing_register_cannot_be_scripted() -> None:
    gpu, accepted = a_gpu(), []
    for bar, offset, value in (
        (0, 2, 0),
        (0, 16 * MIB, 0),
        (0, -4, 0),
        (2, 0, 0),
        (0, 0, 1 << 32),
    ):
        with contextlib.suppress(ValueError):
            gpu.answer(offset, value, bar=bar)
            accepted.append((bar, offset, value))

    assert accepted == []
    with pytest.raises(ValueError, match="no 32-bit register at 0x0 of BAR 5"):
        gpu.clear_answer(0, bar=5)


def test_every_read_of_a_gpu_off_the_bus_returns_all_ones() -> None:
    gpu = configure(a_gpu())

    gpu.fall_off_bus()
    gpu.config_write(0x10, 0, 4)
    gpu.memory_write(BAR_0 + 0x100, 1, 4)

    assert gpu.config_read(0, 4) == 0xFFFFFFFF
    assert gpu.config_read(0, 2) == 0xFFFF
    assert gpu.memory_read(BAR_0, 8) == 0xFFFFFFFFFFFFFFFF
    assert len(gpu.trace.incidents_of(IncidentKind.FELL_OFF_BUS)) == 1


def test_gpu_keeps_its_state_when_it_returns_to_the_bus() -> None:
    gpu = configure(a_gpu())
    gpu.fall_off_bus()
    gpu.memory_write(BAR_0 + 0x100, 1, 4)
    gpu.config_write(0x10, BAR_1, 4)

    gpu.return_to_bus()
    gpu.return_to_bus()

    assert gpu.config_read(0, 4) == 0x233010DE
    assert gpu.memory_read(BAR_0 + 0x100, 4) == 0
    assert len(gpu.trace.incidents_of(IncidentKind.RETURNED_TO_BUS)) == 1


def test_stall_ends_after_its_duration() -> None:
    gpu = a_gpu(clock=FakeClock(look_s=1.0))
    gpu.stall(10.0)

    # A later stall replaces the earlier stall.
    gpu.stall(100.0)
    gpu.stall(10.0)

    left = [gpu.stalled_for_s() for _ in range(12)]

    assert left[0] > left[1] > 0
    assert left[-1] == 0
    assert [incident.kind for incident in gpu.trace.incidents] == [
        *[IncidentKind.STALL_BEGAN] * 3,
        IncidentKind.STALL_ENDED,
    ]


def test_stall_can_be_ended_early() -> None:
    gpu = a_gpu()
    gpu.stall(3600.0)

    gpu.end_stall()
    gpu.end_stall()

    assert gpu.wait_for_stall_end(threading.Event())
    assert len(gpu.trace.incidents_of(IncidentKind.STALL_ENDED)) == 1


def test_waiting_for_a_stalled_gpu_can_be_cancelled() -> None:
    gpu = a_gpu()
    gpu.stall(3600.0)
    cancelled = threading.Event()
    cancelled.set()

    assert not gpu.wait_for_stall_end(cancelled)


def test_number_of_registers_that_store_guest_writes_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulated, "REGISTER_LIMIT", 3)
    gpu = configure(a_gpu())

    # Zeros are not stored, so they do not count.
    for offset in range(0x200, 0x300, 4):
        gpu.memory_write(BAR_0 + offset, 0, 4)
    for offset in range(0x100, 0x200, 4):
        gpu.memory_write(BAR_0 + offset, 1, 4)
    gpu.memory_write(BAR_0 + 0x100, 2, 4)

    read = [gpu.memory_read(BAR_0 + offset, 4) for offset in range(0x100, 0x200, 4)]
    assert read == [2, 1, 1] + [0] * 61


def test_accesses_from_several_threads_are_all_recorded() -> None:
    gpu = configure(a_gpu(trace_capacity=10_000))

    def touch() -> None:
        for offset in range(500):
            gpu.memory_write(BAR_0 + 0x1000 + offset, 0xFF, 1)

    threads = [threading.Thread(target=touch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    trace = gpu.trace
    assert len(trace.bar_accesses(0)) == 2000
    assert [access.sequence for access in trace.accesses] == list(range(2003))


def test_wait_until_placed_ends_when_the_guest_assigns_the_bar_addresses() -> None:
    gpu = a_gpu()
    assert not gpu.wait_until_placed(Deadline.after(0))
    waits = threading.Event()

    # The waiting thread reads its clock directly before it releases the lock of the device.
    deadline = Deadline.after(3600, FakeClock(on_look=waits.set))
    waits.clear()
    waiter = threading.Thread(target=gpu.wait_until_placed, args=(deadline,), daemon=True)
    waiter.start()
    waits.wait()
    configure(gpu)
    waiter.join(60)

    assert not waiter.is_alive()


_ADDRESSES = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(BAR_0 - 16, BAR_0 + 0x20),
    st.integers(BAR_1 - 16, BAR_1 + 16),
    st.integers(BAR_1 + 16 * MIB - 16, BAR_1 + 16 * MIB + 16),
)
_OFFSETS = st.one_of(st.integers(0, 255), st.integers(0, 2**32 - 1))
_GUEST_ACCESSES = st.one_of(
    st.tuples(st.just("config_read"), st.tuples(_OFFSETS, st.integers(1, 4))),
    st.tuples(
        st.just("config_write"),
        st.tuples(_OFFSETS, st.integers(0, 2**32 - 1), st.integers(1, 4)),
    ),
    st.tuples(st.just("memory_read"), st.tuples(_ADDRESSES, st.integers(1, 8))),
    st.tuples(
        st.just("memory_write"),
        st.tuples(_ADDRESSES, st.integers(0, 2**64 - 1), st.integers(1, 8)),
    ),
    st.tuples(st.sampled_from(["reset", "fall_off_bus", "return_to_bus"]), st.just(())),
)


@given(accesses=st.lists(_GUEST_ACCESSES, max_size=60))
def test_answer_to_any_guest_access_fits_the_size_of_the_access(
    accesses: list[tuple[str, tuple[int, ...]]],
) -> None:
    gpu = configure(a_gpu(trace_capacity=4))

    for name, arguments in accesses:
        answer = getattr(gpu, name)(*arguments)
        if answer is not None:
            assert 0 <= answer < 1 << 8 * arguments[-1]

    gpu.return_to_bus()
    assert gpu.config_read(0, 4) == 0x233010DE
    assert gpu.config_read(0x3D, 1) == 1
    assert len(gpu.trace.accesses) <= 4 * 4
    configure(gpu)
    assert gpu.memory_read(BAR_0, 4) == 0x180000A1
