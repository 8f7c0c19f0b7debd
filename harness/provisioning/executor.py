"""Runs the steps of a plan on a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exit_codes import ProvisioningError
from .node_files import UnreadableFileError, UnsafePathError
from .outcome import StepReport, StepStatus
from .plan import Do, MakeDirectory, Remove, Run, When, Write
from .retry import StepFailedError, try_command

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from .node_context import NodeContext
    from .plan import Action, Plan, Step


@dataclass(frozen=True, kw_only=True)
class _OpenGroup:
    event: str
    started: dt.datetime


@dataclass(frozen=True, kw_only=True)
class _ActionResult:
    """The result of actions; `has_run` is False if the condition of the actions was not met."""

    detail: str | None = None
    has_run: bool = True

    @classmethod
    def of_all(cls, parts: Iterable[_ActionResult]) -> _ActionResult:
        gathered = tuple(parts)
        details = " ".join(part.detail for part in gathered if part.detail)
        return cls(detail=details or None, has_run=any(part.has_run for part in gathered))


class Executor:
    """Runs steps in order and reports them, until a step fails whose failure is not ignored."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._groups: list[_OpenGroup] = []
        self._failed: set[str] = set()
        self.reports: list[StepReport] = []

    def run(self, plan: Plan) -> None:
        """Run all steps of `plan`; report each step, even if it is skipped after a failure.

        Raises ProvisioningError with the exit code of the failed step.
        """
        failure: ProvisioningError | None = None
        try:
            for step in plan.steps:
                if failure is not None:
                    self._skip(step, "An earlier step failed.")
                    continue
                try:
                    self._run_step(step)
                except ProvisioningError as error:
                    failure = error
        finally:
            self._enter(())
        if failure is not None:
            raise failure

    def _run_step(self, step: Step) -> None:
        fallback_of = step.only_after_failure_of
        if fallback_of is not None and fallback_of not in self._failed:
            self._skip(step, f"Only needed after failure of '{fallback_of}'.")
            return
        self._enter(step.groups)
        clock = self._node.clock
        started, began = clock.now(), clock.monotonic()
        error: StepFailedError | None = None
        done = _ActionResult()
        try:
            done = _ActionResult.of_all([self._run_action(action) for action in step.actions])
        except (StepFailedError, ProvisioningError) as failed:
            error = StepFailedError(str(failed), failed.exit_code)
        except (OSError, UnreadableFileError, UnsafePathError) as failed:
            error = StepFailedError(str(failed))
        if error is None and not done.has_run:
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
            # If a step's failure is ignored, even an error with its own exit code is ignored.
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
        """Close open event groups that are not in `groups`, innermost first, and open the new ones."""
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

    def _run_action(self, action: Action) -> _ActionResult:
        files = self._node.files
        if isinstance(action, Run):
            return _ActionResult(detail=try_command(self._node, action))
        if isinstance(action, When):
            return self._run_when(action)
        if isinstance(action, Do):
            return _ActionResult(detail=action.function(self._node))
        if isinstance(action, Write):
            files.write(action.path, action.text, mode=action.mode)
        elif isinstance(action, MakeDirectory):
            files.make_directory(action.path)
        elif isinstance(action, Remove):
            files.remove(action.path)
        return _ActionResult()

    def _run_when(self, action: When) -> _ActionResult:
        limit = self._node.limit_s(action.timeout_s)
        result = self._node.runner.run(action.query, timeout_s=limit)
        if not action.is_met(result):
            return _ActionResult(detail=action.otherwise, has_run=False)
        return _ActionResult.of_all([self._run_action(inner) for inner in action.then])
