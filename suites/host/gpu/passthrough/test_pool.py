"""Leases of a host's GPUs: drivers, queue, restoring, quarantine."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.gpu.passthrough import VerdictKind
from harness.gpu.passthrough.pool import GpuPool
from harness.provisioning.command import PIPE, spawn
from harness.provisioning.wait import Deadline, Observation, wait_for
from suites.unit.gpu.passthrough.fake_host import (
    FakeHost,
    FakeKernel,
)
from suites.unit.gpu.passthrough.leasing import (
    AUDIO,
    BEFORE,
    FIRST,
    GPU,
    SECOND,
    drivers,
    lease,
    verdicts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.provisioning.command import ChildProcess


#: A program that leases one GPU, prints "held", and keeps the lease until its stdin ends.
_HOLDER = """\
import pathlib, sys
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.pool import GpuPool
from harness.gpu.passthrough.records import Quarantine
from harness.provisioning.wait import Deadline
from suites.unit.gpu.passthrough.fake_host import FakeHost, FakeKernel
root, folder, address = sys.argv[1:]
host = FakeHost(pathlib.Path(root))
kernel = FakeKernel(host)
pool = GpuPool(pathlib.Path(folder), root=host.root, runner=kernel)
with pool.lease([GpuChoice(address=address)], holder="a child", deadline=Deadline.after(10)):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holding_child(host: FakeHost, folder: Path, address: str) -> Iterator[ChildProcess]:
    """Run a process that leases the GPU at `address`."""
    child = spawn(
        [sys.executable, "-c", _HOLDER, str(host.root), str(folder), address],
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def test_gpu_of_a_killed_process_is_restored_before_its_next_lease(
    host: FakeHost, kernel: FakeKernel, pool: GpuPool, folder: Path
) -> None:
    with holding_child(host, folder, GPU) as child:
        assert drivers(host)[GPU] == "vfio-pci"
        with pytest.raises(HarnessError, match=r"is held by 'a child' of user .* \(process"):
            lease(pool, FIRST).__enter__()
        child.send_signal(signal.SIGKILL)
        child.wait()

    assert drivers(host) == {GPU: "vfio-pci", AUDIO: "vfio-pci", SECOND: None}
    with lease(pool, FIRST) as (gpu,):
        probed = [text for path, text in kernel.writes if path == "drivers_probe"]
        # The pool first restores the drivers of the audio function and the GPU, then leases them.
        assert probed == [AUDIO, GPU, GPU, AUDIO]
        assert gpu.gpu.function.driver == "nvidia"
    assert drivers(host) == BEFORE


def test_pool_restores_the_gpus_of_killed_processes_on_request(
    host: FakeHost, pool: GpuPool, folder: Path
) -> None:
    with holding_child(host, folder, GPU), holding_child(host, folder, SECOND) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        done = pool.restore_abandoned()

        assert [(each.address, each.is_restored) for each in done] == [(SECOND, True)]
        assert drivers(host) == {GPU: "vfio-pci", AUDIO: "vfio-pci", SECOND: None}
    assert [each.address for each in pool.restore_abandoned()] == [GPU]
    assert pool.restore_abandoned() == []
    assert drivers(host) == BEFORE


#: A program that leases GPUs repeatedly. It also locks a file for each leased GPU; the lock fails if
#: another process has leased the same GPU.
_COMPETITOR = """\
import fcntl, json, os, pathlib, random, sys
from harness.gpu.passthrough import GpuChoice
from harness.gpu.passthrough.pool import GpuPool
from harness.gpu.passthrough.records import Quarantine
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline
from suites.unit.gpu.passthrough.fake_host import FakeHost, FakeKernel
root, folder, log = map(pathlib.Path, sys.argv[1:4])
chance = random.Random(int(sys.argv[4]))
host = FakeHost(root)
pool = GpuPool(folder, root=root, runner=FakeKernel(host))
end = Deadline.after(float(sys.argv[5]))
def say(what, address):
    with log.open("a") as file:
        file.write(json.dumps({"what": what, "gpu": address, "process": os.getpid()}) + "\\n")
while not end.has_passed():
    count = chance.choice((1, 1, 2))
    with pool.lease(
        [GpuChoice()] * count, holder=sys.argv[4], deadline=Deadline.after(60)
    ) as gpus:
        with open(os.devnull) as _:
            witnesses = []
            for gpu in gpus:
                witness = open(log.with_name(gpu.gpu.address), "w")
                try:
                    fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    say("second holder", gpu.gpu.address)
                if host.driver_of(gpu.gpu.address) != "vfio-pci":
                    say("other driver", gpu.gpu.address)
                say("taken", gpu.gpu.address)
                witnesses.append(witness)
            SYSTEM_CLOCK.sleep(chance.random() / 20)
            for witness in witnesses:
                witness.close()
"""


_COMPETITION_S = 2.5


def test_competing_processes_never_share_a_gpu_even_if_some_are_killed(
    tmp_path: Path, folder: Path
) -> None:
    host = FakeHost(tmp_path / "host")
    gpus = [f"0000:6{number}:00.0" for number in range(3)]
    for number, address in enumerate(gpus):
        host.add_function(address, group=number + 1, driver="nvidia")
    log = tmp_path / "log"
    log.touch()

    def start(number: int) -> ChildProcess:
        arguments = [str(host.root), str(folder), str(log), str(number), str(_COMPETITION_S)]
        return spawn([sys.executable, "-c", _COMPETITOR, *arguments], stderr=None)

    def count() -> int:
        return len(log.read_text().splitlines())

    children = [start(number) for number in range(5)]
    for child in children[:2]:
        # The child is killed while the other children lease and release GPUs.
        before = count()

        def look(least: int = before + 5) -> Observation[bool]:
            return Observation(True if count() >= least else None, f"{count()} leases")

        wait_for("more leases", look, Deadline.after(30))
        child.kill()
        child.wait()
    exit_codes = [child.wait() for child in children]

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["what"] for line in lines} == {"taken"}
    assert exit_codes == [-9, -9, 0, 0, 0]
    assert {line["gpu"] for line in lines} == {*gpus}
    pool = GpuPool(folder, root=host.root, runner=FakeKernel(host))
    pool.restore_abandoned()
    assert {host.driver_of(address) for address in gpus} == {"nvidia"}
    assert set(verdicts(pool).values()) == {VerdictKind.USABLE}
    assert pool.leases() == []
