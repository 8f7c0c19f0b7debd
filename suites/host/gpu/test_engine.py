"""DMA and interrupts of a GPU with an engine, by each transport."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import TYPE_CHECKING

import pytest

from harness.gpu.emulated import EmulatedGpu
from harness.gpu.gsp.guest_memory import GuestMemoryError
from harness.gpu.mpqemu import Command as MpqemuCommand
from harness.gpu.mpqemu import MpqemuServer
from harness.gpu.server import EndKind
from harness.gpu.vfio_user import POSTED, Command, VfioUserServer
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.unit.gpu import qemuside, vfioside
from suites.unit.gpu.fake_engine import CopyingEngine
from suites.unit.gpu.models import BAR_0, a_model
from suites.unit.gpu.socketside import open_descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_END_S = 10.0
ADDRESS = 0x1000
#: EVENTFD and TRIGGER.
_SET_TRIGGER = 0x24
#: EVENTFD and UNMASK.
_SET_UNMASK = 0x14
INTX, MSI = 0, 1
_MSI_CAPABILITY = 0x05


def a_gpu(*, is_express: bool) -> tuple[EmulatedGpu, CopyingEngine]:
    model, engine = a_model(), CopyingEngine()
    bars = model.bars.vfio_user if is_express else model.bars.mpqemu
    return EmulatedGpu(model, bars=bars, is_express=is_express, engine=lambda _: engine), engine


class Vfio:
    """A GPU that is served by vfio-user, and QEMU's end of the socket."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        gpu, self.engine = a_gpu(is_express=True)
        self.server = stack.enter_context(VfioUserServer(gpu, folder=folder))
        self.qemu = stack.enter_context(contextlib.closing(vfioside.QemuSide(self.server)))

    def start_copy(self) -> None:
        self.qemu.write(0, 0, ADDRESS)

    def expect_request(self, command: int) -> vfioside.Reply:
        """Receive a request that the device sends, such as for DMA."""
        request = self.qemu.answer()
        assert (request.command, request.flags) == (command, 0)
        return request

    def grant(self, request: vfioside.Reply, payload: bytes, *, flags: int = 1) -> None:
        answer = vfioside.message(request.command, payload, number=request.number, flags=flags)
        self.qemu.post(answer)

    def set_irq(self, index: int, fds: list[int], *, count: int = 1) -> None:
        flags = _SET_TRIGGER if count else 0x21
        payload = struct.pack("<IIIII", 20, flags, index, 0, count)
        self.qemu.post(vfioside.message(Command.DEVICE_SET_IRQS, payload), fds)
        assert self.qemu.answer().error == 0


@pytest.fixture
def vfio(tmp_path: Path) -> Iterator[Vfio]:
    with contextlib.ExitStack() as stack:
        yield Vfio(tmp_path, stack)


def test_access_is_answered_before_dma_and_during_dma(vfio: Vfio) -> None:
    vfio.start_copy()

    read = vfio.expect_request(Command.DMA_READ)
    assert struct.unpack("<QQ", read.payload) == (ADDRESS, 8)
    assert vfio.qemu.read(0, 0x88) == 0x88
    vfio.grant(read, read.payload + b"8 octets")
    write = vfio.expect_request(Command.DMA_WRITE)
    assert write.payload == struct.pack("<QQ", ADDRESS + 8, 8) + b"8 octets"
    vfio.grant(write, write.payload[:16])

    assert vfio.engine.done.wait(_END_S)
    assert vfio.engine.errors == []
    # The server waits for no further answer, so this answer is a protocol violation.
    vfio.grant(write, write.payload[:16])
    assert vfio.server.wait_for_end(_END_S).kind is EndKind.VIOLATION


def test_second_answer_to_a_request_ends_the_connection(vfio: Vfio) -> None:
    vfio.start_copy()
    read = vfio.expect_request(Command.DMA_READ)
    answer = vfioside.message(
        read.command, read.payload + b"8 octets", number=read.number, flags=1
    )

    vfio.qemu.post(answer + answer)

    assert vfio.server.wait_for_end(_END_S).kind is EndKind.VIOLATION


def test_received_accesses_are_answered_before_dma(vfio: Vfio) -> None:
    start = vfioside.write_message(0, 0, struct.pack("<I", ADDRESS))
    vfio.qemu.post(start + vfioside.read_message(0, 0x88, 4))

    seen = [vfio.qemu.answer().command for _ in range(3)]
    assert seen == [Command.REGION_WRITE, Command.REGION_READ, Command.DMA_READ]


@pytest.mark.parametrize(
    ("address", "writes"),
    [
        (ADDRESS + 0xFF4, [(ADDRESS + 0xFFC, b"8 oc"), (ADDRESS + 0x1000, b"tets")]),
        ((1 << 64) - 16, [((1 << 64) - 8, b"8 octets")]),
    ],
    ids=["two pages", "last page of all"],
)
def test_dma_sends_one_request_for_each_page(
    vfio: Vfio, address: int, writes: list[tuple[int, bytes]]
) -> None:
    vfio.qemu.write(0, 0, address, 8)

    read = vfio.expect_request(Command.DMA_READ)
    vfio.grant(read, read.payload + b"8 octets")
    for at, data in writes:
        write = vfio.expect_request(Command.DMA_WRITE)
        assert write.payload == struct.pack("<QQ", at, len(data)) + data
        vfio.grant(write, write.payload[:16])

    assert vfio.engine.done.wait(_END_S)
    assert vfio.engine.errors == []


@pytest.mark.parametrize("granted", [0, 1], ids=["read", "write"])
def test_dma_that_qemu_refuses_raises_a_guest_memory_error(vfio: Vfio, granted: int) -> None:
    vfio.start_copy()
    if granted:
        read = vfio.expect_request(Command.DMA_READ)
        vfio.grant(read, read.payload + b"8 octets")
    refused = (Command.DMA_READ, Command.DMA_WRITE)[granted]

    vfio.grant(vfio.expect_request(refused), b"", flags=0x21)

    assert vfio.engine.done.wait(_END_S)
    assert [type(error) for error in vfio.engine.errors] == [GuestMemoryError]
    assert vfio.qemu.read(0, 4) == 4


def test_dma_answer_that_is_too_short_raises_a_guest_memory_error(vfio: Vfio) -> None:
    vfio.start_copy()

    request = vfio.expect_request(Command.DMA_READ)
    vfio.grant(request, request.payload + b"short")

    assert vfio.engine.done.wait(_END_S)
    assert "5 of 8 bytes" in str(vfio.engine.errors[0])


def test_unexpected_answer_ends_the_connection(vfio: Vfio) -> None:
    vfio.start_copy()
    request = vfio.expect_request(Command.DMA_READ)

    vfio.qemu.post(vfioside.message(request.command, request.payload, number=1, flags=1))

    assert vfio.server.wait_for_end(_END_S).kind is EndKind.VIOLATION


def test_server_ends_if_qemu_ends_during_dma(vfio: Vfio) -> None:
    vfio.start_copy()
    vfio.expect_request(Command.DMA_READ)

    vfio.qemu.close()

    assert vfio.server.wait_for_end(_END_S).kind is EndKind.PEER_CLOSED


def test_server_that_is_closed_during_dma_ends(vfio: Vfio) -> None:
    vfio.start_copy()
    vfio.expect_request(Command.DMA_READ)

    vfio.server.close()

    assert vfio.server.wait_for_end(_END_S).kind is EndKind.CLOSED


@pytest.mark.parametrize("kinds", [[MSI], [INTX], [INTX, MSI]])
def test_interrupt_is_raised_by_msi_if_msi_is_set_up(vfio: Vfio, kinds: list[int]) -> None:
    fds = {kind: os.eventfd(0, os.EFD_NONBLOCK) for kind in kinds}
    for kind, fd in fds.items():
        vfio.set_irq(kind, [fd])

        # A trigger without a descriptor leaves the earlier descriptor in use.
        vfio.set_irq(kind, [])

    vfio.engine.signal()

    assert os.eventfd_read(fds.pop(max(kinds))) == 1
    for fd in fds.values():
        with pytest.raises(BlockingIOError):
            os.eventfd_read(fd)


def test_guest_that_masks_its_interrupt_gets_no_interrupt(vfio: Vfio) -> None:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    vfio.set_irq(MSI, [fd])

    vfio.set_irq(MSI, [], count=0)
    vfio.engine.signal()

    with pytest.raises(BlockingIOError):
        os.eventfd_read(fd)
    os.close(fd)


def test_unmask_eventfd_is_not_signalled_by_an_interrupt(vfio: Vfio) -> None:
    signals, unmasks = (os.eventfd(0, os.EFD_NONBLOCK) for _ in range(2))
    vfio.set_irq(INTX, [signals])
    payload = struct.pack("<IIIII", 20, _SET_UNMASK, INTX, 0, 1)
    vfio.qemu.post(vfioside.message(Command.DEVICE_SET_IRQS, payload), [unmasks])
    assert vfio.qemu.answer().error == 0

    vfio.engine.signal()

    assert os.eventfd_read(signals) == 1
    with pytest.raises(BlockingIOError):
        os.eventfd_read(unmasks)
    for fd in (signals, unmasks):
        os.close(fd)


@pytest.mark.parametrize("cut", [1, 15, 16, 35])
def test_descriptor_belongs_to_the_message_with_which_it_was_sent(vfio: Vfio, cut: int) -> None:
    """If a socket's buffer is full, QEMU sends the descriptors with the first part of a message."""
    event = os.eventfd(0, os.EFD_NONBLOCK)
    read = vfioside.read_message(0, 0, 4)
    setting = vfioside.message(
        Command.DEVICE_SET_IRQS, struct.pack("<IIIII", 20, _SET_TRIGGER, MSI, 0, 1)
    )
    vfio.server.gpu.stall(60)
    vfio.qemu.post(read)
    wait_for(
        "the request that is stalled",
        lambda: Observation(vfio.server.state.pending_since_s, "no request"),
        Deadline.after(_END_S),
    )
    # The server receives the next message and the first part of the message after it at once.
    vfio.qemu.post(read)
    vfio.qemu.post(setting[:cut], [event])
    vfio.server.gpu.end_stall()
    vfio.qemu.post(setting[cut:] + read)
    answers = [vfio.qemu.answer().command for _ in range(4)]
    assert answers == [9, 9, Command.DEVICE_SET_IRQS, 9]

    vfio.engine.signal()

    assert os.eventfd_read(event) == 1
    os.close(event)


def test_servers_leave_no_descriptor_open(tmp_path: Path) -> None:
    before = open_descriptors()
    with contextlib.ExitStack() as stack:
        mpqemu = Mpqemu(stack)
        for _ in range(2):
            mpqemu.share()
            mpqemu.qemu.post(qemuside.message(MpqemuCommand.SET_IRQFD), [mpqemu.memory])
        mpqemu.qemu.config_read(0)
        # A process started meanwhile would keep an inheritable descriptor open.
        assert not any(os.get_inheritable(int(each)) for each in open_descriptors() - before)
    # A thread of an earlier test may close its own descriptors meanwhile.
    assert open_descriptors() - before == set()
    with contextlib.ExitStack() as stack:
        vfio = Vfio(tmp_path, stack)
        with contextlib.closing(os.fdopen(os.eventfd(0), "rb")) as event:
            vfio.set_irq(MSI, [event.fileno()])
            vfio.set_irq(MSI, [event.fileno()])
            # The server closes the descriptors of refused requests, even of repeated requests.
            for command in (Command.DMA_MAP, *[Command.DEVICE_SET_IRQS] * 2):
                vfio.qemu.post(vfioside.message(command, bytes(8)), [event.fileno()])
                vfio.qemu.answer()

    assert open_descriptors() - before == set()
    # A closed engine writes to no descriptor, since the number may now belong to another file.
    for engine in (mpqemu.engine, vfio.engine):
        engine.signal()


def capabilities(qemu: vfioside.QemuSide) -> list[int]:
    """Return the numbers of the function's capabilities."""
    found, at = [], qemu.read(vfioside.CONFIG, 0x34, 1)
    while at:
        found.append(qemu.read(vfioside.CONFIG, at, 1))
        at = qemu.read(vfioside.CONFIG, at + 1, 1)
    return found


def test_gpu_with_an_engine_offers_msi(vfio: Vfio) -> None:
    question = vfioside.message(Command.DEVICE_GET_IRQ_INFO, struct.pack("<IIII", 16, 0, MSI, 0))

    assert struct.unpack("<IIII", vfio.qemu.ask(question).payload) == (16, 9, MSI, 1)
    assert _MSI_CAPABILITY in capabilities(vfio.qemu)


def test_raise_xid_passes_the_xid_to_the_engine(vfio: Vfio) -> None:
    assert vfio.qemu.read(0, 4) == 4

    vfio.server.gpu.raise_xid(48, "DBE")

    vfio.grant(vfio.expect_request(Command.DMA_READ), b"", flags=0x21)
    assert vfio.engine.done.wait(_END_S)
    assert vfio.engine.raised == [(48, "DBE")]


def test_hang_is_refused_for_a_gpu_without_an_engine(vfio: Vfio) -> None:
    vfio.server.gpu.hang()

    assert vfio.engine.is_hung
    model = a_model()
    with pytest.raises(ValueError, match="emulation 'gsp'"):
        EmulatedGpu(model, bars=model.bars.mpqemu).hang()


class Mpqemu:
    """A GPU that is served by mpqemu, QEMU's end of the socket, and a file with the guest's memory."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        gpu, self.engine = a_gpu(is_express=False)
        self.server = stack.enter_context(MpqemuServer(gpu))
        side = qemuside.QemuSide(self.server.attachment())
        self.qemu = stack.enter_context(contextlib.closing(side))
        self.memory = os.memfd_create("guest")
        stack.callback(os.close, self.memory)
        os.ftruncate(self.memory, 0x2000)
        self.qemu.config_write(0x10, BAR_0)
        self.qemu.config_write(0x04, 0x0002, 2)

    def share(self, *, size: int = 0x1000) -> None:
        """Share the second page of the file with the device as guest memory."""
        regions = [0] * 24
        regions[0], regions[8], regions[16] = ADDRESS, size, 0x1000
        payload = struct.pack("<24Q", *regions)
        self.qemu.post(qemuside.message(MpqemuCommand.SYNC_SYSMEM, payload), [self.memory])

    def copy(self) -> None:
        self.qemu.bar_write(BAR_0, ADDRESS)
        assert self.engine.done.wait(_END_S)


@pytest.fixture
def mpqemu() -> Iterator[Mpqemu]:
    with contextlib.ExitStack() as stack:
        yield Mpqemu(stack)


def test_memory_that_qemu_shares_is_mapped(mpqemu: Mpqemu) -> None:
    os.pwrite(mpqemu.memory, b"8 octets", 0x1000)
    mpqemu.share()

    mpqemu.copy()

    assert mpqemu.engine.errors == []
    assert os.pread(mpqemu.memory, 8, 0x1008) == b"8 octets"


@pytest.mark.parametrize("size", [0, 8, 1 << 60])
def test_access_to_missing_memory_raises_a_guest_memory_error(mpqemu: Mpqemu, size: int) -> None:
    mpqemu.share()
    mpqemu.share(size=size)

    mpqemu.copy()

    assert [type(error) for error in mpqemu.engine.errors] == [GuestMemoryError]


def test_mpqemu_interrupt_is_signalled_through_its_eventfd(mpqemu: Mpqemu) -> None:
    with contextlib.closing(os.fdopen(os.eventfd(0, os.EFD_NONBLOCK), "rb")) as event:
        # If several messages arrive together, the descriptor belongs to the last message.
        read = qemuside.config_message(MpqemuCommand.PCI_CFGREAD, 0)
        both = read + qemuside.message(MpqemuCommand.SET_IRQFD)
        mpqemu.qemu.post(both, [event.fileno()])
        mpqemu.qemu.answer()
        # The descriptor of a request other than SET_IRQFD does not become an interrupt.
        mpqemu.qemu.post(read, [mpqemu.memory])
        mpqemu.qemu.answer()
        mpqemu.copy()

        assert os.eventfd_read(event.fileno()) == 1


def test_posted_writes_need_no_answer_and_keep_their_order(vfio: Vfio) -> None:
    pages = bytes(range(1, 251)) * 20
    vfio.engine.texts = [b"first", pages]

    vfio.start_copy()

    posted = [vfio.qemu.answer() for _ in range(3)]
    assert [(each.command, each.flags) for each in posted] == [(Command.DMA_WRITE, 0x10)] * 3
    # No write crosses the boundary of a page.
    assert [each.payload[16:] for each in posted] == [b"first", pages[:4096], pages[4096:]]
    assert vfio.expect_request(Command.DMA_READ).payload == struct.pack("<QQ", ADDRESS, 8)


def test_error_of_qemu_about_a_posted_write_is_ignored(vfio: Vfio) -> None:
    """The error does not answer a later request."""
    vfio.start_copy()
    request = vfio.expect_request(Command.DMA_READ)

    vfio.qemu.post(vfioside.message(Command.DMA_WRITE, number=POSTED, flags=0x21))
    vfio.grant(request, request.payload + b"8 octets")

    assert vfio.expect_request(Command.DMA_WRITE).payload[16:] == b"8 octets"
