"""The registers and memories of a GPU with a GSP, and what the driver's accesses to BARs cause.

No access waits for the guest's memory. While a vCPU waits for an access, QEMU holds its global
lock, so QEMU could never answer a read of the guest's memory. Work that needs the guest's memory is
posted, and `work` does the work after the access was answered. Until the work is done, the
processor's registers read as busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from harness.gpu.gsp.address_space import AddressSpace, Memories, UnmappedError
from harness.gpu.gsp.chips import BCR_CONTROLS, BCR_VALID, GSP_FALCON, SEC2_FALCON, Boot
from harness.gpu.gsp.engines import GSP_VECTOR
from harness.gpu.gsp.frame_buffer import FrameBuffer
from harness.gpu.gsp.fsp import FspQueue
from harness.gpu.gsp.fwsec import FwsecLoader
from harness.gpu.gsp.guest_memory import GuestMemoryError, NoMemory
from harness.gpu.gsp.interrupts import BEHIND_LAST, FIRST, InterruptTree
from harness.gpu.gsp.page_tables import Directory, Space
from harness.gpu.gsp.processor import Processor
from harness.gpu.gsp.queues import QueueError
from harness.gpu.gsp.rpc import RpcError
from harness.gpu.gsp.vbios import make_vbios
from harness.gpu.gsp.wpr_meta import WprError, parse_wpr_meta
from harness.limits import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.gpu.gsp.state import GpuState, MemoryErrors, Readings
    from harness.gpu.trace import IncidentKind

_LOG = logging.getLogger(__name__)

_PROM: Final = range(0x300000, 0x400000)
_PRAMIN: Final = range(0x700000, 0x800000)
_CONFIG_BYTES: Final = 0x1000
_VIRTUAL_FUNCTION: Final = 0xB80000
_INTERRUPTS: Final = range(_VIRTUAL_FUNCTION + FIRST, _VIRTUAL_FUNCTION + BEHIND_LAST)

_TIMER_LOW: Final = frozenset({0x9400, 0xBB0080})
_TIMER_HIGH: Final = frozenset({0x9410, 0xBB0084})
_CHANNEL_DOORBELL: Final = 0xBB0090
_GSP_DOORBELL: Final = 0x110C00
#: Registers with a request bit that clears itself: TLB invalidations and flushes.
_TLB_INVALIDATIONS: Final = frozenset({0xB830B0, 0x100CBC})
_SELF_CLEARING: Final = frozenset({0xB80F00, 0xB80F04, *range(0x70000, 0x70040, 4)})
_MSI_REARM: Final = 0x704

# Offsets from the base of a falcon.
_IRQ_CLEAR: Final = 0x04
_IRQ_STATUS: Final = 0x08
_MAILBOX_0: Final = 0x40
_MAILBOX_1: Final = 0x44
_HARDWARE: Final = 0xF4
_LOCKED_DOWN: Final = 1 << 13
_CPU_CONTROL: Final = 0x100
_CPU_CONTROL_ALIAS: Final = 0x130
_DMA_COMMAND: Final = 0x118
_DMA_IDLE: Final = 1 << 1
_START: Final = 1 << 1
_HALTED: Final = 1 << 4
_SWGEN0: Final = 0x40
#: The registers for the mask and the destination of the GSP's interrupts: two of Turing and GA100,
#: then two of later chips.
_IRQ_DESTINATION: Final = dict.fromkeys((0x1112B4, 0x1112B8, 0x111528, 0x11152C), 0x50)
_RISCV_STATUS: Final = 0x111240
_RISCV_STATUS_FROM_AMPERE: Final = 0x111388
_UNLOADED: Final = 0x80000000
_BOOTER_UNLOAD: Final = 0xFF

_WPR2_LOW: Final = 0x1FA824
_WPR2_HIGH: Final = 0x1FA828

#: The maximum number of registers whose written values the device stores; writes to more registers
#: are ignored.
_REGISTER_LIMIT: Final = 65_536
#: The maximum number of posted jobs in the queue; all doorbells in the queue count as one job.
_MOST_POSTED: Final = 64

#: The maximum number of errors in the queue for a driver that has not yet opened the GPU.
_MOST_XIDS: Final = 64

_BAR_1: Final = 1
_BAR_2: Final = 2


class GspDevice:
    """Handles accesses to the BARs of one GPU; only `post` is thread-safe.

    `read_config` reads configuration space. The device calls `signal` to raise an interrupt, in the
    thread that called the device.
    """

    def __init__(self, state: GpuState, *, read_config: Callable[[int, int], int]) -> None:
        self.signal: Callable[[], None] = lambda: None
        self.state = state
        self.failure: str | None = None
        self._read_config = read_config
        self._order = sorted(state.bars)
        self._frame_buffer = FrameBuffer(source=f"GPU of model '{state.model.name}'")
        # This memory is used during accesses, when the guest's memory can't be read.
        self._local = Memories(self._frame_buffer, NoMemory())
        self._interrupts = InterruptTree()
        self._vbios = (
            make_vbios(state.model.pci, state.facts.vbios, is_signed=state.chip.loads_by_dma)
            if state.chip.has_vbios
            else b""
        )
        self._fwsec = FwsecLoader()
        self._fsp = FspQueue()
        self._registers: dict[int, int] = {}
        self._processor: Processor | None = None
        self._bar1: AddressSpace | None = None
        self._bar2: AddressSpace | None = None
        self._bar2_root: tuple[int, int] | None = None
        self._posted: deque[Callable[[Memories], None]] = deque()
        self._rings: set[str] = set()
        self._post_lock = threading.Lock()
        self._xids: deque[tuple[int, str]] = deque(maxlen=_MOST_XIDS)
        self.reset()

    # Accesses of a guest.

    def reset(self) -> None:
        """Return to the state after power-on."""
        state = self.state
        self._frame_buffer.clear()
        self._interrupts = InterruptTree()
        self._registers = state.chip.initial_registers(state.facts.memory_mib)
        self._registers |= state.model.boot_registers
        self._processor = None
        self._bar2 = self._bar2_root = None
        root = Directory(Space.FRAME_BUFFER, state.bar1_root, state.chip.page_tables.root_shift)
        self._bar1 = AddressSpace(self._local, state.chip.page_tables, root, has_tlb=True)

    def read(self, bar: int, offset: int, size: int) -> int:
        """Read up to 8 bytes of a BAR; unmapped memory reads as all ones.

        After the GPU has failed, every byte reads as all ones.
        """
        if self.failure is not None:
            return (1 << 8 * size) - 1
        if bar != self._order[0]:
            return self._read_memory(bar, offset, size)
        if offset in _PROM:
            start = offset - _PROM.start
            return int.from_bytes(self._vbios[start : start + size], "little")
        if offset in _PRAMIN:
            return int.from_bytes(self._frame_buffer.read(self._window(offset), size), "little")
        first = offset & ~3
        value = 0
        for shift, register in enumerate(range(first, offset + size, 4)):
            value |= self._read_register(register) << 32 * shift
        return value >> 8 * (offset - first) & (1 << 8 * size) - 1

    def write(self, bar: int, offset: int, value: int, size: int) -> None:
        """Write up to 8 bytes of a BAR."""
        if self.failure is not None:
            return
        try:
            if bar != self._order[0]:
                self._write_memory(bar, offset, value, size)
            elif offset in _PRAMIN:
                self._frame_buffer.write(self._window(offset), value.to_bytes(size, "little"))
            else:
                self._write_registers(offset, value, size)
        except LimitError as error:
            self._fail(str(error))

    def _write_registers(self, offset: int, value: int, size: int) -> None:
        first = offset & ~3
        mask = ((1 << 8 * size) - 1) << 8 * (offset - first)
        value <<= 8 * (offset - first)
        for register in range(first, offset + size, 4):
            word, bits = value & 0xFFFFFFFF, mask & 0xFFFFFFFF
            if bits != 0xFFFFFFFF:
                word |= self._registers.get(register, 0) & ~bits
            self._write_register(register, word)
            value >>= 32
            mask >>= 32

    def _window(self, offset: int) -> int:
        """Return the address in the frame buffer that the PRAMIN window shows at `offset`."""
        chip = self.state.chip
        start = self._registers.get(chip.window, 0) & chip.window_mask
        return (start << 16) + offset - _PRAMIN.start

    def _read_memory(self, bar: int, offset: int, size: int) -> int:
        space = self._space(bar)
        try:
            data = b"" if space is None else space.read(offset, size)
        except (UnmappedError, GuestMemoryError):
            data = b""
        return int.from_bytes(data, "little") if data else (1 << 8 * size) - 1

    def _write_memory(self, bar: int, offset: int, value: int, size: int) -> None:
        space = self._space(bar)
        if space is None:
            return
        try:
            space.write(offset, value.to_bytes(size, "little"))
        except (UnmappedError, GuestMemoryError):
            return

    def _space(self, bar: int) -> AddressSpace | None:
        """Return the virtual memory that a BAR maps, or None for BAR 0, which has the registers."""
        number = self._order.index(bar) if bar in self._order else 0
        return {_BAR_1: self._bar1, _BAR_2: self._bar2}.get(number)

    def _read_register(self, offset: int) -> int:
        if offset in _INTERRUPTS:
            return self._interrupts.read(offset - _VIRTUAL_FUNCTION)
        if offset in _TIMER_LOW:
            return time.time_ns() & 0xFFFFFFE0
        if offset in _TIMER_HIGH:
            return time.time_ns() >> 32 & 0xFFFFFFFF
        mirrored = offset - self.state.chip.config_mirror
        if 0 <= mirrored < _CONFIG_BYTES:
            return self._read_config(mirrored, 4)
        answered = self._read_hopper(offset) if self.state.chip.boot is Boot.FSP else None
        return self._registers.get(offset, 0) if answered is None else answered

    def _read_hopper(self, offset: int) -> int | None:
        """Return a register that only chips with an FSP have, or None."""
        if offset == _GSP_RESET:
            # While the bit that requests a reset is clear, another bit says that the reset is over.
            return self._registers.get(_GSP_RESET, 0) & 1 or _RESET_OVER
        return self._fsp.read(offset)

    def _write_register(self, offset: int, value: int) -> None:
        if offset in _INTERRUPTS:
            if self._interrupts.write(offset - _VIRTUAL_FUNCTION, value):
                self._update_interrupt()
            return
        if self.state.chip.boot is Boot.FSP and self._fsp.write(offset, value):
            if self._fsp.has_message:
                # The driver reads any other value as a boot error, even while the boot is still
                # running.
                self._registers[GSP_FALCON + _MAILBOX_0] = 0
                self._registers[GSP_FALCON + _MAILBOX_1] = 0
                # After this bit becomes clear, the driver checks only once whether the GSP runs.
                self._registers[GSP_FALCON + _HARDWARE] |= _LOCKED_DOWN
                self.post(self._answer_fsp, "FSP")
            return
        if self.state.chip.has_frts:
            self._fwsec.write(offset, value)
        if offset in self._registers or len(self._registers) < _REGISTER_LIMIT:
            self._registers[offset] = value
        self._act(offset, value)

    def _act(self, offset: int, value: int) -> None:
        """Carry out the effect of a write to a register."""
        if offset in _TLB_INVALIDATIONS:
            self._registers[offset] = value & 0x7FFFFFFF
            for space in (self._bar1, self._bar2):
                if space is not None:
                    space.forget_translations()
        elif offset in _SELF_CLEARING:
            self._registers[offset] = 0
        elif offset == self.state.chip.config_mirror + _MSI_REARM:
            self._update_interrupt()
        elif offset == _GSP_DOORBELL:
            self.post(self._take_calls, "calls")
        elif offset == _CHANNEL_DOORBELL:
            self.post(self._run_channels, "channels")
        elif offset in BCR_CONTROLS:
            self._registers[offset] = value | BCR_VALID
        elif offset in {falcon + _DMA_COMMAND for falcon in (GSP_FALCON, SEC2_FALCON)}:
            self._registers[offset] = _DMA_IDLE
        elif offset == GSP_FALCON + _IRQ_CLEAR:
            status = GSP_FALCON + _IRQ_STATUS
            self._registers[status] = self._registers.get(status, 0) & ~value
        else:
            self._write_cpu_control(offset, value)

    def _write_cpu_control(self, offset: int, value: int) -> None:
        for falcon in (GSP_FALCON, SEC2_FALCON):
            if offset in {falcon + _CPU_CONTROL, falcon + _CPU_CONTROL_ALIAS}:
                control = falcon + _CPU_CONTROL
                self._registers[control] = _HALTED
                if value & _START:
                    self._registers[control] = 0
                    self.post(
                        self._start_gsp_falcon if falcon == GSP_FALCON else self._start_booter,
                        f"falcon {falcon:#x}",
                    )

    def _update_interrupt(self) -> None:
        if self._interrupts.is_raised:
            self.signal()

    # Posted work.

    def post(self, job: Callable[[Memories], None], name: str) -> bool:
        """Queue `job` for the transport's thread, unless a job with the same name already waits.

        Can be called in any thread. Return whether the job was added.
        """
        with self._post_lock:
            if name in self._rings or len(self._posted) >= _MOST_POSTED:
                return False
            self._rings.add(name)

            def run(memories: Memories) -> None:
                with self._post_lock:
                    self._rings.discard(name)
                job(memories)

            self._posted.append(run)
            return True

    @property
    def has_work(self) -> bool:
        return bool(self._posted)

    def work(self, guest: GuestMemory) -> None:
        """Do the posted work, with DMA by `guest`; accesses may happen at the same time."""
        memories = Memories(self._frame_buffer, guest)
        while self._posted and self.failure is None:
            job = self._posted.popleft()
            try:
                job(memories)
            except (QueueError, RpcError, GuestMemoryError, WprError) as error:
                # A real GSP also stops when its firmware gets invalid data.
                _LOG.warning("The GSP of model '%s' stopped: %s", self.state.model.name, error)
                self._processor = None
            except LimitError as error:
                self._fail(str(error))

    def _fail(self, reason: str) -> None:
        """Stop answering, like a GPU that fell off the bus, and log the reason."""
        self.failure = reason
        _LOG.warning("An emulated GPU has stopped answering: %s", reason)

    def _start_booter(self, memories: Memories) -> None:
        """Do what the booter on SEC2 does: boot the GSP, or stop the GSP."""
        registers = self._registers
        low = registers.get(SEC2_FALCON + _MAILBOX_0, 0)
        address = low | registers.get(SEC2_FALCON + _MAILBOX_1, 0) << 32
        try:
            if address in {0, _BOOTER_UNLOAD} or low == _BOOTER_UNLOAD:
                registers[_WPR2_LOW] = registers[_WPR2_HIGH] = 0
                registers[_RISCV_STATUS] = registers[_RISCV_STATUS_FROM_AMPERE] = 0
                self._processor = None
            else:
                start, end = parse_wpr_meta(memories.guest.read(address, 256))
                if self.state.chip.boot is Boot.BOOTER:
                    registers[_WPR2_LOW] = start >> 12 << 4 & 0xFFFFFFFF
                    registers[_WPR2_HIGH] = end >> 12 << 4 & 0xFFFFFFFF
                at = registers.get(GSP_FALCON + _MAILBOX_0, 0)
                at |= registers.get(GSP_FALCON + _MAILBOX_1, 0) << 32
                self._boot(memories, at)
            registers[SEC2_FALCON + _MAILBOX_0] = 0
        finally:
            registers[SEC2_FALCON + _CPU_CONTROL] = _HALTED

    def _start_gsp_falcon(self, memories: Memories) -> None:
        """Do what FWSEC does: reserve memory. FWSEC's other commands have no visible effect."""
        registers = self._registers
        try:
            if self.state.chip.has_frts:
                command = self._fwsec.read_command(memories.guest)
                if command is not None:
                    start, end = command
                    registers[_WPR2_LOW], registers[_WPR2_HIGH] = start >> 8, end >> 8
            registers[GSP_FALCON + _MAILBOX_0] = 0
        finally:
            registers[GSP_FALCON + _CPU_CONTROL] = _HALTED

    def _answer_fsp(self, memories: Memories) -> None:
        """Boot the GSP as the message to the FSP requests."""
        try:
            self._boot_by_fsp(memories)
        finally:
            self._registers[GSP_FALCON + _HARDWARE] &= ~_LOCKED_DOWN

    def _boot_by_fsp(self, memories: Memories) -> None:
        arguments = self._fsp.take()
        if arguments is None:
            return
        boot = int.from_bytes(memories.guest.read(arguments + _FMC_BOOT_ARGUMENTS, 8), "little")
        self._boot(memories, boot)

    def _boot(self, memories: Memories, at: int) -> None:
        """Boot the GSP with the arguments at `at` in the guest's memory."""
        registers = self._registers
        self._processor = processor = Processor(self.state, memories, at, self._notify)
        registers[_RISCV_STATUS] = 1
        registers[_RISCV_STATUS_FROM_AMPERE] = 1 << 7
        processor.begin()

    def _notify(self) -> None:
        """Raise the GSP's interrupt, because the driver does not poll for every message."""
        status = GSP_FALCON + _IRQ_STATUS
        self._registers[status] = self._registers.get(status, 0) | _SWGEN0
        self._registers |= _IRQ_DESTINATION
        self._interrupts.trigger(GSP_VECTOR)
        self._update_interrupt()

    def _take_calls(self, memories: Memories) -> None:
        processor = self._processor
        if processor is None:
            # A doorbell before the boot is ignored, since the GSP reads its queue when it boots.
            return
        processor.take_calls()
        self._report_xids(memories)
        if processor.bar2 is not None and processor.bar2 != self._bar2_root:
            self._bar2_root = entry, shift = processor.bar2
            self._bar2 = AddressSpace.by_entry(
                self._local, self.state.chip.page_tables, entry=entry, shift=shift
            )
        if processor.is_unloaded:
            self._processor = None
            self._interrupts.clear()
            self._registers[GSP_FALCON + _MAILBOX_0] = _UNLOADED

    def _run_channels(self, _memories: Memories) -> None:
        if self._processor is not None and self._processor.run_channels():
            self.post(self._run_channels, "channels")

    # Controls of a test, and the state that a test reads.

    @property
    def memory_errors(self) -> MemoryErrors:
        return self.state.memory_errors

    def note_by(self, note: Callable[[IncidentKind, str], None]) -> None:
        """Set the function that gets each event for the trace; the thread of `work` calls the function."""
        self.state.note = note

    @property
    def readings(self) -> Readings:
        return self.state.readings

    def raise_xid(self, number: int, text: str) -> None:
        """Report an error to the driver as soon as the driver has opened the GPU."""
        self._xids.append((number, text))
        self.post(self._report_xids, "Xids")

    def _report_xids(self, _memories: Memories) -> None:
        processor = self._processor
        while processor is not None and processor.is_ready and self._xids:
            processor.raise_xid(*self._xids.popleft())

    def hang(self) -> None:
        """Stop answering calls; the driver reports that as Xid 119."""
        if self._processor is not None:
            self._processor.is_hung = True


_GSP_RESET: Final = 0x1103C0
_RESET_OVER: Final = 0x200
_FMC_BOOT_ARGUMENTS: Final = 0x30
