"""A program that acts as QEMU: accesses an emulated GPU as fast as the GPU answers, and prints the rate.

`harness bench gpu` runs this program in its own process, because QEMU and the device also run in
separate processes.
"""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.gpu import PMC_BOOT_0, mpqemu, vfio_user
from harness.gpu.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The address that this program assigns to BAR 0 under mpqemu, whose requests contain addresses.
_BAR_0 = 0xE0000000
_BATCH = 200
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """The requests to a GPU: the requests in `before` are sent once, and then `question` is repeated."""

    before: tuple[bytes, ...]
    question: bytes
    answer_bytes: int


def render_load(transport: Transport, what: str) -> Load:
    """Return the requests that read 32 bits; `what` is "config" (configuration space) or "bar" (BAR 0)."""
    if transport is Transport.MPQEMU:
        before = (
            _mpqemu(mpqemu.Command.PCI_CFGWRITE, mpqemu.CONFIG_ACCESS.pack(0x10, _BAR_0, 4)),
            _mpqemu(mpqemu.Command.PCI_CFGWRITE, mpqemu.CONFIG_ACCESS.pack(0x04, 2, 2)),
        )
        if what == "config":
            question = _mpqemu(mpqemu.Command.PCI_CFGREAD, mpqemu.CONFIG_ACCESS.pack(0, 0, 4))
        else:
            access = mpqemu.BAR_ACCESS.pack(_BAR_0 + PMC_BOOT_0, 0, 4, True)
            question = _mpqemu(mpqemu.Command.BAR_READ, access)
        answer_bytes = mpqemu.HEADER.size + mpqemu.ANSWER.size
        return Load(before=before, question=question, answer_bytes=answer_bytes)
    region = vfio_user.CONFIG_REGION if what == "config" else 0
    access = vfio_user.REGION_ACCESS.pack(0, region, 4)
    size = vfio_user.HEADER.size + len(access)
    question = vfio_user.HEADER.pack(1, vfio_user.Command.REGION_READ, size, 0, 0) + access
    return Load(before=(), question=question, answer_bytes=size + 4)


def _mpqemu(command: mpqemu.Command, payload: bytes) -> bytes:
    return mpqemu.HEADER.pack(command, len(payload)) + payload


def ask(sock: socket.socket, load: Load, seconds: float) -> float:
    """Send requests for `seconds` seconds, one at a time like a vCPU; return the answers per second."""
    for question in load.before:
        _ask_once(sock, question, load.answer_bytes)
    count, started = 0, time.monotonic()
    deadline = started + seconds
    while (now := time.monotonic()) < deadline or count == 0:
        for _ in range(_BATCH):
            _ask_once(sock, load.question, load.answer_bytes)
        count += _BATCH
    return count / (now - started) if now > started else 0.0


def _ask_once(sock: socket.socket, question: bytes, answer_bytes: int) -> None:
    sock.sendall(question)
    left = answer_bytes
    while left:
        answer = sock.recv(left)
        if not answer:
            raise ConnectionError("the device hung up")
        left -= len(answer)


def main(argv: Sequence[str]) -> None:
    """Run the load and print the rate.

    `argv` is a list: the transport, "config" or "bar", the seconds, and the descriptor or path of
    the GPU's socket.
    """
    transport, what, seconds, place = argv
    with socket.socket(fileno=int(place)) if place.isdigit() else _connected(place) as sock:
        sock.settimeout(_PATIENCE_S)
        rate = ask(sock, render_load(Transport(transport), what), float(seconds))
    sys.stdout.write(f"{rate:.1f}\n")


def _connected(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    return sock


if __name__ == "__main__":
    main(sys.argv[1:])
