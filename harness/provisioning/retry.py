"""Runs one command of a plan, with retries, within the time budget of the node."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .command import CommandResult
    from .exit_codes import ExitCode
    from .node_context import NodeContext
    from .plan import Retry, Run

CLEANUP_TIMEOUT_S = 20.0


class StepFailedError(Exception):
    """An action failed; `exit_code` is set if the cause has its own exit code."""

    def __init__(self, message: str, exit_code: ExitCode | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def try_command(node: NodeContext, run: Run) -> str | None:
    """Run a command until it succeeds; return a detail for the step's report, or None.

    Raises StepFailedError if all attempts failed, if the time budget of the node is used up, or
    if `judge` finds a permanent failure. The failure of an optional command is only logged.
    """
    try:
        return _try(node, run)
    except StepFailedError as error:
        if not run.is_optional:
            raise
        if run.warning is not None:
            node.journal.line(run.warning)
        return run.warning or f"Ignored: {error}"


def _try(node: NodeContext, run: Run) -> str | None:
    seen = "The command was not started."
    retry = run.retry
    limit_s, left = retry.timeout_s, float(retry.attempts)
    for attempt in itertools.count(1):
        if node.retries.has_passed():
            raise StepFailedError(f"The time budget of the node is used up. {seen}")
        began_s = node.clock.monotonic()
        try:
            result = _once(node, run, limit_s)
        except BaseException:  # a signal ends only the command's own processes
            _clean_up(node, run)
            raise
        permanent = None if run.judge is None else run.judge(node, result)
        if result.ok and permanent is None:
            return None if attempt == 1 else f"Succeeded on attempt {attempt}."
        _clean_up(node, run)
        if permanent is not None:
            raise StepFailedError(f"{permanent.message}\n{result.render()}", permanent.exit_code)
        if attempt > 1 and result.timed_out and node.retries.has_passed():
            # The time budget ended this attempt early, so only the previous attempt shows the
            # failure.
            raise StepFailedError(
                f"The time budget of the node was used up during attempt {attempt}. "
                f"Attempt {attempt - 1} failed too: {seen}"
            )
        seen = result.render()
        left -= _attempts_used(node, retry, node.clock.monotonic() - began_s)
        if left <= 0:
            break
        if result.timed_out and retry.max_timeout_s is not None:
            limit_s = min(2 * limit_s, retry.max_timeout_s)
        node.clock.sleep(node.retries.cap(retry.pause_s))
    raise StepFailedError(seen)


def _attempts_used(node: NodeContext, retry: Retry, took_s: float) -> float:
    """Return how many of `retry.attempts` an attempt that took `took_s` seconds uses up."""
    if retry.max_timeout_s is None:
        return 1.0
    return max(1.0, took_s / (retry.timeout_s * node.time_limit_multiplier))


def _once(node: NodeContext, run: Run, limit_s: float) -> CommandResult:
    env = dict(run.env) or None
    limit = node.limit_s(limit_s)
    result = node.runner.run(run.argv, timeout_s=limit, env=env)
    if result.exit_code == 127 and run.fallback_program is not None:
        result = node.runner.run((run.fallback_program, *run.argv[1:]), timeout_s=limit, env=env)
    return result


def _clean_up(node: NodeContext, run: Run) -> None:
    """Clean up after a failed attempt, even if the time budget is used up."""
    for argv in run.cleanup:
        node.runner.run(argv, timeout_s=CLEANUP_TIMEOUT_S)
