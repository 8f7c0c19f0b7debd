"""How busy other work keeps this host, for the decision whether one more machine may start.

The kernel's pressure stall information (`accounting/psi.rst` of its documentation) says for which share of
the last ten seconds tasks waited for processors, memory or the disk. It counts our machines too, so that it
only says whether there is a shortage at all; whose it is, the load average says beside what is reserved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Percentages of ten seconds. Of processors, "some" tasks waited; of memory and disk, all that could run.
_MOST_CPU = 50.0
_MOST_MEMORY = 20.0
_MOST_IO = 80.0
#: What a running machine adds to the load average beside its vCPUs: its controller and its device.
_BESIDE_VCPUS = 1
#: So many other tasks for each processor leave a machine less than a third of one.
_MOST_OTHERS = 2


def other_load(proc: Path, *, cores: int, vcpus: int, machines: int) -> str | None:
    """Say why no further machine should start beside `machines` with `vcpus`; None where one may.

    Where the kernel has no pressure stall information, that is always so.
    """
    memory = _average(proc / "pressure/memory", "full")
    if memory > _MOST_MEMORY:
        return f"memory is short for {memory:.0f} % of the time (/proc/pressure/memory)"
    io = _average(proc / "pressure/io", "full")
    if io > _MOST_IO:
        return f"all work waits for the disk for {io:.0f} % of the time (/proc/pressure/io)"
    cpu = _average(proc / "pressure/cpu", "some")
    others = _load(proc) - vcpus - machines * _BESIDE_VCPUS
    if cpu > _MOST_CPU and others > _MOST_OTHERS * cores:
        return (
            f"about {others:.0f} other tasks share its {cores} processors, and work waits for them for "
            f"{cpu:.0f} % of the time (/proc/pressure/cpu)"
        )
    return None


def _average(path: Path, kind: str) -> float:
    """Return the share of the last ten seconds in a file of '/proc/pressure', in percent."""
    try:
        for line in path.read_text().splitlines():
            name, *fields = line.split()
            if name == kind:
                return float(dict(each.split("=", 1) for each in fields)["avg10"])
    except (OSError, ValueError, KeyError):
        pass
    return 0.0


def _load(proc: Path) -> float:
    """Return the load average of the last minute."""
    try:
        return float((proc / "loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
