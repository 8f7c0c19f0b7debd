"""Runs one command of a plan, again and again where it may, within the node's time budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .command import CommandResult
    from .exit_codes import ExitCode
    from .node import Node
    from .plan import Run

TIDY_TIMEOUT_S = 20.0


class StepFailedError(Exception):
    """A piece of work could not be done; has an exit code only where its cause has its own."""

    def __init__(self, message: str, exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def try_command(node: Node, run: Run) -> str | None:
    """Run a command until it succeeds; return a detail worth reporting.

    Raises StepFailedError when the tries or the node's time budget are used up, or when the
    command's judge sees that no further try can help. An optional command's failure is only
    logged.
    """
    try:
        return _try(node, run)
    except StepFailedError as error:
        if not run.is_optional:
            raise
        if run.warning is not None:
            node.journal.line(run.warning)
        return run.warning or f"Ignored: {error}"


def _try(node: Node, run: Run) -> str | None:
    seen = "It was never started."
    for attempt in range(1, run.retry.attempts + 1):
        if node.retries.has_passed():
            raise StepFailedError(f"The node's time budget is spent. {seen}")
        result = _once(node, run)
        verdict = None if run.judge is None else run.judge(node, result)
        if result.ok and verdict is None:
            return None if attempt == 1 else f"Needed {attempt} tries."
        _tidy(node, run)
        seen = result.render()
        if verdict is not None:
            raise StepFailedError(f"{verdict.message}\n{seen}", verdict.exit_code)
        if attempt < run.retry.attempts:
            node.clock.sleep(node.retries.cap(run.retry.pause_s))
    raise StepFailedError(seen)


def _once(node: Node, run: Run) -> CommandResult:
    env = dict(run.env) or None
    limit = node.retries.cap(run.retry.timeout_s)
    result = node.runner.run(run.argv, timeout_s=limit, env=env)
    if result.exit_code == 127 and run.elsewhere is not None:
        result = node.runner.run((run.elsewhere, *run.argv[1:]), timeout_s=limit, env=env)
    return result


def _tidy(node: Node, run: Run) -> None:
    """Undo what a failed try left, also when the budget is spent: nothing may leak."""
    for argv in run.tidy:
        node.runner.run(argv, timeout_s=TIDY_TIMEOUT_S)
