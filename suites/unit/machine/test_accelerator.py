"""KVM is used only after it has run a proof program."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import RequirementError
from harness.machine import accelerator
from harness.machine import accelerator as accelerator_module
from harness.machine.accelerator import (
    AcceleratorChoice,
    apertures_mib,
    choose_accelerator,
    measure_khz,
    proof_rom,
    run_proof,
)
from harness.machine.description.spec import Accelerator
from harness.provisioning.command import CommandResult
from harness.settings import AcceleratorOption
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROVED = CommandResult(argv=(), exit_code=0x55, stdout="", stderr="")
HANGS = CommandResult(argv=(), exit_code=124, stdout="", stderr="", timed_out=True, duration_s=2.0)
STOPS = CommandResult(
    argv=(),
    exit_code=124,
    stdout="",
    stderr="KVM internal error. Suberror: 1\nemulation failure\n",
    timed_out=True,
    duration_s=2.0,
)
ABORTS = CommandResult(
    argv=(),
    exit_code=-6,
    stdout="",
    stderr="error: failed to set MSR 0x10a to 0x0\nqemu: kvm_buf_set_msrs: Assertion failed\n",
)
REFUSES = CommandResult(
    argv=(), exit_code=1, stdout="", stderr="Could not access KVM kernel module: EBUSY\n"
)
#: The exit code of a QEMU whose guest shuts down. The proof program never shuts down.
SHUTS_DOWN = CommandResult(argv=(), exit_code=0, stdout="", stderr="")


@dataclass
class ProofRunner:
    """A Runner that returns the same result for every proof, and records calls and firmware."""

    answer: CommandResult
    calls: list[Sequence[str]] = field(default_factory=list)
    limits_s: list[float] = field(default_factory=list)
    roms: list[bytes] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del stdin, env
        self.calls.append(argv)
        self.limits_s.append(timeout_s)
        self.roms.append(Path(argv[argv.index("-bios") + 1]).read_bytes())
        return self.answer


TSC_KHZ = 2_596_000


@pytest.fixture
def device(tmp_path: Path) -> Path:
    node = tmp_path / "kvm"
    node.touch()
    return node


@pytest.fixture(autouse=True)
def _frequency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator_module, "time_stamp_counter_khz", lambda _clock: TSC_KHZ)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def choose(
    qemu: ProofRunner,
    cache: Path,
    device: Path,
    *,
    option: AcceleratorOption = AcceleratorOption.AUTO,
    program: str = "qemu-x",
) -> AcceleratorChoice:
    return choose_accelerator(option, qemu=program, runner=qemu, cache=cache, device=device)


def test_kvm_is_chosen_if_the_proof_program_succeeds_under_kvm(cache: Path, device: Path) -> None:
    choice = choose(ProofRunner(PROVED), cache, device)

    assert choice == AcceleratorChoice(
        accelerator=Accelerator.KVM,
        reason="KVM, since it ran a program in long mode correctly.",
    )


def test_tcg_is_chosen_for_a_broken_kvm_and_the_reason_is_reported(
    tmp_path: Path, device: Path
) -> None:
    answers = {
        "a guest did not finish within 2 s": HANGS,
        "a guest did not finish within 2 s ('KVM internal error. Suberror: 1')": STOPS,
        "QEMU ended with exit code -6 ('error: failed to set MSR 0x10a to 0x0')": ABORTS,
        "QEMU ended with exit code 1 ('Could not access KVM kernel module: EBUSY')": REFUSES,
        "QEMU ended with exit code 0 ('no message')": SHUTS_DOWN,
    }
    for number, (words, answer) in enumerate(answers.items()):
        cache = tmp_path / str(number)

        choice = choose(ProofRunner(answer), cache, device)

        assert choice == AcceleratorChoice(
            accelerator=Accelerator.TCG,
            tsc_khz=TSC_KHZ,
            reason=(
                f"TCG, since '{device}' exists but does not work: {words} (to test KVM again before the "
                f"next boot, remove '{cache}/accelerator.json'); expect a tenth of the speed."
            ),
        )


def test_explicit_request_for_a_broken_kvm_is_refused(cache: Path, device: Path) -> None:
    for answer in (HANGS, REFUSES):
        with pytest.raises(RequirementError, match=r"KVM was requested, but .*--accelerator=tcg"):
            choose(ProofRunner(answer), cache, device, option=AcceleratorOption.KVM)


def test_explicitly_requested_kvm_is_tested_again_with_a_longer_time_limit(
    cache: Path, device: Path
) -> None:
    """The cached verdict is not used: QEMU may only have been slow on an emulated host."""
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device)
    qemu.answer = PROVED

    choice = choose(qemu, cache, device, option=AcceleratorOption.KVM)

    assert choice.accelerator is Accelerator.KVM
    assert qemu.limits_s == [2.0, 20.0]


def test_kvm_is_not_tested_on_a_host_without_dev_kvm(cache: Path, tmp_path: Path) -> None:
    qemu = ProofRunner(PROVED)

    choice = choose(qemu, cache, tmp_path / "absent")

    assert choice.accelerator is Accelerator.TCG
    assert choice.reason == (
        f"TCG, since there is no '{tmp_path}/absent' (virtualisation is off, or this is a "
        "container); expect a tenth of the speed."
    )
    with pytest.raises(RequirementError, match=rf"no '{tmp_path}/absent'.*`--accelerator=tcg`"):
        choose(qemu, cache, tmp_path / "absent", option=AcceleratorOption.KVM)
    assert qemu.calls == []


def test_tcg_is_chosen_with_a_remedy_if_dev_kvm_cannot_be_opened(
    cache: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.W_OK)

    assert choose(ProofRunner(PROVED), cache, device).reason == (
        f"TCG, since '{device}' can't be opened by this user (`sudo usermod -aG kvm $USER`, log in "
        "again); expect a tenth of the speed."
    )


def test_requested_tcg_is_chosen_without_a_test_of_kvm(cache: Path, device: Path) -> None:
    qemu = ProofRunner(PROVED)

    choice = choose(qemu, cache, device, option=AcceleratorOption.TCG)

    assert choice == AcceleratorChoice(
        accelerator=Accelerator.TCG, reason="TCG was requested.", tsc_khz=TSC_KHZ
    )
    assert qemu.calls == []


def test_result_of_the_kvm_test_is_cached(tmp_path: Path, device: Path) -> None:
    for answer in (PROVED, HANGS):
        qemu, cache = ProofRunner(answer), tmp_path / str(answer.exit_code)

        first, second = choose(qemu, cache, device), choose(qemu, cache, device)

        assert first == second
        assert len(qemu.calls) == 1


def test_result_of_the_kvm_test_is_cached_for_each_qemu_program(cache: Path, device: Path) -> None:
    qemu = ProofRunner(PROVED)

    for program in ("qemu-x", "qemu-y", "qemu-x", "qemu-y"):
        choose(qemu, cache, device, program=program)

    assert [argv[4] for argv in qemu.calls] == ["qemu-x", "qemu-y"]


def test_cached_kvm_result_of_an_earlier_boot_is_ignored_and_removed(
    cache: Path, device: Path
) -> None:
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device)
    (kept,) = json.loads((cache / "accelerator.json").read_text())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    earlier = kept.replace(boot, "an-earlier-boot")
    (cache / "accelerator.json").write_text(json.dumps({earlier: "did nothing"}))
    qemu.answer = PROVED

    choice = choose(qemu, cache, device)

    assert choice.accelerator is Accelerator.KVM
    assert list(json.loads((cache / "accelerator.json").read_text())) == [kept]


def test_cached_kvm_result_of_another_proof_program_is_ignored(
    cache: Path, device: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(ProofRunner(HANGS), cache, device)

    monkeypatch.setattr(accelerator, "_PROOF", b"\xf4")

    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM


def test_kvm_is_tested_again_after_qemu_was_replaced(
    cache: Path, device: Path, tmp_path: Path
) -> None:
    program = tmp_path / "qemu"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    qemu = ProofRunner(HANGS)
    choose(qemu, cache, device, program=str(program))

    os.utime(program, (1, 1))
    choose(qemu, cache, device, program=str(program))
    assert len(qemu.calls) == 2

    program.write_text("#!/bin/sh\n# upgraded\n")
    os.utime(program, (1, 1))
    choose(qemu, cache, device, program=str(program))
    assert len(qemu.calls) == 3


def test_kvm_result_is_not_cached_if_qemu_did_not_start(cache: Path, device: Path) -> None:
    for exit_code in (126, 127):
        missing = CommandResult(argv=(), exit_code=exit_code, stdout="", stderr="No such file")
        assert choose(ProofRunner(missing), cache, device).accelerator is Accelerator.TCG

    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM


def test_damaged_or_unwritable_cache_file_is_ignored(cache: Path, device: Path) -> None:
    cache.mkdir()
    kept = cache / "accelerator.json"
    for content in ("{half", "[]"):
        kept.write_text(content)

        assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM

    kept.unlink()
    kept.mkdir()
    assert choose(ProofRunner(PROVED), cache, device).accelerator is Accelerator.KVM
    assert [path.name for path in cache.iterdir()] == ["accelerator.json"]


def test_proof_program_runs_as_the_bios_of_a_small_machine_that_dies_with_the_harness() -> None:
    """A hanging guest would outlive a harness that is killed during the proof."""
    for under, accel, cpu in (
        (Accelerator.KVM, "kvm", "host"),
        (Accelerator.TCG, "tcg,thread=single", Accelerator.TCG.cpu_model),
    ):
        qemu = ProofRunner(PROVED)

        run_proof("qemu-x", under, qemu)

        (argv,) = qemu.calls
        rom = argv[argv.index("-bios") + 1]
        assert list(argv) == [
            *("setpriv", "--pdeathsig", "KILL", "--"),
            "qemu-x",
            *("-accel", accel),
            *("-cpu", cpu),
            *("-machine", "q35"),
            *("-m", "16M"),
            *("-display", "none"),
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            *("-bios", rom),
            *("-device", "isa-debug-exit,iobase=0xf4,iosize=1"),
        ]
        assert qemu.roms == [proof_rom()]
        assert not Path(rom).exists()


def test_proof_rom_jumps_from_the_reset_vector_to_its_first_byte() -> None:
    rom = proof_rom()

    displacement = int.from_bytes(rom[0xFFF1:0xFFF3], "little")
    assert (len(rom), rom[0xFFF0]) == (0x10000, 0xE9)
    assert (0xFFF3 + displacement) & 0xFFFF == 0
    assert rom[0] == 0xFA  # cli


def test_apertures_under_kvm_depend_on_the_physical_address_bits_of_the_host(
    tmp_path: Path,
) -> None:
    """The emulated processor is the same on every host."""
    gib = {
        "address sizes\t: 39 bits physical, 48 bits virtual": 128,
        "address sizes\t: 42 bits physical, 48 bits virtual": 1024,
        "address sizes\t: 46 bits physical, 48 bits virtual": 2048,
        "model name\t: says nothing": 256,
    }
    cpu_info = tmp_path / "cpuinfo"
    found = {}
    for line in gib:
        cpu_info.write_text(f"processor\t: 0\n{line}\npower management:\n")
        found[line] = apertures_mib(Accelerator.KVM, cpu_info) >> 10

    assert found == gib
    assert apertures_mib(Accelerator.TCG, tmp_path / "missing") == 256 << 10


class Host:
    """A host whose clock and counter advance at each reading, and during a sleep."""

    def __init__(self, *, mhz: float, interrupted_ns: int = 0) -> None:
        self.clock = FakeClock()
        self._mhz = mhz
        self._interrupted_ns = interrupted_ns
        self._now_ns = 0
        self._looks = itertools.count()

    def _advance(self) -> int:
        self.ns = self._now_ns + round(self.clock.elapsed_s * 1e9)
        # Most readings are interrupted, either before or after the counter is read.
        self._now_ns += 40 if next(self._looks) % 7 else 40 + self._interrupted_ns
        return self.ns

    def nanoseconds(self) -> int:
        return self._advance()

    def counter(self) -> int:
        return round(self._advance() * self._mhz / 1000)


def test_measured_frequency_is_rounded_to_whole_mhz() -> None:
    for interrupted_ns in (0, 90_000):
        found = {}
        for mhz in (2596.15, 3000.0, 999.6):
            host = Host(mhz=mhz, interrupted_ns=interrupted_ns)
            found[mhz] = measure_khz(host.counter, host.nanoseconds, host.clock)

        assert found == {2596.15: 2_596_000, 3000.0: 3_000_000, 999.6: 1_000_000}


def test_frequency_is_unknown_if_the_counter_or_the_clock_has_stopped() -> None:
    host = Host(mhz=2000)

    assert measure_khz(lambda: 7, host.nanoseconds, host.clock) is None
    assert measure_khz(host.counter, lambda: 0, host.clock) is None
