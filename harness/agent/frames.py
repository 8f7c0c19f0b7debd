"""The wire protocol, alike on both sides: bounded frames on a stream of bytes.

A frame is a kind (one byte), a request's id and a length (four bytes each, big-endian), and that
many bytes. Control is JSON; what commands and files hold travels raw.
"""

from __future__ import annotations

import json
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The most that one frame carries.
MAX_PAYLOAD = 65536
#: The most that one request or answer carries in its `MORE` frames.
MAX_MESSAGE = 8 << 20
#: How many bytes of a stream may be on their way before the reader has said `CREDIT`.
STDIN_WINDOW = 256 << 10
OUTPUT_WINDOW = 1 << 20

_ENCODER = json.JSONEncoder(separators=(",", ":"))
#: What `json.loads` comes down to. A clone runs everything for the first time, and under emulation
#: what runs for the first time has to be translated first; a regular expression is long.
_decode = json.JSONDecoder().raw_decode
_HEADER = Struct(">BII")
HEADER_BYTES = _HEADER.size

# What the loader says and gets.
BOOT, PROGRAM, PROGRAM_END = 0x01, 0x02, 0x03
# Requests.
HELLO, PING, REMEMBER, SETTLE = 0x10, 0x11, 0x12, 0x13
RUN, SIGNAL, CANCEL = 0x14, 0x15, 0x16
READ, WRITE, WAIT_FILE, WAIT_UNIT, SNAPSHOT = 0x17, 0x18, 0x19, 0x1A, 0x1B
# Parts of either.
MORE, DATA, DATA_END, CREDIT = 0x20, 0x21, 0x22, 0x23
# Answers.
STDOUT, STDERR, RESULT, ERROR = 0x30, 0x31, 0x32, 0x33
# A mark in the stream.
SYNC = 0xFF

NAMES = {
    BOOT: "boot",
    PROGRAM: "program",
    PROGRAM_END: "program-end",
    HELLO: "hello",
    PING: "ping",
    REMEMBER: "remember",
    SETTLE: "settle",
    RUN: "run",
    SIGNAL: "signal",
    CANCEL: "cancel",
    READ: "read",
    WRITE: "write",
    WAIT_FILE: "wait-file",
    WAIT_UNIT: "wait-unit",
    SNAPSHOT: "snapshot",
    MORE: "more",
    DATA: "data",
    DATA_END: "data-end",
    CREDIT: "credit",
    STDOUT: "stdout",
    STDERR: "stderr",
    RESULT: "result",
    ERROR: "error",
    SYNC: "sync",
}


class ProtocolError(Exception):
    """The stream is not what this protocol writes."""


def encode(kind: int, request: int, payload: bytes = b"") -> bytes:
    """Return one frame."""
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(
            f"A frame of {len(payload)} bytes was to be sent, but {MAX_PAYLOAD} are the most."
        )
    return _HEADER.pack(kind, request, len(payload)) + payload


def encode_message(kind: int, request: int, payload: bytes) -> bytes:
    """Return the frames of a message that may be longer than one of them."""
    if len(payload) <= MAX_PAYLOAD:
        return _HEADER.pack(kind, request, len(payload)) + payload
    if len(payload) > MAX_MESSAGE:
        raise ProtocolError(
            f"A message of {len(payload)} bytes was to be sent, but {MAX_MESSAGE} are the most."
        )
    parts = [payload[at : at + MAX_PAYLOAD] for at in range(0, len(payload), MAX_PAYLOAD)]
    last = parts.pop()
    return b"".join(encode(MORE, request, part) for part in parts) + encode(kind, request, last)


def to_json(value: object) -> bytes:
    """Return `value` as JSON on one line."""
    return _ENCODER.encode(value).encode()


def parse(payload: bytes) -> Any:
    """Parse JSON; raises ProtocolError."""
    try:
        text = payload.decode()
        value, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"A frame holds no JSON: {error}; {payload[:80]!r}.") from None
    if end != len(text):
        raise ProtocolError(f"A frame holds more than JSON: {payload[:80]!r}.")
    return value


def from_json(payload: bytes) -> dict[str, object]:
    """Parse an object of JSON; raises ProtocolError."""
    value = parse(payload)
    if not isinstance(value, dict):
        raise ProtocolError(f"A frame holds no JSON object: {payload[:80]!r}.")
    return value


#: A frame that means nothing, always of these bytes. Whoever has lost the frames' beginnings, or
#: has not seen any yet, throws everything away until these bytes come.
SYNC_FRAME = encode(SYNC, 0x5A5AA5A5, b"\x00harness-agent\xff")


class Decoder:
    """Takes a stream apart, however it was cut into pieces."""

    def __init__(self, *, is_synced: bool) -> None:
        self._buffer = bytearray()
        self._is_synced = is_synced

    def lose_sync(self) -> None:
        """Forget what came, and skip what comes up to the next `SYNC_FRAME`."""
        self._buffer.clear()
        self._is_synced = False

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield the frames that `data` completes, as kind, request and payload.

        Raises ProtocolError at a frame that can't be one, after those before it.
        """
        buffer = self._buffer
        buffer += data
        if not self._is_synced and not self._find_sync():
            return
        at, end = 0, len(buffer)
        try:
            while end - at >= HEADER_BYTES:
                kind, request, length = _HEADER.unpack_from(buffer, at)
                if kind not in NAMES:
                    raise ProtocolError(f"There is no kind {kind:#04x} of frame.")
                if length > MAX_PAYLOAD:
                    raise ProtocolError(
                        f"A frame '{NAMES[kind]}' claims {length} bytes, but {MAX_PAYLOAD} are "
                        "the most."
                    )
                after = at + HEADER_BYTES + length
                if after > end:
                    return
                payload = bytes(buffer[at + HEADER_BYTES : after])
                at = after
                if kind != SYNC:
                    yield kind, request, payload
                    if not self._is_synced:
                        # Lost while the frame was looked at; the buffer is another's by now.
                        at = 0
                        return
        finally:
            del buffer[:at]

    def _find_sync(self) -> bool:
        buffer = self._buffer
        at = buffer.find(SYNC_FRAME)
        if at < 0:
            del buffer[: -(len(SYNC_FRAME) - 1)]
            return False
        del buffer[:at]
        self._is_synced = True
        return True
