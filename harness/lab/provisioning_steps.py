"""Records each run of a provisioner on a node, and the steps of the run, for a report."""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.evidence.outcome import MOST_S
from harness.steps import InnerStep, is_followed, moved_into, take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.evidence import Evidence
    from harness.provisioner import Provisioner
    from harness.steps import Step


class ProvisioningSteps:
    """The runs of a provisioner on one node, oldest first.

    The evidence has more facts about a run than the console, but only the console is available if
    the guest does not answer.
    """

    def __init__(self, provisioner: Provisioner) -> None:
        outcome = provisioner.outcome
        step = None if outcome.log is None else outcome.log.step
        self._pattern = None if step is None else re.compile(step)
        self._failed_status = outcome.failed_status
        self._runs: list[Step] = []

    @contextlib.contextmanager
    def run(self, title: str) -> Iterator[Callable[[str], None]]:
        """Record a run as a step. Yield a function to call with each line that the console shows."""
        shown: list[InnerStep] = []

        def see(line: str) -> None:
            if is_followed() and (found := self._read(line)) is not None:
                shown.append(found)

        with take_step(title) as taken:
            self._runs.append(taken)
            try:
                yield see
            finally:
                taken.report(shown)

    def told_by(self, evidence: Evidence) -> Evidence:
        """Add the runs in `evidence` to the report, and return `evidence`.

        The evidence may also have runs that the test started itself, so only the latest runs are
        added.
        """
        if self._runs and is_followed():
            from harness.evidence.reported_steps import inner_steps  # noqa: PLC0415 - only for reports

            # Errors are ignored: they only make the report incomplete, and expectations check the
            # evidence anyway.
            with contextlib.suppress(HarnessError, OSError):
                of_runs = [evidence.of_run(number) for number in evidence.runs] or [evidence]
                for taken, one in zip(reversed(self._runs), reversed(of_runs), strict=False):
                    if inner := inner_steps(one):
                        taken.report(moved_into(inner, taken))
        return evidence

    def _read(self, line: str) -> InnerStep | None:
        """Return the step whose end a line reports, or None if the line has no duration."""
        found = None if self._pattern is None else self._pattern.search(line)
        groups = {} if found is None else found.groupdict()
        try:
            duration_s = float(groups.get("duration_s") or "")
        except ValueError:
            return None
        if not 0 <= duration_s < MOST_S:
            return None
        now = time.time()
        is_failed = groups.get("status") == self._failed_status
        return InnerStep(
            title=groups.get("name") or line,
            start_s=now - duration_s,
            stop_s=now,
            error=(groups.get("detail") or line) if is_failed else None,
        )
