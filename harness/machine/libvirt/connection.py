"""A connection to libvirtd that limits the time of calls, explains errors, and can reconnect.

Only this module has access to libvirt's own connection.
"""

from __future__ import annotations

import atexit
import getpass
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import HarnessError, RequirementError
from harness.machine.libvirt.binding import load_libvirt
from harness.machine.libvirt.errors import (
    ErrorContext,
    NoDaemonError,
    lost,
    refused_call,
    refused_connection,
)
from harness.machine.libvirt.uri import HostUri
from harness.machine.libvirt.watchdog import LibvirtHangsError, watched
from harness.provisioning.wait import Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from harness.machine.libvirt.binding import VirConnect
    from harness.provisioning.wait import Clock

_LOG = logging.getLogger(__name__)
_JOIN_S = 5.0


class EventLoop:
    """The event loop of one process. Call `start` before the first connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._ending = False

    def start(self, libvirt: Any) -> None:
        """Start the thread if it does not run yet.

        Raises HarnessError in a forked process, since the thread runs only in the parent process.
        """
        with self._lock:
            if self._owner is None:
                self._begin(libvirt)
                self._owner = os.getpid()
        if self._owner != os.getpid():
            raise HarnessError(
                f"libvirt was started in process {self._owner}, and this process is a fork of that "
                "process. libvirt can't be used in both; open the connection in the process that "
                "uses it."
            )

    def _begin(self, libvirt: Any) -> None:
        libvirt.virEventRegisterDefaultImpl()
        # The timer fires only when `end` sets it, to wake the loop.
        timer = libvirt.virEventAddTimeout(-1, _wake, None)
        thread = threading.Thread(
            target=self._turn, args=(libvirt,), name="libvirt-events", daemon=True
        )
        thread.start()

        def end() -> None:
            # If Python ended the thread inside a callback, the thread would keep libvirt's locks.
            if self._owner == os.getpid():
                self._ending = True
                libvirt.virEventUpdateTimeout(timer, 0)
                thread.join(_JOIN_S)

        atexit.register(end)

    def _turn(self, libvirt: Any) -> None:
        try:
            while not self._ending:
                libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            _LOG.exception("libvirt's event loop ended; no further event will be received")


def _wake(_timer: int, _opaque: object) -> None:
    """Do nothing: the timer only wakes the loop."""


#: libvirt allows only one event loop in a process.
EVENT_LOOP = EventLoop()


T = TypeVar("T")

#: The oldest supported libvirt: the version of Ubuntu 22.04.
OLDEST = (8, 0, 0)
#: Seconds after which a call is assumed to hang. On a busy host, the start of a domain takes a few
#: seconds.
CALL_S = 90.0
_OPEN_S = 20.0
_CLOSE_S = 10.0
#: The seconds within which a restarted libvirtd has to listen again.
_RESTART_S = 10.0
_INTERVAL_S = 0.2
# libvirt sends a keep-alive message every `_KEEP_ALIVE_S`, and closes the connection after
# `_KEEP_ALIVE_COUNT` messages without an answer.
_KEEP_ALIVE_S = 5
_KEEP_ALIVE_COUNT = 5


class Connection:
    """An open connection, made by `open` and closed at the end of the context.

    Domains that were started with AUTODESTROY end with the connection, even if it is lost.
    """

    def __init__(self, uri: HostUri, libvirt: Any, clock: Clock) -> None:
        self._uri = uri
        self._clock = clock
        self._libvirt = libvirt
        self._raw: VirConnect | None = None
        self._lost_why: str | None = None
        self._lost_at: float | None = None
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._reopening = threading.Lock()
        self.generation = 0
        self.daemon_version = (0, 0, 0)

    @classmethod
    def open(cls, uri: str, *, deadline: Deadline) -> Connection:
        """Connect to the libvirtd at `uri`.

        Raises BadInputError for an invalid URI, and LibvirtHangsError at the deadline. Raises
        RequirementError if there is no binding, no libvirtd, no permission, or a libvirtd that is
        too old.
        """
        parsed = HostUri.parse(uri)
        libvirt = load_libvirt()
        EVENT_LOOP.start(libvirt)
        connection = cls(parsed, libvirt, deadline.clock)
        connection.reopen(deadline)
        return connection

    @property
    def uri(self) -> str:
        return self._uri.text

    @property
    def is_session(self) -> bool:
        """Return whether libvirtd runs as an ordinary user."""
        return self._uri.is_session

    @property
    def raw(self) -> VirConnect:
        """Return libvirt's own object. Raises ConnectionLostError once libvirtd has ended."""
        if self._raw is None or self._lost_why is not None:
            raise lost("a call", self.uri, self._lost_why or "the connection was closed")
        return self._raw

    @property
    def is_lost(self) -> bool:
        """Return whether libvirtd has ended since the connection was opened."""
        return self._lost_why is not None

    def on_loss(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` if libvirtd ends. The call can be in any thread.

        Return a function that removes the watcher.
        """
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def reopen(self, deadline: Deadline) -> None:
        """Connect again if libvirtd has ended. Wait for a libvirtd that is being restarted.

        Objects of the old connection stay invalid. `generation` counts the connections. Threads
        that call this method at the same time share one new connection.
        """
        with self._reopening:
            if self._raw is None or self.is_lost:
                self._reopen(deadline)

    def _reopen(self, deadline: Deadline) -> None:
        self._drop()
        raw = (
            self._connect(deadline)
            if self._lost_at is None
            else self._connect_again(self._lost_at + _RESTART_S, deadline)
        )
        self._raw = raw
        self._lost_why = self._lost_at = None
        self.generation += 1
        try:
            self._check(raw)
        except BaseException:
            self._drop()
            raise

    def _connect(self, deadline: Deadline) -> VirConnect:
        what = f"the connection to '{self.uri}'"
        limit_s = deadline.cap(_OPEN_S)
        try:
            raw: VirConnect = watched(what, lambda: self._libvirt.open(self.uri), limit_s)
        except self._libvirt.libvirtError as error:
            raise refused_connection(self._uri, _user(), ErrorContext.of(error)) from error
        return raw

    def _connect_again(self, until: float, deadline: Deadline) -> VirConnect:
        """Wait until a libvirtd that is being restarted listens again, and connect to it."""
        restarted = Deadline(until, self._clock)

        def poll() -> Observation[VirConnect]:
            try:
                return Observation(self._connect(deadline), "it answers")
            except NoDaemonError as error:
                if restarted.has_passed() or deadline.has_passed():
                    raise
                return Observation(None, str(error))

        # This limit is longer than the limit in `poll`, whose error has the complete reason.
        end = Deadline(until + _OPEN_S, self._clock)
        return wait_for("libvirtd to listen again", poll, end, interval_s=_INTERVAL_S)

    def _check(self, raw: VirConnect) -> None:
        number = self.run("the query of its version", raw.getLibVersion)
        self.daemon_version = version_of(number)
        if self.daemon_version < OLDEST:
            raise RequirementError(
                f"libvirt at '{self.uri}' is version {dotted(self.daemon_version)}, but machines "
                f"need {dotted(OLDEST)} or newer; update libvirt, or use --machine-driver=qemu."
            )
        generation = self.generation

        def closed(_raw: object, reason: int, _opaque: object) -> None:
            # This callback ignores a close by the harness, and the end of an old connection once a
            # new connection is open.
            if generation == self.generation and self._raw is not None:
                self._note_loss(_CLOSE_REASONS.get(reason, f"reason {reason}"))

        self.run(
            "the registration of its close callback",
            lambda: raw.registerCloseCallback(closed, None),
        )
        # A daemon may have keep-alive disabled (result 1). Without keep-alive, only a broken socket
        # shows that the daemon has ended.
        self.run("keep-alive", lambda: raw.setKeepAlive(_KEEP_ALIVE_S, _KEEP_ALIVE_COUNT))

    def run(
        self,
        what: str,
        call: Callable[[], T],
        *,
        limit_s: float = CALL_S,
        late: Callable[[T], object] | None = None,
    ) -> T:
        """Return the result of one libvirt call. `what` is a noun, such as "the start of 'x'".

        A result that arrives after the limit is passed to `late`, in the call's own thread.

        Raises LibvirtError with libvirt's code if libvirt refuses the call, ConnectionLostError if
        libvirtd ended, and LibvirtHangsError with all stacks after `limit_s` seconds.
        """
        if self._lost_why is not None:
            raise lost(what, self.uri, self._lost_why)
        try:
            return watched(f"{what} at '{self.uri}'", call, limit_s, late=late)
        except self._libvirt.libvirtError as error:
            context = ErrorContext.of(error)
            if context.is_connection_loss:
                self._note_loss(context.message)
            raise refused_call(what, self.uri, context) from error

    def close(self) -> None:
        """Disconnect, and log how many objects still refer to the connection."""
        self._drop()
        self._lost_why = self._lost_why or "the connection was closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _drop(self) -> None:
        raw, self._raw = self._raw, None
        if raw is None:
            return
        self._close_quietly("the removal of its close callback", raw.unregisterCloseCallback)
        self._close_quietly("the end of the connection", raw.close)

    def _close_quietly(self, what: str, call: Callable[[], int | None]) -> None:
        """Make a call that may fail if libvirtd has already ended."""
        try:
            left = watched(f"{what} to '{self.uri}'", call, _CLOSE_S)
        except (self._libvirt.libvirtError, LibvirtHangsError) as error:
            if not self.is_lost:
                _LOG.warning("The connection to '%s' was not closed cleanly: %s", self.uri, error)
        else:
            if left:
                _LOG.debug("%s objects still refer to the connection to '%s'", left, self.uri)

    def _note_loss(self, why: str) -> None:
        with self._lock:
            if self._lost_why is not None:
                return
            self._lost_why = why
            self._lost_at = self._clock.monotonic()
            watchers = tuple(self._watchers)
        for watcher in watchers:
            watcher()


#: virConnectCloseReason of libvirt-common.h.
_CLOSE_REASONS = {
    0: "an error of the connection",
    1: "end of file",
    2: "no answer to keep-alive",
    3: "the connection was closed",
}


def version_of(number: int) -> tuple[int, int, int]:
    """Return the version that libvirt reports as one number."""
    return number // 1_000_000, number // 1000 % 1000, number % 1000


def dotted(version: tuple[int, int, int]) -> str:
    return ".".join(str(part) for part in version)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may be missing in its /etc/passwd.
        return str(os.getuid())
