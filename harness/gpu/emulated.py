"""The emulated GPU: a PCI function that a guest can find, probe and bind a driver to.

The GPU is for tests of provisioning, never of CUDA, since the GPU has no compute engines. The code
does not depend on transports, so a test can access the GPU in place of a guest.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from harness.gpu import mailbox
from harness.gpu.config_space import BEFORE_HOPPER, FROM_HOPPER, ConfigSpace
from harness.gpu.mailbox import Mailbox, MigMode
from harness.gpu.trace import (
    DEFAULT_CAPACITY,
    NO_BAR,
    AccessKind,
    AccessTrace,
    IncidentKind,
    Stray,
    TraceRecorder,
)
from harness.provisioning.wait import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.gpu import Bars, GpuModel
    from harness.gpu.gsp.guest_memory import GuestMemory
    from harness.gpu.gsp.state import MemoryErrors, Readings
    from harness.provisioning.wait import Clock, Deadline

#: The maximum number of registers whose written values the device stores; writes to more registers
#: are ignored.
REGISTER_LIMIT = 65_536

#: How often, in seconds, a stalled access checks whether the stall has ended.
_STALL_POLL_S = 0.02


class Engine(Protocol):
    """Handles accesses to a GPU's BARs, and may use DMA and interrupts.

    `read` and `write` never wait for the guest's memory. These methods post work instead, and the
    transport calls `work` after it has answered the access.
    """

    signal: Callable[[], None]
    """The function that raises the interrupt; the transport sets it."""

    def read(self, bar: int, offset: int, size: int) -> int:
        """Read up to 8 bytes within a BAR."""
        ...

    def write(self, bar: int, offset: int, value: int, size: int) -> None:
        """Write up to 8 bytes within a BAR."""
        ...

    def reset(self) -> None:
        """Return to the state after power-on."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether posted work waits for `work`."""
        ...

    def work(self, guest: GuestMemory) -> None:
        """Do the posted work; accesses may happen at the same time."""
        ...

    def note_by(self, note: Callable[[IncidentKind, str], None]) -> None:
        """Set the function that gets each event for the trace; the thread of `work` calls the function."""
        ...

    @property
    def memory_errors(self) -> MemoryErrors:
        """The memory errors that the driver reports; a test may change them."""
        ...

    @property
    def readings(self) -> Readings:
        """The readings of the GPU's sensors; a test may change them."""
        ...

    def raise_xid(self, number: int, text: str) -> None:
        """Report an error to the driver; can be called in any thread."""
        ...

    def hang(self) -> None:
        """Stop answering the driver; can be called in any thread."""
        ...


class EmulatedGpu:
    """One GPU; the threads of a transport and of a test may use it at the same time.

    The transport calls `config_*`, `memory_*`, `bar_*` and `reset` for a guest. A test calls
    `answer`, `fall_off_bus`, `die` and `stall`, and also `raise_xid`, `corrupt_inforom` and
    `let_mig_need_reset`, whose effects the stand-in driver shows. A guest's reset of the GPU does
    not undo these faults.
    """

    def __init__(
        self,
        model: GpuModel,
        *,
        bars: Bars,
        is_express: bool = False,
        engine: Callable[[ConfigSpace], Engine] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        trace_capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        """Create a GPU; `bars` and `is_express` depend on the transport.

        `engine` makes the engine that handles accesses to the BARs; without an engine, the BARs
        consist of plain registers.
        """
        self.model = model
        self.bars = dict(bars)
        self._clock = clock
        self._lock = threading.Condition(threading.Lock())
        self._config = ConfigSpace(
            model.pci,
            self.bars,
            is_express=is_express,
            has_msi=engine is not None,
            places=FROM_HOPPER if model.is_hopper_or_later else BEFORE_HOPPER,
            generation=model.pcie_generation,
        )
        self.engine = None if engine is None else engine(self._config)
        self.wake: Callable[[], None] = lambda: None
        """The function that wakes the transport to do the engine's work; the transport sets it."""
        self._recorder = TraceRecorder(clock, trace_capacity)
        if self.engine is not None:
            self.engine.note_by(self._note)
        self._hardwired = {(0, offset): value for offset, value in model.boot_registers.items()}
        self._written: dict[tuple[int, int], int] = {}
        self._answers: dict[tuple[int, int], int] = {}
        self._mailbox = Mailbox(has_mig=model.has_mig)
        self._on_bus = True
        self._is_dead = False
        self._stalled_until: float | None = None

    @property
    def config_size(self) -> int:
        """Return the size of configuration space in bytes."""
        return self._config.size

    # Accesses of a guest.

    def config_read(self, offset: int, size: int) -> int:
        """Read `size` bytes of configuration space: usually 1 to 4, at most the whole space."""
        with self._lock:
            value = self._config.read(offset, size) if self._on_bus else _all_ones(size)
            self._recorder.access(AccessKind.CONFIG_READ, None, offset, size, value)
            return value

    def config_write(self, offset: int, value: int, size: int) -> None:
        """Write `size` bytes of configuration space: usually 1 to 4, at most the whole space."""
        with self._lock:
            value &= _all_ones(size)
            self._recorder.access(AccessKind.CONFIG_WRITE, None, offset, size, value)
            if self._on_bus:
                self._config.write(offset, value, size)
                self._lock.notify_all()

    def memory_read(self, address: int, size: int) -> int:
        """Read `size` bytes, 1 to 8, at an address of the guest, which may belong to a BAR.

        An address that belongs to no BAR reads as all ones, as on a PCI bus.
        """
        with self._lock:
            return self._read(*self._locate(address, size), size)

    def bar_read(self, bar: int, offset: int, size: int) -> int:
        """Read `size` bytes, 1 to 8, of a BAR, for a transport that names the BAR."""
        with self._lock:
            return self._read(*self._within(bar, offset, size), size)

    def _read(self, bar: int | Stray, offset: int, size: int) -> int:
        if isinstance(bar, Stray) or not self._answers_bars():
            value = _all_ones(size)
        else:
            value = self._read_registers(bar, offset, size)
        self._recorder.access(AccessKind.BAR_READ, bar, offset, size, value)
        return value

    def memory_write(self, address: int, value: int, size: int) -> None:
        """Write `size` bytes, 1 to 8, at an address of the guest, which may belong to a BAR."""
        with self._lock:
            self._write(*self._locate(address, size), value, size)

    def bar_write(self, bar: int, offset: int, value: int, size: int) -> None:
        """Write `size` bytes, 1 to 8, of a BAR, for a transport that names the BAR."""
        with self._lock:
            self._write(*self._within(bar, offset, size), value, size)

    def _write(self, bar: int | Stray, offset: int, value: int, size: int) -> None:
        value &= _all_ones(size)
        self._recorder.access(AccessKind.BAR_WRITE, bar, offset, size, value)
        if not isinstance(bar, Stray) and self._answers_bars():
            self._write_registers(bar, offset, value, size)

    def reset(self) -> None:
        """Return to the state after power-on, as a guest's bus reset does."""
        with self._lock:
            self._recorder.incident(IncidentKind.RESET)
            self._config.reset()
            self._mailbox.reset()
            self._written.clear()
            if self.engine is not None:
                self.engine.reset()

    def _answers_bars(self) -> bool:
        return self._on_bus and not self._is_dead

    def _locate(self, address: int, size: int) -> tuple[int | Stray, int]:
        return self._config.find_bar(address, size) or (NO_BAR, address)

    def _within(self, bar: int, offset: int, size: int) -> tuple[int | Stray, int]:
        if bar not in self.bars or offset + size > self.bars[bar].size:
            return NO_BAR, offset
        return bar, offset

    def _read_registers(self, bar: int, offset: int, size: int) -> int:
        if self.engine is not None and (bar, offset & ~3) not in self._answers:
            return self.engine.read(bar, offset, size)
        first = offset & ~3
        value = 0
        for shift, register in enumerate(range(first, offset + size, 4)):
            value |= self._read_register((bar, register)) << 32 * shift
        return value >> 8 * (offset - first) & _all_ones(size)

    def _read_register(self, register: tuple[int, int]) -> int:
        for registers in (self._answers, self._hardwired, self._written):
            if register in registers:
                return registers[register]
        bar, offset = register
        return self._mailbox.read(offset) if bar == 0 and offset in mailbox.REGISTERS else 0

    def _write_registers(self, bar: int, offset: int, value: int, size: int) -> None:
        if self.engine is not None:
            self.engine.write(bar, offset, value, size)
            return
        first = offset & ~3
        mask = _all_ones(size) << 8 * (offset - first)
        value <<= 8 * (offset - first)
        for register in range(first, offset + size, 4):
            self._write_register((bar, register), value & 0xFFFFFFFF, mask & 0xFFFFFFFF)
            value >>= 32
            mask >>= 32

    def _write_register(self, register: tuple[int, int], value: int, mask: int) -> None:
        bar, offset = register
        if bar == 0 and offset in mailbox.REGISTERS:
            self._mailbox.write(offset, self._mailbox.read(offset) & ~mask | value & mask)
            return
        # A value written to a hard-wired register is never read: a read finds the hard-wired value
        # first.
        after = self._written.get(register, 0) & ~mask | value & mask
        if after == 0:
            self._written.pop(register, None)
        elif register in self._written or len(self._written) < REGISTER_LIMIT:
            self._written[register] = after

    # Controls of a test, and the state that a test reads.

    def answer(self, offset: int, value: int, *, bar: int = 0) -> None:
        """Make the 32-bit register at `offset` read as `value`, even after the guest writes to it."""
        register = self._scripted(bar, offset)
        if not 0 <= value <= 0xFFFFFFFF:
            raise ValueError(f"A register has 32 bits; {value:#x} does not fit.")
        with self._lock:
            self._answers[register] = value

    def clear_answer(self, offset: int, *, bar: int = 0) -> None:
        """Undo `answer` for one register."""
        register = self._scripted(bar, offset)
        with self._lock:
            self._answers.pop(register, None)

    def _scripted(self, bar: int, offset: int) -> tuple[int, int]:
        if bar not in self.bars or not 0 <= offset < self.bars[bar].size or offset % 4:
            sizes = ", ".join(f"{index} of {bar.mib} MiB" for index, bar in self.bars.items())
            raise ValueError(
                f"There is no 32-bit register at {offset:#x} of BAR {bar}; this GPU has the BARs "
                f"{sizes}."
            )
        return bar, offset

    def fall_off_bus(self) -> None:
        """Answer every read with all ones and ignore writes, like a GPU that lost its link."""
        self._set_on_bus(False, IncidentKind.FELL_OFF_BUS)

    def die(self) -> None:
        """Answer reads of BARs with all ones from now on; configuration space still works."""
        with self._lock:
            self._is_dead = True
            self._recorder.incident(IncidentKind.DIED)

    def _note(self, kind: IncidentKind, words: str) -> None:
        with self._lock:
            self._recorder.incident(kind, words)

    def raise_xid(self, number: int, text: str = "") -> None:
        """Make the driver log an Xid with this number; the stand-in driver polls every second.

        If NVIDIA's own driver has opened the GPU, that driver adds `text` to the line.
        """
        if not 1 <= number <= 0xFFFF:
            raise ValueError(f"There is no Xid {number}; give a number from 1 to 65535.")
        with self._lock:
            if self.engine is None:
                self._mailbox.raise_xid(number)
            else:
                self.engine.raise_xid(number, text)
            self._recorder.incident(IncidentKind.XID_RAISED, str(number))
        self.wake()

    def hang(self) -> None:
        """Stop answering NVIDIA's driver, which reports Xid 119; registers still answer.

        Raises ValueError for a GPU that NVIDIA's driver can't open.
        """
        self._opened_engine("hang").hang()

    @property
    def memory_errors(self) -> MemoryErrors:
        """The memory errors that NVIDIA's driver reports; a test changes the counts.

        Raises ValueError for a GPU that NVIDIA's driver can't open.
        """
        return self._opened_engine("have memory errors").memory_errors

    @property
    def readings(self) -> Readings:
        """The temperature and power that NVIDIA's driver reports; a test changes them.

        Raises ValueError for a GPU that NVIDIA's driver can't open.
        """
        return self._opened_engine("have sensors").readings

    def _opened_engine(self, what: str) -> Engine:
        if self.engine is None:
            raise ValueError(
                f"NVIDIA's driver can't open this GPU, so the GPU can't {what}; use emulation 'gsp'."
            )
        return self.engine

    def corrupt_inforom(self) -> None:
        """Make the stand-in `nvidia-smi` warn that the infoROM is corrupted."""
        with self._lock:
            self._mailbox.is_inforom_corrupted = True

    def let_mig_need_reset(self) -> None:
        """Make a change of the MIG mode wait for the next reset, as on an A100."""
        with self._lock:
            self._mailbox.mig_needs_reset = True

    @property
    def mig_mode(self) -> MigMode:
        """Return whether MIG mode is on, and whether it will be on after the GPU's next reset."""
        with self._lock:
            return self._mailbox.mig_mode

    def return_to_bus(self) -> None:
        """Answer again, in the state that the GPU had before `fall_off_bus`."""
        self._set_on_bus(True, IncidentKind.RETURNED_TO_BUS)

    def _set_on_bus(self, on_bus: bool, incident: IncidentKind) -> None:
        with self._lock:
            if self._on_bus != on_bus:
                self._on_bus = on_bus
                self._recorder.incident(incident)

    def address_of(self, bar: int) -> int | None:
        """Return the address that the guest gave to a BAR, or None while memory decoding is off."""
        with self._lock:
            return self._config.bar_address(bar)

    def wait_until_placed(self, deadline: Deadline) -> bool:
        """Wait until the guest has given every BAR an address; return False at the deadline.

        When every BAR has an address, the device's part of a hot-plug is complete. The method reads
        the BARs on the host, and sends nothing to the guest.
        """
        with self._lock:
            return deadline.wait(self._lock, lambda: self._config.is_placed)

    def stall(self, seconds: float) -> None:
        """Answer no access for `seconds`; a vCPU of the guest that accesses the device is blocked."""
        with self._lock:
            self._stalled_until = self._clock.monotonic() + seconds
            self._recorder.incident(IncidentKind.STALL_BEGAN)

    def end_stall(self) -> None:
        """End the stall, so that the device answers again at once."""
        with self._lock:
            if self._stalled_until is not None:
                self._stalled_until = None
                self._recorder.incident(IncidentKind.STALL_ENDED)

    def stalled_for_s(self) -> float:
        """Return the remaining seconds of the stall; 0 if the device answers."""
        with self._lock:
            if self._stalled_until is None:
                return 0.0
            left = self._stalled_until - self._clock.monotonic()
            if left > 0:
                return left
            self._stalled_until = None
            self._recorder.incident(IncidentKind.STALL_ENDED)
            return 0.0

    def wait_for_stall_end(self, cancelled: threading.Event) -> bool:
        """Block while the device stalls; return False if `cancelled` is set during the stall.

        A transport calls this method before it carries out a request.
        """
        while (left := self.stalled_for_s()) > 0:
            if cancelled.wait(min(left, _STALL_POLL_S)):
                return False
        return True

    def mark(self, words: str) -> None:
        """Add a mark to the trace, to separate earlier entries from later entries."""
        with self._lock:
            self._recorder.incident(IncidentKind.MARK, words)

    @property
    def trace(self) -> AccessTrace:
        """Return a snapshot of the guest's accesses."""
        with self._lock:
            return self._recorder.snapshot()


def _all_ones(size: int) -> int:
    return (1 << 8 * size) - 1
