"""Chooses KVM or TCG, and KVM only after a guest has run a program under KVM.

An accessible `/dev/kvm` proves nothing: on some nested hosts, KVM reports API version 12 and creates
a VM, but no guest ever runs. So this module runs a program of some three hundred bytes in a
guest with the CPU model of machines. The program takes an exception in long mode, and QEMU's exit
code then proves that KVM works.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import platform
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import RequirementError
from harness.lease import temporary_folder
from harness.machine.description.spec import Accelerator
from harness.machine.program_answers import read_cached, write_cached
from harness.provisioning.wait import SYSTEM_CLOCK
from harness.settings import AcceleratorOption

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.command import CommandResult, Runner
    from harness.provisioning.wait import Clock


#: rdtsc; shl rdx, 32; or rax, rdx; ret
_READ = bytes.fromhex("0f3148c1e2204809d0c3")
_INTERVAL_S = 0.02
#: How often both clocks are read. Only the quickest reading is used, since any other reading may
#: have been interrupted.
_LOOKS = 200
#: The frequency is part of the kernel command line. The frequency is rounded, since each different
#: command line needs its own checkpoints.
_STEP_KHZ = 1000


def time_stamp_counter_khz(clock: Clock = SYSTEM_CLOCK) -> int | None:
    """Return the frequency of this host's time stamp counter in kHz, rounded to whole MHz.

    Return None if the host has no such counter, or does not let a process run code that the process
    generated.
    """
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return None
    code.write(_READ)
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return measure_khz(ctypes.CFUNCTYPE(ctypes.c_uint64)(address), time.monotonic_ns, clock)


def measure_khz(
    counter: Callable[[], int], nanoseconds: Callable[[], int], clock: Clock
) -> int | None:
    """Return the rate of `counter` in kHz, rounded to thousands, or None if `counter` does not change."""
    began, from_count = _look(counter, nanoseconds)
    clock.sleep(_INTERVAL_S)
    ended, to_count = _look(counter, nanoseconds)
    if ended <= began or to_count <= from_count:
        return None
    khz = (to_count - from_count) * 1e6 / (ended - began)
    return round(khz / _STEP_KHZ) * _STEP_KHZ or None


def _look(counter: Callable[[], int], nanoseconds: Callable[[], int]) -> tuple[float, int]:
    """Return a time in nanoseconds, and the value of `counter` at that time."""
    looks = []
    for _ in range(_LOOKS):
        before = nanoseconds()
        count = counter()
        after = nanoseconds()
        looks.append((after - before, (before + after) / 2, count))
    _, at, count = min(looks)
    return at, count


_PROOF_S = 2.0
#: The time limit in seconds if KVM is requested: on a host that is itself an emulated machine,
#: QEMU takes seconds to start.
_PROOF_ON_REQUEST_S = 20.0
#: `isa-debug-exit` turns the byte v written to its port into the exit code (v << 1) | 1.
_PROOF_BYTE = 0x2A
_PROOF_EXIT_CODE = (_PROOF_BYTE << 1) | 1
#: A shell's exit codes for a program that is missing or not executable, which say nothing about
#: KVM.
_NOT_STARTED = frozenset({126, 127})
_ROM_SIZE = 0x10000
_RESET_VECTOR = 0xFFF0

# The program that proves that KVM works; GNU's assembler made it once from the following source.
# The program is at F000:0000, where the ROM is mapped below 1 MiB:
#   real mode:      cli; lgdt gdtr; cr0.PE = 1; ljmp 0x08:protected
#   protected mode: PML4 at 0x1000 -> PDPT at 0x2000 -> one 2 MiB page at 0x3000, at address 0 and
#                   at 0xffffffff80000000, where kernels live;
#                   cr3 = 0x1000; cr4.PAE = 1; EFER.LME = 1; cr0.PG = 1; ljmp 0x18:long
#   long mode:      rsp = 0xffffffff80008000; jmp high
#   high half:      idt[3] at 0x4000 = handler; lidt; rax = 0x123456789abcdef0; int3;
#                   eax != 0x12345678 -> hlt for ever; out 0xf4, 0x2a; hlt
#   handler:        rol rax, 32; iretq
#   gdt:            null, 32-bit code, data, 64-bit code
# The breakpoint detects a KVM without a processor that can run guests (kvm_pvm, seen with QEMU 11).
# Such a KVM emulates the code before the breakpoint, and stops at the first exception.
_PROOF = bytes.fromhex(
    "fa2e660f011628010f20c06683c8010f22c066ea1a000f00080066b810008ed88ed0c7050010"
    "000003200000c705f81f000003200000c7050020000003300000c705f02f000003300000c705"
    "0030000083000000b8001000000f22d80f20e083c8200f22e0b9800000c00f320d000100000f"
    "300f20c00d000000800f22c0ea85000f00180048bc00800080ffffffff48bb00000f80ffffff"
    "ff488d83a2000000ffe0488d830001000048bf00400080ffffffff6689473066c74732180066"
    "c74734008e48c1e8106689473648c1e8108947384883ec1066c7442406ff0f48897c24080f01"
    "5c240648b8f0debc9a78563412cc3d785634127504b02ae6f4f4ebfd48c1c02048cf66900000"
    "000000000000ffff0000009bcf00ffff00000093cf00ffff0000009baf001f0008010f00"
)


@dataclass(frozen=True, kw_only=True)
class AcceleratorChoice:
    """The accelerator of a run's machines, and a sentence with the reason for the choice.

    `tsc_khz` is the frequency of the host's time stamp counter. An emulated guest gets that
    frequency.
    """

    accelerator: Accelerator
    reason: str
    tsc_khz: int | None = None


def proof_rom() -> bytes:
    """Return the proof as a 64 KiB firmware image, whose reset vector jumps to the proof's start."""
    rom = bytearray(_ROM_SIZE)
    rom[: len(_PROOF)] = _PROOF
    jump = (_ROM_SIZE - (_RESET_VECTOR + 3)) & 0xFFFF
    rom[_RESET_VECTOR : _RESET_VECTOR + 3] = b"\xe9" + jump.to_bytes(2, "little")
    return bytes(rom)


def run_proof(
    qemu: str, accelerator: Accelerator, runner: Runner, *, limit_s: float = _PROOF_S
) -> CommandResult:
    """Run the proof under `accelerator`, for `limit_s` at most."""
    with temporary_folder("harness-accelerator") as folder:
        rom = folder / "proof.rom"
        rom.write_bytes(proof_rom())
        return runner.run(
            [
                # Without this option, a guest that hangs would outlive a harness that is killed
                # during the proof.
                *("setpriv", "--pdeathsig", "KILL", "--"),
                qemu,
                *("-accel", accelerator.to_qemu()),
                *("-cpu", accelerator.cpu_model),
                *("-machine", "q35"),
                *("-m", "16M"),
                *("-display", "none"),
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                *("-bios", str(rom)),
                *("-device", "isa-debug-exit,iobase=0xf4,iosize=1"),
            ],
            timeout_s=limit_s,
        )


def is_proven(result: CommandResult) -> bool:
    """Return whether the proof ran to its end."""
    return result.exit_code == _PROOF_EXIT_CODE


def explain_proof(result: CommandResult) -> str:
    """Return a clause that says how the proof ended."""
    if is_proven(result):
        return "it ran a program in long mode correctly"
    words = result.stderr.strip().splitlines()
    if result.timed_out:
        said = f" ('{words[0]}')" if words else ""
        return f"a guest did not finish within {result.duration_s:.0f} s{said}"
    return (
        f"QEMU ended with exit code {result.exit_code} ('{words[0] if words else 'no message'}')"
    )


def choose_accelerator(
    option: AcceleratorOption,
    *,
    qemu: str,
    runner: Runner,
    cache: Path,
    device: Path = Path("/dev/kvm"),
    clock: Clock = SYSTEM_CLOCK,
) -> AcceleratorChoice:
    """Choose the accelerator that `option` selects.

    `cache` stores the result of the proof for this QEMU binary, until the host reboots. Raises RequirementError if `option` is `KVM` and KVM does not work.
    """
    if option is AcceleratorOption.TCG:
        return _tcg("TCG was requested.", clock)
    limit_s = _PROOF_S if option is AcceleratorOption.AUTO else _PROOF_ON_REQUEST_S
    problem = _kvm_problem(qemu, runner, cache, device, limit_s)
    if problem is None:
        return AcceleratorChoice(
            accelerator=Accelerator.KVM,
            reason="KVM, since it ran a program in long mode correctly.",
        )
    if option is AcceleratorOption.KVM:
        raise RequirementError(
            f"KVM was requested, but {problem}; solve this problem, or use `--accelerator=tcg`."
        )
    return _tcg(f"TCG, since {problem}; expect a tenth of the speed.", clock)


def _tcg(reason: str, clock: Clock) -> AcceleratorChoice:
    return AcceleratorChoice(
        accelerator=Accelerator.TCG, reason=reason, tsc_khz=time_stamp_counter_khz(clock)
    )


def _kvm_problem(
    qemu: str, runner: Runner, cache: Path, device: Path, limit_s: float
) -> str | None:
    """Return why KVM can't be used, or None."""
    if not device.exists():
        return f"there is no '{device}' (virtualisation is off, or this is a container)"
    if not os.access(device, os.R_OK | os.W_OK):
        return (
            f"'{device}' can't be opened by this user (`sudo usermod -aG kvm $USER`, log in again)"
        )
    key = f"{_verdict_key(qemu)} {limit_s:g} s"
    verdicts = cache / "accelerator.json"
    known = {each: str(verdict) for each, verdict in read_cached(verdicts).items()}
    if key not in known:
        result = run_proof(qemu, Accelerator.KVM, runner, limit_s=limit_s)
        known[key] = "" if is_proven(result) else explain_proof(result)
        if result.exit_code in _NOT_STARTED:
            return f"KVM could not be tested: {known[key]}"
        boot = key.partition(" ")[0]
        write_cached(
            verdicts, {each: known[each] for each in known if each.startswith(f"{boot} ")}
        )
    if not known[key]:
        return None
    return (
        f"'{device}' exists but does not work: {known[key]} (to test KVM again before the next boot, "
        f"remove '{verdicts}')"
    )


def _verdict_key(qemu: str) -> str:
    """Return the key of a verdict: this boot of the host, this proof and this QEMU."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    proof = hashlib.sha256(_PROOF).hexdigest()[:8]
    binary = shutil.which(qemu)
    if binary is None:
        return f"{boot} {proof} {qemu}"
    stat = Path(binary).stat()
    return f"{boot} {proof} {binary} {stat.st_size} {stat.st_mtime_ns}"


_CPU_INFO = Path("/proc/cpuinfo")
_PHYSICAL_BITS = re.compile(r"^address sizes\s*:\s*(\d+) bits physical", re.MULTILINE)
#: Address bits of QEMU's emulated processors (`phys-bits`), also assumed for a host that does not
#: report its address bits.
_USUAL_BITS = 40
#: 2 TiB: enough for eight GPUs with BARs of 128 GiB, each in a window of 256 GiB.
_MOST_MIB = 2 << 20


def apertures_mib(accelerator: Accelerator, cpu_info: Path = _CPU_INFO) -> int:
    """Return the MiB of address space that all root ports of a machine may reserve together.

    The result is a quarter of the address space of the guest's processor, which is the host's
    processor under KVM. SeaBIOS places the windows of all root ports, with everything else on the
    bus, in less than half of that space. A port whose window does not fit gets no window. These
    facts were measured with QEMU 11.1, 40 bits and eight windows of 64 GiB.
    """
    bits = _USUAL_BITS
    if accelerator is Accelerator.KVM and (found := _PHYSICAL_BITS.search(cpu_info.read_text())):
        bits = int(found[1])
    return min(1 << bits - 2 - 20, _MOST_MIB)
