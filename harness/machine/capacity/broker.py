"""Reserves memory, cores and ports of this host for the machines of all test runs of one user.

A machine waits while the host has too little free capacity for it, so that the host need not swap.
A report of the wait names the holders of the capacity. `harness.reservation_folder` stores the
reservations, and this module decides when a reservation is granted.

**Memory** has two rules, and both must hold. First, all reservations together stay within the
host's memory minus a reserve. Second, the kernel's MemAvailable must cover the demand *and* the
part of earlier reservations that has not been touched yet. MemAvailable accounts for all other use
of the host, but memory that was reserved a moment ago still looks free. Once `Reservation.used_by`
names the process that uses a reservation, the touched part is known: the resident memory of that
process, without files. Until then, the whole reservation is assumed to be untouched. Memory that
several processes map, such as a template's memory in tmpfs, is counted once for each process.

**Cores** are overcommitted, since a guest's CPU is idle most of the time. **Ports** are outside the
kernel's range of ephemeral ports.

**Load**: on a host that is busy with other work, a machine waits until the machines of other
processes have ended, but at most `_HEEDS_LOAD_S` seconds. Machines that run one after the other end
sooner than machines that share the processors. The wait has a limit because the load may never end.

**Order**: demands are met in order of arrival, so that many small demands can't starve a large
demand. A process
that already holds a reservation precedes processes without a reservation, because it does not
release its reservation while it waits. Two processes that each hold a reservation and wait for a
second reservation may wait for each other until their deadlines. One reservation for all machines of
a test avoids this deadlock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.foreign_json import parse_json
from harness.provisioning.wait import SYSTEM_CLOCK, Observation, WaitTimeoutError, wait_for
from harness.reservation_folder import ReservationFolder, ahead_of, one_line
from harness.shared_folder import private_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.provisioning.wait import Clock, Deadline

#: All runs of a user need the same folder, so TMPDIR and XDG_RUNTIME_DIR, which differ between a
#: login and a job, are not used.
_SHARED = Path("/tmp")  # noqa: S108 - a folder below it is used only if it is ours alone


def host_folder() -> Path:
    """Return the folder of this user's reservations, and create the folder if it is missing."""
    return private_folder(_SHARED, "gpu-node-harness")


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The capacity of the host that a machine needs, including the needs of QEMU itself."""

    memory_mib: int
    cpus: int
    ports: int = 0

    def __post_init__(self) -> None:
        if min(self.memory_mib, self.cpus, self.ports) < 0:
            raise ValueError(f"A demand can't be negative: {self}")

    @override
    def __str__(self) -> str:
        cpus = f"{self.cpus} vCPU{'' if self.cpus == 1 else 's'}"
        ports = f" and {self.ports} port{'' if self.ports == 1 else 's'}"
        return f"{self.memory_mib} MiB on {cpus}{ports if self.ports else ''}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A reservation, or a demand that waits. The `is_granted` of a waiting demand is false."""

    who: str
    process: int
    demand: Demand
    is_granted: bool = False
    ports: tuple[int, ...] = ()
    #: The process that uses the memory, if it is known.
    user: int | None = None

    @override
    def __str__(self) -> str:
        return f"'{self.who}' of process {self.process} ({self.demand})"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Return the entry that `text` describes.

        Raises ValueError, KeyError or TypeError if `text` is not an entry.
        """
        fields = parse_json(text)
        user = fields["user"]
        return cls(
            who=str(fields["who"]),
            process=int(fields["process"]),
            demand=Demand(**{key: int(value) for key, value in fields["demand"].items()}),
            is_granted=bool(fields["is_granted"]),
            ports=tuple(int(port) for port in fields["ports"]),
            user=None if user is None else int(user),
        )


def reservations_in(folder: Path) -> ReservationFolder[Entry]:
    """Return the reservations in `folder`."""
    return ReservationFolder(folder, Entry.from_json, owner="broker")


#: Limits on the pressure, in percent of the last ten seconds. `_MOST_CPU` limits the time in which
#: some task waited for a processor. `_MOST_MEMORY` and `_MOST_IO` limit the time in which all tasks
#: waited for memory or the disk.
_MOST_CPU = 50.0
_MOST_MEMORY = 20.0
_MOST_IO = 80.0
#: In addition to its vCPUs, a running machine is assumed to run this many tasks: its controller and
#: its device server.
_BESIDE_VCPUS = 1
#: If more other tasks than this share each processor, a machine gets less than a third of a
#: processor.
_MOST_OTHERS = 2


def _is_crowded(cpu: float, others: float, cores: int) -> bool:
    return cpu > _MOST_CPU and others > _MOST_OTHERS * cores


def _pressure_field(path: Path, kind: str, field: str = "avg10") -> float:
    """Return a field in a file of '/proc/pressure': the percentage of the last ten seconds, or `total`."""
    try:
        for line in path.read_text().splitlines():
            name, *fields = line.split()
            if name == kind:
                return float(dict(each.split("=", 1) for each in fields)[field])
    except (OSError, ValueError, KeyError):
        pass
    return 0.0


#: Fields of '/proc/loadavg': the load average of the last minute, and the number of tasks that run or
#: are ready to run now.
_LOAD, _RUNNING = 0, 3


def _loadavg(proc: Path, field: int) -> float:
    try:
        return float((proc / "loadavg").read_text().split()[field].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def _tasks_of(held: Sequence[Entry]) -> int:
    return sum(entry.demand.cpus + _BESIDE_VCPUS for entry in held)


_PROC = Path("/proc")
#: The kernel's shortest average of the pressure.
_PRESSURE_S = 10.0
_RESERVE_SHARE = 10
_LEAST_RESERVE_MIB = 1024
_VCPUS_PER_CORE = 4
_LEAST_VCPUS = 8
#: The broker uses the first of these ranges that is outside the kernel's range of ephemeral
#: ports.
_PORT_RANGES = (range(24000, 26000), range(61000, 63000), range(10000, 12000))

_INTERVAL_S = 0.05
_HEEDS_LOAD_S = 30.0


@dataclass(frozen=True, kw_only=True)
class HostCapacity:
    """The capacity of this host that all reservations together may use."""

    memory_mib: int
    cpus: int
    cores: int
    ports: range

    @classmethod
    def from_proc(cls, proc: Path = _PROC, *, cores: int | None = None) -> HostCapacity:
        """Read the capacity from the kernel's reports, and ignore limits of cgroups."""
        total_mib = _field_mib(proc / "meminfo", "MemTotal")
        reserve_mib = max(_LEAST_RESERVE_MIB, total_mib // _RESERVE_SHARE)
        cores = cores or os.cpu_count() or 1
        return cls(
            memory_mib=max(0, total_mib - reserve_mib),
            cpus=max(_LEAST_VCPUS, _VCPUS_PER_CORE * cores),
            cores=cores,
            ports=_ports_beside(proc / "sys/net/ipv4/ip_local_port_range"),
        )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Capacity of the host that is reserved until the context of `Broker.reserve` ends."""

    demand: Demand
    ports: tuple[int, ...]
    _name_user: Callable[[int], None] = field(repr=False, compare=False)

    def used_by(self, process: int) -> None:
        """Name the process that uses the memory, so that its touched memory is not counted twice.

        Does nothing once the reservation has ended.
        """
        self._name_user(process)


@dataclass(frozen=True)
class _Shortage:
    """Why a demand can't be met now. Shortages of the same `key` are reported once."""

    key: object
    text: str


def is_bindable(port: int) -> bool:
    """Return whether no process listens on the TCP port `port` of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Broker:
    """Reserves capacity of this host for any number of threads and processes."""

    def __init__(
        self,
        folder: Path,
        *,
        capacity: HostCapacity | None = None,
        proc: Path = _PROC,
        is_free: Callable[[int], bool] = is_bindable,
        process: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._reservations = reservations_in(folder)
        self._capacity = capacity
        self._proc = proc
        self._is_free = is_free
        self._process = process
        self._clock = clock
        self._began = clock.monotonic(), self._cpu_wait_s()

    @property
    def capacity(self) -> HostCapacity:
        """Return the capacity that all reservations together may use."""
        if self._capacity is None:
            self._capacity = HostCapacity.from_proc(self._proc)
        return self._capacity

    @contextlib.contextmanager
    def reserve(
        self,
        who: str,
        demand: Demand,
        *,
        deadline: Deadline,
        report: Callable[[str], None] = lambda _: None,
        cancelled: Callable[[], str | None] = lambda: None,
    ) -> Iterator[Reservation]:
        """Reserve `demand`. While there is not enough capacity, wait and `report` the holders.

        `cancelled` is called before each attempt. Raises RequirementError immediately if this host
        can never meet the demand. Raises HarnessError at the deadline or when `cancelled` returns
        a reason.
        """
        self._require_possible(demand)
        entry = Entry(who=one_line(who), process=self._process or os.getpid(), demand=demand)
        with self._reservations.enter(entry) as name:
            granted = self._wait(name, entry, deadline, report, cancelled)

            def name_user(process: int) -> None:
                with self._reservations.open() as book, contextlib.suppress(FileNotFoundError):
                    book.write(name, dataclasses.replace(granted, user=process))

            yield Reservation(demand=demand, ports=granted.ports, _name_user=name_user)

    def tasks_per_processor(self) -> float:
        """Return the number of tasks per processor if the host is busy with other work, else 1.

        The load average lags behind by up to a minute and the pressure by up to ten seconds. So
        the number of tasks that are ready to run now replaces a lower load average. The pressure
        since this broker was made replaces a lower ten-second pressure.
        """
        held = [entry for entry in self.entries() if entry.is_granted]
        tasks = max(_loadavg(self._proc, _LOAD), _loadavg(self._proc, _RUNNING))
        began_s, wait_s = self._began
        elapsed_s = self._clock.monotonic() - began_s
        pressure = _pressure_field(self._proc / "pressure/cpu", "some")
        if 0 < elapsed_s < _PRESSURE_S:
            pressure = max(pressure, 100 * (self._cpu_wait_s() - wait_s) / elapsed_s)
        cores = self.capacity.cores
        return tasks / cores if _is_crowded(pressure, tasks - _tasks_of(held), cores) else 1.0

    def _cpu_wait_s(self) -> float:
        return _pressure_field(self._proc / "pressure/cpu", "some", "total") / 1e6

    def entries(self) -> list[Entry]:
        """Return the granted and the waiting reservations, in order of arrival."""
        with self._reservations.open() as book:
            return [entry for _, entry in book.entries()]

    def _require_possible(self, demand: Demand) -> None:
        capacity = self.capacity
        for asked, most, unit in (
            (demand.memory_mib, capacity.memory_mib, "MiB of memory"),
            (demand.cpus, capacity.cpus, "vCPUs"),
            (demand.ports, len(capacity.ports), "ports"),
        ):
            if asked > most:
                raise RequirementError(
                    f"{asked} {unit} are requested, but this host has only {most} for all machines "
                    "together; request less, or use a larger host."
                )

    def _wait(
        self,
        name: str,
        entry: Entry,
        deadline: Deadline,
        report: Callable[[str], None],
        cancelled: Callable[[], str | None],
    ) -> Entry:
        reported: set[object] = set()
        heeds_load = deadline.sooner(min(_HEEDS_LOAD_S, deadline.remaining_s() / 2))

        def poll() -> Observation[Entry]:
            if why := cancelled():
                raise HarnessError(why)
            with self._reservations.open() as book:
                found = self._judge(name, book.entries(), heeds_load=not heeds_load.has_passed())
                if isinstance(found, Entry):
                    book.write(name, found)
                    return Observation(found, "granted")
            if found.key not in reported:
                reported.add(found.key)
                report(f"'{entry.who}' waits for {entry.demand}: {found.text}.")
            return Observation(None, found.text)

        what = f"{entry.demand} of this host for '{entry.who}'"
        try:
            return wait_for(what, poll, deadline, interval_s=_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} End the machines that hold capacity, or run fewer workers (`-n 1`)."
            ) from error

    def _judge(
        self, name: str, entries: Sequence[tuple[str, Entry]], *, heeds_load: bool
    ) -> Entry | _Shortage:
        """Return the granted entry `name`, or the shortage that prevents the grant."""
        mine = next((entry for each, entry in entries if each == name), None)
        if mine is None:
            raise HarnessError(
                f"The file '{self._reservations.folder / name}', by which this process waits for memory and "
                "cores of the host, was removed; do not remove files from this folder."
            )
        held = [entry for _, entry in entries if entry.is_granted]
        ahead = ahead_of(name, entries)
        available_mib = _field_mib(self._proc / "meminfo", "MemAvailable")
        untouched_mib = sum(entry.demand.memory_mib for entry in held)
        if mine.demand.memory_mib > available_mib - untouched_mib:
            # Reading the memory use of each process is slow, so this check comes after the cheap
            # checks.
            untouched_mib = self._untouched_mib(held)
        short = _shortages(mine.demand, held, self.capacity, available_mib, untouched_mib)
        is_first = not held or any(entry.process == mine.process for entry in held)
        if heeds_load and not short and not is_first and (load := self._other_load(held)):
            short["load"] = f"{load}, so that machines start one after the other"
        if ahead:
            short["turn"] = f"{ahead[0]} asked earlier"
        ports: tuple[int, ...] = ()
        if not short:
            ports = self._free_ports(mine.demand.ports, held)
            if len(ports) < mine.demand.ports:
                first, last = self.capacity.ports[0], self.capacity.ports[-1]
                short["ports"] = f"{len(ports)} of the ports {first} to {last} are free"
        if short:
            holders = ", ".join(map(str, held)) or "nobody"
            text = f"{'; '.join(short.values())}; held by {holders}"
            key = (tuple(short), tuple(map(str, held)), tuple(map(str, ahead[:1])))
            return _Shortage(key, text)
        return dataclasses.replace(mine, is_granted=True, ports=ports)

    def _other_load(self, held: Sequence[Entry]) -> str | None:
        """Return why no machine should start while the machines of `held` run, or None.

        If the kernel has no pressure stall information, a machine may always start.
        """
        memory = _pressure_field(self._proc / "pressure/memory", "full")
        if memory > _MOST_MEMORY:
            return f"memory is short for {memory:.0f} % of the time (/proc/pressure/memory)"
        io = _pressure_field(self._proc / "pressure/io", "full")
        if io > _MOST_IO:
            return f"all work waits for the disk for {io:.0f} % of the time (/proc/pressure/io)"
        cpu = _pressure_field(self._proc / "pressure/cpu", "some")
        others = _loadavg(self._proc, _LOAD) - _tasks_of(held)
        cores = self.capacity.cores
        if _is_crowded(cpu, others, cores):
            return (
                f"about {others:.0f} other tasks share its {cores} processors, and tasks wait for a processor "
                f"for {cpu:.0f} % of the time (/proc/pressure/cpu)"
            )
        return None

    def _untouched_mib(self, held: Sequence[Entry]) -> int:
        return sum(
            max(0, entry.demand.memory_mib - _touched_mib(self._proc, entry.user))
            for entry in held
        )

    def _free_ports(self, count: int, held: Sequence[Entry]) -> tuple[int, ...]:
        """Return `count` ports, or fewer if fewer are free.

        The search starts at a random port: a port that was just released may still be in use, and
        another user's broker does not know of these reservations.
        """
        taken = {port for entry in held for port in entry.ports}
        ports = self.capacity.ports
        start = secrets.randbelow(len(ports)) if ports else 0
        found: list[int] = []
        for port in (*ports[start:], *ports[:start]) if count else ():
            if len(found) == count:
                break
            if port not in taken and self._is_free(port):
                found.append(port)
        return tuple(found)


def _shortages(
    demand: Demand,
    held: Sequence[Entry],
    capacity: HostCapacity,
    available_mib: int,
    untouched_mib: int,
) -> dict[str, str]:
    """Return a phrase for each kind of capacity that is short."""
    short: dict[str, str] = {}
    memory_left = capacity.memory_mib - sum(entry.demand.memory_mib for entry in held)
    if demand.memory_mib > memory_left:
        short["memory"] = f"{memory_left} of {capacity.memory_mib} MiB are not reserved"
    if demand.memory_mib > available_mib - untouched_mib:
        short["available"] = (
            f"the kernel has {available_mib} MiB available, of which {untouched_mib} MiB are kept "
            "for reservations that have not used them yet"
        )
    cpus_left = capacity.cpus - sum(entry.demand.cpus for entry in held)
    if demand.cpus > cpus_left:
        short["cpus"] = f"{cpus_left} of {capacity.cpus} vCPUs are not reserved"
    return short


def _field_mib(path: Path, name: str) -> int:
    """Return the field `name` of a file of '/proc', converted from kB to MiB."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) >> 10
    return 0


def _touched_mib(proc: Path, process: int | None) -> int:
    """Return the resident memory of a process without file pages, or 0 if the process has ended."""
    if process is None:
        return 0
    status = proc / str(process) / "status"
    try:
        return _field_mib(status, "RssAnon") + _field_mib(status, "RssShmem")
    except OSError:
        return 0


def _ports_beside(path: Path) -> range:
    """Return ports outside the kernel's range of ephemeral ports.

    If that range covers all ports, only a trial `bind` of each port protects against a conflict.
    """
    try:
        low, high = (int(each) for each in path.read_text().split())
    except (OSError, ValueError):
        return _PORT_RANGES[0]
    return next(
        (each for each in _PORT_RANGES if each[-1] < low or each[0] > high), _PORT_RANGES[0]
    )
