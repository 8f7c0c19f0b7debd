"""Memory and devices of a machine as one compressed file, which needs no file of the guest's memory."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.machine.device_state import DeviceStateError, load_whole_state, stream_whole_state
from harness.provisioning.command import end, spawn
from harness.provisioning.wait import Deadline, Observation, WaitTimeoutError, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from harness.machine.channels.monitor import Monitor
    from harness.provisioning.command import ChildProcess

_END_S = 120.0
#: A compressor that fails has ended by the time that QEMU has, or a moment later.
_FAILED_S = 1.0
#: Compressors by the suffix of their files: how each packs and unpacks, the preferred one first.
_COMPRESSORS = {
    ".zst": (["zstd", "-q", "-3", "-T0", "-c"], ["zstd", "-q", "-d", "-c"]),
    ".gz": (["gzip", "-1", "-c"], ["gzip", "-d", "-c"]),
}


def suffix() -> str:
    """Return the suffix of whole states that this host writes."""
    return next((each for each in _COMPRESSORS if shutil.which(_COMPRESSORS[each][0][0])), ".gz")


def save_whole_state(monitor: Monitor, machine: str, state: Path) -> None:
    """Save the paused machine `machine` to the new file `state`, whose suffix says how it is packed.

    Raises DeviceStateError where QEMU can't save it, HarnessError where it can't be written.
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
            # Where nobody reads its memory any more, QEMU fails too, and can't say why.
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

    Raises DeviceStateError where QEMU finds that it is another machine's, or truncated.
    """
    _, unpack = _COMPRESSORS[state.suffix]
    if shutil.which(unpack[0]) is None:
        raise HarnessError(
            f"'{state}' is packed by '{unpack[0]}', which this host lacks; install it with "
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
    """Give the ends of a pipe, for reading and writing; each is closed at the end, if not before.

    As files, since a descriptor that is closed twice may be another thread's by then.
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
        "is its disk full?"
    )
