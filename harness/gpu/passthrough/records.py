"""What of the pool outlives a process: the drivers that functions had, and quarantined GPUs.

Each record is a file of the pool's folder, written beside and renamed, so that no process reads half
of one. Only whoever holds the lease of a GPU changes its records.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from harness.gpu.passthrough import HostFunction

_DRIVERS = "drivers"
_QUARANTINE = "quarantine"
#: Any user of the folder's group reads a record, and replaces it by renaming.
_FILE_MODE = 0o640


@dataclass(frozen=True, kw_only=True)
class BoundDriver:
    """The driver that a function had before it was taken, and its driver_override."""

    driver: str | None
    override: str | None


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """Why a GPU may not be leased until it is released."""

    reason: str
    since: str
    user: str


class DeviceRecords:
    """The records of GPUs in `folder`, by the GPU's address.

    `boot_id` is the kernel's: drivers recorded before a reboot are void.
    """

    def __init__(self, folder: Path, *, boot_id: str) -> None:
        self.folder = folder
        self._boot_id = boot_id

    def save_drivers(self, address: str, functions: Iterable[HostFunction]) -> None:
        """Record the drivers of the functions that are taken with the GPU."""
        drivers = {
            each.address: {"driver": each.driver, "override": each.driver_override}
            for each in functions
        }
        self._write(_DRIVERS, address, {"boot_id": self._boot_id, "functions": drivers})

    def drivers(self, address: str) -> Mapping[str, BoundDriver] | None:
        """Return the recorded drivers by function, or None where the GPU is not taken."""
        content = self._read(_DRIVERS, address)
        if content is None or content.get("boot_id") != self._boot_id:
            return None
        functions = content.get("functions")
        if not isinstance(functions, dict):
            raise self._refusal(_DRIVERS, address, "it has no 'functions'")
        return {
            name: BoundDriver(
                driver=self._name(address, bound, "driver"),
                override=self._name(address, bound, "override"),
            )
            for name, bound in functions.items()
        }

    def forget_drivers(self, address: str) -> None:
        self._remove(_DRIVERS, address)

    def taken(self) -> list[str]:
        """Return the GPUs of which drivers were recorded in this boot, or can't be read."""
        return [each for each in self._addresses(_DRIVERS) if self._is_current(each)]

    def _is_current(self, address: str) -> bool:
        try:
            return self.drivers(address) is not None
        except HarnessError:
            return True

    def save_quarantine(self, address: str, quarantine: Quarantine) -> None:
        self._write(_QUARANTINE, address, vars(quarantine))

    def quarantine(self, address: str) -> Quarantine | None:
        """Return why a GPU is quarantined, or None where it is not."""
        content = self._read(_QUARANTINE, address)
        if content is None:
            return None
        reason, since, user = (str(content.get(key, "?")) for key in ("reason", "since", "user"))
        return Quarantine(reason=reason, since=since, user=user)

    def quarantined(self) -> list[str]:
        return self._addresses(_QUARANTINE)

    def end_quarantine(self, address: str) -> None:
        self._remove(_QUARANTINE, address)

    def _addresses(self, kind: str) -> list[str]:
        found = self.folder.glob(f"{kind}-*.json")
        return sorted(each.name.removeprefix(f"{kind}-").removesuffix(".json") for each in found)

    def _path(self, kind: str, address: str) -> Path:
        return self.folder / f"{kind}-{address}.json"

    def _read(self, kind: str, address: str) -> dict[str, object] | None:
        try:
            content = json.loads(self._path(kind, address).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise self._refusal(kind, address, str(error)) from error
        if not isinstance(content, dict):
            raise self._refusal(kind, address, "it is no mapping")
        return content

    def _name(self, address: str, bound: object, key: str) -> str | None:
        """Return the name of a driver; what others could write there becomes part of a path."""
        name = bound.get(key) if isinstance(bound, dict) else ""
        if name is None:
            return None
        if not isinstance(name, str) or not name.isprintable() or not name or "/" in name:
            raise self._refusal(_DRIVERS, address, f"{name!r} is no driver")
        return name

    def _write(self, kind: str, address: str, content: Mapping[str, object]) -> None:
        path = self._path(kind, address)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
            with os.fdopen(file, "w") as stream:
                os.fchmod(file, _FILE_MODE)
                stream.write(json.dumps(content))
                stream.flush()
                os.fsync(file)
            beside.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise HarnessError(
                f"The record '{path}' can't be written ({error.strerror}); free some space in "
                f"'{self.folder}', or ask who owns it for access."
            ) from error

    def _remove(self, kind: str, address: str) -> None:
        self._path(kind, address).unlink(missing_ok=True)

    def _refusal(self, kind: str, address: str, why: str) -> HarnessError:
        path = self._path(kind, address)
        return HarnessError(
            f"The record '{path}' can't be read ({why}); look at the drivers of {address} with "
            "`lspci -k`, bind the right one, and remove the file."
        )
