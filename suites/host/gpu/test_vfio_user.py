"""The server's end of the vfio-user protocol, with a client in place of QEMU."""

from __future__ import annotations

import contextlib
import errno
import stat
import struct
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import HarnessError
from harness.gpu.emulated import EmulatedGpu
from harness.gpu.server import EndKind, ProtocolViolationError
from harness.gpu.vfio_user import MOST_MESSAGE_BYTES, Command, MessageReader, VfioUserServer
from suites.unit.gpu.models import a_model
from suites.unit.gpu.socketside import open_descriptors
from suites.unit.gpu.vfioside import (
    CONFIG,
    QemuSide,
    message,
    read_message,
    write_message,
    writes_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_END_S = 10.0
_VERSION = message(Command.VERSION, struct.pack("<HH", 0, 1) + b'{"capabilities":{}}\0')


def a_gpu(*, trace_capacity: int = 64) -> EmulatedGpu:
    model = a_model()
    return EmulatedGpu(
        model, bars=model.bars.vfio_user, is_express=True, trace_capacity=trace_capacity
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VfioUserServer]:
    with VfioUserServer(a_gpu(), folder=tmp_path) as running:
        yield running


@pytest.fixture
def qemu(server: VfioUserServer) -> Iterator[QemuSide]:
    with contextlib.closing(QemuSide(server)) as side:
        yield side


def test_messages_that_qemu_sends_to_realize_a_device_are_answered(
    server: VfioUserServer, qemu: QemuSide
) -> None:
    """The test replays messages of QEMU 11.1 for `-device vfio-user-pci`."""
    version = qemu.ask(_VERSION)
    assert (version.number, version.command, version.flags) == (1, Command.VERSION, 1)
    assert struct.unpack_from("<HH", version.payload) == (0, 1)
    assert version.payload.endswith(b"}\0")
    older = qemu.ask(message(Command.VERSION, struct.pack("<HH", 0, 0)))
    assert struct.unpack_from("<HH", older.payload) == (0, 0)

    info = qemu.ask(message(Command.DEVICE_GET_INFO, struct.pack("<IIII", 16, 0, 0, 0)))
    assert struct.unpack("<IIII", info.payload) == (16, 3, 9, 5)
    sizes = []
    for region in range(9):
        asked = struct.pack("<IIIIQQ", 32, 0, region, 0, 0, 0)
        reply = qemu.ask(message(Command.DEVICE_GET_REGION_INFO, asked))
        _, flags, index, _, size, _ = struct.unpack("<IIIIQQ", reply.payload)
        assert (index, flags) == (region, 3 if size else 0)
        sizes.append(size)
    assert sizes == [16 << 20, 0, 128 << 30, 0, 0, 0, 0, 4096, 0]
    for irq in range(5):
        reply = qemu.ask(message(Command.DEVICE_GET_IRQ_INFO, struct.pack("<IIII", 16, 0, irq, 0)))
        # Only INTx exists: it is signalled by an eventfd, can be masked, and masks itself.
        flags, count = (7, 1) if irq == 0 else (0, 0)
        assert struct.unpack("<IIII", reply.payload) == (16, flags, irq, count)

    assert qemu.read(CONFIG, 0, 4096) & 0xFFFFFFFF == 0x233010DE
    assert qemu.ask(message(Command.DEVICE_RESET)).error == 0
    assert qemu.ask(message(Command.DMA_MAP, bytes(32))).payload == b""
    assert qemu.ask(message(Command.DMA_UNMAP, bytes(24))).payload == bytes(24)
    assert len(server.gpu.trace.resets()) == 1
    assert server.gpu.trace.bar_accesses() == ()


def test_vfio_region_and_offset_select_the_register(
    server: VfioUserServer, qemu: QemuSide
) -> None:
    last = (128 << 30) - 8
    qemu.write(2, last, 0x1122334455667788, 8)

    assert qemu.read(0, 0) == 0x180000A1
    assert qemu.read(2, last, 8) == 0x1122334455667788
    assert qemu.read(2, last + 7, 1) == 0x11
    assert [one.bar for one in server.gpu.trace.bar_accesses()] == [2, 0, 2, 2]


def test_posted_write_gets_no_answer_and_is_carried_out(
    server: VfioUserServer, qemu: QemuSide
) -> None:
    qemu.post(write_message(0, 0x100, b"\x2a\0\0\0", flags=0x10))

    # If the server answered the write, the client would take that answer for the answer to this read.
    assert qemu.read(0, 0x100) == 0x2A
    assert server.state.requests == 2


def test_several_writes_of_one_message_are_carried_out_in_order(qemu: QemuSide) -> None:
    writes = [(0, 0x100, b"\1\0\0\0"), (0, 0x102, b"\2"), (0, 0x108, bytes(range(8)))]

    # QEMU always sends a message with space for 200 writes; `count` says how many are valid.
    reply = qemu.ask(writes_message(*writes, *[(0, 0x100, b"\xff")] * 5, count=3))

    assert (reply.flags, reply.error) == (1, 0)
    assert qemu.read(0, 0x100) == 0x020001
    assert qemu.read(0, 0x10C) == 0x07060504


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (message(99), errno.ENOTSUP),
        (message(6), errno.ENOTSUP),
        (message(Command.VERSION, struct.pack("<HH", 1, 0)), errno.EINVAL),
        (message(Command.VERSION), errno.EINVAL),
        (message(Command.REGION_READ, bytes(8)), errno.EINVAL),
        (message(Command.DEVICE_GET_REGION_INFO, bytes(16)), errno.EINVAL),
        (
            message(Command.DEVICE_GET_REGION_INFO, struct.pack("<IIIIQQ", 32, 0, 9, 0, 0, 0)),
            errno.EINVAL,
        ),
        (message(Command.DEVICE_GET_IRQ_INFO, struct.pack("<IIII", 16, 0, 5, 0)), errno.EINVAL),
        (read_message(0, 16 << 20, 1), errno.EINVAL),
        (read_message(0, (16 << 20) - 2, 4), errno.EINVAL),
        (read_message(0, 0, 3), errno.EINVAL),
        (read_message(0, 2**64 - 1, 4), errno.EINVAL),
        (read_message(1, 0, 4), errno.EINVAL),
        (read_message(6, 0, 4), errno.EINVAL),
        (read_message(CONFIG, 4094, 4), errno.EINVAL),
        (read_message(CONFIG, 0, 0), errno.EINVAL),
        (read_message(CONFIG, 0, 2**32 - 1), errno.EINVAL),
        (write_message(0, 0, b"", flags=0), errno.EINVAL),
        (message(Command.REGION_WRITE, struct.pack("<QII", 0, 0, 4) + b"\0"), errno.EINVAL),
        (message(Command.REGION_WRITE, struct.pack("<QII", 0, 0, 4) + bytes(8)), errno.EINVAL),
        (message(Command.REGION_WRITE_MULTI, b"\1"), errno.EINVAL),
        (writes_message((0, 0, b"\1"), count=2), errno.EINVAL),
        (writes_message((0, 0, b"\1"), count=2**64 - 1), errno.EINVAL),
        (writes_message((CONFIG, 0, b"\1" * 9), (0, 0, b"\1")), errno.EINVAL),
        (writes_message((1, 0, b"\1")), errno.EINVAL),
    ],
)
def test_refused_request_keeps_the_connection_open(
    qemu: QemuSide, wrong: bytes, error: int
) -> None:
    reply = qemu.ask(wrong)

    assert (reply.flags, reply.error, reply.payload) == (0x21, error, b"")
    assert qemu.read(0, 0) == 0x180000A1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (message(9, size=15), "with 15 bytes"),
        (message(9, size=0), "with 0 bytes"),
        (message(9, size=MOST_MESSAGE_BYTES + 1), f"with {MOST_MESSAGE_BYTES + 1} bytes"),
        (message(9, size=2**32 - 1), "with 4294967295 bytes"),
        (message(9, flags=1), "unsolicited answer to command 9"),
    ],
)
def test_protocol_violation_ends_the_connection_with_a_reason(
    server: VfioUserServer, qemu: QemuSide, wrong: bytes, words: str
) -> None:
    qemu.post(wrong)

    ending = server.wait_for_end(_END_S)
    assert ending.kind is EndKind.VIOLATION
    assert words in ending.detail
    assert qemu.has_been_hung_up_on()


def test_socket_is_private_and_removed_after_the_first_request(server: VfioUserServer) -> None:
    assert stat.S_IMODE(server.socket_path.stat().st_mode) == 0o600

    with contextlib.closing(QemuSide(server)) as qemu:
        qemu.ask(_VERSION)

        assert not server.socket_path.exists()
        with pytest.raises(HarnessError, match="plugged in once already"):
            server.attachment()


def test_server_works_in_a_folder_whose_path_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long-" * 30)
    folder.mkdir()
    with (
        VfioUserServer(a_gpu(), folder=folder) as server,
        contextlib.closing(QemuSide(server)) as qemu,
    ):
        assert qemu.read(0, 0) == 0x180000A1


def test_attachment_has_the_qemu_arguments_for_the_device(server: VfioUserServer) -> None:
    attachment = server.attachment()

    (argument,) = attachment.to_device_argv("rp0")
    (device,) = attachment.to_device_add("rp0", None)

    assert device == {
        "driver": "vfio-user-pci",
        "id": "gpu0",
        "bus": "rp0",
        "socket": {"type": "unix", "path": "gpu0.sock"},
        "x-msg-timeout": 3_600_000,
    }
    assert argument.startswith('{"driver": "vfio-user-pci"')
    assert (attachment.root_port_window_mib, attachment.aperture_mib) == (64, 128 << 10)


def test_closed_server_leaves_neither_thread_nor_descriptor_nor_socket(tmp_path: Path) -> None:
    before = open_descriptors()
    server = VfioUserServer(a_gpu(), folder=tmp_path)
    server.start()
    qemu = QemuSide(server)
    qemu.ask(_VERSION)

    server.close()

    assert qemu.has_been_hung_up_on()
    qemu.close()
    assert server.wait_for_end(0.0).kind is EndKind.CLOSED
    assert open_descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_server_that_was_never_plugged_or_started_can_be_closed_twice(tmp_path: Path) -> None:
    before = open_descriptors()
    VfioUserServer(a_gpu(), folder=tmp_path).close()
    server = VfioUserServer(a_gpu(), folder=tmp_path)
    with pytest.raises(HarnessError, match="its server is not running"):
        server.attachment()
    server.start()

    server.close()
    server.close()

    assert open_descriptors() == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["", "missing"], ids=["taken socket", "missing folder"])
def test_server_that_cannot_start_leaves_no_descriptor(tmp_path: Path, folder: str) -> None:
    (tmp_path / "gpu0.sock").touch()
    before = open_descriptors()
    server = VfioUserServer(a_gpu(), folder=tmp_path / folder)

    with pytest.raises(OSError, match=r"in use|No such"):
        server.start()

    assert open_descriptors() == before


_U32 = st.integers(0, 2**32 - 1)
_U64 = st.integers(0, 2**64 - 1)
_REGION = st.one_of(st.sampled_from([0, 2, CONFIG]), _U32)
_OFFSET = st.one_of(st.integers(0, 5000), st.integers((16 << 20) - 16, 16 << 20), _U64)
_VALID = st.one_of(
    st.builds(read_message, _REGION, _OFFSET, st.one_of(st.integers(0, 9), _U32)),
    st.builds(write_message, _REGION, _OFFSET, st.binary(max_size=64)),
    st.builds(
        writes_message, st.tuples(_REGION, _OFFSET, st.binary(max_size=8)), count=st.none() | _U64
    ),
    st.builds(message, st.integers(0, 20), st.binary(max_size=80)),
)
_ANY = st.one_of(
    st.binary(max_size=100),
    st.builds(
        lambda command, size, flags, data: message(command, data, size=size, flags=flags),
        st.integers(0, 2**16 - 1),
        st.one_of(st.integers(0, 100), _U32),
        _U32,
        st.binary(max_size=200),
    ),
)


@given(messages=st.lists(_VALID, max_size=40))
def test_each_request_in_any_sequence_of_messages_gets_one_answer(messages: list[bytes]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        VfioUserServer(a_gpu(trace_capacity=4), folder=Path(folder)) as server,
        contextlib.closing(QemuSide(server)) as qemu,
    ):
        qemu.post(b"".join((*messages, read_message(CONFIG, 0, 4))))

        replies = [qemu.answer() for _ in messages]

        assert all(reply.flags in {0x1, 0x21} for reply in replies)
        assert qemu.answer().payload[16:] == b"\xde\x10\x30\x23"
        qemu.close()
        assert server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


@given(messages=st.lists(_VALID, max_size=5), junk=_ANY, rest=st.lists(_VALID, max_size=5))
def test_any_bytes_end_the_connection_with_a_reason_and_leave_no_descriptor(
    messages: list[bytes], junk: bytes, rest: list[bytes]
) -> None:
    before = open_descriptors()
    with (
        tempfile.TemporaryDirectory() as folder,
        VfioUserServer(a_gpu(trace_capacity=4), folder=Path(folder)) as server,
    ):
        qemu = QemuSide(server)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for sent in (*messages, junk, *rest):
                qemu.post(sent)
        qemu.close()

        ending = server.wait_for_end(_END_S)

    assert ending.kind in {EndKind.PEER_CLOSED, EndKind.VIOLATION}
    assert open_descriptors() == before


@given(chunks=st.lists(st.one_of(_VALID, _ANY), max_size=20))
def test_reader_never_buffers_more_than_one_message(chunks: list[bytes]) -> None:
    reader = MessageReader()
    with contextlib.suppress(ProtocolViolationError):
        for chunk in chunks:
            list(reader.feed(chunk))
            assert reader.pending_bytes < MOST_MESSAGE_BYTES
