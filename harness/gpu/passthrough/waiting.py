"""Waits until a process may take the GPUs that it wants."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from harness.errors import HarnessError, RequirementError
from harness.gpu.passthrough.choice import candidates
from harness.gpu.passthrough.leases import GpuLease, Turn, grant
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for
from harness.reservation_folder import ReservationFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from harness.gpu.passthrough import GpuChoice
    from harness.gpu.passthrough.assessment import Assessor
    from harness.provisioning.wait import Clock, Deadline
    from harness.reservation_folder import OpenReservations

T = TypeVar("T")
Leases: TypeAlias = ReservationFolder[GpuLease]

_INTERVAL_S = 0.1
#: A waiting process reads the leases when a lease begins or ends. A killed process
#: leaves its lease's file behind, so the process also reads the leases every few seconds.
_LOOK_AGAIN_S = 2.0
_TICK_S = 0.02
#: A process that may be next reads the host's state again when leases change, and after this many
#: seconds.
_READ_AGAIN_S = 2.0
#: Every waiting process reads the host's state again after this many seconds, since other GPUs may
#: have become usable.
_READ_ANYWAY_S = 30.0


class NotTakenError(Exception):
    """The GPU at `address` was granted, but could not be taken; the message is a sentence."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(why)
        self.address = address


@dataclass(frozen=True, kw_only=True)
class HostView:
    """The facts that a process has read about the host; valid until a lease begins or ends.

    `candidates` lists, for each wanted GPU, the GPUs that fit now or later. `usable` lists the GPUs
    that can be used unless they are leased. `why_not` says why each other GPU can't be used.
    """

    candidates: tuple[tuple[str, ...], ...]
    usable: frozenset[str]
    why_not: Mapping[str, str]
    held: frozenset[str]


def view_host(assessor: Assessor, leases: Leases, wanted: Sequence[GpuChoice]) -> HostView:
    """Read the host; raises RequirementError if the host can't provide the wanted GPUs."""
    try:
        return _view_once(assessor, leases, wanted)
    except RequirementError:
        # Read the host again: a run that held a lease during the first read may have reset a GPU,
        # so that the GPU looked broken.
        return _view_once(assessor, leases, wanted)


def _view_once(assessor: Assessor, leases: Leases, wanted: Sequence[GpuChoice]) -> HostView:
    before = _held(leases)
    host = assessor.assess()
    held = _held(leases)
    return HostView(
        candidates=candidates(wanted, host, before | held),
        usable=frozenset(gpu.address for gpu in host.gpus if gpu.verdict.is_usable),
        why_not={gpu.address: gpu.verdict.reason for gpu in host.gpus},
        held=held,
    )


def _held(leases: Leases) -> frozenset[str]:
    if not leases.folder.exists():
        return frozenset()
    with leases.open() as book:
        return frozenset(address for _, lease in book.entries() for address in lease.taken)


@dataclass
class Waiting:
    """Waits until the lease `name`, which is already in the queue, gets its GPUs."""

    assessor: Assessor
    leases: Leases
    name: str = field(kw_only=True)
    lease: GpuLease = field(kw_only=True)
    wanted: Sequence[GpuChoice] = field(kw_only=True)
    view: HostView = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    report: Callable[[str], None] = field(kw_only=True)
    cancelled: Callable[[], str | None] = field(kw_only=True)

    def __post_init__(self) -> None:
        self._read_at = self.clock.monotonic()
        self._looked_at = float("-inf")
        self._change = 0
        self._seen = "the start"
        self._reported: set[str] = set()
        #: GPUs that could not be taken: when to try again, and why they could not be taken.
        self._later: dict[str, tuple[float, str]] = {}

    def wait(self, take: Callable[[Sequence[str]], T], deadline: Deadline) -> T:
        """Wait for this lease's turn, then call `take` with the GPUs; return the result of `take`.

        If `take` raises NotTakenError, because it can't take a GPU, the wait continues. Raises
        HarnessError at the deadline, or once `cancelled` returns a reason.
        """
        wishes = ", ".join(map(str, self.wanted))

        def look() -> Observation[T]:
            if why := self.cancelled():
                raise HarnessError(why)
            if not self._may_have_changed():
                return Observation(None, self._seen)
            turn = self._turn()
            text = turn.text
            if turn.taken:
                try:
                    return Observation(take(turn.taken), "taken")
                except NotTakenError as error:
                    text = str(error)
                    self._put_back(error.address, text)
            self._seen = text.rstrip(".")
            if text not in self._reported:
                self._reported.add(text)
                self.report(f"'{self.lease.who}' waits for {wishes}: {self._seen}.")
            return Observation(None, self._seen)

        try:
            what = f"{wishes} of this host for '{self.lease.who}'"
            return wait_for(what, look, deadline, interval_s=_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} End the runs that hold the GPUs, or run fewer workers (`-n 1`)."
            ) from error

    def _may_have_changed(self) -> bool:
        """Return whether a lease may have begun or ended since the leases were last read."""
        # A lease that ends removes its file; only the file of a killed process stays.
        change, now = self.leases.folder.stat().st_mtime_ns, self.clock.monotonic()
        if change == self._change and now - self._looked_at <= _LOOK_AGAIN_S:
            return False
        # The folder's mtime has the resolution of the kernel's ticks, so a second change in the
        # same tick does not alter the mtime.
        is_settled = abs(self.clock.now().timestamp() * 1e9 - change) > _TICK_S * 1e9
        self._change = change if is_settled else 0
        self._looked_at = now
        return True

    def _turn(self) -> Turn:
        """Write into the queue which GPUs this lease waits for; return what the lease gets now."""
        age_s = self.clock.monotonic() - self._read_at
        # Reading the host is slow, so only some waiting processes read the host when the queue
        # changes.
        if age_s > _READ_ANYWAY_S or self._is_near(is_old=age_s > _READ_AGAIN_S):
            self.view = view_host(self.assessor, self.leases, self.wanted)
            self._read_at = self.clock.monotonic()
        now = self.clock.monotonic()
        tried = {address: why for address, (at, why) in self._later.items() if at > now}
        waiting = self._ungranted()
        with self.leases.open() as book:
            entries = dict(book.entries())
            if self.name not in entries:
                raise self._removed()
            turn = grant(
                self.name,
                [*{**entries, self.name: waiting}.items()],
                self.view.usable - tried.keys(),
                {**self.view.why_not, **tried},
            )
            self._write(book, dataclasses.replace(waiting, taken=turn.taken))
        return turn

    def _write(self, book: OpenReservations[GpuLease], lease: GpuLease) -> None:
        try:
            book.write(self.name, lease)
        except FileNotFoundError as error:
            # Another user can remove the file without locking the folder.
            raise self._removed() from error

    def _removed(self) -> HarnessError:
        return HarnessError(
            f"The file '{self.leases.folder / self.name}', by which this process waits for a GPU, was "
            "removed; do not remove files from this folder."
        )

    def _is_near(self, *, is_old: bool) -> bool:
        """Return whether this lease could get its GPUs after the host is read again."""
        with self.leases.open() as book:
            entries = book.entries()
        held = {address for _, entry in entries for address in entry.taken}
        if not is_old and held == self.view.held:
            return False
        every = {address for wish in self.view.candidates for address in wish}
        return self.name not in dict(entries) or bool(grant(self.name, entries, every, {}).taken)

    def _put_back(self, address: str, why: str) -> None:
        """Keep waiting at the same position in the queue, and try only other GPUs for a while."""
        with self.leases.open() as book:
            self._write(book, self._ungranted())
        self._later[address] = self.clock.monotonic() + _READ_AGAIN_S, why
        # Makes the next attempt read the host and the leases immediately.
        self._read_at = self._looked_at = float("-inf")

    def _ungranted(self) -> GpuLease:
        return dataclasses.replace(self.lease, wanted=self.view.candidates, taken=())
