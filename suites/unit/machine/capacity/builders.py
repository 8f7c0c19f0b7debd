"""A fake host for tests of the broker, and demands on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.machine.capacity.broker import Broker, Demand, HostCapacity
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from suites.fakes.clock import FakeClock

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    from harness.machine.capacity.broker import Reservation
    from harness.provisioning.wait import Clock

CAPACITY = HostCapacity(memory_mib=4000, cpus=8, cores=2, ports=range(24000, 24010))
PLENTY_MIB = 1 << 20


class FakeHost:
    """A fake host: a folder replaces '/proc', and each broker replaces a process."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "reservations"
        self.proc = top / "proc"
        self.proc.mkdir()
        self.busy_ports: set[int] = set()
        self.has(available_mib=PLENTY_MIB)

    def has(self, *, available_mib: int, total_mib: int = PLENTY_MIB) -> None:
        (self.proc / "meminfo").write_text(
            f"MemTotal:  {total_mib << 10} kB\nMemFree: 1 kB\n"
            f"MemAvailable:  {available_mib << 10} kB\n"
        )

    def touches(self, process: int, mib: int) -> None:
        """Let `process` use `mib` of memory: 100 MiB private, and the rest shared like a memfd."""
        folder = self.proc / str(process)
        folder.mkdir(exist_ok=True)
        (folder / "status").write_text(
            f"Name: qemu\nVmRSS: 1 kB\nRssAnon:\t{100 << 10} kB\nRssFile:\t{900 << 10} kB\n"
            f"RssShmem:\t{(mib - 100) << 10} kB\n"
        )

    def is_busy(
        self,
        *,
        load: float,
        cpu: float = 0,
        memory: float = 0,
        io: float = 0,
        running: float = 3,
        waited_s: float = 0,
    ) -> None:
        """Set the host's load average, its pressure in percent, and its number of running tasks."""
        (self.proc / "loadavg").write_text(f"{load:.2f} 1.00 1.00 {running:.0f}/190 77\n")
        (self.proc / "pressure").mkdir(exist_ok=True)
        for name, some, full in (("cpu", cpu, 0), ("memory", 99, memory), ("io", 99, io)):
            (self.proc / "pressure" / name).write_text(
                f"some avg10={some:.2f} avg60=0.00 avg300=0.00 total={waited_s * 1e6:.0f}\n"
                f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total=1\n"
            )

    def broker(
        self,
        process: int = 1,
        capacity: HostCapacity = CAPACITY,
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Broker:
        return Broker(
            self.folder,
            capacity=capacity,
            proc=self.proc,
            is_free=lambda port: port not in self.busy_ports,
            process=process,
            clock=clock,
        )


def mib(memory_mib: int, *, cpus: int = 1, ports: int = 0) -> Demand:
    return Demand(memory_mib=memory_mib, cpus=cpus, ports=ports)


def at_once(
    broker: Broker, who: str, demand: Demand, tell: Callable[[str], None] = lambda _: None
) -> contextlib.AbstractContextManager[Reservation]:
    """Reserve capacity with a time limit of 0 s."""
    return broker.reserve(who, demand, deadline=Deadline.after(0, FakeClock()), report=tell)


def whos(broker: Broker) -> list[str]:
    return [entry.who for entry in broker.entries()]
