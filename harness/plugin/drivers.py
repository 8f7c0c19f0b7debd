"""Tests that only some VM drivers can be asked: left out under the others, and said so."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, listed
from harness.settings import DRIVER_CHOICES

if TYPE_CHECKING:
    from harness.settings import Settings

MARKER = (
    "vm_driver(*drivers, reason): what a test says of machines holds for these drivers alone; "
    "under another one it is left out, and the summary gives the reason"
)
_TOLD = "harness_left_out"


class ForeignTests:
    """Leaves out what another driver than this run's is to be asked."""

    def __init__(self, settings: Settings) -> None:
        self._driver = settings.machine_driver
        self._left_out: Counter[str] = Counter()

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
            drivers, reason = marker.args, marker.kwargs.get("reason")
            if not drivers or not set(drivers) <= set(DRIVER_CHOICES) or not reason:
                raise BadInputError(
                    f"The marker takes any of {listed(DRIVER_CHOICES)} and a 'reason', but got "
                    f"{drivers} and {reason!r}.",
                    source=item.nodeid,
                    key="vm_driver",
                )
            if self._driver not in drivers:
                return str(reason)
        return None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        told = getattr(session.config, "workeroutput", None)
        if told is not None:
            told[_TOLD] = dict(self._left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Hear from xdist's worker, each of which collects the same tests."""
        del error
        self._left_out |= Counter(getattr(node, "workeroutput", {}).get(_TOLD, {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in sorted(self._left_out.items()):
            terminalreporter.write_line(
                f"left out under --machine-driver={self._driver}: {count} tests, since {reason}"
            )
