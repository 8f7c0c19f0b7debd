"""Clones that have ended leave nothing behind on the host."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.machine.checkpoint.manifest import CHECKPOINT_FORMAT

if TYPE_CHECKING:
    from typing_extensions import Self

    from harness.lab import Lab
    from harness.lab.saved_states import SavedState

pytestmark = pytest.mark.pin_image(reason="what may be left is the harness's")

CLONES = 300
#: The MiB that Python's allocator may keep after the logs and events of three hundred machines.
MEMORY_MIB = 40


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The resources of the host that this process uses."""

    children: frozenset[str]
    descriptors: int
    threads: int
    files: frozenset[Path]
    memory_mib: int

    @classmethod
    def of(cls, lab: Lab) -> Self:
        task = Path(f"/proc/{os.getpid()}/task")
        children = [child for each in task.iterdir() for child in _children(each)]
        status = Path("/proc/self/status").read_text()
        (resident,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return cls(
            children=frozenset(children),
            descriptors=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            threads=threading.active_count(),
            files=frozenset(lab.folder.rglob("*")),
            memory_mib=int(resident.split()[1]) >> 10,
        )


def _children(task: Path) -> list[str]:
    return (task / "children").read_text().split()


@pytest.mark.nightly
def test_three_hundred_clones_leave_no_resource_in_use(
    lab: Lab, cloud_init_done: SavedState
) -> None:
    """No process, file, descriptor, thread, reservation or memory is left; the template is unchanged."""

    def make_and_drop(count: int) -> None:
        for _ in range(count):
            with lab.clone(cloud_init_done) as machine:
                machine.agent.ping(machine.deadline(1.0))

    # Resources that are made once for a run, such as the thread that starts processes, may stay.
    make_and_drop(2)
    before = Footprint.of(lab)

    make_and_drop(CLONES)

    after = Footprint.of(lab)
    assert after.children == before.children
    assert after.descriptors == before.descriptors
    assert after.threads == before.threads
    assert after.files == before.files
    assert after.memory_mib - before.memory_mib <= MEMORY_MIB
    assert [entry for entry in lab.broker.entries() if entry.process == os.getpid()] == []
    folder = lab.ensure_checkpoint(cloud_init_done).folder
    CHECKPOINT_FORMAT.check_digests(folder, CHECKPOINT_FORMAT.read(folder))
