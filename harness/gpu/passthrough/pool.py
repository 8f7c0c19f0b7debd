"""The pool of this host's GPUs: leases of whole IOMMU groups, for one process at a time.

A lease ends with its process, however that ends, since the kernel releases its file lock. The drivers
that the functions had are recorded before the first of them is touched, so the next process that
leases the GPU restores them first. A GPU that does not recover is quarantined, with the reason, until
a person releases it; the others are leased as before.

The folder of leases and records is shared by all users of the host who may take GPUs. So it is not
private (0700), as the folder of a user's own reservations is: a lease that others can't see excludes
nobody. Its mode is 2770: files get the folder's group, whose members can already do anything to the
GPUs, and nobody else can read or remove a lease. '/run/lock' is the place: it is local, since `flock`
is not reliable on network file systems, and it is empty after a reboot, when all drivers are bound
afresh.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError, listed
from harness.gpu.passthrough import VFIO_DRIVER, GpuChoice, VerdictKind, parse_address
from harness.gpu.passthrough.binding import Binder, DeviceError
from harness.gpu.passthrough.device_users import (
    VfioFile,
    find_device_users,
    probe_vfio_file,
    user_name,
    vfio_file,
)
from harness.gpu.passthrough.discovery import read_functions, read_host
from harness.gpu.passthrough.inventory import Inventory
from harness.gpu.passthrough.leases import GpuLease, grant
from harness.gpu.passthrough.records import DeviceRecords, Quarantine
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import (
    SYSTEM_CLOCK,
    Deadline,
    Observation,
    WaitTimeoutError,
    wait_for,
)
from harness.reservation_folder import ReservationFolder, Sharing, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.gpu.passthrough import HostDevices, HostFunction, HostGpu
    from harness.provisioning.command import Runner

DEFAULT_FOLDER = Path("/run/lock/gpu-node-harness")

_INTERVAL_S = 0.1
#: While a process waits, it reads the host again after this time, or when a lease begins or ends.
_READ_AGAIN_S = 2.0
#: udev gives the group's file its owner some time after the kernel has made it.
_PERMISSIONS_S = 5.0
#: A machine that was told to end may still have the file open for a moment.
_CLOSED_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LeasedGpu:
    """A GPU of the host, all of whose functions are on vfio-pci until its lease ends."""

    gpu: HostGpu
    _reset: Callable[[], None] = field(repr=False, compare=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the functions that a machine gets, the GPU first."""
        return tuple(each.address for each in self.gpu.functions)

    def reset(self) -> None:
        """Reset all functions by the best method that the kernel has.

        Raises HarnessError while a machine has the GPU, and DeviceError where it does not recover;
        then it is quarantined.
        """
        self._reset()


@dataclass(frozen=True, kw_only=True)
class _View:
    """What a waiting process knows of the host, until a lease begins or ends."""

    candidates: tuple[tuple[str, ...], ...]
    usable: frozenset[str]
    held: set[str]


class _NotNowError(Exception):
    """A GPU that was granted can't be taken now; the message is a sentence."""


class GpuPool:
    """Leases GPUs of the host whose sysfs, procfs and /dev lie below `root`.

    `folder` is shared by all users of the host who may take GPUs. `runner` writes into sysfs.
    """

    def __init__(
        self,
        folder: Path = DEFAULT_FOLDER,
        *,
        inventory: Inventory | None = None,
        root: Path = Path("/"),
        runner: Runner | None = None,
        process: int | None = None,
    ) -> None:
        self._leases = ReservationFolder(
            folder, GpuLease.from_json, owner="GPU pool", sharing=Sharing.GROUP
        )
        self._inventory = inventory or Inventory()
        self._root = root
        self._binder = Binder(root, runner or LocalRunner())
        self._records = DeviceRecords(folder, boot_id=_boot_id(root))
        self._process = process

    @property
    def folder(self) -> Path:
        """Return the shared folder of leases and records."""
        return self._leases.folder

    def leases(self) -> list[GpuLease]:
        """Return the leases and those who wait, in order of arrival."""
        if not self.folder.exists():
            return []
        with self._leases.open() as book:
            return [lease for _, lease in book.entries()]

    def survey(self) -> tuple[HostGpu, ...]:
        """Return all GPUs of the host, and whether each can be leased now.

        Raises BadInputError where the inventory lists what is no GPU.
        """
        gpus = self._assess().gpus
        if not self.folder.exists():
            return tuple(self._with_open_file(gpu) for gpu in gpus)
        # While the folder is locked no lease begins, so no machine finds its file open by this.
        with self._leases.open() as book:
            holders = {address: lease for _, lease in book.entries() for address in lease.taken}
            return tuple(
                self._with_open_file(gpu)
                if gpu.address not in holders
                else _with_finding(gpu, VerdictKind.BUSY, f"It is held by {holders[gpu.address]}.")
                for gpu in gpus
            )

    @contextlib.contextmanager
    def lease(
        self,
        wanted: Sequence[GpuChoice],
        *,
        holder: str,
        deadline: Deadline,
        report: Callable[[str], None] = lambda _: None,
    ) -> Iterator[tuple[LeasedGpu, ...]]:
        """Lease a GPU for each of `wanted`, in that order; meanwhile all are on vfio-pci.

        While they are not free, wait and `report` who holds them. Raises RequirementError at once
        where this host has no such GPUs, with the reason of each, and HarnessError at the deadline.
        At the end each function is back on the driver that it had; raises DeviceError where one is
        not, unless the block ends with an error of its own, which is then reported.
        """
        lease = GpuLease(
            who=one_line(holder),
            process=self._process or os.getpid(),
            user=user_name(os.geteuid()),
            since=_now(),
            wanted=self._look(wanted).candidates,
        )
        with self._leases.enter(lease) as name:
            leased = self._wait(name, lease, wanted, deadline, report)
            try:
                yield leased
            finally:
                failures = [failure for each in leased for failure in self._give_back(each.gpu)]
                if failures and sys.exc_info()[0] is None:
                    raise DeviceError(" ".join(failures))
                for failure in failures:
                    report(failure)

    def restore_abandoned(self) -> list[str]:
        """Restore the drivers of GPUs whose holder died, and return what was done, as sentences."""
        if not self.folder.exists():
            return []
        done: list[str] = []
        for address in self._records.taken():
            if self._records.quarantine(address) is not None:
                continue
            with self._claim(address) as holder:
                if holder is not None:
                    continue
                try:
                    self._restore_recorded(address)
                except (_NotNowError, DeviceError) as error:
                    done.append(f"{address} is not restored: {error}")
                else:
                    done.append(f"{address} is back on the driver that it had.")
        return done

    def release(self, address: str) -> None:
        """End the quarantine of a GPU, once its functions are back on the drivers that they had.

        Raises RequirementError where it is not quarantined, and DeviceError where it still does not
        recover.
        """
        with self._claim(address) as holder:
            if holder is not None:
                raise RequirementError(f"GPU {address} is held by {holder}; wait for its end.")
            if self._records.quarantine(address) is None:
                raise RequirementError(
                    f"GPU {address} is not quarantined; quarantined are "
                    f"{listed(self._records.quarantined())}."
                )
            self._binder.require_answer(address)
            try:
                self._restore_recorded(address)
            except _NotNowError as error:
                raise RequirementError(f"GPU {address} can't be released: {error}") from error
            self._records.end_quarantine(address)

    def _assess(self) -> HostDevices:
        """Return the host's devices, judged with the inventory, the quarantine, but not leases."""
        host = read_host(self._root)
        self._inventory.require_gpus(host)
        gpus = []
        for gpu in host.gpus:
            findings = self._inventory.findings(gpu.address)
            if self.folder.exists():
                findings += self._recorded_findings(gpu.address)
            one = dataclasses.replace(gpu, model=self._inventory.model_of(gpu.address))
            for kind, reason in findings:
                one = _with_finding(one, kind, reason)
            gpus.append(one)
        return dataclasses.replace(host, gpus=tuple(gpus))

    def _recorded_findings(self, address: str) -> list[tuple[VerdictKind, str]]:
        try:
            quarantine = self._records.quarantine(address)
            self._records.drivers(address)
        except HarnessError as error:
            return [(VerdictKind.UNKNOWN, str(error))]
        if quarantine is None:
            return []
        reason = (
            f"It is quarantined since {quarantine.since}: {quarantine.reason} When it is repaired, "
            f"run `harness gpu host release {address}`."
        )
        return [(VerdictKind.REFUSED, reason)]

    def _with_open_file(self, gpu: HostGpu) -> HostGpu:
        """Return `gpu`, judged by whether its group's file can be opened, if it is on vfio-pci."""
        if gpu.group is None or gpu.function.driver != VFIO_DRIVER or not gpu.verdict.is_usable:
            return gpu
        match probe_vfio_file(self._root, gpu.group.number):
            case VfioFile.BUSY:
                reason = f"Another process has '{vfio_file(gpu.group.number)}' open."
                return _with_finding(gpu, VerdictKind.BUSY, reason)
            case VfioFile.FORBIDDEN:
                reason = _forbidden(gpu.group.number)
                return _with_finding(gpu, VerdictKind.REFUSED, reason)
            case VfioFile.ABSENT:
                reason = f"'{vfio_file(gpu.group.number)}' does not exist."
                return _with_finding(gpu, VerdictKind.UNKNOWN, reason)
            case VfioFile.FREE:
                return gpu

    def _held(self) -> set[str]:
        return {address for lease in self.leases() for address in lease.taken}

    def _look(self, wanted: Sequence[GpuChoice]) -> _View:
        """Read the host; raise RequirementError where it can't have what is wanted."""
        for may_retry in (True, False):
            before = self._held()
            host = self._assess()
            held = self._held()
            try:
                # What a GPU answers says nothing while its holder may reset it.
                candidates = _candidates(wanted, host, before | held)
            except RequirementError:
                # A short lease may have begun and ended meanwhile.
                if may_retry:
                    continue
                raise
            usable = frozenset(gpu.address for gpu in host.gpus if gpu.verdict.is_usable)
            return _View(candidates=candidates, usable=usable, held=held)
        raise AssertionError

    def _wait(
        self,
        name: str,
        lease: GpuLease,
        wanted: Sequence[GpuChoice],
        deadline: Deadline,
        report: Callable[[str], None],
    ) -> tuple[LeasedGpu, ...]:
        """Return the GPUs once it is this lease's turn and they are on vfio-pci."""
        clock = deadline.clock
        view: _View | None = None
        read_at = clock.monotonic()
        reported: set[str] = set()

        def look() -> Observation[tuple[LeasedGpu, ...]]:
            nonlocal view, read_at
            if (
                view is None
                or view.held != self._held()
                or clock.monotonic() - read_at > _READ_AGAIN_S
            ):
                view, read_at = self._look(wanted), clock.monotonic()
            with self._leases.open() as book:
                entries = book.entries()
                waiting = dataclasses.replace(lease, wanted=view.candidates)
                mine = [(each, waiting if each == name else entry) for each, entry in entries]
                if len(dict(mine).keys() & {name}) == 0:
                    raise HarnessError(
                        f"The file '{self.folder / name}' was removed while its owner waited; do "
                        "not remove the pool's files."
                    )
                turn = grant(name, mine, view.usable)
                book.write(name, dataclasses.replace(waiting, taken=turn.taken))
            text = turn.text
            if turn.taken:
                try:
                    return Observation(self._take(turn.taken), "taken")
                except (_NotNowError, DeviceError) as error:
                    text = str(error)
                    view = None
                    with self._leases.open() as book:
                        book.write(name, waiting)
            if text not in reported:
                reported.add(text)
                report(f"'{lease.who}' waits for {', '.join(map(str, wanted))}: {text}")
            return Observation(None, text.rstrip("."))

        what = f"{', '.join(map(str, wanted))} of this host for '{lease.who}'"
        try:
            return wait_for(what, look, deadline, interval_s=_INTERVAL_S)
        except WaitTimeoutError as error:
            raise HarnessError(
                f"{error} End the runs that hold them, or run fewer workers (`-n 1`)."
            ) from error

    def _take(self, addresses: Sequence[str]) -> tuple[LeasedGpu, ...]:
        """Bind all GPUs to vfio-pci, or none."""
        with contextlib.ExitStack() as undoing:
            leased = []
            for address in addresses:
                gpu = self._take_one(address)
                undoing.callback(self._give_back, gpu)
                leased.append(LeasedGpu(gpu=gpu, _reset=functools.partial(self._reset, gpu)))
            undoing.pop_all()
        return tuple(leased)

    def _take_one(self, address: str) -> HostGpu:
        self._restore_recorded(address)
        gpu = next((each for each in self._assess().gpus if each.address == address), None)
        if gpu is None or gpu.group is None:
            raise self._quarantined(address, f"{address} is not on the PCI bus any more.")
        # A process may have opened the GPU since the host was read last.
        gpu = self._with_open_file(gpu)
        if not gpu.verdict.is_usable:
            raise _NotNowError(f"{address}: {gpu.verdict.reason}")
        self._records.save_drivers(address, gpu.functions)
        try:
            for function in gpu.functions:
                self._binder.bind_to_vfio(function.address)
            self._require_access(gpu)
            self._reset_functions(gpu)
        except DeviceError as error:
            raise self._quarantined(address, str(error)) from error
        except BaseException:
            # Not a fault of the GPU, such as a lack of permission: leave it as it was.
            with contextlib.suppress(HarnessError):
                self._restore_recorded(address)
            raise
        return gpu

    def _require_access(self, gpu: HostGpu) -> None:
        """Wait until this user may open the group's file."""
        if gpu.group is None:
            return
        group = gpu.group.number

        def look() -> Observation[bool]:
            found = probe_vfio_file(self._root, group)
            return Observation(True if found is VfioFile.FREE else None, found.value)

        try:
            wait_for(vfio_file(group), look, Deadline.after(_PERMISSIONS_S), interval_s=0.05)
        except WaitTimeoutError as error:
            raise RequirementError(_forbidden(group)) from error

    def _give_back(self, gpu: HostGpu) -> list[str]:
        """Restore the drivers of a GPU; return what went wrong, as sentences."""
        try:
            self._require_closed(gpu)
            if self._records.quarantine(gpu.address) is None:
                self._reset_functions(gpu)
                self._restore_recorded(gpu.address)
        except DeviceError as error:
            return [str(self._quarantined(gpu.address, str(error)))]
        except (_NotNowError, HarnessError) as error:
            return [f"GPU {gpu.address} stays on {VFIO_DRIVER}: {error}"]
        return []

    def _require_closed(self, gpu: HostGpu) -> None:
        """Wait until no machine has the GPU open any more."""
        if gpu.group is None:
            return
        group = gpu.group.number

        def look() -> Observation[bool]:
            is_open = probe_vfio_file(self._root, group) is VfioFile.BUSY
            return Observation(None if is_open else True, "open")

        try:
            wait_for(f"the end of '{vfio_file(group)}'", look, Deadline.after(_CLOSED_S))
        except WaitTimeoutError as error:
            raise _NotNowError(self._opened(group)) from error

    def _opened(self, group: int) -> str:
        file = vfio_file(group)
        processes = find_device_users(self._root).of_file(file) or ("a process",)
        return f"{', '.join(processes)} has '{file}' open; end it first."

    def _reset(self, gpu: HostGpu) -> None:
        if gpu.group is not None and (
            probe_vfio_file(self._root, gpu.group.number) is VfioFile.BUSY
        ):
            raise HarnessError(
                f"GPU {gpu.address} can't be reset while a machine has it: "
                f"{self._opened(gpu.group.number)}"
            )
        try:
            self._reset_functions(gpu)
        except DeviceError as error:
            raise self._quarantined(gpu.address, str(error)) from error

    def _reset_functions(self, gpu: HostGpu) -> None:
        for function in gpu.functions:
            self._binder.require_answer(function.address)
            if function.reset_methods:
                self._binder.reset(function.address)

    def _restore_recorded(self, address: str) -> None:
        """Restore the recorded drivers of a GPU's functions, if there are any.

        Raises _NotNowError while a process still has the GPU open: taking vfio-pci off it would not
        return before that ends.
        """
        drivers = self._records.drivers(address)
        if drivers is None:
            return
        functions = read_functions(self._root)
        for each in drivers:
            function: HostFunction | None = functions.get(each)
            if function is None or function.driver != VFIO_DRIVER or function.group is None:
                continue
            if probe_vfio_file(self._root, function.group) is VfioFile.BUSY:
                raise _NotNowError(self._opened(function.group))
        try:
            self._binder.restore(drivers)
        except DeviceError as error:
            raise self._quarantined(address, str(error)) from error
        self._records.forget_drivers(address)

    def _quarantined(self, address: str, reason: str) -> DeviceError:
        """Quarantine a GPU and return the error that says so."""
        if self._records.quarantine(address) is None:
            quarantine = Quarantine(reason=reason, since=_now(), user=user_name(os.geteuid()))
            self._records.save_quarantine(address, quarantine)
        return DeviceError(
            f"GPU {address} is quarantined: {reason} When it is repaired, run `harness gpu host "
            f"release {address}`."
        )

    @contextlib.contextmanager
    def _claim(self, address: str) -> Iterator[GpuLease | None]:
        """Hold a GPU without taking it; give None, or who holds it already."""
        lease = GpuLease(
            who="restoring drivers",
            process=self._process or os.getpid(),
            user=user_name(os.geteuid()),
            since=_now(),
            wanted=((address,),),
        )
        with self._leases.enter(lease) as name:
            with self._leases.open() as book:
                others = [entry for each, entry in book.entries() if each != name]
                holder = next((entry for entry in others if address in entry.taken), None)
                if holder is None:
                    book.write(name, dataclasses.replace(lease, taken=(address,)))
            yield holder


def _candidates(
    wanted: Sequence[GpuChoice], host: HostDevices, held: set[str]
) -> tuple[tuple[str, ...], ...]:
    """Return for each of `wanted` the GPUs that would do, now or later.

    One that is `held` is judged when it is free.
    """
    found = []
    for choice in wanted:
        fitting = _fitting(choice, host)
        later = [
            gpu.address
            for gpu in fitting
            if gpu.verdict.kind <= VerdictKind.BUSY or gpu.address in held
        ]
        if not later:
            reasons = " ".join(f"{gpu.address}: {gpu.verdict.reason}" for gpu in fitting)
            raise RequirementError(f"{choice} can't be leased. {reasons}")
        found.append(tuple(later))
    several = {address for each in found for address in each}
    if len(several) < len(wanted):
        raise RequirementError(
            f"{len(wanted)} GPUs are wanted at once, but this host has only "
            f"{listed(sorted(several))} for them; want fewer, or use another host."
        )
    return tuple(found)


def _fitting(choice: GpuChoice, host: HostDevices) -> list[HostGpu]:
    """Return the GPUs that `choice` means; raises RequirementError where there are none."""
    if choice.address is not None:
        address = parse_address(choice.address, source="GpuChoice", key="address")
        fitting = [gpu for gpu in host.gpus if gpu.address == address]
        function = host.functions.get(address)
        if not fitting and function is not None:
            raise RequirementError(f"{function} is no GPU; this host's are {_all_gpus(host)}.")
    else:
        fitting = [gpu for gpu in host.gpus if choice.model is None or gpu.is_model(choice.model)]
    if not fitting:
        raise RequirementError(
            f"{choice} is wanted, but this host has none such; its GPUs are {_all_gpus(host)}."
        )
    return fitting


def _all_gpus(host: HostDevices) -> str:
    return ", ".join(f"{gpu.address} ({gpu.model or gpu.function.ids})" for gpu in host.gpus) or (
        "none"
    )


def _with_finding(gpu: HostGpu, kind: VerdictKind, reason: str) -> HostGpu:
    return dataclasses.replace(gpu, verdict=gpu.verdict.with_finding(kind, reason))


def _forbidden(group: int) -> str:
    return (
        f"User {user_name(os.geteuid())} may not open '{vfio_file(group)}'; run as root, or let an "
        "administrator give your group access by the udev rule of docs/gpu-lab.md."
    )


def _boot_id(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise HarnessError(
            f"'/proc/sys/kernel/random/boot_id' can't be read ({error.strerror}), so whether records "
            "of drivers are of this boot is not known; mount '/proc'."
        ) from error


def _now() -> str:
    return SYSTEM_CLOCK.now().isoformat(timespec="seconds")
