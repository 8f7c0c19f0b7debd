"""Remote procedure calls in one message and in several messages."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpu.gsp.queues import MOST_BODY
from harness.gpu.gsp.rpc import ALLOC, CONTROL, HEADER, Assembler, Function, Rpc, RpcError
from suites.unit.gpu.gsp.driverside import message

CONTROL_CALL = Function.GSP_RM_CONTROL


def a_control(parameters: bytes, *, size: int | None = None) -> bytes:
    length = len(parameters) if size is None else size
    return CONTROL.pack(1, 2, 0x20800110, 0, length, 0) + parameters


def test_rpc_call_of_one_message_is_assembled_without_trailing_bytes() -> None:
    body = a_control(b"abcd")

    rpc = Assembler().feed(message(CONTROL_CALL, body) + bytes(100))

    assert rpc == Rpc(function=CONTROL_CALL, body=body)


def test_long_rpc_call_is_assembled_from_its_parts() -> None:
    for length in (MOST_BODY - HEADER.size - CONTROL.size + 1, MOST_BODY, 3 * MOST_BODY):
        sent = Rpc(function=CONTROL_CALL, body=a_control(b"\x5a" * length), sequence=9)
        assembler = Assembler()

        first = next(sent.parts())
        later = list(replace(sent, sequence=10).parts())[1:]
        found = [assembler.feed(part) for part in (first, *later)]

        assert later
        assert found == [*[None] * len(later), sent]
        with pytest.raises(RpcError, match="there is no earlier message"):
            assembler.feed(later[-1])


def test_allocation_parameters_beyond_the_stated_message_length_are_read() -> None:
    for stated in (0, 8, 12):
        body = ALLOC.pack(1, 2, 3, 0xC56F, 0, 8, 0, 0) + b"ABCDEFGHIJKL"[: max(8, stated)]
        units = message(Function.GSP_RM_ALLOC, body, size=HEADER.size + ALLOC.size + stated)

        assert Assembler().feed(units) == Rpc(function=Function.GSP_RM_ALLOC, body=body)


def test_malformed_message_is_refused() -> None:
    for units in (
        b"",
        bytes(64),
        message(1, b"", size=31),
        message(1, b"", size=33),
        message(CONTROL_CALL, bytes(8)),
        message(CONTROL_CALL, a_control(b"", size=0xFFFFFFFF)),
        message(Function.GSP_RM_ALLOC, ALLOC.pack(1, 2, 3, 4, 0, 0xFFFFFFFF, 0, 0)),
        message(Function.CONTINUATION_RECORD, b"alone"),
    ):
        with pytest.raises(RpcError):
            pytest.fail(f"{units!r} was accepted: {Assembler().feed(units)}")


def test_new_rpc_call_discards_an_incomplete_rpc_call() -> None:
    assembler = Assembler()
    assembler.feed(message(CONTROL_CALL, a_control(b"", size=1000)))

    assert assembler.feed(message(1, b"x")) == Rpc(function=1, body=b"x")
    with pytest.raises(
        RpcError, match="continues an earlier message, but there is no earlier message"
    ):
        assembler.feed(message(Function.CONTINUATION_RECORD, b"late"))


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from([1, 71, 76, 103]))
def test_messages_of_a_hostile_guest_are_assembled_or_refused(
    bodies: list[bytes], function: int
) -> None:
    assembler = Assembler()
    for body in bodies:
        with contextlib.suppress(RpcError):
            rpc = assembler.feed(message(function, body))
            assert rpc is None or len(rpc.body) <= sum(map(len, bodies))


@given(st.binary(max_size=300))
def test_any_bytes_are_assembled_or_refused(units: bytes) -> None:
    signed = units[:4] + struct.pack("<I", 0x43505256) + units[8:]
    for each in (units, signed):
        with contextlib.suppress(RpcError):
            Assembler().feed(each)
