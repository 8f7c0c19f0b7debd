"""Sends one control command to the driver for GPU 0, as NVIDIA's libraries do; prints the status.

The program runs in the guest. The structures are from NVIDIA's public headers `nvos.h` and
`nv-ioctl-numbers.h`.
"""

from __future__ import annotations

import ctypes
import fcntl
import struct
import sys
from pathlib import Path

_CONTROL, _ALLOC = 0x2A, 0x2B
_CLIENT_CLASS, _DEVICE_CLASS, _SUBDEVICE_CLASS = 0x0, 0x80, 0x2080
_DEVICE, _SUBDEVICE = 0xCAF0001, 0xCAF0002
#: The layout of both parameter blocks: four words, the address and size of further parameters, the
#: status.
_BLOCK = struct.Struct("<IIIIQII")


def call(control: int, escape: int, words: tuple[int, int, int, int], size: int) -> bytes:
    """Make one call with `size` zero bytes as parameters, and return the parameter block."""
    parameters = ctypes.create_string_buffer(max(1, size))
    at = ctypes.addressof(parameters) if size else 0
    block = bytearray(_BLOCK.pack(*words, at, size, 0))
    fcntl.ioctl(control, 3 << 30 | _BLOCK.size << 16 | ord("F") << 8 | escape, block)
    return bytes(block)


def send(command: int) -> int:
    """Send a command without parameters for the GPU, and return the driver's status."""
    with Path("/dev/nvidiactl").open("rb+", buffering=0) as control, Path("/dev/nvidia0").open():
        allocated = call(control.fileno(), _ALLOC, (0, 0, 0, _CLIENT_CLASS), 0)
        client = _BLOCK.unpack(allocated)[2]
        for parent, handle, kind, size in (
            (client, _DEVICE, _DEVICE_CLASS, 56),
            (_DEVICE, _SUBDEVICE, _SUBDEVICE_CLASS, 4),
        ):
            allocated = call(control.fileno(), _ALLOC, (client, parent, handle, kind), size)
            status: int = _BLOCK.unpack(allocated)[-1]
            if status:
                raise OSError(f"Object {kind:#x} could not be made: status {status:#x}.")
        sent = call(control.fileno(), _CONTROL, (client, _SUBDEVICE, command, 0), 16)
        answer: int = _BLOCK.unpack(sent)[-1]
        return answer


if __name__ == "__main__":
    print(f"{send(int(sys.argv[1], 0)):#x}")  # noqa: T201 - its output is its answer
