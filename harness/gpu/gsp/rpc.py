"""Parses the driver's remote procedure calls to the GSP, joins long calls, and renders replies.

The formats are `src/nvidia/inc/kernel/vgpu/rpc_headers.h` and `rpc.h` of the open kernel modules.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.queues import MOST_BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER: Final = struct.Struct("<8I")
VERSION: Final = 0x03000000
SIGNATURE: Final = 0x43505256
#: The maximum size of the parameters of a control call; the driver has the same limit.
MOST_PARAMETERS: Final = 1 << 20

#: hClient, hObject, command, status, size of the parameters, flags.
CONTROL: Final = struct.Struct("<6I")
#: hClient, hParent, hObject, class, status, size of the parameters, flags, reserved.
ALLOC: Final = struct.Struct("<8I")


class Function(enum.IntEnum):
    """The functions that the driver calls and that have an effect in the emulated GPU."""

    SET_GUEST_SYSTEM_INFO = 1
    FREE = 10
    UNLOADING_GUEST_DRIVER = 47
    GET_GSP_STATIC_INFO = 65
    UPDATE_BAR_PDE = 70
    CONTINUATION_RECORD = 71
    GSP_SET_SYSTEM_INFO = 72
    SET_REGISTRY = 73
    GSP_RM_CONTROL = 76
    GSP_RM_ALLOC = 103

    GSP_INIT_DONE = 0x1001
    OS_ERROR_LOG = 0x1006


#: Functions that the driver calls without waiting for an answer.
UNANSWERED: Final = frozenset({Function.GSP_SET_SYSTEM_INFO, Function.SET_REGISTRY})


class RpcError(Exception):
    """The driver sent a message that violates the protocol."""


@dataclass(frozen=True, kw_only=True)
class Rpc:
    """One complete call or event. `body` is the part after the header."""

    function: int
    body: bytes
    sequence: int = 0
    result: int = 0

    def parts(self) -> Iterator[bytes]:
        """Yield the messages of this call: the first message, and its continuations."""
        yield self._message(self.function, self.body[: MOST_BODY - HEADER.size])
        for start in range(MOST_BODY - HEADER.size, len(self.body), MOST_BODY - HEADER.size):
            part = self.body[start : start + MOST_BODY - HEADER.size]
            yield self._message(Function.CONTINUATION_RECORD, part)

    def _message(self, function: int, body: bytes) -> bytes:
        size = HEADER.size + len(body)
        head = (VERSION, SIGNATURE, size, function, self.result, 0, self.sequence, 0)
        return HEADER.pack(*head) + body


class Assembler:
    """Joins messages into complete calls; stores at most one incomplete call."""

    def __init__(self) -> None:
        self._begun: Rpc | None = None
        self._parts: list[bytes] = []
        self._missing = 0

    def feed(self, units: bytes) -> Rpc | None:
        """Return the call that this message completes. Raises RpcError for a malformed message."""
        rpc = _parse(units)
        if rpc.function == Function.CONTINUATION_RECORD:
            return self._continued(rpc)
        self._begun = None
        self._missing = _whole_size(rpc) - len(rpc.body)
        if self._missing <= 0:
            return rpc
        self._begun, self._parts = rpc, [rpc.body]
        return None

    def _continued(self, rpc: Rpc) -> Rpc | None:
        begun = self._begun
        if begun is None or not rpc.body:
            raise RpcError(
                "A message continues an earlier message, but there is no earlier message."
            )
        self._parts.append(rpc.body)
        self._missing -= len(rpc.body)
        if self._missing > 0:
            return None
        self._begun = None
        return Rpc(function=begun.function, body=b"".join(self._parts), sequence=begun.sequence)


def _parse(units: bytes) -> Rpc:
    if len(units) < HEADER.size:
        raise RpcError(f"A message has {len(units)} bytes, but its header needs {HEADER.size}.")
    _, signature, size, function, _, _, sequence, _ = HEADER.unpack_from(units)
    if signature != SIGNATURE:
        raise RpcError(f"A message has the wrong signature {signature:#x}.")
    if function == Function.GSP_RM_ALLOC and len(units) >= HEADER.size + ALLOC.size:
        # The header's size does not include the parameters.
        parameters = ALLOC.unpack_from(units, HEADER.size)[5]
        size = max(size, HEADER.size + ALLOC.size + parameters)
    if not HEADER.size <= size <= len(units):
        raise RpcError(
            f"A message of function {function} says it has {size} bytes, but {len(units)} were sent."
        )
    return Rpc(function=function, body=units[HEADER.size : size], sequence=sequence)


def _whole_size(rpc: Rpc) -> int:
    """Return the size of the complete body; only a control call can span several messages."""
    if rpc.function != Function.GSP_RM_CONTROL:
        return len(rpc.body)
    if len(rpc.body) < CONTROL.size:
        raise RpcError(
            f"A control call has {len(rpc.body)} bytes, but its header needs {CONTROL.size}."
        )
    parameters: int = CONTROL.unpack_from(rpc.body)[4]
    if parameters > MOST_PARAMETERS:
        raise RpcError(
            f"A control call has {parameters} bytes of parameters, more than {MOST_PARAMETERS}."
        )
    return CONTROL.size + parameters
