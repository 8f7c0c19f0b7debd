"""Saves and loads the state of a machine's devices by QEMU's migration."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.channels.monitor import MonitorLostError
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import IO

    from harness.machine.channels.event_log import QmpEvent
    from harness.machine.channels.monitor import Monitor
    from harness.provisioning.command import ChildProcess

_MIGRATE_S = 120.0
#: With these capabilities, the memory stays in its file, and an event reports a migration's end.
_CAPABILITIES = [
    {"capability": "x-ignore-shared", "state": True},
    {"capability": "events", "state": True},
]
_WHOLE = [
    {"capability": "x-ignore-shared", "state": False},
    {"capability": "events", "state": True},
]
#: Bandwidth of a migration, in bytes per second.
_UNLIMITED = 1 << 40
#: Makes the guest's network card not announce itself, since its network has no other hosts. An
#: announcement wakes every netlink listener in the guest, which is a third of a clone's work until
#: its first answer.
_NO_ANNOUNCEMENT: Mapping[str, object] = {"announce-rounds": 0}

#: The first major version of QEMU that gets the state as a `file:` URI. QEMU 8.2 introduced
#: `file:`. For a file, QEMU 11 accepts only `file:`.
_FILE_URI_MAJOR = 9
_STATE_FDSET = 1

_ENDS = frozenset({"completed", "failed", "cancelled"})


class DeviceStateError(HarnessError):
    """QEMU could not save or load a state. QEMU's output has the reason."""


def save_device_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Save the devices' state of the paused machine `machine` to the new file `state`.

    Raises DeviceStateError if QEMU can't save the state, for example because a device does not
    support migration.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _CAPABILITIES})
    _migrate(monitor, machine, "migrate", state, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def stream_whole_state(monitor: Monitor, machine: str, descriptor: int) -> None:
    """Write memory and devices' state of the paused machine `machine` to a pipe.

    Unlike `save_device_state`, this function does not need the guest's memory to be in a file.
    Raises DeviceStateError if QEMU can't save the state, for example because a device does not
    support migration.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _WHOLE})
    # The stopped guest needs no bandwidth, so the migration may use all of it.
    monitor.execute("migrate-set-parameters", {"max-bandwidth": _UNLIMITED})
    _migrate_by(monitor, machine, "migrate", descriptor)


def load_whole_state(monitor: Monitor, machine: str, descriptor: int) -> None:
    """Load memory and devices' state from a pipe into a QEMU that was started with `-incoming defer`.

    Raises DeviceStateError if the state belongs to another machine, or is truncated.
    """
    monitor.execute("migrate-set-capabilities", {"capabilities": _WHOLE})
    monitor.execute("migrate-set-parameters", _NO_ANNOUNCEMENT)
    _migrate_by(monitor, machine, "migrate-incoming", descriptor)


def load_device_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Load the devices' state from `state` into a QEMU that was started with `-incoming defer`.

    Raises DeviceStateError if the state belongs to another machine, or is truncated.
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
    _run_migration(monitor, machine, command, "fd:state", "a stream of memory and devices")


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
        raise _failure(machine, command, what, f"The migration ended as '{status}'.")


def _pass_state_file(monitor: Monitor, descriptor: int) -> str:
    """Pass the state's file to QEMU, and return its migration URI.

    The URI names a descriptor set, since a file name in a `file:` URI would end at its first comma.
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
    """Return whether the event reports the end of a migration, successful or not."""
    return event.name == "MIGRATION" and event.data.get("status") in _ENDS


_END_S = 120.0
#: Seconds that a failed compressor may take to end after QEMU has ended.
_FAILED_S = 1.0
#: Compressors by the suffix of their files, in order of preference: the commands to pack and
#: unpack.
_COMPRESSORS = {
    ".zst": (["zstd", "-q", "-3", "-T0", "-c"], ["zstd", "-q", "-d", "-c"]),
    ".gz": (["gzip", "-1", "-c"], ["gzip", "-d", "-c"]),
}
SUFFIXES = tuple(_COMPRESSORS)
"""The suffixes of files that contain memory and devices' state."""


def suffix() -> str:
    """Return the suffix of the files in which this host saves memory and devices' state."""
    return next((each for each in _COMPRESSORS if shutil.which(_COMPRESSORS[each][0][0])), ".gz")


def save_whole_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Save the paused machine `machine` to the new file `state`. The suffix names the compressor.

    Raises DeviceStateError if QEMU can't save the machine, and HarnessError if the file can't be
    written.
    """
    pack, _ = _COMPRESSORS[state.suffix]
    with state.open("xb") as file, _pipe() as (reading, writing):
        state.chmod(0o600)
        packing = spawn(pack, stdin=reading, stdout=file)
        reading.close()
        try:
            stream_whole_state(monitor, machine, writing.fileno())
            writing.close()
            _finish(packing, machine, state)
        except DeviceStateError as error:
            # QEMU also fails when the compressor has failed, but can't say why.
            writing.close()
            code = end(packing, grace_s=_FAILED_S)
            if code > 0:
                raise _packing_failure(machine, state, code) from error
            raise
        except BaseException:
            packing.kill()
            packing.wait()
            raise


def restore_whole_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Load the machine `machine`, started with `-incoming defer`, from the file `state`.

    Raises DeviceStateError if QEMU finds that the state belongs to another machine, or is truncated.
    """
    _, unpack = _COMPRESSORS[state.suffix]
    if shutil.which(unpack[0]) is None:
        raise HarnessError(
            f"'{state}' can be unpacked only with '{unpack[0]}', which this host lacks; install it with "
            f"`apt-get install {unpack[0]}`."
        )
    with state.open("rb") as file, _pipe() as (reading, writing):
        unpacking = spawn(unpack, stdin=file, stdout=writing)
        writing.close()
        try:
            load_whole_state(monitor, machine, reading.fileno())
        finally:
            unpacking.kill()
            unpacking.wait()


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Yield the read end and the write end of a pipe. Both ends are closed at the end of the context.

    The ends are files: closing a plain descriptor twice could close another thread's descriptor.
    """
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as source, open(writing, "wb", buffering=0) as sink:  # noqa: PTH123
        yield source, sink


def _finish(packing: ChildProcess, machine: str, state: Path) -> None:
    def poll() -> Observation[int]:
        return Observation(packing.poll(), "it is still running")

    try:
        code = wait_for(
            f"the memory of machine '{machine}' to be packed into '{state}'",
            poll,
            Deadline.after(_END_S),
            interval_s=0.02,
        )
    except WaitTimeoutError as error:
        raise HarnessError(str(error)) from error
    if code != 0:
        raise _packing_failure(machine, state, code)


def _packing_failure(machine: str, state: Path, code: int) -> HarnessError:
    return HarnessError(
        f"Packing the memory of machine '{machine}' into '{state}' failed with exit code {code}; "
        "check whether the disk of this file is full."
    )
