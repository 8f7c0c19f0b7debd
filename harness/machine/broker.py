"""A host-wide account of memory, cores and ports, shared by every test run of one user.

A machine that finds no room waits, and says for whom, instead of driving the host into swap. The
account lies in `ledger`; here are the rules by which room is given.

**Memory** has two rules, and both must hold. All claims together stay within what the host has,
less a reserve. And the kernel's MemAvailable, which knows what everybody else on the host uses,
must cover the demand *and* whatever earlier claims have not touched yet: memory that was promised
a moment ago still looks free. How much a claim has touched is known once `Claim.used_by` names its
process (resident memory, files aside); until then the claim counts as untouched, all of it.
Memory that several processes map, such as a template's in tmpfs, counts as touched by each.

**Cores** are overcommitted, since a guest's CPU is idle most of its life. **Ports** lie outside the
range from which the kernel serves everybody else.

**Order**: first come, first served, so that many small demands can't starve a large one. Only those
whose process holds a claim already go ahead of those whose process holds none: it would not release
what it has while it waits. Two processes that both hold and both wait may still wait for each other
until their deadlines; one claim for all of a test's machines can't.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.machine.ledger import Demand, Entry, Ledger, host_folder, ticket_of
from harness.provisioning.wait import Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.provisioning.wait import Deadline

__all__ = ["Broker", "Claim", "Demand", "Entry", "HostRoom", "host_folder", "is_bindable"]

_PROC = Path("/proc")
_RESERVE_SHARE = 10
_LEAST_RESERVE_MIB = 1024
_VCPUS_PER_CORE = 4
_LEAST_VCPUS = 8
#: The first that lies outside the range of the kernel's own choice is used.
_PORT_RANGES = (range(24000, 26000), range(61000, 63000), range(10000, 12000))

_INTERVAL_S = 0.05
_LONGEST_WHO = 80


@dataclass(frozen=True, kw_only=True)
class HostRoom:
    """What all claims together may take of this host."""

    memory_mib: int
    cpus: int
    ports: range

    @classmethod
    def from_proc(cls, proc: Path = _PROC, *, cores: int | None = None) -> HostRoom:
        """Ask the kernel; a limit that a cgroup sets is not looked at."""
        total_mib = _field_mib(proc / "meminfo", "MemTotal")
        reserve_mib = max(_LEAST_RESERVE_MIB, total_mib // _RESERVE_SHARE)
        cores = cores or os.cpu_count() or 1
        return cls(
            memory_mib=max(0, total_mib - reserve_mib),
            cpus=max(_LEAST_VCPUS, _VCPUS_PER_CORE * cores),
            ports=_ports_beside(proc / "sys/net/ipv4/ip_local_port_range"),
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Room on the host that is this process's own until the claim's context ends."""

    demand: Demand
    ports: tuple[int, ...]
    _name_user: Callable[[int], None] = field(repr=False, compare=False)

    def used_by(self, process: int) -> None:
        """Name the process that touches the memory, so that what it touched counts but once.

        Does nothing to a claim that has ended.
        """
        self._name_user(process)


@dataclass(frozen=True)
class _Shortage:
    """Why a demand can't be met now; those of one `key` are told once."""

    key: object
    text: str


def is_bindable(port: int) -> bool:
    """Tell whether nobody listens on the TCP port `port` of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Broker:
    """Gives room on this host to whoever asks, from any number of threads and processes."""

    def __init__(
        self,
        folder: Path,
        *,
        room: HostRoom | None = None,
        proc: Path = _PROC,
        is_free: Callable[[int], bool] = is_bindable,
        process: int | None = None,
    ) -> None:
        self._ledger = Ledger(folder)
        self._room = room
        self._proc = proc
        self._is_free = is_free
        self._process = process

    @property
    def room(self) -> HostRoom:
        """Return what all claims together may take."""
        if self._room is None:
            self._room = HostRoom.from_proc(self._proc)
        return self._room

    @contextlib.contextmanager
    def claim(
        self,
        who: str,
        demand: Demand,
        *,
        deadline: Deadline,
        tell: Callable[[str], None] = lambda _: None,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> Iterator[Claim]:
        """Hold room for `demand`; wait for it where there is none, and `tell` for whom.

        Raises RequirementError at once where this host never has such room, and HarnessError where
        the deadline passes first, or `trouble`, asked before each look, says why nobody wants the
        room any more.
        """
        self._require_possible(demand)
        entry = Entry(who=_plain(who), process=self._process or os.getpid(), demand=demand)
        with self._ledger.enter(entry) as name:
            granted = self._wait(name, entry, deadline, tell, trouble)

            def name_user(process: int) -> None:
                with self._ledger.open() as book, contextlib.suppress(FileNotFoundError):
                    book.write(name, dataclasses.replace(granted, user=process))

            yield Claim(demand=demand, ports=granted.ports, _name_user=name_user)

    def claims(self) -> list[Entry]:
        """Return who holds what and who waits, in the order in which they came."""
        with self._ledger.open() as book:
            return [entry for _, entry in book.entries()]

    def _require_possible(self, demand: Demand) -> None:
        room = self.room
        for asked, most, unit in (
            (demand.memory_mib, room.memory_mib, "MiB of memory"),
            (demand.cpus, room.cpus, "vCPUs"),
            (demand.ports, len(room.ports), "ports"),
        ):
            if asked > most:
                raise RequirementError(
                    f"{asked} {unit} are asked for, but this host has only {most} for all machines "
                    "together; ask for less, or use a larger host."
                )

    def _wait(
        self,
        name: str,
        entry: Entry,
        deadline: Deadline,
        tell: Callable[[str], None],
        trouble: Callable[[], str | None],
    ) -> Entry:
        told: set[object] = set()

        def look() -> Observation[Entry]:
            if why := trouble():
                raise HarnessError(why)
            with self._ledger.open() as book:
                found = self._judge(name, book.entries())
                if isinstance(found, Entry):
                    book.write(name, found)
                    return Observation(found, "granted")
            if found.key not in told:
                told.add(found.key)
                tell(f"'{entry.who}' waits for {entry.demand}: {found.text}.")
            return Observation(None, found.text)

        what = f"{entry.demand} of this host for '{entry.who}'"
        try:
            return wait_for(what, look, deadline, interval_s=_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} End what holds the room, or run fewer workers (`-n 1`)."
            ) from error

    def _judge(self, name: str, entries: Sequence[tuple[str, Entry]]) -> Entry | _Shortage:
        """Return the entry `name` as granted, or why it can't be."""
        mine = next((entry for each, entry in entries if each == name), None)
        if mine is None:
            raise HarnessError(
                f"Somebody removed '{self._ledger.folder / name}' while its owner waited; leave the "
                "broker's files alone."
            )
        held = [entry for _, entry in entries if entry.is_granted]
        ahead = _ahead(name, entries)
        available_mib = _field_mib(self._proc / "meminfo", "MemAvailable")
        untouched_mib = sum(entry.demand.memory_mib for entry in held)
        if mine.demand.memory_mib > available_mib - untouched_mib:
            # Only now is it worth the time to ask the kernel about each.
            untouched_mib = self._untouched_mib(held)
        short = _shortages(mine.demand, held, self.room, available_mib, untouched_mib)
        if ahead:
            short["turn"] = f"{ahead[0]} came first"
        ports: tuple[int, ...] = ()
        if not short:
            ports = self._free_ports(mine.demand.ports, held)
            if len(ports) < mine.demand.ports:
                first, last = self.room.ports[0], self.room.ports[-1]
                short["ports"] = f"{len(ports)} of the ports {first} to {last} are free"
        if short:
            holders = ", ".join(map(str, held)) or "nobody"
            text = f"{'; '.join(short.values())}; held by {holders}"
            key = (tuple(short), tuple(map(str, held)), tuple(map(str, ahead[:1])))
            return _Shortage(key, text)
        return dataclasses.replace(mine, is_granted=True, ports=ports)

    def _untouched_mib(self, held: Sequence[Entry]) -> int:
        return sum(
            max(0, entry.demand.memory_mib - _touched_mib(self._proc, entry.user))
            for entry in held
        )

    def _free_ports(self, count: int, held: Sequence[Entry]) -> tuple[int, ...]:
        """Return `count` ports, or fewer where there are no more.

        The search begins anywhere: a port that was just released may linger, and another user's
        broker knows nothing of this one.
        """
        taken = {port for entry in held for port in entry.ports}
        ports = self.room.ports
        start = secrets.randbelow(len(ports)) if ports else 0
        found: list[int] = []
        for port in (*ports[start:], *ports[:start]) if count else ():
            if len(found) == count:
                break
            if port not in taken and self._is_free(port):
                found.append(port)
        return tuple(found)


def _ahead(name: str, entries: Sequence[tuple[str, Entry]]) -> list[Entry]:
    """Return the waiting entries whose turn comes before that of `name`."""
    holders = {entry.process for _, entry in entries if entry.is_granted}
    waiting = sorted(
        (entry.process not in holders, ticket_of(each), each, entry)
        for each, entry in entries
        if not entry.is_granted
    )
    place = next(place for place, (_, _, each, _) in enumerate(waiting) if each == name)
    return [entry for *_, entry in waiting[:place]]


def _shortages(
    demand: Demand,
    held: Sequence[Entry],
    room: HostRoom,
    available_mib: int,
    untouched_mib: int,
) -> dict[str, str]:
    """Return what is short, by its kind."""
    short: dict[str, str] = {}
    memory_left = room.memory_mib - sum(entry.demand.memory_mib for entry in held)
    if demand.memory_mib > memory_left:
        short["memory"] = f"{memory_left} of {room.memory_mib} MiB are not claimed"
    if demand.memory_mib > available_mib - untouched_mib:
        short["available"] = (
            f"the kernel has {available_mib} MiB available, of which {untouched_mib} MiB are kept "
            "for claims that have not used them yet"
        )
    cpus_left = room.cpus - sum(entry.demand.cpus for entry in held)
    if demand.cpus > cpus_left:
        short["cpus"] = f"{cpus_left} of {room.cpus} vCPUs are not claimed"
    return short


def _plain(who: str) -> str:
    """Return `who` on one line of bearable length."""
    return "".join(each if each.isprintable() else "?" for each in who)[:_LONGEST_WHO]


def _field_mib(path: Path, name: str) -> int:
    """Return the field `name` of a file of '/proc' that counts in kB."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) >> 10
    return 0


def _touched_mib(proc: Path, process: int | None) -> int:
    """Return what memory a process has, other than pages of files; of one that is gone, none."""
    if process is None:
        return 0
    status = proc / str(process) / "status"
    try:
        return _field_mib(status, "RssAnon") + _field_mib(status, "RssShmem")
    except OSError:
        return 0


def _ports_beside(path: Path) -> range:
    """Return ports that the kernel gives nobody of its own choice.

    Where it chooses from all, the bind that proves a port free is the only protection.
    """
    try:
        low, high = (int(each) for each in path.read_text().split())
    except (OSError, ValueError):
        return _PORT_RANGES[0]
    return next(
        (each for each in _PORT_RANGES if each[-1] < low or each[0] > high), _PORT_RANGES[0]
    )
