"""The pool of this host's GPUs: leases of whole IOMMU groups, for one process at a time.

A lease ends when its process ends, even if the process is killed, since the kernel then releases
the lock. The drivers of a GPU's functions are recorded before any driver is changed. So if the
holder is killed, the next process that leases the GPU first restores the drivers. A GPU that does
not recover is quarantined until a person releases it, and the reason is recorded. Other GPUs are
leased as before.

All users of the host who may take GPUs share the folder of leases and records, since a lease works
only if other users can see it. The folder's mode is 2770, so files get the folder's group. The
group's members can control the GPUs anyway, and nobody else can read or remove a lease. The folder
is in '/run/lock'. This file system is local, which matters since `flock` is not reliable on network
file systems. The file system is also empty after a reboot, which matters since the kernel then
binds all drivers anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError, listed
from harness.gpu.passthrough import VerdictKind
from harness.gpu.passthrough.assessment import Assessor, with_finding
from harness.gpu.passthrough.binding import DeviceError
from harness.gpu.passthrough.handover import Handover, NotNowError, now_text
from harness.gpu.passthrough.inventory import Inventory
from harness.gpu.passthrough.leases import GpuLease
from harness.gpu.passthrough.records import DeviceRecords
from harness.gpu.passthrough.waiting import NotTakenError, Waiting, view_host
from harness.provisioning.command import LocalRunner
from harness.reservation_folder import ReservationFolder, Sharing, one_line
from harness.settings import POOL_FOLDER
from harness.shared_folder import user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.gpu.passthrough import GpuChoice, HostGpu
    from harness.provisioning.command import Runner
    from harness.provisioning.wait import Deadline


@dataclass(frozen=True, kw_only=True)
class LeasedGpu:
    """A leased GPU of the host; all its functions are bound to vfio-pci until the lease ends."""

    gpu: HostGpu
    _reset: Callable[[], None] = field(repr=False, compare=False)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the functions that a machine gets, the GPU first."""
        return tuple(each.address for each in self.gpu.functions)

    def reset(self) -> None:
        """Reset each function of the GPU by the first of the kernel's methods that works.

        Raises HarnessError while a machine has the GPU. If the GPU does not recover, this method
        quarantines the GPU and raises DeviceError.
        """
        self._reset()


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """The result of restoring a GPU whose holder was killed."""

    address: str
    is_restored: bool
    sentence: str


class GpuPool:
    """Leases GPUs of the host whose sysfs, procfs and /dev are below `root`.

    All users of the host who may take GPUs share `folder`. `runner` runs the programs that write to
    sysfs.
    """

    def __init__(
        self,
        folder: Path = POOL_FOLDER,
        *,
        inventory: Inventory | None = None,
        root: Path = Path("/"),
        runner: Runner | None = None,
        process: int | None = None,
    ) -> None:
        self._leases = ReservationFolder(
            folder,
            GpuLease.from_json,
            owner="GPU pool",
            sharing=Sharing.GROUP,
            with_owner=lambda lease, owner: dataclasses.replace(lease, user=owner),
        )
        self._records = DeviceRecords(folder, boot_id=_boot_id(root))
        self._assessor = Assessor(root, inventory or Inventory(), self._records)
        self._handover = Handover(
            root, assessor=self._assessor, records=self._records, runner=runner or LocalRunner()
        )
        self._process = process

    @property
    def folder(self) -> Path:
        """Return the shared folder of leases and records."""
        return self._leases.folder

    def leases(self) -> list[GpuLease]:
        """Return the leases and the waiting processes, in the order in which they arrived."""
        if not self.folder.exists():
            return []
        with self._leases.open() as book:
            return [lease for _, lease in book.entries()]

    def survey(self) -> tuple[HostGpu, ...]:
        """Return all GPUs of the host, each with a verdict that says whether it can be leased now.

        Raises BadInputError if the inventory lists a function that is not a GPU.
        """
        gpus = self._assessor.assess().gpus
        if not self.folder.exists():
            return tuple(self._assessor.with_open_file(gpu) for gpu in gpus)
        # No lease begins while the folder is locked. So this check can open the files of groups
        # without making them busy for a machine.
        with self._leases.open() as book:
            holders = {address: lease for _, lease in book.entries() for address in lease.taken}
            return tuple(
                self._assessor.with_open_file(gpu)
                if gpu.address not in holders
                else with_finding(
                    gpu, VerdictKind.BUSY, f"The GPU is held by {holders[gpu.address]}."
                )
                for gpu in gpus
            )

    def strange_files(self) -> list[str]:
        """Return a sentence about each file that is named like one of the pool's files but is invalid.

        Other users can put any file into the folder. Invalid files have no effect on the pool.
        """
        if not self.folder.exists():
            return []
        with self._leases.open() as book:
            return [*book.strange_files(), *self._records.strange_files()]

    def require(self, wanted: Sequence[GpuChoice]) -> None:
        """Raise RequirementError if this host can't lease these GPUs together, now or later."""
        view_host(self._assessor, self._leases, wanted)

    @contextlib.contextmanager
    def lease(
        self,
        wanted: Sequence[GpuChoice],
        *,
        holder: str,
        deadline: Deadline,
        report: Callable[[str], None] = lambda _: None,
        cancelled: Callable[[], str | None] = lambda: None,
    ) -> Iterator[tuple[LeasedGpu, ...]]:
        """Lease a GPU for each of `wanted`, in that order; in the block the GPUs are on vfio-pci.

        While the GPUs are not free, wait and `report` who holds them. Raises RequirementError
        immediately if this host has no such GPUs; the message says why each GPU does not fit.
        `cancelled` is called before each attempt. Raises HarnessError if `cancelled` returns a
        reason, or at the deadline.

        At the end of the block, each function is bound to its earlier driver again. Raises
        DeviceError if that fails. If the block itself raised an error, the method raises that
        error, and only reports the failure.
        """
        view = view_host(self._assessor, self._leases, wanted)
        lease = self._entry(one_line(holder), view.candidates)
        with self._leases.enter(lease) as name:
            waiting = Waiting(
                self._assessor,
                self._leases,
                name=name,
                lease=lease,
                wanted=wanted,
                view=view,
                clock=deadline.clock,
                report=report,
                cancelled=cancelled,
            )
            leased = waiting.wait(self._take, deadline)
            try:
                yield leased
            except BaseException:
                for failure in self._give_back(leased):
                    report(failure)
                raise
            failures = self._give_back(leased)
            if failures:
                raise DeviceError(" ".join(failures))

    def restore_abandoned(self) -> list[Restoration]:
        """Restore the drivers of GPUs whose holder was killed, except quarantined GPUs."""
        if not self.folder.exists():
            return []
        done = [self._restored(address) for address in self._records.taken()]
        return [each for each in done if each is not None]

    def _restored(self, address: str) -> Restoration | None:
        """Restore the drivers of a GPU, or return None if the GPU is held or quarantined."""
        try:
            if self._records.quarantine(address) is not None:
                return None
            with self._claim(address) as holder:
                if holder is not None:
                    return None
                self._handover.restore(address)
        except (NotNowError, HarnessError) as error:
            sentence = f"{address} is not bound to its earlier drivers again: {error}"
            return Restoration(address=address, is_restored=False, sentence=sentence)
        sentence = f"{address} is bound to its earlier drivers again."
        return Restoration(address=address, is_restored=True, sentence=sentence)

    def release(self, address: str) -> None:
        """Restore the earlier drivers of a GPU's functions, and end its quarantine.

        Raises RequirementError if the GPU is not quarantined, and DeviceError if the GPU still does
        not recover.
        """
        with self._claim(address) as holder:
            if holder is not None:
                raise RequirementError(
                    f"GPU {address} is held by {holder}; wait until that run ends."
                )
            if self._records.quarantine(address) is None:
                raise RequirementError(
                    f"GPU {address} is not quarantined; the quarantined GPUs are "
                    f"{listed(self._records.quarantined())}."
                )
            try:
                self._handover.recover(address)
            except NotNowError as error:
                raise RequirementError(f"GPU {address} can't be released: {error}") from error
            self._records.end_quarantine(address)

    def _take(self, addresses: Sequence[str]) -> tuple[LeasedGpu, ...]:
        """Bind all GPUs to vfio-pci.

        If a GPU can't be bound, this method restores the drivers of the other GPUs and raises
        NotTakenError.
        """
        with contextlib.ExitStack() as undoing:
            leased = []
            for address in addresses:
                try:
                    gpu = self._handover.take(address)
                except (NotNowError, DeviceError) as error:
                    raise NotTakenError(address, str(error)) from error
                undoing.callback(self._handover.give_back, gpu)
                leased.append(
                    LeasedGpu(gpu=gpu, _reset=functools.partial(self._handover.reset, gpu))
                )
            undoing.pop_all()
        return tuple(leased)

    def _give_back(self, leased: Sequence[LeasedGpu]) -> list[str]:
        return [failure for each in leased for failure in self._handover.give_back(each.gpu)]

    def _entry(self, who: str, wanted: tuple[tuple[str, ...], ...]) -> GpuLease:
        return GpuLease(
            who=who,
            process=self._process or os.getpid(),
            user=user_name(os.geteuid()),
            since=now_text(),
            wanted=wanted,
        )

    @contextlib.contextmanager
    def _claim(self, address: str) -> Iterator[GpuLease | None]:
        """Reserve a GPU without binding it, and yield None; if the GPU is leased, yield its lease."""
        lease = self._entry("restoring drivers", ((address,),))
        with self._leases.enter(lease) as name:
            with self._leases.open() as book:
                others = [entry for each, entry in book.entries() if each != name]
                holder = next((entry for entry in others if address in entry.taken), None)
                if holder is None:
                    book.write(name, dataclasses.replace(lease, taken=(address,)))
            yield holder


def _boot_id(root: Path) -> str:
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise HarnessError(
            f"'/proc/sys/kernel/random/boot_id' can't be read ({error.strerror}), so it is not "
            "known whether the records of drivers belong to this boot; mount '/proc'."
        ) from error
