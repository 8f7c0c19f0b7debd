"""A guest's connection is joined to a connection of the host. Sockets replace both ends."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from harness.machine.description import host_port
from harness.machine.description.host_port import connect_argv, join

if TYPE_CHECKING:
    from collections.abc import Iterator

_JOIN_S = 20.0


@pytest.fixture
def joined() -> Iterator[tuple[socket.socket, socket.socket, threading.Thread]]:
    """Return the guest's end, the host's end, and the thread that joins the two."""
    with contextlib.ExitStack() as sockets:
        guest, guest_side = map(sockets.enter_context, socket.socketpair())
        host, host_side = map(sockets.enter_context, socket.socketpair())
        for end in (guest, host):
            end.settimeout(_JOIN_S)
        thread = threading.Thread(target=join, args=(guest_side, host_side), daemon=True)
        thread.start()
        yield guest, host, thread
        for end in (guest, host):
            end.close()
        thread.join(_JOIN_S)


def _read_all(sock: socket.socket) -> bytes:
    content = bytearray()
    while chunk := sock.recv(1 << 16):
        content += chunk
    return bytes(content)


def test_program_copies_both_directions_and_ends_after_both_are_closed(
    joined: tuple[socket.socket, socket.socket, threading.Thread],
) -> None:
    guest, host, thread = joined
    guest.sendall(b"a request")
    guest.shutdown(socket.SHUT_WR)
    assert _read_all(host) == b"a request"

    host.sendall(b"an answer")
    host.shutdown(socket.SHUT_WR)

    assert _read_all(guest) == b"an answer"
    thread.join(_JOIN_S)
    assert not thread.is_alive()


def test_guest_can_send_after_the_host_has_ended_its_output(
    joined: tuple[socket.socket, socket.socket, threading.Thread],
) -> None:
    guest, host, thread = joined
    host.shutdown(socket.SHUT_WR)
    assert _read_all(guest) == b""

    guest.sendall(b"still asked")
    guest.shutdown(socket.SHUT_WR)

    assert _read_all(host) == b"still asked"
    thread.join(_JOIN_S)
    assert not thread.is_alive()


def test_connection_of_the_guest_ends_if_the_host_reads_no_more(
    joined: tuple[socket.socket, socket.socket, threading.Thread],
) -> None:
    guest, host, thread = joined
    host.shutdown(socket.SHUT_RD)

    guest.sendall(b"asked in vain")

    assert _read_all(guest) == b""
    thread.join(_JOIN_S)
    assert not thread.is_alive()
    with pytest.raises(OSError, match="pipe"):
        guest.sendall(b"asked again")


def test_program_connects_its_stdin_to_the_given_host_port_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guest, guest_side = socket.socketpair()
    host, host_side = socket.socketpair()
    host.settimeout(_JOIN_S)
    # QEMU's end does not block.
    guest_side.setblocking(False)
    connected: list[object] = []
    requests: list[bytes] = []

    def connect(address: object) -> socket.socket:
        connected.append(address)
        return host_side

    def answer() -> None:
        requests.append(_read_all(host))
        host.sendall(b"an answer")
        host.shutdown(socket.SHUT_WR)

    monkeypatch.setattr(sys, "argv", ["host_port.py", "41000"])
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(socket, "socket", lambda *, fileno: {0: guest_side}[fileno])
    with guest, host:
        host_answers = threading.Thread(target=answer, daemon=True)
        host_answers.start()
        guest.sendall(b"a request")
        guest.shutdown(socket.SHUT_WR)

        host_port.main()

        host_answers.join(_JOIN_S)
        assert (requests, _read_all(guest)) == ([b"a request"], b"an answer")
        assert connected == [("127.0.0.1", 41000)]
        assert guest_side.getblocking()
        assert sys.stdout.name == sys.stderr.name == os.devnull
        assert sys.stdout.writable()
        sys.stdout.close()


def test_python_of_the_host_port_program_runs_isolated_and_without_site_packages() -> None:
    """The program imports only the standard library, whatever modules the user has installed."""
    assert connect_argv(41000) == [sys.executable, "-I", "-S", host_port.__file__, "41000"]
