"""A host-wide account of memory, cores and ports, shared by every test run of one user.

A machine that finds no room waits, and says for whom, instead of driving the host into swap. The
account is a folder with one file for each claim, held by `flock` for as long as the claim lasts:
the kernel drops the lock when its holder dies, by `kill -9` too, and whoever looks next removes the
file. A lock on the folder itself serialises looking and adding.

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
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from harness.errors import HarnessError, RequirementError
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PROC = Path("/proc")
#: The same for every run of a user: TMPDIR and XDG_RUNTIME_DIR differ between a login and a job.
_SHARED = Path("/tmp")  # noqa: S108 - the folder below it is refused unless it is ours alone

_RESERVE_SHARE = 10
_LEAST_RESERVE_MIB = 1024
_VCPUS_PER_CORE = 4
_LEAST_VCPUS = 8
#: The first that lies outside the range of the kernel's own choice is used.
_PORT_RANGES = (range(24000, 26000), range(61000, 63000), range(10000, 12000))

_INTERVAL_S = 0.05
_GATE_INTERVAL_S = 0.002
#: The gate is held for about a millisecond; longer only by a process that was stopped meanwhile.
_GATE_S = 10.0
_FILE_NAME = re.compile(r"(?P<ticket>[0-9]{9,})-[0-9a-f]{8}")
_LONGEST_WHO = 80


def host_folder() -> Path:
    """Return where this user's account of this host lies; it is made by the first claim."""
    return _SHARED / f"gpu-node-harness-{os.geteuid()}"


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a machine needs of the host, QEMU's own use included."""

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
class Entry:
    """One line of the account: a claim, or a demand that waits (`is_granted` is false)."""

    who: str
    process: int
    demand: Demand
    is_granted: bool = False
    ports: tuple[int, ...] = ()
    #: The process that touches the memory, where it is known.
    user: int | None = None

    @override
    def __str__(self) -> str:
        return f"'{self.who}' of process {self.process} ({self.demand})"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """Raise ValueError, KeyError or TypeError where `text` is no entry."""
        fields = json.loads(text)
        user = fields["user"]
        return cls(
            who=str(fields["who"]),
            process=int(fields["process"]),
            demand=Demand(**{key: int(value) for key, value in fields["demand"].items()}),
            is_granted=bool(fields["is_granted"]),
            ports=tuple(int(port) for port in fields["ports"]),
            user=None if user is None else int(user),
        )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Room on the host that is this process's own until the claim's context ends."""

    demand: Demand
    ports: tuple[int, ...]
    _name_user: Callable[[int], None] = field(repr=False, compare=False)

    def used_by(self, process: int) -> None:
        """Name the process that touches the memory, so that what it touched counts but once."""
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
        self._folder = folder
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
    ) -> Iterator[Claim]:
        """Hold room for `demand`; wait for it where there is none, and `tell` for whom.

        Raises RequirementError at once where this host never has such room, and HarnessError where
        the deadline passes first.
        """
        self._require_possible(demand)
        entry = Entry(who=_plain(who), process=self._process or os.getpid(), demand=demand)
        with self._enter(entry) as (name, descriptor):
            granted = self._wait(name, descriptor, entry, deadline, tell)

            def name_user(process: int) -> None:
                with self._gate():
                    _write(descriptor, dataclasses.replace(granted, user=process))

            yield Claim(demand=demand, ports=granted.ports, _name_user=name_user)

    def claims(self) -> list[Entry]:
        """Return who holds what and who waits, in the order in which they came."""
        with self._gate() as folder:
            return [entry for _, entry in _entries(folder, self._folder)]

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

    @contextlib.contextmanager
    def _enter(self, entry: Entry) -> Iterator[tuple[str, int]]:
        """Put `entry` at the end of the account, and take it out afterwards.

        It is taken out without the gate, so that nobody has to wait for that.
        """
        with contextlib.ExitStack() as leaving:
            with self._gate() as folder:
                last = max((_ticket(name) for name in _names(folder)), default=0)
                # The second half keeps a late clean-up from meeting a successor of that number.
                name = f"{last + 1:09d}-{secrets.token_hex(4)}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                descriptor = os.open(name, flags, 0o600, dir_fd=folder)
                leaving.callback(os.close, descriptor)
                leaving.callback((self._folder / name).unlink, missing_ok=True)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _write(descriptor, entry)
            yield name, descriptor

    def _wait(
        self,
        name: str,
        descriptor: int,
        entry: Entry,
        deadline: Deadline,
        tell: Callable[[str], None],
    ) -> Entry:
        told: set[object] = set()

        def look() -> Observation[Entry]:
            with self._gate() as folder:
                found = self._judge(name, _entries(folder, self._folder))
                if isinstance(found, Entry):
                    _write(descriptor, found)
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
                f"Somebody removed '{self._folder / name}' while its owner waited; leave the "
                "broker's files alone."
            )
        held = [entry for _, entry in entries if entry.is_granted]
        ahead = _ahead(name, entries)
        available_mib = _field_mib(self._proc / "meminfo", "MemAvailable")
        short = _shortages(mine.demand, held, self.room, available_mib, self._untouched_mib(held))
        if ahead:
            short["turn"] = f"{ahead[0]} came first"
        ports: tuple[int, ...] = ()
        if not short:
            ports = self._free_ports(mine.demand.ports, held)
            if len(ports) < mine.demand.ports:
                short["ports"] = f"only {len(ports)} ports from {self.room.ports[0]} on are free"
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

    @contextlib.contextmanager
    def _gate(self) -> Iterator[int]:
        """Hold the lock on the folder, and give its descriptor."""

        def look() -> Observation[int]:
            folder = _open_private(self._folder)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(folder)
                return Observation(None, "another process holds it")
            except BaseException:
                os.close(folder)
                raise
            if os.fstat(folder).st_nlink == 0:
                os.close(folder)
                return Observation(None, "it was removed")
            return Observation(folder, "free")

        try:
            folder = wait_for(
                f"the lock on '{self._folder}'",
                look,
                Deadline.after(_GATE_S),
                interval_s=_GATE_INTERVAL_S,
            )
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} A process that was stopped may hold it; `fuser '{self._folder}'` names it."
            ) from error
        try:
            yield folder
        finally:
            # A child between fork and exec has the descriptor too, and must not keep the lock.
            fcntl.flock(folder, fcntl.LOCK_UN)
            os.close(folder)


def _ahead(name: str, entries: Sequence[tuple[str, Entry]]) -> list[Entry]:
    """Return the waiting entries whose turn comes before that of `name`."""
    holders = {entry.process for _, entry in entries if entry.is_granted}
    waiting = sorted(
        (entry.process not in holders, _ticket(each), each, entry)
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


def _open_private(folder: Path) -> int:
    """Open `folder`, made where it is not there, after a proof that it is this user's alone."""
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        why = "it is a link or no folder" if is_link else f"{error.strerror}"
        raise _refusal(folder, why) from error
    state = os.fstat(descriptor)
    if state.st_uid != os.geteuid():
        os.close(descriptor)
        raise _refusal(folder, f"it belongs to user {state.st_uid}")
    if stat.S_IMODE(state.st_mode) & 0o077:
        os.close(descriptor)
        raise _refusal(folder, f"others may use it, by its mode {stat.S_IMODE(state.st_mode):o}")
    return descriptor


def _refusal(folder: Path, why: str) -> RequirementError:
    return RequirementError(
        f"The broker's folder '{folder}' is not a folder of user {os.geteuid()} alone ({why}); "
        "remove it, or ask its owner to."
    )


def _names(folder: int) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _FILE_NAME.fullmatch(name))


def _ticket(name: str) -> int:
    return int(name.partition("-")[0])


def _entries(folder: int, path: Path) -> list[tuple[str, Entry]]:
    """Return the live entries by file name, and remove those whose holder is dead.

    The gate must be held. Raises HarnessError at a file that is held and makes no sense: what it
    stands for can't be known.
    """
    entries: list[tuple[str, Entry]] = []
    for name in _names(folder):
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=folder)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            try:
                entry = Entry.from_json(os.pread(descriptor, 65536, 0).decode())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise HarnessError(
                    f"The claim '{path / name}' can't be read ({error}), but a process holds it, of "
                    f"another version maybe; end that process: `fuser '{path / name}'` names it."
                ) from error
            entries.append((name, entry))
        finally:
            os.close(descriptor)
    return entries


def _write(descriptor: int, entry: Entry) -> None:
    content = entry.to_json().encode()
    try:
        # In this order a full disk leaves what was there.
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    except OSError as error:
        raise HarnessError(
            f"The claim for '{entry.who}' can't be written ({error.strerror}); free some space in "
            f"'{_SHARED}'."
        ) from error


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
