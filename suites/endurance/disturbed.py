"""Disturbs an operation, then checks what is left and whether the next run passes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from harness.errors import HarnessError
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import (
    SYSTEM_CLOCK,
    Deadline,
    Observation,
    WaitTimeoutError,
    wait_for,
)
from suites.endurance.operations import operations
from suites.endurance.surroundings import Inventory, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from harness.provisioning.command import ChildProcess
    from suites.endurance.campaign import Attempt, Case
    from suites.endurance.operations import Operation

#: Seconds in which all processes of an ended run must end, even on a busy host.
_GRACE_S = 60.0
#: The time limit of a disturbed operation: its undisturbed time multiplied by this factor, and at least
#: this number of seconds.
_PATIENCE = 10.0
_LEAST_S = 180.0
_REPOSITORY = Path(__file__).parents[2]
_OUTPUT_CHARACTERS = 4000
_TRACEBACK = re.compile(r"^Traceback \(most recent", re.MULTILINE)
#: A line in a traceback that shows a frame of the harness. Tracebacks with only frames of pytest
#: and its plug-ins have no such line.
_OUR_FRAME = re.compile(
    rf'^  File "{re.escape(str(_REPOSITORY))}/(?:harness|suites)/', re.MULTILINE
)
#: The error with which Python itself can't load its modules, before any code of the harness runs.
_UNLOADED = re.compile(
    r"^ImportError: .*: failed to map segment from shared object$", re.MULTILINE
)


@dataclass(frozen=True)
class Running:
    """A running operation; `process` is its first process, and `others` are processes that ran before."""

    process: ChildProcess
    others: frozenset[int]

    def pids(self) -> list[int]:
        """Return the processes of the operation, the oldest first."""
        return sorted(set(processes()) - self.others)


@dataclass(frozen=True, kw_only=True)
class Run:
    """How an operation ended; `exit_code` is None if the operation did not end."""

    exit_code: int | None
    output: str
    seconds: float

    @property
    def shown(self) -> str:
        # A summary names files by their paths in the repository, not by their paths on this host.
        return self.output.replace(f"{_REPOSITORY}/", "")[-_OUTPUT_CHARACTERS:]


#: Disturbs a running operation, and returns a function that ends the disturbance.
Disturbance: TypeAlias = "Callable[[Running], Callable[[], None]]"
#: A disturbance whose strength is given as an amount from 0 to 1.
Disturbing: TypeAlias = "Callable[[Running, float], Callable[[], None]]"


@dataclass
class Disturber:
    """Disturbs operations, and compares what they leave with what undisturbed runs leave."""

    operations: Mapping[str, Operation]
    watched: Collection[Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    _usual_s: dict[str, float] = field(default_factory=dict)
    _sound: Inventory = field(init=False)
    _others: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self._others = frozenset(processes())
        self._sound = Inventory.take(*self.watched)

    def _usual(self, name: str) -> float:
        """Return how long an operation takes without a disturbance; the first call runs the operation."""
        if name not in self._usual_s:
            operation = self.operations[name]
            run = self.run(operation)
            if run.exit_code != 0 or operation.wrong() is not None:
                raise HarnessError(
                    f"The operation '{name}' fails without a disturbance, after "
                    f"{run.seconds:.0f} s with {run.exit_code}: {run.output}"
                )
            self._wait_for_processes()
            self._sound = self._sound.merged(Inventory.take(*self.watched))
            self._usual_s[name] = run.seconds
        return self._usual_s[name]

    def run(
        self,
        operation: Operation,
        *,
        is_prepared: bool = True,
        after_s: float = 0.0,
        disturb: Disturbance | None = None,
        most_s: float = 600.0,
    ) -> Run:
        """Run an operation, and disturb it after a time."""
        if is_prepared:
            operation.prepare()
        deadline = Deadline.after(most_s)
        began = SYSTEM_CLOCK.monotonic()
        # The output is in memory, since the disk may be full.
        with open(os.memfd_create("output"), "w+b") as output:  # noqa: PTH123
            process = spawn(
                list(operation.argv),
                stdout=output,
                stderr=output,
                cwd=operation.cwd,
                env={"PYTHONPATH": str(_REPOSITORY), **self.environment},
            )
            undo: Callable[[], None] = lambda: None  # noqa: E731
            try:
                if disturb is not None:
                    SYSTEM_CLOCK.sleep(after_s)
                    undo = disturb(Running(process, self._others))
                exit_code: int | None = None

                def poll() -> Observation[int]:
                    return Observation(process.poll(), "it runs")

                with contextlib.suppress(WaitTimeoutError):
                    exit_code = wait_for("the operation", poll, deadline, interval_s=0.02)
            finally:
                undo()
                if process.poll() is None:
                    end(process)
            seconds = SYSTEM_CLOCK.monotonic() - began
            output.seek(0)
            said = output.read().decode(errors="replace")
        return Run(exit_code=exit_code, output=said, seconds=seconds)

    def disturbed(
        self, name: str, moment: float, disturb: Disturbance, *, must_pass: bool = False
    ) -> list[str]:
        """Disturb an operation, and return a sentence on each promise that was broken."""
        operation, usual_s = self.operations[name], self._usual(name)
        most_s = max(_LEAST_S, usual_s * _PATIENCE)
        run = self.run(operation, after_s=moment * usual_s, disturb=disturb, most_s=most_s)
        broken = [f"{name}: {each}" for each in self._judge(operation, run, must_pass=must_pass)]
        left = self._wait_for_processes()
        if left:
            broken.append(f"{name}: processes are left: {left}")
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # The next run starts with what the disturbed run left.
        following = self.run(operation, is_prepared=False, most_s=most_s)
        if following.exit_code != 0:
            broken.append(
                f"{name}: the next run ends with {following.exit_code}: {following.shown}"
            )
        elif (wrong := operation.wrong()) is not None:
            broken.append(f"{name}: after the next run {wrong}")
        self._wait_for_processes()
        operation.collect()
        now = Inventory.take(*self.watched)
        if things := now.beyond(self._sound):
            broken.append(f"{name}: the next run leaves {things}")
            # Report each leftover only once.
            self._sound = self._sound.merged(now)
        return broken

    def _judge(self, operation: Operation, run: Run, *, must_pass: bool) -> list[str]:
        if run.exit_code is None:
            return [f"it does not end within {run.seconds:.0f} s: {run.shown}"]
        if run.exit_code == 0:
            wrong = operation.wrong()
            return [] if wrong is None else [wrong]
        if must_pass:
            return [f"it ends with {run.exit_code}: {run.shown}"]
        is_ours = _TRACEBACK.search(run.output) and _OUR_FRAME.search(run.output)
        if run.exit_code > 0 and is_ours and not _UNLOADED.search(run.output):
            return [f"it ends with {run.exit_code} and a traceback: {run.shown}"]
        if run.exit_code > 0 and not run.output.strip():
            return [f"it ends with {run.exit_code} and prints nothing"]
        return []

    def _wait_for_processes(self) -> dict[int, str]:
        """Return the processes that are left after the grace period."""

        def left() -> dict[int, str]:
            return {pid: line for pid, line in processes().items() if pid not in self._others}

        def poll() -> Observation[bool]:
            return Observation(None if left() else True, "some run")

        with contextlib.suppress(WaitTimeoutError):
            wait_for("the end of all processes", poll, Deadline.after(_GRACE_S))
        return {pid: shlex.quote(line)[:200] for pid, line in left().items()}


@contextlib.contextmanager
def disturbed_operations(
    folder: Path,
    ways: Callable[[Operation], Mapping[str, Disturbing]],
    *,
    must_pass: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Mapping[str, Case]]:
    """Yield a case for each operation and each of the `ways` to disturb it."""
    with operations(folder) as found:
        disturber = Disturber(found, watched=[folder.parent], environment=environment or {})

        def case(name: str, disturb: Disturbing) -> Case:
            def tried(attempt: Attempt) -> list[str]:
                return disturber.disturbed(
                    name,
                    attempt.moment,
                    lambda running: disturb(running, attempt.amount),
                    must_pass=must_pass,
                )

            return tried

        yield {
            f"{name}, {way}": case(name, disturb)
            for name, operation in found.items()
            for way, disturb in ways(operation).items()
        }
