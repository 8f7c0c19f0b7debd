"""A machine with a scripted monitor, for tests of the behaviour that all VM drivers share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from harness.errors import HarnessError
from harness.machine.monitored_machine import MonitoredMachine
from harness.provisioning.wait import Deadline
from suites.unit.machine.description.builders import a_machine_spec
from suites.unit.machine.fake_monitor import FakeMonitor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from harness.gpu import Attachment
    from harness.machine.channels.console import Console
    from harness.machine.description.spec import MachineSpec


class FakeMachine(MonitoredMachine):
    """A machine whose monitor is scripted. `steps` records what the base class asks of it.

    `deadlines` has the deadline of each wait for the exit of QEMU.
    """

    def __init__(
        self,
        spec: MachineSpec,
        folder: Path,
        monitor: FakeMonitor,
        at_start: Sequence[Attachment] = (),
    ) -> None:
        super().__init__(spec, folder, at_start)
        self._fake = monitor
        self.steps: list[str] = []
        self.deadlines: list[Deadline] = []
        self.ending: str | None = None
        self.start_error: BaseException = HarnessError("QEMU does not start.")
        self.exit_error: HarnessError | None = None
        self.seed_error: HarnessError | None = None
        self.console = cast("Console", SimpleNamespace(tail=lambda: "Reached target Power-Off."))

    @property
    @override
    def monitor(self) -> FakeMonitor:
        return self._fake

    @override
    def _start(self) -> None:
        raise self.start_error

    @override
    def close(self) -> None:
        self.steps.append("close")

    @override
    def _pause(self) -> None:
        self.steps.append("pause")

    @override
    def _resume(self) -> None:
        self.steps.append("resume")

    @override
    def _end_saved(self) -> None:
        self.steps.append("end")

    @override
    def _wait_for_exit(self, deadline: Deadline) -> str | None:
        self.steps.append("wait for exit")
        self.deadlines.append(deadline)
        if self.exit_error is not None:
            raise self.exit_error
        return self.ending

    @override
    def _last_output(self) -> str:
        return "QEMU's stderr ends with: load of migration failed"

    @override
    def _processor_s(self) -> float:
        return 0.0

    @override
    def _attach_seed(self, seed: Path) -> None:
        self.steps.append(f"attach {seed.name}")
        if self.seed_error is not None:
            raise self.seed_error

    @override
    def _detach_seed(self, deadline: Deadline) -> None:
        self.steps.append("detach seed")
        if self.seed_error is not None:
            raise self.seed_error

    @staticmethod
    @override
    def _qemu_id(name: str) -> str:
        return f"ua-{name}"


def a_machine(folder: Path, monitor: FakeMonitor | None = None) -> FakeMachine:
    return FakeMachine(a_machine_spec(root_ports=2), folder, monitor or FakeMonitor())


def soon() -> Deadline:
    return Deadline.after(1.0)
