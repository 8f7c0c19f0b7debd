"""The program that connects a guest to a port of the host's loopback."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from harness.machine.description.host_port import connect_argv
from harness.provisioning.command import ChildProcess, end, spawn

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = b"driver" * 200_000


@pytest.fixture
def host() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield listener


@pytest.fixture
def guest(host: socket.socket) -> Iterator[tuple[socket.socket, ChildProcess]]:
    """Return the guest's end of a connection, and the program that QEMU would start for it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        process = spawn(
            connect_argv(host.getsockname()[1]),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=theirs.fileno(),
        )
        theirs.close()
        yield ours, process
        end(process)


def _read_all(sock: socket.socket) -> bytes:
    content = bytearray()
    while chunk := sock.recv(1 << 16):
        content += chunk
    return bytes(content)


def test_data_and_end_of_stream_are_forwarded_in_both_directions(
    host: socket.socket, guest: tuple[socket.socket, ChildProcess]
) -> None:
    ours, process = guest
    accepted, _ = host.accept()
    with accepted:
        accepted.settimeout(10)
        sender = threading.Thread(target=ours.sendall, args=(LONG,))
        sender.start()
        received = bytearray()
        while len(received) < len(LONG):
            received += accepted.recv(1 << 16)
        sender.join()
        ours.shutdown(socket.SHUT_WR)
        assert accepted.recv(1) == b""
        accepted.sendall(LONG)
    assert bytes(received) == LONG
    assert _read_all(ours) == LONG
    assert process.wait(timeout=10) == 0


def test_guest_sees_that_the_host_has_closed_the_connection(
    host: socket.socket, guest: tuple[socket.socket, ChildProcess]
) -> None:
    ours, process = guest
    accepted, _ = host.accept()
    accepted.sendall(b"half")
    accepted.close()

    assert _read_all(ours) == b"half"
    ours.close()
    assert process.wait(timeout=10) == 0


def test_guest_sees_the_end_of_a_connection_that_the_host_resets(
    host: socket.socket, guest: tuple[socket.socket, ChildProcess]
) -> None:
    ours, process = guest
    accepted, _ = host.accept()
    accepted.settimeout(10)
    ours.sendall(b"a")
    assert accepted.recv(1) == b"a"
    # With a linger time of 0, `close` resets the connection.
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    accepted.close()

    assert _read_all(ours) == b""
    assert process.wait(timeout=10) == 0


def test_program_exits_when_qemu_closes_the_connection(
    host: socket.socket, guest: tuple[socket.socket, ChildProcess]
) -> None:
    ours, process = guest
    accepted, _ = host.accept()
    with accepted:
        ours.close()
        accepted.settimeout(10)
        assert accepted.recv(1) == b""
    assert process.wait(timeout=10) == 0


def test_connection_to_a_port_without_a_listener_ends_and_nothing_is_printed(
    host: socket.socket,
) -> None:
    port = host.getsockname()[1]
    host.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        process = spawn(
            connect_argv(port),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=theirs.fileno(),
        )
        theirs.close()
        assert _read_all(ours) == b""
        assert process.wait(timeout=10) != 0
        end(process)
