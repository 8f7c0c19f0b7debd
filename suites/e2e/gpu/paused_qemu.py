"""A stock QEMU without a guest: the test plays the CPU through QEMU's `qtest` protocol.

So every access takes the same path as an access by a guest: host bridge, root port, proxy device,
transport, device. An access takes milliseconds, and the test chooses the order of the accesses.
"""

from __future__ import annotations

import array
import json
import socket
from typing import TYPE_CHECKING

from harness.provisioning.command import spawn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

    from harness.gpu import Bars, GpuAttachment

ROOT_PORT = "rp0"

#: The addresses for 32-bit BARs and for 64-bit BARs: no other device of the machine uses them.
_NARROW = 0xE0000000
_WIDE = 0x80_0000_0000
_NARROW_BYTES = 256 << 20
_WIDE_BYTES = 256 << 30
_ROOT_PORT_SLOT = 4
_PATIENCE_S = 20.0
_BUS_NUMBERS = 0x18
_MEMORY_WINDOW = 0x20
_PREFETCHABLE_WINDOW = 0x24
_COMMAND = 0x04


class PausedQemu:
    """QEMU with one root port and stopped vCPUs; QEMU ends with the `with` block."""

    def __init__(self, qemu: str, folder: Path, attachment: GpuAttachment | None = None) -> None:
        self._qemu = qemu
        self._folder = folder
        self._attachment = attachment

    def __enter__(self) -> Self:
        self._qtest, qtest_theirs = socket.socketpair()
        self._qmp, qmp_theirs = socket.socketpair()
        self._qtest.settimeout(_PATIENCE_S)
        self._qmp.settimeout(_PATIENCE_S)
        attachment = self._attachment
        with qtest_theirs, qmp_theirs, (self._folder / "stderr.log").open("wb") as stderr:
            root_port = (
                f"pcie-root-port,id={ROOT_PORT},chassis=1,slot=1,addr={_ROOT_PORT_SLOT},"
                "mem-reserve=64M"
            )
            argv = [
                *(self._qemu, "-nodefaults", "-no-user-config", "-S"),
                *("-machine", "q35,memory-backend=ram"),
                # The memory is shared like a machine's, so that QEMU sends its descriptors to the
                # server.
                *("-object", "memory-backend-memfd,id=ram,size=64M,share=on"),
                *("-m", "64M"),
                *("-accel", "tcg,thread=single"),
                *("-display", "none"),
                *("-chardev", f"socket,id=qtest,fd={qtest_theirs.fileno()}"),
                *("-qtest", "chardev:qtest", "-qtest-log", "none"),
                *("-chardev", f"socket,id=qmp,fd={qmp_theirs.fileno()}"),
                *("-mon", "chardev=qmp,mode=control"),
                *("-device", root_port),
            ]
            fds = [qtest_theirs.fileno(), qmp_theirs.fileno()]
            if attachment is not None:
                argv += ["-device", *attachment.to_device_argv(ROOT_PORT)]
                if attachment.fd is not None:
                    fds.append(attachment.fd)
            self._process = spawn(argv, stderr=stderr, pass_fds=fds, cwd=self._folder)
        self._qtest_lines = _lines(self._qtest)
        self._qmp_lines = _lines(self._qmp)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._qtest.close()
        self._qmp.close()

    def kill(self) -> None:
        """Kill QEMU with SIGKILL."""
        self._process.kill()
        self._process.wait(_PATIENCE_S)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def stderr(self) -> str:
        return (self._folder / "stderr.log").read_text()

    def place_gpu(self, bars: Bars) -> dict[int, int]:
        """Do what firmware does: open the root port's windows, and map the BARs into the windows.

        Returns the BARs' addresses.
        """
        port = _ROOT_PORT_SLOT << 3
        self._config_write(port, _BUS_NUMBERS, 0x01_01_00)
        self._config_write(port, _MEMORY_WINDOW, _window(_NARROW, _NARROW_BYTES))
        self._config_write(port, _PREFETCHABLE_WINDOW, _window(_WIDE, _WIDE_BYTES))
        self._config_write(port, _PREFETCHABLE_WINDOW + 4, _WIDE >> 32)
        self._config_write(port, _PREFETCHABLE_WINDOW + 8, (_WIDE + _WIDE_BYTES - 1) >> 32)
        self._config_write(port, _COMMAND, 0x0006)
        free = {32: _NARROW, 64: _WIDE}
        addresses = {}
        for index, bar in sorted(bars.items(), key=lambda pair: -pair[1].mib):
            address = addresses[index] = free[bar.bits]
            free[bar.bits] += bar.size
            self._config_write(1 << 8, 0x10 + 4 * index, address & 0xFFFFFFFF)
            if bar.bits == 64:
                self._config_write(1 << 8, 0x14 + 4 * index, address >> 32)
        self._config_write(1 << 8, _COMMAND, 0x0002)
        return addresses

    def gpu_config_read(self, offset: int) -> int:
        """Read 32 bits of the GPU's configuration space."""
        self._select(1 << 8, offset)
        return self._ask("inl 0xcfc")

    def memory_read(self, address: int) -> int:
        """Read 32 bits at a guest physical address."""
        return self._ask(f"readl {address:#x}")

    def memory_write(self, address: int, value: int) -> None:
        """Write 32 bits at a guest physical address."""
        self._say(f"writel {address:#x} {value:#x}")

    def _config_write(self, function: int, offset: int, value: int) -> None:
        self._select(function, offset)
        self._say(f"outl 0xcfc {value:#x}")

    def _select(self, function: int, offset: int) -> None:
        self._say(f"outl 0xcf8 {1 << 31 | function << 8 | offset:#x}")

    def _ask(self, command: str) -> int:
        return int(self._say(command).removeprefix("OK "), 16)

    def _say(self, command: str) -> str:
        self._qtest.sendall(f"{command}\n".encode())
        answer = next(self._qtest_lines)
        assert answer.startswith("OK"), f"{command}: {answer}; {self.stderr()}"
        return answer

    def plug(self, attachment: GpuAttachment) -> None:
        """Hot-plug as a machine does: send QEMU a descriptor, then a device that names the descriptor."""
        self._qmp_execute("qmp_capabilities", {})
        fdname = None
        if attachment.fd is not None:
            fdname = "fd-gpu"
            self._qmp_execute("getfd", {"fdname": fdname}, fd=attachment.fd)
        for device in attachment.to_device_add(ROOT_PORT, fdname):
            self._qmp_execute("device_add", device)

    def _qmp_execute(
        self, command: str, arguments: dict[str, object], *, fd: int | None = None
    ) -> None:
        text = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        rights = [] if fd is None else [array.array("i", [fd])]
        self._qmp.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds) for fds in rights])
        for line in self._qmp_lines:
            answer = json.loads(line)
            if "return" in answer or "error" in answer:
                assert "return" in answer, f"{command}: {answer}; {self.stderr()}"
                return
        raise AssertionError(f"QEMU hung up on '{command}': {self.stderr()}")


def _window(start: int, length: int) -> int:
    """Return a bridge's base and limit registers: each half has bits 31 to 20 of an address."""
    return (start + length - 1) & 0xFFF00000 | start >> 16 & 0xFFF0


def _lines(sock: socket.socket) -> Iterator[str]:
    buffer = b""
    while True:
        line, newline, rest = buffer.partition(b"\n")
        if newline:
            buffer = rest
            yield line.decode().strip()
            continue
        more = sock.recv(65536)
        if not more:
            return
        buffer += more
