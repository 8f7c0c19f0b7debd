"""Lets processes of one user compete for the host's GPUs, and kills a third of them.

usage: python3 -m suites.e2e.passthrough.inside.competition SECONDS PROCESSES SEED

PROCESSES is the number of processes that run at any time. Two of three processes lease once, and
end. Every third process leases until it is killed at a random time. Half of these are killed some
time after their start, so mostly while they wait for or take GPUs. The other half are killed some
time after they took GPUs, so while they hold or return GPUs. Each event is written to stdout as a
JSON object on a line, with the host's monotonic time.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.gpu.passthrough import VFIO_DRIVER, GpuChoice
from harness.gpu.passthrough.discovery import read_functions
from harness.gpu.passthrough.pool import GpuPool
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.gpu.passthrough.pool import LeasedGpu

#: Longer than all other processes may take together, and far below the suite's time limit.
_WAIT_S = 150.0
_LONGEST_HOLD_S = 0.6
_LONGEST_LIFE_S = 20.0
_LONGEST_AFTER_TAKING_S = 2.5
_LOOK_S = 0.05


def say(event: str, **fields: object) -> None:
    """Write a line at once, in one call, so that lines of several processes do not mix."""
    line = {"at": time.monotonic(), "pid": os.getpid(), "event": event, **fields}
    os.write(1, (json.dumps(line) + "\n").encode())


@contextlib.contextmanager
def sole_user(gpu: LeasedGpu) -> Iterator[None]:
    """Use the GPU as a machine does: the kernel lets only one process open the file of a VFIO group."""
    if gpu.gpu.group is None:
        raise RuntimeError(f"{gpu.gpu.address} has no group")
    file = os.open(f"/dev/vfio/{gpu.gpu.group.number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        yield
    finally:
        os.close(file)


def lease_once(pool: GpuPool, choices: random.Random, *, dies_after_s: float | None) -> None:
    count = choices.choice((1, 1, 1, 2))
    wanted = [GpuChoice()] * count
    with pool.lease(
        wanted, holder=f"competitor {os.getpid()}", deadline=Deadline.after(_WAIT_S)
    ) as leased:
        addresses = [address for gpu in leased for address in gpu.addresses]
        with contextlib.ExitStack() as using:
            for gpu in leased:
                using.enter_context(sole_user(gpu))
            say("taken", addresses=addresses)
            if dies_after_s is not None:
                signal.signal(signal.SIGALRM, die)
                signal.setitimer(signal.ITIMER_REAL, dies_after_s)
            SYSTEM_CLOCK.sleep(choices.uniform(0.0, _LONGEST_HOLD_S))
            require_held(pool, addresses)
        say("leaving", addresses=addresses)
    say("given-back", addresses=addresses)


def die(_signal: int, _frame: object) -> None:
    say("killing", competitor=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def require_held(pool: GpuPool, addresses: Sequence[str]) -> None:
    """Raise RuntimeError if the lease was lost or a function's driver has changed meanwhile."""
    mine = [each.taken for each in pool.leases() if each.process == os.getpid()]
    if [set(addresses)] != [set(each) for each in mine]:
        raise RuntimeError(f"The pool has the leases {mine} of this process, not {addresses}.")
    functions = read_functions(Path("/"))
    drivers = {address: functions[address].driver for address in addresses}
    if set(drivers.values()) != {VFIO_DRIVER}:
        raise RuntimeError(f"The drivers changed while the lease lasted: {drivers}.")


def compete(seed: int, *, is_doomed: bool, dies_after_s: float | None) -> None:
    choices = random.Random(seed)  # noqa: S311 - a test's choices
    try:
        pool = GpuPool()
        lease_once(pool, choices, dies_after_s=dies_after_s)
        while is_doomed:
            # The timer already runs. If each lease set the timer again, it would never expire.
            lease_once(pool, choices, dies_after_s=None)
    except BaseException as error:
        say("failed", error=f"{type(error).__name__}: {error}")
        os._exit(1)
    say("ended")
    os._exit(0)


@dataclass(frozen=True, kw_only=True)
class Competitor:
    pid: int
    killed_at: float | None


def start(choices: random.Random, number: int) -> Competitor:
    """Start a process; the first and then every third process is to be killed."""
    is_doomed = number % 3 == 1
    is_killed_after_its_start = number % 6 == 4
    life_s = choices.uniform(0.2, _LONGEST_LIFE_S)
    dies_after_s = choices.uniform(0.0, _LONGEST_AFTER_TAKING_S)
    seed = choices.getrandbits(32)
    pid = os.fork()
    if pid == 0:
        is_killed_later = is_doomed and not is_killed_after_its_start
        compete(seed, is_doomed=is_doomed, dies_after_s=dies_after_s if is_killed_later else None)
    say("started", competitor=pid)
    return Competitor(
        pid=pid, killed_at=time.monotonic() + life_s if is_killed_after_its_start else None
    )


def main() -> None:
    seconds, processes, seed = (int(word) for word in sys.argv[1:])
    choices = random.Random(seed)  # noqa: S311 - a test's choices
    running: dict[int, Competitor] = {}
    started = 0
    end = time.monotonic() + seconds
    while running or time.monotonic() < end:
        while len(running) < processes and time.monotonic() < end:
            started += 1
            competitor = start(choices, started)
            running[competitor.pid] = competitor
        for each in list(running.values()):
            if each.killed_at is not None and each.killed_at <= time.monotonic():
                # This line must come first: after the kill, the next holder's line could come
                # earlier.
                say("killing", competitor=each.pid)
                os.kill(each.pid, signal.SIGKILL)
                os.waitpid(each.pid, 0)
                say("killed", competitor=each.pid)
                del running[each.pid]
                continue
            ended, _ = os.waitpid(each.pid, os.WNOHANG)
            if ended:
                del running[ended]
        SYSTEM_CLOCK.sleep(_LOOK_S)
    say("over", started=started)


if __name__ == "__main__":
    main()
