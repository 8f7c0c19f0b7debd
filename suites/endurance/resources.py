"""The campaign *resources*: an operation lacks a resource, reports that, and later passes with it."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provisioning.command import CommandError
from suites.endurance.disturbed import disturbed_operations
from suites.endurance.surroundings import SIZE, run_checked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from suites.endurance.campaign import Case
    from suites.endurance.disturbed import Disturbing, Running
    from suites.endurance.operations import Operation

_KIB = 1 << 10
_MIB = 1 << 20
#: The upper limit of what an operation keeps of each resource; the attempt's `amount` scales it.
_LEFT_KIB = 512
_LEFT_DESCRIPTORS = 24
_LEFT_MIB = 64
_SHRINKINGS = 20


@dataclass(frozen=True)
class Resources:
    """Removes disk space, descriptors, memory or write permission from a running operation."""

    is_apart: bool = True
    promise: str = (
        "If an operation runs out of disk space, descriptors or memory, or can't write to its folder "
        "any more, the operation ends with an error message. It passes when the resource is available "
        "again."
    )

    def opened(self, folder: Path) -> AbstractContextManager[Mapping[str, Case]]:
        return disturbed_operations(folder, _ways)


def _ways(operation: Operation) -> Mapping[str, Disturbing]:
    ways: dict[str, Disturbing] = {
        "full disk": _fill_disk,
        "no descriptors": _take_descriptors,
        "short memory": _take_memory,
        "read-only folder": functools.partial(_take_writing, operation.cwd),
    }
    if "-n" in operation.argv:
        # xdist and its workers wait for each other without a time limit.
        del ways["short memory"]
    return ways


def _fill_disk(_running: Running, amount: float) -> Callable[[], None]:
    """Shrink the file system of `/tmp`, which is in memory, so that only some KiB are left."""
    for tries_left in reversed(range(_SHRINKINGS)):
        state = os.statvfs("/tmp")  # noqa: S108 - in its own file system
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        size = used // _KIB + 4 + int(amount * _LEFT_KIB)
        try:
            run_checked("mount", "-o", f"remount,size={size}k", "/tmp")  # noqa: S108
        except CommandError:
            # The operation has written more meanwhile, and the kernel refuses a size below the used
            # size.
            if not tries_left:
                raise
        else:
            break

    def give_back() -> None:
        run_checked("mount", "-o", f"remount,size={SIZE}", "/tmp")  # noqa: S108

    return give_back


def _take_descriptors(running: Running, amount: float) -> Callable[[], None]:
    for pid in running.pids():
        with contextlib.suppress(OSError):
            numbers = [int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()]
            # A process that is ending has no descriptors.
            most = max(numbers, default=0)
            limit = most + 1 + int(amount * _LEFT_DESCRIPTORS)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
    return lambda: None


def _take_memory(running: Running, amount: float) -> Callable[[], None]:
    for pid in running.pids():
        with contextlib.suppress(OSError):
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + int(amount * _LEFT_MIB) * _MIB
            resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))
    return lambda: None


def _take_writing(folder: Path, _running: Running, _amount: float) -> Callable[[], None]:
    run_checked("mount", "--bind", str(folder), str(folder))
    run_checked("mount", "-o", "remount,bind,ro", str(folder))

    def give_back() -> None:
        run_checked("umount", "--lazy", str(folder))

    return give_back
