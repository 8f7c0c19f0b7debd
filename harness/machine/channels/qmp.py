"""QMP for synchronous code: one event loop in one thread for each machine."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, cast

from qemu.qmp import Message, QMPClient, QMPError

from harness.errors import HarnessError
from harness.machine.channels.event_log import EventLog, QmpEvent
from harness.machine.channels.monitor import COMMAND_S
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Any


_CLOSE_S = 5.0


class QmpSession:
    """A QMP connection over a socket whose other end QEMU inherited."""

    def __init__(self, name: str, sock: socket.socket) -> None:
        self._name = name
        self._sock = sock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"qmp-{name}", daemon=True
        )
        self._client = QMPClient(name)
        self._log = EventLog(name, advice="QEMU's stderr and the console show why.")
        self._pump: concurrent.futures.Future[None] | None = None

    def connect(self, deadline: Deadline) -> None:
        """Connect and negotiate capabilities.

        Raises HarnessError when QEMU does not answer before the deadline.
        """
        self._thread.start()
        self._call(self._client.connect(self._sock), deadline, "the QMP greeting")
        self._pump = asyncio.run_coroutine_threadsafe(self._record_events(), self._loop)

    def execute(
        self,
        command: str,
        arguments: Mapping[str, object] | None = None,
        *,
        fd: int | None = None,
        limit_s: float = COMMAND_S,
    ) -> object:
        """Run one QMP command and return its result, as `Monitor.execute` describes."""

        async def send() -> object:
            if fd is not None:
                self._client.send_fd_scm(fd)
            return await self._client.execute(command, dict(arguments or {}))

        return self._call(send(), Deadline.after(limit_s), f"QMP command '{command}'")

    def wait_for_event(
        self,
        what: str,
        matches: Callable[[QmpEvent], bool],
        deadline: Deadline,
        *,
        since: int = 0,
    ) -> QmpEvent:
        """Wait for an event that `matches` accepts, and ignore the first `since` events.

        Raises HarnessError at the deadline, or immediately if QEMU has ended.
        """
        return self._log.wait_for(what, matches, deadline, since=since)

    @property
    def events(self) -> tuple[QmpEvent, ...]:
        """Return the events so far, oldest first."""
        return self._log.events

    def close(self) -> None:
        """Disconnect, and end the loop and its thread."""
        try:
            if self._thread.is_alive():
                stopping = asyncio.run_coroutine_threadsafe(self._stop(), self._loop)
                try:
                    stopping.result(timeout=_CLOSE_S)
                except (concurrent.futures.TimeoutError, QMPError, OSError, EOFError):
                    stopping.cancel()
        finally:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(timeout=_CLOSE_S)
            if not self._loop.is_running():
                self._loop.close()
            self._sock.close()

    async def _stop(self) -> None:
        try:
            await self._client.disconnect()
        finally:
            # `disconnect` raises the error that ended the connection, but always cancels its own
            # tasks.
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _record_events(self) -> None:
        """Record events until the connection ends. qemu.qmp's listener does not report that end."""
        listener = self._client.events
        end = asyncio.ensure_future(self._client.runstate_changed())
        try:
            while not end.done():
                message = asyncio.ensure_future(listener.get())
                await asyncio.wait({message, end}, return_when=asyncio.FIRST_COMPLETED)
                if message.done():
                    self._record(message.result())
                else:
                    message.cancel()
            for last in listener.clear():
                self._record(last)
        finally:
            end.cancel()
            self._log.end()

    def _record(self, message: Message) -> None:
        # The fields of the QMP specification are read without qemu.qmp's pydantic model: creating
        # the model takes longer than a clone's QEMU needs to start.
        stamp = cast("Mapping[str, int]", message["timestamp"])
        at_s = stamp["seconds"] + stamp["microseconds"] / 1e6
        data = cast("Mapping[str, object]", message.get("data", {}))
        self._log.add(QmpEvent(name=str(message["event"]), at_s=at_s, data=data))

    def _call(
        self, coroutine: Coroutine[Any, Any, object], deadline: Deadline, what: str
    ) -> object:
        if self._loop.is_closed():
            coroutine.close()  # Without this, Python warns that the coroutine was never awaited.
            raise HarnessError(
                f"QEMU of machine '{self._name}' can't execute {what}: the machine has ended."
            )
        # The loop enforces the limit, so that a cancelled command is cleaned up when this method
        # returns.
        timed = asyncio.wait_for(coroutine, deadline.remaining_s())
        future = asyncio.run_coroutine_threadsafe(timed, self._loop)
        try:
            return future.result(timeout=deadline.remaining_s() + _CLOSE_S)
        except (asyncio.TimeoutError, concurrent.futures.TimeoutError) as error:
            future.cancel()
            raise HarnessError(
                f"QEMU of machine '{self._name}' did not answer {what} in time; its main loop "
                "may be blocked by a device server that stopped answering."
            ) from error
        except (QMPError, OSError, EOFError, concurrent.futures.CancelledError) as error:
            raise HarnessError(
                f"QEMU of machine '{self._name}' failed {what}: {str(error) or type(error).__name__}."
            ) from error
