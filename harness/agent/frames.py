"""The wire protocol between host and agent: frames of limited length in a stream of bytes.

A frame has a kind (one byte), the id of a request and a length (four bytes each, big-endian), and a
payload of that length. Control frames have a JSON payload. Frames with file content, or with the
input or output of commands, have a payload of raw bytes.
"""

from __future__ import annotations

import json
from struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The limit of a frame's payload, in bytes.
MAX_PAYLOAD = 65536
#: The limit of one request or answer, including its `MORE` frames, in bytes.
MAX_MESSAGE = 8 << 20
#: How many bytes of a stream may be sent before the reader sends `CREDIT`.
STDIN_WINDOW = 256 << 10
OUTPUT_WINDOW = 1 << 20

_ENCODER = json.JSONEncoder(separators=(",", ":"))
#: The part of `json.loads` that uses no regular expressions. In a clone all code runs for the
#: first time, so an emulated processor has to translate the code. The translation of the code for
#: regular expressions takes long.
_decode = json.JSONDecoder().raw_decode
_HEADER = Struct(">BII")
HEADER_BYTES = _HEADER.size

# Frames from and to the loader.
BOOT, PROGRAM, PROGRAM_END = 0x01, 0x02, 0x03
# Requests.
HELLO, PING, REMEMBER, SETTLE = 0x10, 0x11, 0x12, 0x13
RUN, SIGNAL, CANCEL = 0x14, 0x15, 0x16
READ, WRITE, WAIT_FILE, WAIT_UNIT, READ_RANGES = 0x17, 0x18, 0x19, 0x1A, 0x1B
RESIZE = 0x1C
# Parts of requests and answers.
MORE, DATA, DATA_END, CREDIT = 0x20, 0x21, 0x22, 0x23
# Answers.
STDOUT, STDERR, RESULT, ERROR = 0x30, 0x31, 0x32, 0x33
# Frames that synchronize the stream.
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
    READ_RANGES: "read-ranges",
    RESIZE: "resize",
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
    """The stream does not follow the protocol."""


def encode(kind: int, request: int, payload: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise ProtocolError(
            f"A frame of {len(payload)} bytes cannot be sent; the limit is {MAX_PAYLOAD}."
        )
    return _HEADER.pack(kind, request, len(payload)) + payload


def encode_message(kind: int, request: int, payload: bytes) -> bytes:
    """Return the bytes of a message, as several frames if the message is too long for one frame."""
    if len(payload) <= MAX_PAYLOAD:
        return _HEADER.pack(kind, request, len(payload)) + payload
    if len(payload) > MAX_MESSAGE:
        raise ProtocolError(
            f"A message of {len(payload)} bytes cannot be sent; the limit is {MAX_MESSAGE}."
        )
    parts = [payload[at : at + MAX_PAYLOAD] for at in range(0, len(payload), MAX_PAYLOAD)]
    last = parts.pop()
    return b"".join(encode(MORE, request, part) for part in parts) + encode(kind, request, last)


def to_json(value: object) -> bytes:
    """Return `value` as JSON on one line."""
    return _ENCODER.encode(value).encode()


def parse(payload: bytes) -> Any:
    """Parse a payload as JSON. Raises ProtocolError if the payload is not JSON."""
    try:
        text = payload.decode()
        value, end = _decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"A frame's payload is not JSON: {error}; {payload[:80]!r}.") from None
    if end != len(text):
        raise ProtocolError(f"A frame's payload has data after its JSON: {payload[:80]!r}.")
    return value


def from_json(payload: bytes) -> dict[str, object]:
    """Parse a JSON object. Raises ProtocolError if the payload is not a JSON object."""
    value = parse(payload)
    if not isinstance(value, dict):
        raise ProtocolError(f"A frame's payload is not a JSON object: {payload[:80]!r}.")
    return value


#: A frame that always consists of the same bytes and carries no message. A reader that does not
#: know where frames begin discards everything before this frame.
SYNC_FRAME = encode(SYNC, 0x5A5AA5A5, b"\x00harness-agent\xff")


class Decoder:
    """Decodes the frames of a stream that arrives in pieces of any size."""

    def __init__(self, *, is_synced: bool) -> None:
        self._buffer = bytearray()
        self._is_synced = is_synced

    def lose_sync(self) -> None:
        """Discard the buffered bytes, and skip the bytes of the stream up to the next `SYNC_FRAME`."""
        self._buffer.clear()
        self._is_synced = False

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield each frame that is complete after `data`, as a tuple of kind, request and payload.

        Raises ProtocolError for an invalid frame, after yielding the frames before it.
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
                    raise ProtocolError(f"A frame has the unknown kind {kind:#04x}.")
                if length > MAX_PAYLOAD:
                    raise ProtocolError(
                        f"A frame '{NAMES[kind]}' has a length of {length} bytes; the limit is "
                        f"{MAX_PAYLOAD}."
                    )
                after = at + HEADER_BYTES + length
                if after > end:
                    return
                payload = bytes(buffer[at + HEADER_BYTES : after])
                at = after
                if kind != SYNC:
                    yield kind, request, payload
                    if not self._is_synced:
                        # The receiver of the frame has called `lose_sync`, which has cleared the buffer.
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
