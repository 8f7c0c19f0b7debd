"""Plays NVIDIA's driver that opens a GPU, with guest memory in the test's process."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from harness.gpu.catalogue import find_model
from harness.gpu.config_space import ConfigSpace
from harness.gpu.gsp.call import OK
from harness.gpu.gsp.layouts import read_layouts
from harness.gpu.gsp.making import make_engine
from harness.gpu.gsp.records import Record
from harness.gpu.gsp.rpc import CONTROL, HEADER, Function
from harness.gpu.gsp.static_info import STATIC_INFO
from harness.gpu.gsp.wpr_meta import MAGIC
from harness.settings import GpuEmulation
from suites.unit.gpu.gsp.driverside import DriverSide, Ram, message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.gpu.gsp.device import GspDevice

#: The addresses at which the driver writes the data for the GPU.
ARGUMENTS, WPR_META, QUEUES = 0x8000, 0x9000, 0xA000
FSP_ARGUMENTS = 0xB000
CLIENT, SUBDEVICE = 0xC1D00001, 0x5BD00001
A100, H100, T4 = "a100-sxm4-40gb", "h100-sxm5-80gb", "t4-16gb"


_model = functools.cache(find_model)


def a_device(model: str = A100, number: int = 7) -> GspDevice:
    """Return a GPU as it is after power-on, with the BARs of vfio-user."""
    found = _model(model).emulated_as(GpuEmulation.GSP)
    bars = found.bars.vfio_user
    config = ConfigSpace(found.pci, bars, is_express=True, has_msi=True)
    return make_engine(found, bars, number)(config)


class Driver:
    """A driver of one release, with the methods that open a GPU and send calls to it."""

    def __init__(self, device: GspDevice, release: str = "550.163.01") -> None:
        self.device = device
        self.release = release
        self.ram = Ram()
        self.side = DriverSide(self.ram)
        self.called = self.answered = 0
        """The numbers of the last call and of the last message from the GSP."""

    def read(self, offset: int) -> int:
        return self.device.read(0, offset, 4)

    def write(self, offset: int, value: int) -> None:
        self.device.write(0, offset, value, 4)

    def work(self) -> None:
        self.device.work(self.ram)

    def lay_out(self) -> None:
        """Write the arguments of a boot into memory."""
        arguments = self.side.arguments
        queues = (arguments.table, arguments.pages, arguments.commands, arguments.statuses)
        self.ram.write(QUEUES, struct.pack("<QI4xQQ", *queues))
        log = struct.pack("<QQQ8x", int.from_bytes(b"LOGINIT", "big"), 0, 0)
        entry = struct.pack("<QQQ8x", int.from_bytes(b"RMARGS", "big"), QUEUES, 0x1000)
        self.ram.write(ARGUMENTS, log + entry)
        meta = bytearray(256)
        struct.pack_into("<Q", meta, 0, MAGIC)
        struct.pack_into("<Q", meta, 0x70, 0x9_F000_0000)
        struct.pack_into("<Q", meta, 0xA8, 0x9_FF00_0000)
        self.ram.write(WPR_META, bytes(meta))

    def boot(self) -> None:
        """Start the GSP by the booter, as for a GA100."""
        self.lay_out()
        self.write(0x110040, ARGUMENTS)
        self.write(0x110044, 0)
        self.write(0x840040, WPR_META)
        self.write(0x840044, 0)
        self.write(0x840100, 2)
        self.work()

    def open(self) -> None:
        """Boot the GSP, and send it the release of the driver."""
        self.boot()
        self.events()
        version = self.release.encode().ljust(256, b"\0")
        self.call(Function.SET_GUEST_SYSTEM_INFO, bytes(24) + version + bytes(512))

    def call(self, function: int, body: bytes) -> tuple[int, bytes]:
        """Send a call, and return the result and the body of its answer."""
        self.called += 1
        self.side.put(message(function, body, sequence=self.called))
        self.write(0x110C00, 0)
        self.work()
        answered, result, answer = self.events()[-1]
        assert (answered, self.answered) == (function, self.called)
        return result, answer

    def control(self, command: int, parameters: bytes) -> tuple[int, bytes]:
        """Call a control command; return the status and the parameters."""
        head = CONTROL.pack(CLIENT, SUBDEVICE, command, 0, len(parameters), 0)
        _, answer = self.call(Function.GSP_RM_CONTROL, head + parameters)
        return CONTROL.unpack_from(answer)[3], answer[CONTROL.size :]

    def ask(self, command: int, values: Mapping[str, int | bytes] | None = None) -> Record:
        """Call a control command with these values; return the parameters of the answer."""
        layouts = read_layouts(self.release)
        known = layouts.command(command)
        assert known is not None
        assert known.struct is not None
        record = Record(layouts, known.struct, bytearray(layouts.struct(known.struct).size))
        for path, value in (values or {}).items():
            record.put(path, value)
        status, answer = self.control(command, record.content)
        assert status == OK, hex(status)
        return Record(layouts, known.struct, bytearray(answer))

    def static_info(self) -> Record:
        """Return the static information about the GPU, which a driver requests once."""
        layouts = read_layouts(self.release)
        size = layouts.struct(STATIC_INFO).size
        _, answer = self.call(Function.GET_GSP_STATIC_INFO, bytes(size))
        return Record(layouts, STATIC_INFO, bytearray(answer))

    def events(self) -> list[tuple[int, int, bytes]]:
        """Return the function, result and body of each new message from the GSP."""
        found = []
        while (element := self.side.take()) is not None:
            _, _, size, function, result, _, self.answered, _ = HEADER.unpack_from(element, 48)
            found.append((function, result, element[48 + HEADER.size : 48 + size]))
        return found
