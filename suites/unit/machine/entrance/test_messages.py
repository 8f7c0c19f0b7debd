"""Messages arrive whole and in order, however their bytes are split. Other bytes are refused."""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.entrance.messages import Kind, Receiver, Request, send

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The maximum length of the content of a message, in bytes.
MOST = 1 << 20

REFUSAL = (
    "The machine's socket sent something that is not a message; perhaps another version of the harness runs "
    "the machine."
)


def message(kind: int, content: bytes = b"", *, length: int | None = None) -> bytes:
    return struct.pack(">BI", kind, len(content) if length is None else length) + content


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10.0)
        yield ours, theirs


def test_message_without_content_is_only_a_header(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets

    send(theirs, Kind.INPUT_END)
    theirs.close()

    assert ours.recv(100) == message(3)


def test_incomplete_message_is_returned_only_after_its_remaining_bytes_arrive(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    receiver = Receiver(ours)
    whole = message(Kind.OUTPUT, b"first") + message(Kind.ERRORS, b"second")

    theirs.sendall(whole[:12])
    assert receiver.receive() == [(Kind.OUTPUT, b"first")]
    theirs.sendall(whole[12:17])
    assert receiver.receive() == []
    theirs.sendall(whole[17:])
    assert receiver.receive() == [(Kind.ERRORS, b"second")]
    theirs.close()
    assert receiver.receive() is None


def test_messages_sent_together_with_the_first_message_are_returned_by_the_next_receive(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    receiver = Receiver(ours)
    theirs.sendall(
        message(Kind.REQUEST, b"{}") + message(Kind.INPUT, b"a") + message(Kind.INPUT_END)
    )

    assert receiver.next() == (Kind.REQUEST, b"{}")
    assert receiver.receive() == [(Kind.INPUT, b"a"), (Kind.INPUT_END, b"")]


def test_next_message_from_a_client_that_disconnected_is_none(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    theirs.sendall(message(Kind.REQUEST, b"{}")[:3])
    theirs.close()

    assert Receiver(ours).next() is None


def test_only_messages_up_to_the_maximum_length_are_accepted(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = sockets
    too_long, unknown = message(Kind.OUTPUT, length=MOST + 1), message(99)
    for header in (too_long, unknown, b"HTTP/1.1 400"):
        theirs.sendall(header)
        with pytest.raises(HarnessError, match=f"^{re.escape(REFUSAL)}$"):
            Receiver(ours).receive()

    theirs.sendall(message(Kind.OUTPUT, length=MOST))
    assert Receiver(ours).receive() == []


@pytest.mark.parametrize("env", ["[]", '"A=b"', "null"])
def test_request_whose_environment_is_not_an_object_is_refused(env: str) -> None:
    content = f'{{"verb": "run", "argv": [], "env": {env}, "terminal": null}}'

    with pytest.raises(TypeError, match="environment"):
        Request.from_bytes(content.encode())
