"""Saves and loads the state of a machine's devices by QEMU's migration, over any monitor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.channels.monitor import MonitorLostError
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.machine.channels.event_log import QmpEvent
    from harness.machine.channels.monitor import Monitor

_MIGRATE_S = 120.0
#: The memory stays in its file, and QEMU reports the end of a migration by an event.
_CAPABILITIES = [
    {"capability": "x-ignore-shared", "state": True},
    {"capability": "events", "state": True},
]
_WHOLE = [
    {"capability": "x-ignore-shared", "state": False},
    {"capability": "events", "state": True},
]
#: Bytes in a second.
_UNLIMITED = 1 << 40
#: Otherwise the guest's network card announces itself to a network without other hosts, and every
#: netlink listener wakes up: a third of what a clone does until its first answer.
_NO_ANNOUNCEMENT: Mapping[str, object] = {"announce-rounds": 0}

#: The first QEMU that is given the state as `file:`. QEMU 8.2 introduced it, QEMU 11 takes a file by
#: nothing else.
_FILE_URI_MAJOR = 9
_STATE_FDSET = 1

_ENDS = frozenset({"completed", "failed", "cancelled"})


class DeviceStateError(HarnessError):
    """QEMU could not save or load a state; its own output says why."""


def save_device_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Save the devices' state of the paused machine `machine` to the new file `state`.

    Raises DeviceStateError where QEMU can't, as with a device that does not support migration.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _CAPABILITIES})
    _migrate(monitor, machine, "migrate", state, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def stream_whole_state(monitor: Monitor, machine: str, descriptor: int) -> None:
    """Write memory and devices' state of the paused machine `machine` to a pipe.

    Unlike `save_device_state` it needs no file of the guest's memory. Raises DeviceStateError where
    QEMU can't, as with a device that does not support migration.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _WHOLE})
    # The guest has stopped, so nothing is gained by leaving it bandwidth.
    monitor.execute("migrate-set-parameters", {"max-bandwidth": _UNLIMITED})
    _migrate_by(monitor, machine, "migrate", descriptor)


def load_whole_state(monitor: Monitor, machine: str, descriptor: int) -> None:
    """Load memory and devices' state from a pipe into a QEMU that was started with `-incoming defer`.

    Raises DeviceStateError where the state is another machine's, or truncated.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _WHOLE})
    monitor.execute("migrate-set-parameters", _NO_ANNOUNCEMENT)
    _migrate_by(monitor, machine, "migrate-incoming", descriptor)


def load_device_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Load the devices' state from `state` into a QEMU that was started with `-incoming defer`.

    Raises DeviceStateError where the state is another machine's, or truncated.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _CAPABILITIES})
    monitor.execute("migrate-set-parameters", _NO_ANNOUNCEMENT)
    _migrate(monitor, machine, "migrate-incoming", state, os.O_RDONLY)


def _migrate(monitor: Monitor, machine: str, command: str, state: Path, flags: int) -> None:
    descriptor = os.open(state, flags | os.O_CLOEXEC, 0o600)
    try:
        uri = _pass_state_file(monitor, descriptor)
    finally:
        os.close(descriptor)
    _run_migration(monitor, machine, command, uri, f"the state '{state}'")


def _migrate_by(monitor: Monitor, machine: str, command: str, descriptor: int) -> None:
    monitor.execute("getfd", {"fdname": "state"}, fd=descriptor)
    _run_migration(monitor, machine, command, "fd:state", "a stream of its whole state")


def _run_migration(monitor: Monitor, machine: str, command: str, uri: str, what: str) -> None:
    seen = len(monitor.events)
    try:
        monitor.execute(command, {"uri": uri})
        event = monitor.wait_for_event(
            f"the end of '{command}'", is_end, Deadline.after(_MIGRATE_S), since=seen
        )
    except MonitorLostError:
        raise
    except HarnessError as error:
        raise _failure(machine, command, what, str(error)) from error
    status = event.data.get("status")
    if status != "completed":
        raise _failure(machine, command, what, f"It ended as '{status}'.")


def _pass_state_file(monitor: Monitor, descriptor: int) -> str:
    """Pass the state's file to QEMU, and return its migration URI.

    As a descriptor set: a file name in a `file:` URI would end at its first comma.
    """
    version = monitor.execute("query-version")
    qemu = version.get("qemu") if isinstance(version, dict) else None
    if not isinstance(qemu, dict) or qemu.get("major", 0) < _FILE_URI_MAJOR:
        monitor.execute("getfd", {"fdname": "state"}, fd=descriptor)
        return "fd:state"
    monitor.execute("add-fd", {"fdset-id": _STATE_FDSET}, fd=descriptor)
    return f"file:/dev/fdset/{_STATE_FDSET}"


def _failure(machine: str, command: str, what: str, reason: str) -> DeviceStateError:
    return DeviceStateError(
        f"QEMU of machine '{machine}' could not carry out '{command}' with {what}. {reason}"
    )


def is_end(event: QmpEvent) -> bool:
    """Return whether QEMU has saved or loaded a state, or has given up."""
    return event.name == "MIGRATION" and event.data.get("status") in _ENDS
