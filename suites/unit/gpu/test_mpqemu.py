"""The server's end of the mpqemu protocol, with a client in place of QEMU."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.gpu.mpqemu import (
    UNANSWERED,
    Command,
    MessageReader,
    MpqemuServer,
)
from harness.gpu.server import EndKind, ProtocolViolationError
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.fakes.clock import YieldingClock
from suites.unit.gpu.models import BAR_0, BAR_1, a_gpu
from suites.unit.gpu.qemuside import QemuSide, bar_message, config_message, message
from suites.unit.gpu.socketside import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

_END_S = 10.0
_SYSMEM = message(Command.SYNC_SYSMEM, bytes(192))


@pytest.fixture
def server() -> Iterator[MpqemuServer]:
    with MpqemuServer(a_gpu()) as running:
        yield running


@pytest.fixture
def qemu(server: MpqemuServer) -> Iterator[QemuSide]:
    with contextlib.closing(QemuSide(server.attachment())) as side:
        yield side


def test_server_answers_the_messages_with_which_qemu_realizes_the_device(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    """The test replays messages of QEMU 7.2 for `-device x-pci-proxy-dev`."""
    qemu.post(message(Command.SET_IRQFD))
    assert [qemu.config_read(offset, 2) for offset in (0x00, 0x02, 0x0A, 0x2E)] == [
        0x10DE,
        0x2330,
        0x0302,
        0x16C1,
    ]
    sizes = []
    for offset in range(0x10, 0x2C, 4):
        before = qemu.config_read(offset)
        qemu.config_write(offset, 0xFFFFFFFF)
        sizes.append((~(qemu.config_read(offset) & 0xFFFFFFF0) + 1) & 0xFFFFFFFF)
        qemu.config_write(offset, before)
    qemu.post(_SYSMEM)
    assert qemu.ask(message(Command.DEVICE_RESET)) == 0

    assert sizes == [16 << 20, 16 << 20, 0, 0, 0, 0, 0]
    assert len(server.gpu.trace.resets()) == 1
    assert server.gpu.trace.bar_accesses() == ()


def _place_bars(qemu: QemuSide) -> None:
    qemu.config_write(0x10, BAR_0)
    qemu.config_write(0x14, BAR_1)
    qemu.config_write(0x04, 0x0002, 2)


def test_access_to_a_guest_address_reaches_the_register_at_this_address(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    _place_bars(qemu)

    qemu.bar_write(BAR_1 + 8, 0x1122334455667788, 8)

    assert qemu.bar_read(BAR_0) == 0x180000A1
    assert qemu.bar_read(BAR_1 + 8, 8) == 0x1122334455667788
    assert qemu.bar_read(BAR_1 + 0xFFFFFF, 1) == 0
    assert qemu.bar_read(0x1000) == 0xFFFFFFFF
    assert [access.offset for access in server.gpu.trace.bar_accesses(0)] == [0]


def test_set_irqfd_and_sync_sysmem_messages_get_no_answer(qemu: QemuSide) -> None:
    qemu.post(message(Command.SET_IRQFD) + _SYSMEM * 27)

    # If the server answered one of these messages, the client would read that answer here.
    assert qemu.config_read(0x00) == 0x233010DE


def test_message_that_arrives_in_pieces_is_reassembled(qemu: QemuSide) -> None:
    for byte in _SYSMEM + config_message(Command.PCI_CFGREAD, 0, size=2):
        qemu.post(bytes([byte]))

    assert qemu.answer() == 0x10DE


def test_messages_that_arrive_together_are_answered_in_order(qemu: QemuSide) -> None:
    offsets = list(range(0, 64, 4)) * 8
    qemu.post(b"".join(config_message(Command.PCI_CFGREAD, offset) for offset in offsets))

    answers = [qemu.answer() for _ in offsets]

    assert answers == [qemu.config_read(offset) for offset in offsets]


def test_every_received_file_descriptor_is_closed_and_nothing_is_written_to_it(
    qemu: QemuSide,
) -> None:
    ours, theirs = os.pipe()

    qemu.post(_SYSMEM, [theirs] * 8)
    qemu.post(message(Command.SET_IRQFD), [theirs, theirs])
    os.close(theirs)
    qemu.config_read(0)

    # End of file shows that all writing ends are closed, and that nothing was written.
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        os.set_blocking(ours, False)
        assert pipe.read(1) == b""


@pytest.mark.parametrize(
    "data", [config_message(Command.PCI_CFGREAD, 0) + _SYSMEM, _SYSMEM[:40]], ids=["whole", "part"]
)
def test_file_descriptor_of_an_unprocessed_request_is_closed(
    server: MpqemuServer, qemu: QemuSide, data: bytes
) -> None:
    """The second of two complete messages has the descriptor, and the GPU stalls at the first."""
    ours, theirs = os.pipe()
    server.gpu.stall(3600.0)

    qemu.post(data, [theirs])
    os.close(theirs)
    wait_for_descriptor_to_be_let_go(server)
    server.close()

    with os.fdopen(ours, "rb", buffering=0) as pipe:
        os.set_blocking(ours, False)
        assert pipe.read(1) == b""


def test_protocol_violation_ends_the_connection_with_a_reason() -> None:
    for wrong, words in (
        (message(8), "unknown command 8"),
        (message(Command.RET, bytes(8)), "unknown command 1"),
        (message(Command.PCI_CFGREAD, bytes(8)), "8 bytes of payload instead of 12"),
        (message(Command.PCI_CFGREAD, bytes(16)), "16 bytes of payload instead of 12"),
        (config_message(Command.PCI_CFGREAD, 0, size=0), "PCI_CFGREAD for 0 bytes"),
        (config_message(Command.PCI_CFGWRITE, 0, size=-1), "PCI_CFGWRITE for -1 bytes"),
        (config_message(Command.PCI_CFGREAD, 0, size=5), "PCI_CFGREAD for 5 bytes"),
        (bar_message(Command.BAR_WRITE, 0, size=9), "BAR_WRITE for 9 bytes"),
    ):
        with (
            MpqemuServer(a_gpu()) as server,
            contextlib.closing(QemuSide(server.attachment())) as qemu,
        ):
            # The request before the violation is answered, although both arrive together.
            qemu.post(config_message(Command.PCI_CFGREAD, 0) + wrong)

            assert qemu.answer() == 0x233010DE
            ending = server.wait_for_end(_END_S)
            assert ending.kind is EndKind.VIOLATION
            assert words in ending.detail
            assert qemu.has_been_hung_up_on()
            assert words in server.state.describe(0)


def test_stream_that_is_truncated_in_a_message_is_a_protocol_violation(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    qemu.post(_SYSMEM[:40])
    # The server closes its copy of QEMU's end only after it has received data.
    wait_for_descriptor_to_be_let_go(server)
    qemu.close()

    ending = server.wait_for_end(_END_S)

    assert ending.kind is EndKind.VIOLATION
    assert "middle of a message, after 40 bytes" in ending.detail


def test_message_with_too_many_file_descriptors_ends_the_connection(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    ours, theirs = os.pipe()

    for piece in (_SYSMEM[:1], _SYSMEM[1:2]):
        qemu.post(piece, [theirs] * 200)
    os.close(theirs)

    ending = server.wait_for_end(_END_S)
    assert ending.kind is EndKind.VIOLATION
    assert ending.detail == "QEMU sent more than 253 descriptors with one message"
    with os.fdopen(ours, "rb", buffering=0) as pipe:
        os.set_blocking(ours, False)
        assert pipe.read(1) == b""


def wait_for_descriptor_to_be_let_go(server: MpqemuServer) -> None:
    def poll() -> Observation[bool]:
        try:
            server.attachment()
        except HarnessError:
            return Observation(True, "let go")
        return Observation(None, "still held")

    wait_for("QEMU's end to be let go", poll, Deadline.after(_END_S, YieldingClock()))


def test_server_ends_when_qemu_closes_the_connection(server: MpqemuServer, qemu: QemuSide) -> None:
    qemu.config_read(0)
    with pytest.raises(HarnessError, match="to release GPU 'gpu0'"):
        server.wait_for_end(0.0)

    qemu.close()

    assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


def test_closed_server_leaves_no_thread_or_file_descriptor() -> None:
    before = open_descriptors()
    server = MpqemuServer(a_gpu())
    server.start()
    qemu = QemuSide(server.attachment())
    qemu.config_read(0)

    server.close()

    assert qemu.has_been_hung_up_on()
    qemu.close()
    assert server.wait_for_end(0.0).kind is EndKind.CLOSED
    assert open_descriptors() == before


def test_server_that_was_never_plugged_or_started_can_be_closed_twice() -> None:
    before = open_descriptors()
    MpqemuServer(a_gpu()).close()
    server = MpqemuServer(a_gpu())
    server.start()

    server.close()
    server.close()

    assert open_descriptors() == before


def test_server_closes_even_if_its_gpu_is_stalled() -> None:
    gpu = a_gpu()
    with MpqemuServer(gpu) as server, contextlib.closing(QemuSide(server.attachment())) as qemu:
        gpu.stall(3600.0)
        qemu.post(config_message(Command.PCI_CFGREAD, 0))
        _wait_until_pending(server)

        assert server.stall_report(0.0) is not None
        assert server.stall_report(3600.0) is None
        server.close()

        assert server.wait_for_end(0.0).kind is EndKind.CLOSED
        assert gpu.trace.accesses == ()
        assert server.stall_report(0.0) is None


def test_server_closes_even_if_its_client_never_reads(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    qemu.sock.settimeout(0.05)
    with contextlib.suppress(TimeoutError):
        while True:
            qemu.post(config_message(Command.PCI_CFGREAD, 0) * 100)

    server.close()

    assert server.wait_for_end(0.0).kind is EndKind.CLOSED


def _wait_until_pending(server: MpqemuServer) -> None:
    def poll() -> Observation[bool]:
        pending = server.state.pending_since_s is not None
        return Observation(True if pending else None, str(server.state))

    wait_for("the request to be pending", poll, Deadline.after(_END_S, YieldingClock()))


def test_server_state_describes_the_unanswered_request_of_a_stalled_gpu(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    assert server.state.describe(0) == "QEMU has sent no request yet."
    server.gpu.stall(3600.0)
    qemu.post(config_message(Command.PCI_CFGREAD, 0x0E, size=1))
    _wait_until_pending(server)

    state = server.state
    assert state.pending_since_s is not None
    assert state.describe(state.pending_since_s + 3.21) == (
        "QEMU has waited 3.2 s for the answer to PCI_CFGREAD of 1 bytes at 0xe; a vCPU is blocked."
    )
    server.gpu.end_stall()
    assert qemu.answer() == 0


def test_no_answer_is_pending_after_the_last_request(server: MpqemuServer, qemu: QemuSide) -> None:
    assert qemu.ask(message(Command.DEVICE_RESET)) == 0
    # The server clears the pending time after it sends the answer. So a further request makes sure
    # that the time is cleared.
    qemu.post(message(Command.SET_IRQFD))
    qemu.close()
    server.wait_for_end(_END_S)

    state = server.state
    assert (state.requests, state.pending_since_s) == (2, None)
    assert state.last_request is not None
    assert state.last_request.command is Command.SET_IRQFD


def test_gpu_cannot_be_plugged_twice_or_without_a_running_server(
    server: MpqemuServer, qemu: QemuSide
) -> None:
    qemu.config_read(0)

    with pytest.raises(HarnessError, match="plugged in once already"):
        server.attachment()
    with pytest.raises(HarnessError, match="is not running"):
        MpqemuServer(a_gpu()).attachment()


def test_attachment_has_the_qemu_arguments_for_the_device(server: MpqemuServer) -> None:
    attachment = server.attachment()

    assert (attachment.driver, attachment.id) == ("x-pci-proxy-dev", "gpu0")
    assert attachment.root_port_window_mib == 64
    assert attachment.fd is not None
    assert not os.get_inheritable(attachment.fd)


def test_exception_in_the_device_ends_the_server_with_the_name_of_the_exception(
    server: MpqemuServer, qemu: QemuSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_offset: int, _size: int) -> int:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(server.gpu, "config_read", broken)

    qemu.post(config_message(Command.PCI_CFGREAD, 0))

    ending = server.wait_for_end(_END_S)
    assert (ending.kind, ending.detail) == (EndKind.FAILED, "ZeroDivisionError: planted")
    assert qemu.has_been_hung_up_on()


_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_VALID = st.one_of(
    st.builds(
        config_message,
        st.sampled_from([Command.PCI_CFGREAD, Command.PCI_CFGWRITE]),
        st.one_of(st.integers(0, 256), _U32),
        _U32,
        st.integers(1, 4),
    ),
    st.builds(
        bar_message,
        st.sampled_from([Command.BAR_READ, Command.BAR_WRITE]),
        st.one_of(st.integers(BAR_0 - 8, BAR_0 + 64), _U64),
        _U64,
        st.integers(1, 8),
    ),
    st.just(message(Command.DEVICE_RESET)),
    st.just(message(Command.SET_IRQFD)),
    st.binary(min_size=192, max_size=192).map(lambda data: message(Command.SYNC_SYSMEM, data)),
)
_ANY = st.one_of(
    st.binary(max_size=100),
    st.builds(
        lambda command, length, data: message(command, data, length=length),
        st.integers(-2, 9),
        st.one_of(st.sampled_from([0, 8, 12, 24, 192]), _U64),
        st.binary(max_size=200),
    ),
)


def _is_answered(data: bytes) -> bool:
    return struct.unpack_from("<i", data)[0] not in UNANSWERED


@given(messages=st.lists(_VALID, max_size=40))
def test_any_sequence_of_messages_gets_one_answer_for_each_request(messages: list[bytes]) -> None:
    with (
        MpqemuServer(a_gpu(trace_capacity=4)) as server,
        contextlib.closing(QemuSide(server.attachment())) as qemu,
    ):
        qemu.post(b"".join((*messages, config_message(Command.PCI_CFGREAD, 0))))

        answers = [qemu.answer() for sent in messages if _is_answered(sent)]

        assert all(0 <= answer < 2**64 for answer in answers)
        assert qemu.answer() == 0x233010DE
        qemu.close()
        assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


@given(messages=st.lists(_VALID, max_size=5), junk=_ANY, rest=st.lists(_VALID, max_size=5))
def test_connection_with_random_bytes_ends_with_a_reason_and_leaves_no_file_descriptor(
    messages: list[bytes], junk: bytes, rest: list[bytes]
) -> None:
    before = open_descriptors()
    with MpqemuServer(a_gpu(trace_capacity=4)) as server:
        qemu = QemuSide(server.attachment())
        with contextlib.suppress(BrokenPipeError):
            for sent in (*messages, junk, *rest):
                qemu.post(sent)
        if messages or junk or rest:
            wait_for_descriptor_to_be_let_go(server)
        else:
            server.close()
        qemu.close()

        ending = server.wait_for_end(_END_S)

    assert ending.kind in {EndKind.PEER_CLOSED, EndKind.VIOLATION, EndKind.CLOSED}
    assert open_descriptors() == before


@given(chunks=st.lists(st.one_of(_VALID, _ANY), max_size=20))
def test_reader_never_buffers_more_than_one_message(chunks: list[bytes]) -> None:
    reader = MessageReader()
    with contextlib.suppress(ProtocolViolationError):
        for chunk in chunks:
            list(reader.feed(chunk))
            assert reader.pending_bytes < 16 + 192
