"""The log of a test's container registry, and the faults that a test injects into the registry's answers."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.limits import REGISTRY_REQUESTS
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The longest text from a client that the log stores.
_TEXT_BYTES = 1 << 10


@dataclass(frozen=True, kw_only=True)
class PullFault:
    """A fault that disturbs one pull; the default values disturb nothing."""

    status: int | None = None
    """Answer each request with this HTTP status, such as 429, and do not forward the request."""
    blob_status: int | None = None
    """Answer each request for a blob with this status; 404 simulates a missing layer of an image."""
    cut_after_bytes: int | None = None
    """Close the connection at this byte of each blob, even if the client resumes at this byte."""
    bytes_per_s: int | None = None
    """The highest speed, in bytes per second, at which the proxy sends a blob."""
    delay_s: float = 0.0
    """The time to wait before each answer."""

    def __post_init__(self) -> None:
        for status in (self.status, self.blob_status):
            if status is not None and not 400 <= status <= 599:
                raise ValueError(f"{status} is not an HTTP status of an error; use 400 to 599.")
        if self.cut_after_bytes is not None and self.cut_after_bytes < 0:
            raise ValueError(f"{self.cut_after_bytes} bytes is negative; use 0 or more.")
        if self.bytes_per_s is not None and self.bytes_per_s < 1:
            raise ValueError(
                f"A pull at {self.bytes_per_s} bytes/s would never end; use 1 or more."
            )


NO_FAULT = PullFault()


@dataclass(kw_only=True)
class RegistryRequest:
    """A request as the proxy saw it; timestamps are seconds of the host's monotonic clock.

    The proxy updates the record of a request until the answer is complete, so RegistryLog returns
    copies of its records.
    """

    connection: int
    pull: int
    host: str
    """The name by which the client knows the registry."""
    method: str
    path: str
    started_s: float
    ended_s: float
    """The time at which the proxy last sent a part of the answer."""
    status: int | None = None
    """The answer's HTTP status; None until there is an answer."""
    body_bytes: int = 0
    """How many bytes of the answer's body the proxy sent."""
    is_cut: bool = False
    """Whether a fault closed the connection in the middle of the answer's body."""
    is_aborted: bool = False
    """Whether the client closed the connection before the end of the answer."""

    @property
    def is_blob(self) -> bool:
        return "/blobs/" in self.path

    def render(self) -> str:
        """Return the line that describes this request in the rendered log."""
        end = " cut" if self.is_cut else " aborted by the client" if self.is_aborted else ""
        return visible_line(
            f"{self.started_s:.3f} {self.ended_s:.3f} pull {self.pull} connection "
            f"{self.connection} {self.method} {self.host}{self.path} {self.status or 'unanswered'} {self.body_bytes} bytes{end}"
        )


@dataclass(frozen=True, kw_only=True)
class Pull:
    """The requests that one run of a client sent, such as one `ctr image pull`."""

    requests: Sequence[RegistryRequest]

    @property
    def started_s(self) -> float:
        return min(each.started_s for each in self.requests)

    @property
    def ended_s(self) -> float:
        return max(each.ended_s for each in self.requests)

    @property
    def blob_bytes(self) -> int:
        """Return how many bytes of blobs the proxy sent for this pull."""
        return sum(each.body_bytes for each in self.requests if each.is_blob)


def starts_pull(method: str, path: str, *, is_first_of_connection: bool) -> bool:
    """Return whether a request is the first request of a pull.

    containerd begins a pull with a HEAD request for the tag's manifest, over a new connection. If
    the answer is 429, containerd repeats the request over the same connection.
    """
    is_tag = "/manifests/" in path and "/manifests/sha256:" not in path
    return is_first_of_connection and method == "HEAD" and is_tag


@dataclass
class RegistryLog:
    """The requests to a proxy so far, and the planned faults; all threads of the proxy use the same log."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _requests: list[RegistryRequest] = field(default_factory=list)
    _refusals: list[str] = field(default_factory=list)
    _planned: deque[PullFault] = field(default_factory=deque)
    _standing: PullFault = NO_FAULT
    _current: PullFault | None = None
    _connections: int = 0
    _pulls: int = 0
    _left_out: int = 0

    def disturb_next(self, *faults: PullFault) -> None:
        """Plan faults for the next pulls, one fault for each pull."""
        with self._lock:
            self._planned.extend(faults)

    def disturb_all(self, fault: PullFault) -> None:
        """Plan `fault` for each later pull for which `disturb_next` planned no fault."""
        with self._lock:
            self._standing = fault
            self._current = None

    def connected(self) -> int:
        """Count a connection, and return its number."""
        with self._lock:
            self._connections += 1
            return self._connections

    def began(
        self, connection: int, method: str, host: str, path: str, *, is_first: bool
    ) -> tuple[RegistryRequest, PullFault]:
        """Record a request; return the record, and the fault for the request's pull.

        `is_first` is true for the first request of its connection. Raises LimitError if the log is
        full.
        """
        with self._lock:
            if len(self._requests) >= REGISTRY_REQUESTS.value:
                self._left_out += 1
                raise REGISTRY_REQUESTS.error("The registry of the test")
            if starts_pull(method, path, is_first_of_connection=is_first):
                self._pulls += 1
                self._current = self._planned.popleft() if self._planned else None
            now = time.monotonic()
            request = RegistryRequest(
                connection=connection,
                pull=self._pulls,
                host=shortened(host, _TEXT_BYTES),
                method=shortened(method, _TEXT_BYTES),
                path=shortened(path, _TEXT_BYTES),
                started_s=now,
                ended_s=now,
            )
            self._requests.append(request)
            return request, self._current or self._standing

    def refused(self, reason: str) -> None:
        """Record why a connection failed before its first request."""
        with self._lock:
            if len(self._refusals) < REGISTRY_REQUESTS.value:
                self._refusals.append(shortened(reason, _TEXT_BYTES))
            else:
                self._left_out += 1

    @property
    def connections(self) -> int:
        """Return how many connections were opened."""
        return self._connections

    @property
    def refusals(self) -> tuple[str, ...]:
        """Return a reason for each connection that failed before its first request."""
        with self._lock:
            return tuple(self._refusals)

    @property
    def requests(self) -> tuple[RegistryRequest, ...]:
        """Return the requests, in the order in which they arrived.

        Raises LimitError if there were more requests than the log may contain, since an incomplete
        log proves nothing.
        """
        with self._lock:
            if self._left_out:
                raise REGISTRY_REQUESTS.error("The registry of the test")
            return self._copied()

    def _copied(self) -> tuple[RegistryRequest, ...]:
        return tuple(replace(each) for each in self._requests)

    @property
    def pulls(self) -> tuple[Pull, ...]:
        """Return the requests, grouped by pull."""
        requests = self.requests
        numbers = sorted({each.pull for each in requests} - {0})
        return tuple(
            Pull(requests=tuple(each for each in requests if each.pull == number))
            for number in numbers
        )

    def render(self) -> str:
        """Render the log for people."""
        with self._lock:
            lines = [each.render() for each in self._copied()]
            lines += [visible_line(f"no request: {reason}") for reason in self._refusals]
            if self._left_out:
                lines.append(
                    f"left out because of the limit '{REGISTRY_REQUESTS.name}': {self._left_out} more"
                )
        return (
            "".join(f"{line}\n" for line in lines)
            or f"no request, {self.connections} connections\n"
        )
