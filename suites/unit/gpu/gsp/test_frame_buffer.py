"""The sparse memory of a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.gsp.frame_buffer import PAGE, FrameBuffer
from harness.limits import GPU_MEMORY, LimitError


def a_frame_buffer() -> FrameBuffer:
    return FrameBuffer(source="a test's GPU")


def test_zeros_that_are_written_to_the_frame_buffer_take_no_memory() -> None:
    memory = a_frame_buffer()

    memory.write(5, bytes(3 * PAGE))

    assert memory.kept_bytes == 0


def test_zeroing_all_memory_drops_the_pages() -> None:
    memory = a_frame_buffer()
    memory.write(0, b"\1" * (4 * PAGE))

    memory.zero(1, 80 << 30)

    assert memory.kept_bytes == PAGE
    assert memory.read(0, 2) == b"\1\0"


def test_zeroing_changes_no_byte_outside_its_range() -> None:
    for pages in (range(64), (0, 62, 63)):
        memory = a_frame_buffer()
        for page in pages:
            memory.write(page * PAGE, b"\1" * PAGE)

        memory.zero(PAGE, 62 * PAGE - 1)

        assert memory.read(PAGE - 1, 2) == b"\1\0"
        assert memory.read(63 * PAGE - 2, PAGE + 2) == b"\0" + b"\1" * (PAGE + 1)


def test_write_beyond_the_memory_limit_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GPU_MEMORY.variable, "1")
    memory = a_frame_buffer()

    with pytest.raises(LimitError, match=r"a test's GPU: .* 'gpu-memory-mib'"):
        memory.write(0, b"\1" * ((1 << 20) + 1))

    assert memory.kept_bytes == 1 << 20


_OPERATIONS = st.tuples(
    st.sampled_from(["write", "zero"]),
    st.integers(0, 4 * PAGE),
    st.integers(0, 3 * PAGE),
    st.integers(0, 255),
)


@given(st.lists(_OPERATIONS, max_size=12))
def test_read_returns_the_last_bytes_written_or_zeroed(
    operations: list[tuple[str, int, int, int]],
) -> None:
    memory, model = a_frame_buffer(), bytearray(8 * PAGE)
    for kind, address, size, value in operations:
        data = bytes([value if kind == "write" else 0]) * size
        model[address : address + size] = data
        if kind == "write":
            memory.write(address, data)
        else:
            memory.zero(address, size)

    assert memory.read(0, len(model)) == model
