"""Takes a GPU from the host, gives the GPU back, and quarantines a GPU that fails.

Only the process that holds the GPU's lease may call these methods.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from harness.errors import HarnessError, RequirementError
from harness.gpu.passthrough import VFIO_DRIVER
from harness.gpu.passthrough.assessment import forbidden
from harness.gpu.passthrough.binding import Binder, DeviceError, has_left_the_bus
from harness.gpu.passthrough.device_users import (
    VfioFile,
    find_device_users,
    probe_vfio_file,
    vfio_file,
)
from harness.gpu.passthrough.discovery import read_function
from harness.gpu.passthrough.records import Quarantine, RecordError
from harness.provisioning.wait import (
    SYSTEM_CLOCK,
    Deadline,
    Observation,
    WaitTimeoutError,
    wait_for,
)
from harness.shared_folder import user_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.gpu.passthrough import HostGpu
    from harness.gpu.passthrough.assessment import Assessor
    from harness.gpu.passthrough.records import DeviceRecords, RecordedDrivers
    from harness.provisioning.command import Runner

#: The seconds within which udev has to set the owner of a group's new file.
_PERMISSIONS_S = 10.0
#: The seconds within which a machine that is ending has to close the group's file.
_CLOSED_S = 15.0


class NotNowError(Exception):
    """A granted GPU can't be taken now; the message is a sentence."""


class Handover:
    """Takes GPUs of the host below `root`; `runner` writes into sysfs."""

    def __init__(
        self, root: Path, *, assessor: Assessor, records: DeviceRecords, runner: Runner
    ) -> None:
        self._root = root
        self._assessor = assessor
        self._records = records
        self._binder = Binder(root, runner)

    def take(self, address: str) -> HostGpu:
        """Bind all functions of a GPU to vfio-pci, and return the state that the GPU had before.

        Raises NotNowError if the GPU is in use. If the GPU fails, this method quarantines the GPU
        and raises DeviceError.
        """
        try:
            if self._records.quarantine(address) is not None:
                raise NotNowError(
                    f"GPU {address} was quarantined after this process had chosen it."
                )
            self.restore(address)
        except RecordError as error:
            raise NotNowError(str(error)) from error
        gpus = self._assessor.assess().gpus
        gpu = next((each for each in gpus if each.address == address), None)
        if gpu is None or gpu.group is None:
            raise self._quarantined(address, has_left_the_bus(address))
        group = gpu.group.number
        # After the host was last read, a process may have opened the GPU.
        gpu = self._assessor.with_open_file(gpu)
        if not gpu.verdict.is_usable:
            raise NotNowError(f"{address}: {gpu.verdict.reason}")
        self._records.save_drivers(address, gpu.functions)
        try:
            with self._quarantining(address):
                for function in gpu.functions:
                    self._binder.bind_to_vfio(function.address)
                self._require_access(group)
                self._reset_functions(gpu)
        except (DeviceError, NotNowError):
            raise
        except BaseException:
            # The error, such as a missing permission, is not a fault of the GPU, so the drivers are
            # restored. This code does not check whether a process has the GPU open: no process
            # opened the GPU after it was bound, and this user may lack the permission to check.
            with contextlib.suppress(HarnessError):
                self._restore(self._records.own(address, gpu.functions))
            raise
        return gpu

    def give_back(self, gpu: HostGpu) -> list[str]:
        """Restore the drivers of a GPU; return a sentence for each error.

        The drivers come from `gpu` and not from the record, which another user may have replaced.
        """
        try:
            quarantine = self._records.quarantine(gpu.address)
            if quarantine is not None and quarantine.is_trusted:
                return []
        except RecordError:
            # Only the holder of the lease may quarantine a GPU, so a record by another user is
            # ignored.
            pass
        try:
            self._require_closed(gpu)
            with self._quarantining(gpu.address):
                self._reset_functions(gpu)
            self._restore(self._records.own(gpu.address, gpu.functions))
        except (DeviceError, RecordError) as error:
            return [str(error)]
        except (NotNowError, HarnessError) as error:
            return [f"GPU {gpu.address} stays on {VFIO_DRIVER}: {error}"]
        return []

    def reset(self, gpu: HostGpu) -> None:
        """Reset all functions of a GPU; raises HarnessError while a machine has the GPU."""
        group = gpu.group
        if group is not None and self._is_open(group.number):
            raise HarnessError(
                f"GPU {gpu.address} can't be reset while a machine has it: "
                f"{self._opened(group.number)}"
            )
        with self._quarantining(gpu.address):
            self._reset_functions(gpu)

    def restore(self, address: str) -> None:
        """Restore the recorded drivers of a GPU's functions, if drivers were recorded.

        Raises NotNowError while a process still has the GPU open, since unbinding vfio-pci would
        block until the process ends. Raises RequirementError if this user can't check whether a
        process has the GPU open, and RecordError if the record can't be used.
        """
        recorded = self._records.drivers(address)
        if recorded is None:
            return
        found = {each: read_function(self._root, each) for each in recorded.functions}
        recorded.require_fit(found)
        for function in found.values():
            if function is None or function.driver != VFIO_DRIVER or function.group is None:
                continue
            match probe_vfio_file(self._root, function.group):
                case VfioFile.BUSY:
                    raise NotNowError(self._opened(function.group))
                case VfioFile.FORBIDDEN:
                    raise RequirementError(forbidden(function.group))
                case VfioFile.FREE | VfioFile.ABSENT:
                    pass
        self._restore(recorded)

    def _restore(self, recorded: RecordedDrivers) -> None:
        """Restore the drivers of a GPU that no process has open."""
        with self._quarantining(recorded.address):
            for each in recorded.functions:
                self._binder.require_answer(each)
            self._binder.restore(recorded)
        self._records.forget_drivers(recorded.address)

    def recover(self, address: str) -> None:
        """Restore a quarantined GPU; raises DeviceError if the GPU does not answer."""
        self._binder.require_answer(address)
        self.restore(address)

    def _require_access(self, group: int) -> None:
        """Wait until this user may open the group's file."""

        def look() -> Observation[bool]:
            found = probe_vfio_file(self._root, group)
            return Observation(True if found is VfioFile.FREE else None, found.value)

        try:
            wait_for(vfio_file(group), look, Deadline.after(_PERMISSIONS_S), interval_s=0.05)
        except WaitTimeoutError as error:
            match probe_vfio_file(self._root, group):
                case VfioFile.ABSENT:
                    raise DeviceError(
                        f"The kernel did not create '{vfio_file(group)}' within {_PERMISSIONS_S:g} s."
                    ) from error
                case VfioFile.FORBIDDEN:
                    raise RequirementError(forbidden(group)) from error
                case VfioFile.BUSY | VfioFile.FREE:
                    raise NotNowError(self._opened(group)) from error

    def _require_closed(self, gpu: HostGpu) -> None:
        """Wait until no machine has the GPU open any more."""
        if gpu.group is None:
            return
        group = gpu.group.number

        def look() -> Observation[bool]:
            return Observation(None if self._is_open(group) else True, "open")

        try:
            wait_for(f"'{vfio_file(group)}' to be closed", look, Deadline.after(_CLOSED_S))
        except WaitTimeoutError as error:
            raise NotNowError(self._opened(group)) from error

    def _is_open(self, group: int) -> bool:
        return probe_vfio_file(self._root, group) is VfioFile.BUSY

    def _opened(self, group: int) -> str:
        file = vfio_file(group)
        processes = find_device_users(self._root).of_file(file) or ("a process",)
        return f"'{file}' is open in {', '.join(processes)}; end every process that has this file open."

    def _reset_functions(self, gpu: HostGpu) -> None:
        for function in gpu.functions:
            self._binder.require_answer(function.address)
            if function.reset_methods:
                self._binder.reset(function.address)

    @contextlib.contextmanager
    def _quarantining(self, address: str) -> Iterator[None]:
        """Quarantine the GPU at `address` if the block raises DeviceError."""
        try:
            yield
        except DeviceError as error:
            raise self._quarantined(address, str(error)) from error

    def _quarantined(self, address: str, reason: str) -> DeviceError:
        """Quarantine a GPU, and return the error that reports the quarantine."""
        if self._records.quarantine(address) is None:
            quarantine = Quarantine(reason=reason, since=now_text(), user=user_name(os.geteuid()))
            self._records.save_quarantine(address, quarantine)
        return DeviceError(
            f"GPU {address} is quarantined: {reason} When the GPU is repaired, run `harness gpu host "
            f"release {address}`."
        )


def now_text() -> str:
    """Return the present time in ISO 8601."""
    return SYSTEM_CLOCK.now().isoformat(timespec="seconds")
