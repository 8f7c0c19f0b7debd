"""A libvirt stream as a socket, with an event loop that the test runs step by step."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.machine.libvirt import connection as connection_module
from harness.machine.libvirt import stream
from harness.machine.libvirt.connection import Connection
from harness.machine.libvirt.errors import ConnectionLostError
from harness.machine.libvirt.stream import StreamSocket
from harness.machine.libvirt.watchdog import LibvirtHangsError
from harness.provisioning.wait import Deadline
from suites.unit.machine.libvirt.fake_libvirt import FakeConnect, FakeLibvirt, FakeLibvirtError
from suites.unit.machine.libvirt.fake_streams import (
    FULL,
    HANGUP,
    READABLE,
    WOULD_BLOCK,
    WRITABLE,
    FakeLoopLibvirt,
    FakeStream,
)
from suites.unit.machine.libvirt.impatient_watchdog import hasty, join_late

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suites.unit.machine.libvirt.conftest import Log

LONG_S = 20.0


class StreamConnect(FakeConnect):
    """A connection that has only one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = FakeStream()

    def newStream(self, flags: int) -> FakeStream:  # noqa: N802
        assert flags == FakeLoopLibvirt.VIR_STREAM_NONBLOCK
        return self.stream


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoopLibvirt:
    fake = FakeLoopLibvirt()
    monkeypatch.setattr(stream, "load_libvirt", lambda: fake)
    return fake


@pytest.fixture
def guest(libvirt: FakeLibvirt, loop: FakeLoopLibvirt) -> StreamConnect:
    del loop
    raw = StreamConnect()
    libvirt.connects.append(raw)
    return raw


@pytest.fixture
def connection(guest: StreamConnect) -> Iterator[Connection]:
    del guest
    with Connection.open("qemu:///system", deadline=Deadline.after(LONG_S)) as opened:
        yield opened


@pytest.fixture
def opened(connection: Connection, guest: StreamConnect) -> Iterator[StreamSocket]:
    made = StreamSocket(connection, "the console", lambda _: 0)
    made.ours.setblocking(False)
    yield made
    guest.stream.turn(HANGUP)
    made.close()


def test_output_of_the_guest_is_sent_to_the_client_and_logged(
    connection: Connection, guest: StreamConnect, tmp_path: Path
) -> None:
    log = tmp_path / "serial.log"
    made = StreamSocket(connection, "the console", lambda _: 0, log=log)
    guest.stream.incoming = [b"login: ", WOULD_BLOCK]

    guest.stream.turn(READABLE)

    assert made.ours.recv(100) == b"login: "
    assert log.read_bytes() == b"login: "
    assert made.failure() is None
    guest.stream.turn(HANGUP)
    made.close()


def test_stream_continues_after_its_log_could_not_be_written(
    connection: Connection, guest: StreamConnect, log: Log
) -> None:
    """A full disk must not end the machine."""
    made = StreamSocket(connection, "the console", lambda _: 0, log=FULL)
    for said in (b"Linux version", b"login: "):
        guest.stream.incoming = [said]
        guest.stream.turn(READABLE)

        assert made.ours.recv(100) == said

    message = (
        "the log of the console could not be written (No space left on device); free space on "
        "the file system of '/dev'"
    )
    assert made.failure() == message
    assert log.messages == [message]
    guest.stream.turn(HANGUP)
    made.close()


def test_pending_input_is_written_once_a_full_stream_has_room(
    opened: StreamSocket, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    guest.stream.room = 2
    opened.ours.send(b"root\n")
    loop.turn(READABLE)
    assert guest.stream.interest & WRITABLE

    guest.stream.room = 100
    guest.stream.turn(WRITABLE)

    assert guest.stream.taken == b"root\n"
    assert not guest.stream.interest & WRITABLE


def test_output_is_sent_to_the_client_even_if_the_guest_accepts_no_input(
    opened: StreamSocket, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    guest.stream.room = 0
    opened.ours.send(b"root\n")
    loop.turn(READABLE)

    guest.stream.incoming = [b"Kernel panic"]
    guest.stream.turn(READABLE)
    guest.stream.turn(HANGUP)

    assert opened.ours.recv(100) == b"Kernel panic"
    assert opened.ours.recv(100) == b""


def test_input_is_buffered_up_to_a_limit_while_the_guest_accepts_no_input(
    opened: StreamSocket, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    guest.stream.room = 0
    for _ in range(16):
        assert loop.interest & READABLE
        assert opened.ours.send(bytes(65536)) == 65536
        loop.turn(READABLE)

    assert not loop.interest & READABLE


def test_client_that_does_not_read_output_can_send_input_and_disconnect(
    opened: StreamSocket, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    guest.stream.incoming = [b"x" * 65536] * 64
    guest.stream.turn(READABLE)
    opened.ours.send(b"\x03")

    loop.turn(READABLE)
    opened.ours.shutdown(socket.SHUT_RDWR)
    loop.turn(HANGUP)

    assert guest.stream.taken == b"\x03"
    assert guest.stream.is_aborted


def test_unread_output_is_buffered_up_to_a_limit(
    opened: StreamSocket, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    """Writes of the guest then block, as on a serial line, until somebody reads."""
    guest.stream.incoming = [b"x" * 65536] * 64

    guest.stream.turn(READABLE)

    assert guest.stream.incoming, "It was expected to be left unread, but all was taken."
    assert not guest.stream.interest & READABLE
    read = 0
    for _ in range(1000):
        with contextlib.suppress(BlockingIOError):
            read += len(opened.ours.recv(1 << 20))
        if read == 64 * 65536:
            break
        loop.turn(WRITABLE)
        guest.stream.turn(READABLE)
    assert (guest.stream.incoming, read) == ([], 64 * 65536)


def test_client_receives_the_last_output_before_end_of_file_even_without_a_hangup_event(
    opened: StreamSocket, guest: StreamConnect
) -> None:
    guest.stream.incoming = [b"reboot: Power down", b""]

    guest.stream.turn(READABLE)

    assert opened.ours.recv(100) == b"reboot: Power down"
    assert opened.ours.recv(100) == b""
    assert guest.stream.is_aborted
    assert not guest.stream.is_watched


def test_slow_client_receives_the_last_output_before_end_of_file(
    opened: StreamSocket, guest: StreamConnect
) -> None:
    opened._theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    guest.stream.incoming = [b"x" * 65536, b"x" * 65536, b"Kernel panic"]
    guest.stream.turn(READABLE)
    printed = 2 * 65536 + len(b"Kernel panic")
    read = bytearray(opened.ours.recv(printed))
    assert len(read) < printed, "The socket was expected to be full."

    guest.stream.turn(HANGUP)

    while chunk := opened.ours.recv(printed):
        read += chunk
    assert (len(read), bytes(read[-12:])) == (printed, b"Kernel panic")


def test_broken_stream_ends_and_its_error_is_logged(
    opened: StreamSocket, guest: StreamConnect, log: Log
) -> None:
    guest.stream.incoming = [FakeLibvirtError("broken", code=1)]

    guest.stream.turn(READABLE)

    assert opened.ours.recv(100) == b""
    assert log.messages == ["the console ended: broken"]


def test_stream_that_breaks_during_a_write_ends_and_its_error_is_logged(
    opened: StreamSocket,
    guest: StreamConnect,
    loop: FakeLoopLibvirt,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    def refuse(_: bytes) -> int:
        raise FakeLibvirtError("broken pipe", code=1)

    monkeypatch.setattr(guest.stream, "send", refuse)
    opened.ours.send(b"root\n")

    loop.turn(READABLE)

    assert opened.ours.recv(100) == b""
    assert log.messages == ["the console ended: broken pipe"]


def test_unread_output_does_not_delay_the_end_of_a_stream(
    opened: StreamSocket, guest: StreamConnect
) -> None:
    guest.stream.incoming = [b"x" * 65536] * 64
    guest.stream.turn(READABLE)

    guest.stream.turn(HANGUP)

    assert guest.stream.is_aborted
    assert opened.ours.recv(100) == b"x" * 100


def test_event_loop_that_does_not_close_a_stream_is_reported(
    connection: Connection,
    loop: FakeLoopLibvirt,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    monkeypatch.setattr(stream, "_CLOSE_S", 0.01)
    made = StreamSocket(connection, "the console", lambda _: 0)

    made.close()

    assert log.messages == ["libvirt's event loop did not close the console"]
    assert made.ours.fileno() == -1
    loop.turn(READABLE | HANGUP)


def test_shutdown_of_the_socket_closes_the_stream(
    connection: Connection, guest: StreamConnect, loop: FakeLoopLibvirt
) -> None:
    made = StreamSocket(connection, "the console", lambda _: 0)
    made.ours.shutdown(2)

    loop.turn(READABLE | HANGUP)
    made.close()

    assert guest.stream.is_aborted
    assert loop.handle is None


def open_files() -> set[Path]:
    """Return the open files of this process. The garbage collector may close some at any time."""
    with os.scandir("/proc/self/fd") as descriptors:
        return {Path(each).readlink() for each in descriptors}


def test_stream_that_cannot_be_opened_leaves_nothing_open(
    connection: Connection, loop: FakeLoopLibvirt, tmp_path: Path
) -> None:
    def refuse(_: object) -> None:
        raise ValueError("no console")

    before = open_files()
    with pytest.raises(ValueError, match="no console"):
        StreamSocket(connection, "the console", refuse, log=tmp_path / "serial.log")

    assert loop.handle is None
    assert open_files() <= before


def test_hanging_abort_of_a_stream_does_not_block_the_event_loop(
    connection: Connection, guest: StreamConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop runs the keep-alive that detects the hang."""
    release = threading.Event()

    def hang() -> None:
        assert release.wait(LONG_S)

    monkeypatch.setattr(stream, "_ABORT_S", 0.01)
    monkeypatch.setattr(guest.stream, "abort", hang)
    made = StreamSocket(connection, "the console", lambda _: 0)

    guest.stream.turn(HANGUP)

    assert made.ours.recv(100) == b""
    made.close()
    release.set()
    join_late("the end of the console", LONG_S)


def test_stream_that_opens_after_its_time_limit_is_closed(
    connection: Connection,
    guest: StreamConnect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the stream opens, its release would wait for the hanging call."""
    release = threading.Event()

    def hang(_: object) -> None:
        assert release.wait(LONG_S)

    monkeypatch.setattr(connection_module, "watched", hasty("the opening of"))
    before = open_files()

    with pytest.raises(LibvirtHangsError, match="the opening of the console"):
        StreamSocket(connection, "the console", hang, log=tmp_path / "serial.log")

    assert not guest.stream.is_aborted
    assert open_files() <= before
    release.set()
    join_late("the opening of", LONG_S)
    assert guest.stream.is_aborted


def test_stream_on_a_lost_connection_leaves_no_file_descriptor_open(
    connection: Connection, guest: StreamConnect, tmp_path: Path
) -> None:
    guest.break_down()
    before = open_files()

    with pytest.raises(ConnectionLostError) as caught:
        StreamSocket(connection, "the console", lambda _: 0, log=tmp_path / "serial.log")

    assert open_files() <= before, f"It is still held by the error: {caught.value}"


def test_stream_whose_log_cannot_be_opened_leaves_nothing_open(
    connection: Connection, tmp_path: Path
) -> None:
    before = open_files()

    with pytest.raises(FileNotFoundError) as caught:
        StreamSocket(connection, "the console", lambda _: 0, log=tmp_path / "gone" / "serial.log")

    assert open_files() <= before, f"It is still held by the error: {caught.value}"


def test_stream_is_closed_even_if_libvirt_refuses_to_abort_it(
    connection: Connection,
    guest: StreamConnect,
    loop: FakeLoopLibvirt,
    monkeypatch: pytest.MonkeyPatch,
    log: Log,
) -> None:
    def refuse(*watch: int) -> None:
        raise FakeLibvirtError(f"no handle {watch}", code=1)

    monkeypatch.setattr(loop, "virEventRemoveHandle", refuse)
    monkeypatch.setattr(guest.stream, "eventRemoveCallback", refuse)
    monkeypatch.setattr(guest.stream, "abort", refuse)
    before = open_files()
    made = StreamSocket(connection, "the console", lambda _: 0)

    guest.stream.turn(HANGUP)

    assert made.ours.recv(100) == b""
    made.close()
    assert open_files() <= before
    assert log.records == []
