"""A fake guest agent at the other end of the host's socket. A test sets its answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from typing import TYPE_CHECKING, TypeAlias

from harness.agent import PROTOCOL, frames
from harness.provisioning.wait import Deadline
from suites.fakes.clock import YieldingClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PROGRAM = bytes(range(256)) * 400
ENDED = {"exit_code": 0, "timed_out": False, "duration_s": 0.5}
Answer: TypeAlias = "Callable[[PlayedGuest, int, bytes], None]"


class PlayedGuest:
    """Answers each kind of request with a function from `answers`, and ignores other kinds."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.answers: dict[int, Answer] = {frames.HELLO: welcome, frames.PING: pong}
        self.seen: list[tuple[int, int, bytes]] = []
        self.digest = hashlib.sha256(PROGRAM).hexdigest()
        self.protocol: object = PROTOCOL
        self.has_nonce = True
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def starts(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        decoder = frames.Decoder(is_synced=False)
        with contextlib.suppress(OSError):
            while data := self.theirs.recv(1 << 16):
                for kind, request, payload in decoder.feed(data):
                    self.seen.append((kind, request, payload))
                    if kind in self.answers:
                        self.answers[kind](self, request, payload)

    def says(self, kind: int, request: int, reply: bytes | Mapping[str, object]) -> None:
        payload = reply if isinstance(reply, bytes) else frames.to_json(reply)
        self.theirs.sendall(frames.encode_message(kind, request, payload))

    def asks_for_program(self, token: bytes) -> None:
        self.theirs.sendall(frames.SYNC_FRAME)
        self.says(frames.BOOT, 0, token)

    def hangs_up(self) -> None:
        """Close the connection, as a machine does when it ends."""
        with contextlib.suppress(OSError):
            self.theirs.shutdown(socket.SHUT_RDWR)

    def kinds(self) -> list[str]:
        return [frames.NAMES[kind] for kind, _, _ in self.seen]

    def payloads(self, kind: int) -> list[bytes]:
        return [payload for seen, _, payload in self.seen if seen == kind]

    def ends(self) -> None:
        self.hangs_up()
        if self._thread.is_alive():
            self._thread.join(5)
        self.theirs.close()


def welcome(guest: PlayedGuest, request: int, payload: bytes) -> None:
    reply = {
        "session": json.loads(payload)["session"],
        "protocol": guest.protocol,
        "digest": guest.digest,
        "boot_id": "boot-1",
        "has_nonce": guest.has_nonce,
    }
    guest.theirs.sendall(frames.SYNC_FRAME)
    guest.says(frames.RESULT, request, reply)


def pong(guest: PlayedGuest, request: int, _payload: bytes) -> None:
    guest.says(frames.RESULT, request, {})


def nothing(_guest: PlayedGuest, _request: int, _payload: bytes) -> None:
    """Leave a request without an answer."""


def says(*said: tuple[int, bytes | Mapping[str, object]]) -> Answer:
    """Return a function that answers each request with these frames."""

    def answer(guest: PlayedGuest, request: int, _payload: bytes) -> None:
        for kind, reply in said:
            guest.says(kind, request, reply)

    return answer


def soon(seconds: float = 20.0) -> Deadline:
    """Return a deadline that only a hanging test reaches."""
    return Deadline.after(seconds)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Let the other threads of this process run until `is_so` returns true."""
    deadline = soon()
    while not is_so():
        assert not deadline.has_passed()
        YieldingClock().sleep(0)
