"""A scripted QEMU monitor, for tests of the behaviour that all VM drivers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.channels.event_log import QmpEvent
from harness.machine.channels.monitor import COMMAND_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.provisioning.wait import Deadline


def an_event(name: str, **data: object) -> QmpEvent:
    return QmpEvent(name=name, at_s=0.0, data=data)


class FakeMonitor:
    """Records commands. Each command reports the event and returns the result that a test has set.

    A command whose result is an exception raises it. A wait for an event that has not been
    reported fails at once.
    """

    def __init__(
        self,
        results: Mapping[str, object] | None = None,
        events: Mapping[str, QmpEvent] | None = None,
    ) -> None:
        self.commands: list[str] = []
        self.calls: list[tuple[str, Mapping[str, object]]] = []
        self.arguments: dict[str, Mapping[str, object]] = {}
        self.descriptors: dict[str, int] = {}
        self.limits_s: dict[str, float] = {}
        self.deadlines: list[Deadline] = []
        self.results = dict(results or {})
        self._events_after = dict(events or {})
        self.recorded: list[QmpEvent] = []

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        return tuple(self.recorded)

    def execute(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        fd: int | None = None,
        limit_s: float = COMMAND_S,
    ) -> object:
        self.limits_s[command] = limit_s
        self.commands.append(command)
        self.arguments[command] = dict(arguments or {})
        self.calls.append((command, self.arguments[command]))
        if fd is not None:
            self.descriptors[command] = fd
        result = self.results.get(command, {})
        if isinstance(result, Exception):
            raise result
        if command in self._events_after:
            self.recorded.append(self._events_after[command])
        return result

    def wait_for_event(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> QmpEvent:
        self.deadlines.append(deadline)
        for event in self.recorded[since:]:
            if matches(event):
                return event
        raise HarnessError(f"{what} was not reported")
