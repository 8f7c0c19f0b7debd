"""Which processes the tests of leaks regard as machines."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.gpu.transport import find_transport
from harness.machine.accelerator import run_proof
from harness.machine.description.argv import render_argv
from harness.machine.description.spec import Accelerator
from harness.provisioning.command import CommandResult
from suites.e2e.inner import is_machine
from suites.unit.machine.description.builders import CHANNELS, LOG, a_machine_spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QEMU = "/usr/bin/qemu-system-x86_64"


@dataclass(frozen=True)
class RecordingRunner:
    """A runner that runs nothing and records the commands."""

    argvs: list[list[str]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        del timeout_s, stdin, env
        self.argvs.append(list(argv[argv.index(QEMU) :]))
        return CommandResult(argv=tuple(argv), exit_code=0, stdout="", stderr="")


def test_qemu_command_of_a_booted_or_restored_machine_is_recognised() -> None:
    for spec in (a_machine_spec(), a_machine_spec(is_restored=True)):
        argv = render_argv(spec, CHANNELS, serial_log=LOG)

        assert is_machine([QEMU, *argv[1:]])


def test_process_that_will_start_qemu_is_not_taken_for_a_machine() -> None:
    argv = render_argv(a_machine_spec(), CHANNELS, serial_log=LOG)

    assert not is_machine(["setpriv", "--pdeathsig", "KILL", "--", QEMU, *argv[1:]])


def test_qemu_that_only_answers_a_query_is_not_taken_for_a_machine() -> None:
    runner = RecordingRunner()
    with contextlib.suppress(HarnessError):
        find_transport(QEMU, "tcg", runner)
    run_proof(QEMU, Accelerator.KVM, runner)

    assert len(runner.argvs) == 3
    assert not any(map(is_machine, runner.argvs))
