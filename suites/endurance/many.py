"""The campaign *many*: many machines, one after another or at once, and many runs with one cache."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.lab import Lab
from harness.machine.capacity.broker import Demand
from harness.machine.description.spec import Firmware
from harness.provisioning.command import LocalRunner
from harness.provisioning.wait import Deadline
from harness.settings import Settings
from suites.e2e.boot_sector import BOOT_MESSAGE, firmware_machine
from suites.endurance.surroundings import Inventory, processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from suites.endurance.campaign import Attempt, Case

_IN_A_ROW = 10
_AT_ONCE = 12
_RUNS = 8
_LONG_S = 900.0
#: The MiB of memory that Python's allocator may keep after many machines.
_MOST_MIB = 40


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The resources of the host that this process and its namespaces hold."""

    processes: int
    descriptors: int
    threads: int
    memory_mib: int
    things: Inventory

    @classmethod
    def take(cls) -> Footprint:
        status = Path("/proc/self/status").read_text()
        return cls(
            processes=len(processes()),
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            threads=threading.active_count(),
            memory_mib=int(status.partition("VmRSS:")[2].split()[0]) >> 10,
            things=Inventory.take(Path(tempfile.gettempdir())),
        )

    def growth(self, before: Footprint) -> list[str]:
        """Return a sentence on each resource whose use has grown since `before`."""
        grown = [
            f"{getattr(self, name) - getattr(before, name)} more {name} are held than before"
            for name in ("processes", "descriptors", "threads")
            if getattr(self, name) > getattr(before, name)
        ]
        if self.memory_mib - before.memory_mib > _MOST_MIB:
            grown.append(
                f"the process holds {self.memory_mib} MiB, but held {before.memory_mib} MiB before"
            )
        if things := self.things.beyond(before.things):
            grown.append(f"these are left: {things}")
        return grown


@dataclass
class Many:
    """Starts many machines and runs; their end must release all resources of the host."""

    is_apart: bool = True
    promise: str = (
        "The numbers of descriptors, threads, files and processes, and the used memory, do not grow "
        "with the number of machines and runs."
    )
    _before: Footprint | None = field(default=None, compare=False)

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Mapping[str, Case]]:
        (folder / "test_one.py").write_text("def test_one(settings): assert settings.cache\n")
        (folder / "pytest.ini").write_text("[pytest]\n")
        with Lab.open(Settings(), lambda _event: None) as lab:
            # Resources that are made once may stay: the thread that starts processes, and a memory
            # arena for each thread.
            _machines(lab, folder, count=_AT_ONCE, at_once=_AT_ONCE)
            _runs(folder)
            self._before = Footprint.take()
            yield {
                "machines one after another": functools.partial(
                    self._try,
                    functools.partial(_machines, lab, folder, count=_IN_A_ROW, at_once=1),
                ),
                "twelve machines at once": functools.partial(
                    self._try,
                    functools.partial(_machines, lab, folder, count=_AT_ONCE, at_once=_AT_ONCE),
                ),
                "runs on one cache": functools.partial(
                    self._try, functools.partial(_runs, folder)
                ),
            }

    def _try(self, act: functools.partial[list[str]], _attempt: Attempt) -> list[str]:
        broken = act()
        assert self._before is not None
        return [*broken, *Footprint.take().growth(self._before)]


def _machines(lab: Lab, top: Path, *, count: int, at_once: int) -> list[str]:
    def start(_number: int) -> None:
        deadline = Deadline.after(_LONG_S)
        with (
            tempfile.TemporaryDirectory(dir=top) as folder,
            lab.broker.reserve("many", Demand(memory_mib=256, cpus=1), deadline=deadline),
            firmware_machine(lab, Path(folder), Firmware()) as machine,
        ):
            line = BOOT_MESSAGE.decode().strip()
            machine.console.wait_for(line, deadline, what="the line of its boot sector")

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(start, number) for number in range(count)]
    return [str(error) for each in futures if (error := each.exception()) is not None]


def _runs(folder: Path) -> list[str]:
    argv = [
        *("env", f"--chdir={folder}", sys.executable, "-m", "pytest", "-q", "-n", "0"),
        *("-p", "no:cacheprovider", "-p", "no:randomly", "test_one.py"),
    ]
    with ThreadPoolExecutor(_RUNS) as pool:
        results = list(
            pool.map(lambda _number: LocalRunner().run(argv, timeout_s=_LONG_S), range(_RUNS))
        )
    return [each.render() for each in results if not each.ok]
