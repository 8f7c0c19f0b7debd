"""The interface to QEMU's monitor, over a socket or over libvirt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from harness.machine.channels.event_log import QmpEvent
    from harness.provisioning.wait import Deadline

#: Seconds within which QEMU has to answer one command.
COMMAND_S = 30.0


class MonitorLostError(HarnessError):
    """The connection to the monitor is lost. QEMU may have ended, or may still run."""


class Monitor(Protocol):
    """Runs QMP commands in the QEMU of one machine, and records its events."""

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return the events so far, oldest first."""

    def execute(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        fd: int | None = None,
        limit_s: float = COMMAND_S,
    ) -> object:
        """Run one QMP command, within `limit_s`, and return its result.

        QEMU receives a copy of the descriptor `fd` with the command, as `getfd` and `add-fd` need.
        Raises HarnessError if QEMU refuses the command, has ended, or does not answer in time.
        """

    def wait_for_event(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> QmpEvent:
        """Wait for an event that `matches`, at position `since` of `events` or later.

        Raises HarnessError at the deadline, or immediately if QEMU has ended.
        """
