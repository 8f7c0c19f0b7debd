"""Binds functions to drivers, and resets them, through sysfs; each step is verified."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TypeVar

from harness.errors import HarnessError, RequirementError
from harness.gpu.passthrough import ADDRESS_PATTERN, DRIVER_PATTERN, VFIO_DRIVER, is_address
from harness.gpu.passthrough.discovery import PCI, read_driver, read_function
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from harness.gpu.passthrough import BoundDriver, HostFunction
    from harness.gpu.passthrough.records import RecordedDrivers
    from harness.provisioning.command import Runner

T = TypeVar("T")

#: The time limit of a write. Most drivers probe a function within seconds, but NVIDIA's driver
#: probes a broken card for a minute.
_WRITE_S = 120.0
_LINK_S = 5.0
#: The files of sysfs that the harness writes, and the accepted content of each file.
_WRITTEN = {
    "driver_override": re.compile(rf"(?:{DRIVER_PATTERN})?\n"),
    "unbind": re.compile(ADDRESS_PATTERN),
    "drivers_probe": re.compile(ADDRESS_PATTERN),
    "reset": re.compile("1"),
    "reset_method": re.compile(r"[a-z_]+(?: [a-z_]+)*"),
}


class DeviceError(HarnessError):
    """A PCI function does not work, so the function's GPU has to be quarantined."""


class Binder:
    """Changes the drivers of PCI functions on the host whose sysfs is below `root`.

    `runner` runs `tee`, which writes the files. If a write to the file 'unbind' or 'reset' of a
    broken device never returns, only this child process hangs.
    """

    def __init__(self, root: Path, runner: Runner) -> None:
        self._root = root
        self._sysfs = (root / "sys").resolve()
        self._runner = runner

    def bind_to_vfio(self, address: str) -> None:
        """Unbind a function from its driver and bind it to vfio-pci."""
        if not (self._root / PCI / "drivers" / VFIO_DRIVER).is_dir():
            raise RequirementError(
                f"The kernel module '{VFIO_DRIVER}' is not loaded; as root, run `modprobe "
                f"{VFIO_DRIVER}`, and `echo {VFIO_DRIVER} > /etc/modules-load.d/vfio-pci.conf` for "
                "the next boot."
            )
        if self._bound(address).driver == VFIO_DRIVER:
            return
        self._write_override(address, VFIO_DRIVER)
        self._rebind(address, VFIO_DRIVER)

    def restore(self, recorded: RecordedDrivers) -> None:
        """Bind each function to its earlier driver, and check that it is bound.

        If another user made the record, this method writes only to files to which that user may
        write, and lets the kernel choose the driver. If the kernel chooses another driver than the
        recorded driver, this method restores the drivers from before the call and raises
        RecordError.
        """
        if recorded.writer.is_trusted:
            self._bind(recorded.functions)
            return
        for path in self._written_by_restore(recorded):
            if path.exists() and not recorded.writer.may_write(path):
                raise recorded.refusal(f"that user may not write '{path}'")
        now = {address: self._bound(address) for address in recorded.functions}
        try:
            for address, before in recorded.functions.items():
                if now[address] == before:
                    continue
                self._write_override(address, before.override)
                if self._bound(address).driver != before.driver:
                    self._rebind(address, before.driver)
        except DeviceError as error:
            self._bind(now)
            raise recorded.refusal(str(error).rstrip(".")) from error

    def _bind(self, drivers: Mapping[str, BoundDriver]) -> None:
        for address, before in reversed([*drivers.items()]):
            if self._bound(address).driver != before.driver:
                # `driver_override` is needed for a driver that does not list the function's ids.
                self._write_override(address, before.driver)
                self._rebind(address, before.driver)
            if self._bound(address).override != before.override:
                self._write_override(address, before.override)

    def _rebind(self, address: str, driver: str | None) -> None:
        self._unbind(address)
        if driver is not None:
            self._probe(address, driver)

    def _written_by_restore(self, recorded: RecordedDrivers) -> Iterator[Path]:
        for address, before in recorded.functions.items():
            now, folder = self._bound(address), self._folder(address)
            if now == before:
                continue
            yield folder / "driver_override"
            if now.driver == before.driver:
                continue
            yield folder / "driver" / "unbind"
            if before.driver is not None:
                if not (self._root / PCI / "drivers" / before.driver).is_dir():
                    raise recorded.refusal(f"the kernel has no driver '{before.driver}'")
                yield self._root / PCI / "drivers_probe"

    def reset(self, address: str) -> None:
        """Reset a function by the first method that works, and check that the function answers.

        The harness tries the reset methods one by one, since the kernel stops at the first method
        in 'reset_method' that fails.
        """
        methods = self._function(address).reset_methods
        folder = self._folder(address)
        failure = self._try_write(folder / "reset", "1")
        if failure is not None and len(methods) > 1:
            try:
                for method in methods[1:]:
                    self._write(folder / "reset_method", method)
                    failure = self._try_write(folder / "reset", "1")
                    if failure is None:
                        break
            finally:
                self._write(folder / "reset_method", " ".join(methods))
        if failure is not None:
            raise DeviceError(
                f"{address} can't be reset by {', '.join(methods) or 'any method'}: {failure}"
            )
        self.require_answer(address)

    def require_answer(self, address: str) -> None:
        """Raise DeviceError if the function is not on the bus or does not answer."""
        function = self._function(address)
        if not function.is_answering:
            raise DeviceError(
                f"{address} does not answer: its configuration space shows no ids, or it stays "
                f"in D3cold (power state {function.power_state or 'unknown'})."
            )

    def _function(self, address: str) -> HostFunction:
        return _on_the_bus(read_function(self._root, address), address)

    def _bound(self, address: str) -> BoundDriver:
        return _on_the_bus(read_driver(self._root, address), address)

    def _unbind(self, address: str) -> None:
        folder = self._folder(address)
        if (folder / "driver").exists():
            self._write(folder / "driver" / "unbind", address)
        self._require_driver(address, None)

    def _probe(self, address: str, driver: str) -> None:
        self._write(self._root / PCI / "drivers_probe", address)
        self._require_driver(address, driver)

    def _require_driver(self, address: str, driver: str | None) -> None:
        """Wait until `driver` is bound to the function; drivers may probe in the background."""

        def look() -> Observation[bool]:
            found = self._bound(address).driver
            return Observation(True if found == driver else None, f"driver '{found or 'none'}'")

        try:
            wait_for(
                f"driver '{driver or 'none'}' of {address}",
                look,
                Deadline.after(_LINK_S),
                interval_s=0.02,
            )
        except WaitTimeoutError as error:
            raise DeviceError(
                (
                    f"{address} can't be unbound from its driver: {error}"
                    if driver is None
                    else f"{address} can't be bound to the driver '{driver}': {error}"
                )
                + " The kernel's log (`dmesg`) may say why."
            ) from error

    def _write_override(self, address: str, driver: str | None) -> None:
        # An empty line makes the kernel clear the override.
        self._write(self._folder(address) / "driver_override", f"{driver or ''}\n")

    def _folder(self, address: str) -> Path:
        if not is_address(address):
            raise HarnessError(
                f"'{address}' is not a PCI address, so nothing is written for this function."
            )
        return self._root / f"{PCI}/devices/{address}"

    def _write(self, path: Path, text: str) -> None:
        failure = self._try_write(path, text)
        if failure is not None:
            raise DeviceError(f"'{text.strip()}' can't be written into '{path}': {failure}")

    def _try_write(self, path: Path, text: str) -> str | None:
        """Write a file of sysfs; return the kernel's error, or None.

        Raises RequirementError if this user may not write the file.
        """
        expected = _WRITTEN.get(path.name)
        is_of_sysfs = path.resolve().is_relative_to(self._sysfs)
        if expected is None or not expected.fullmatch(text) or not is_of_sysfs:
            raise HarnessError(
                f"'{text}' is not written into '{path}': the path must be in '{self._sysfs}', and "
                f"the text must be a valid value for '{path.name}'."
            )
        if path.exists() and not os.access(path, os.W_OK):
            raise RequirementError(
                f"User {os.geteuid()} may not write '{path}'; run as root, or let an administrator "
                "install the files that docs/gpu-lab.md shows, which give your group access."
            )
        result = self._runner.run(["tee", str(path)], stdin=text, timeout_s=_WRITE_S)
        if result.timed_out:
            return f"the kernel did not return within {_WRITE_S:.0f} s."
        if not result.ok:
            return result.stderr.strip().rpartition(": ")[2] or f"exit code {result.exit_code}"
        return None


def _on_the_bus(found: T | None, address: str) -> T:
    if found is None:
        raise DeviceError(has_left_the_bus(address))
    return found


def has_left_the_bus(address: str) -> str:
    return (
        f"{address} is not on the PCI bus any more; as root, run `echo 1 > /sys/bus/pci/rescan`, or "
        "reboot this host."
    )
