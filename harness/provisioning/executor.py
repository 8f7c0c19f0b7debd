"""Takes the steps of a plan on a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exit_codes import ProvisioningError
from .outcome import StepReport, StepStatus
from .plan import Do, MakeDirectory, Remove, Run, When, Write
from .root import UnreadableFileError, UnsafePathError
from .tries import StepFailedError, try_command

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from .node import Node
    from .plan import Action, Plan, Step


@dataclass(frozen=True, kw_only=True)
class _OpenGroup:
    event: str
    started: dt.datetime


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What actions came to; `is_acted` is False where their condition was not met."""

    detail: str | None = None
    is_acted: bool = True

    @classmethod
    def of_all(cls, parts: Iterable[_Done]) -> _Done:
        gathered = tuple(parts)
        details = " ".join(part.detail for part in gathered if part.detail)
        return cls(detail=details or None, is_acted=any(part.is_acted for part in gathered))


class Executor:
    """Takes steps in order, reports each, and stops at the first failure that is not ignored."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._groups: list[_OpenGroup] = []
        self._failed: set[str] = set()
        self.reports: list[StepReport] = []

    def carry_out(self, plan: Plan) -> None:
        """Take all steps of `plan`; `reports` grows by one for each, those after a failure too.

        Raises ProvisioningError with the exit code of the step that failed.
        """
        failure: ProvisioningError | None = None
        try:
            for step in plan.steps:
                if failure is not None:
                    self._skip(step, "An earlier step failed.")
                    continue
                try:
                    self._take(step)
                except ProvisioningError as error:
                    failure = error
        finally:
            self._enter(())
        if failure is not None:
            raise failure

    def _take(self, step: Step) -> None:
        fallback_of = step.only_after_failure_of
        if fallback_of is not None and fallback_of not in self._failed:
            self._skip(step, f"Only needed after failure of '{fallback_of}'.")
            return
        self._enter(step.groups)
        clock = self._node.clock
        started, began = clock.now(), clock.monotonic()
        error: StepFailedError | None = None
        done = _Done()
        try:
            done = _Done.of_all([self._act(action) for action in step.actions])
        except (StepFailedError, ProvisioningError) as failed:
            error = StepFailedError(str(failed), failed.exit_code)
        except (OSError, UnreadableFileError, UnsafePathError) as failed:
            error = StepFailedError(str(failed))
        if error is None and not done.is_acted:
            self._skip(step, done.detail or "There was nothing to do.")
            return
        if step.event is not None:
            self._node.journal.event(step.event, step.command, started)
        self._report(
            StepReport(
                name=step.name,
                status=StepStatus.DONE if error is None else StepStatus.FAILED,
                started=started,
                duration_s=clock.monotonic() - began,
                detail=done.detail if error is None else str(error),
            )
        )
        if error is not None:
            self._failed.add(step.name)
            # A step whose failure is ignored ignores also a cause with a number of its own.
            if step.exit_code is not None:
                code = step.exit_code if error.exit_code is None else error.exit_code
                raise ProvisioningError(code, f"Step '{step.name}' failed. {error}") from error

    def _skip(self, step: Step, why: str) -> None:
        self._report(
            StepReport(
                name=step.name,
                status=StepStatus.SKIPPED,
                started=self._node.clock.now(),
                duration_s=0.0,
                detail=why,
            )
        )

    def _report(self, report: StepReport) -> None:
        self.reports.append(report)
        stamp = report.started.isoformat(timespec="milliseconds")
        detail = "" if report.detail is None else f": {report.detail}"
        self._node.journal.line(
            f"{stamp} step {report.name} {report.status.value}"
            f" after {report.duration_s:.1f} s{detail}"
        )

    def _enter(self, groups: tuple[str, ...]) -> None:
        """Close the event groups that end here, innermost first, and open those that begin."""
        kept = 0
        while kept < min(len(groups), len(self._groups)) and (
            self._groups[kept].event == groups[kept]
        ):
            kept += 1
        while len(self._groups) > kept:
            group = self._groups.pop()
            command = group.event.rpartition(".")[2]
            self._node.journal.event(group.event, command, group.started)
        started = self._node.clock.now()
        for event in groups[kept:]:
            self._groups.append(_OpenGroup(event=event, started=started))

    def _act(self, action: Action) -> _Done:
        root = self._node.root
        if isinstance(action, Run):
            return _Done(detail=try_command(self._node, action))
        if isinstance(action, When):
            return self._act_when(action)
        if isinstance(action, Do):
            return _Done(detail=action.function(self._node))
        if isinstance(action, Write):
            root.write(action.path, action.text, mode=action.mode)
        elif isinstance(action, MakeDirectory):
            root.make_directory(action.path)
        elif isinstance(action, Remove):
            root.remove(action.path)
        return _Done()

    def _act_when(self, action: When) -> _Done:
        limit = self._node.retries.cap(action.timeout_s)
        result = self._node.runner.run(action.query, timeout_s=limit)
        if not action.is_met(result):
            return _Done(detail=action.otherwise, is_acted=False)
        return _Done.of_all([self._act(inner) for inner in action.then])
