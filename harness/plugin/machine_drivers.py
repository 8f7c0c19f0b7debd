"""Deselects tests that are not for the VM driver of this run, and reports the reasons."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, listed
from harness.settings import MachineDriver

if TYPE_CHECKING:
    from harness.settings import Settings

MARKER = (
    "vm_driver(*drivers, reason): run the test only under these VM drivers; under any other "
    "driver the test is deselected, and the summary prints the reason"
)
_OUTPUT_KEY = "harness_left_out"


class ForeignTests:
    """Deselects tests that do not run under this run's VM driver."""

    def __init__(self, settings: Settings) -> None:
        self._driver = settings.machine_driver.value
        self._left_out: Counter[str] = Counter()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Raise BadInputError for a wrong marker `vm_driver`; pytest then reports a collection error."""
        known = [*MachineDriver.words(), self._driver]
        for marker in metafunc.definition.iter_markers("vm_driver"):
            drivers, reason = marker.args, marker.kwargs.get("reason")
            if not drivers or not reason or any(each not in known for each in drivers):
                raise BadInputError(
                    f"The marker takes a 'reason' and at least one of {listed(MachineDriver.words())}, but "
                    f"got the reason {reason!r} and {drivers}.",
                    source=metafunc.definition.nodeid,
                    key="vm_driver",
                )

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        foreign = {item: reason for item in items if (reason := self._why_not(item))}
        if foreign:
            items[:] = [item for item in items if item not in foreign]
            config.hook.pytest_deselected(items=list(foreign))
        self._left_out = Counter(foreign.values())

    def _why_not(self, item: pytest.Item) -> str | None:
        for marker in item.iter_markers("vm_driver"):
            if self._driver not in marker.args:
                return str(marker.kwargs.get("reason"))
        return None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_OUTPUT_KEY] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Merge a worker's counts by their maximum, since all xdist workers collect the same tests."""
        del error
        self._left_out |= Counter(getattr(node, "workeroutput", {}).get(_OUTPUT_KEY, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in sorted(self._left_out.items()):
            tests = f"{count} test{'s' * (count > 1)}"
            terminalreporter.write_line(
                f"deselected under --machine-driver={self._driver}: {tests}, because {reason}"
            )
