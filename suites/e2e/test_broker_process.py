"""The broker's account between processes; no machine is started."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.broker import Broker, Demand, HostRoom, is_bindable
from harness.provisioning.command import PIPE, spawn
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from pathlib import Path

LONG_S = 30.0

#: Claims all cores and says so; then holds them until its input ends.
HOLDER = """\
import sys
from pathlib import Path
from harness.machine.broker import Broker, Demand
from harness.provisioning.wait import Deadline

broker = Broker(Path(sys.argv[1]))
demand = Demand(memory_mib=broker.room.memory_mib // 4, cpus=broker.room.cpus)
with broker.claim("holder", demand, deadline=Deadline.after(30)):
    print("granted", flush=True)
    sys.stdin.read()
"""

#: Counts up a number in a file again and again, alone on the host each time.
COUNTER = """\
import sys
from pathlib import Path
from harness.machine.broker import Broker, Demand
from harness.provisioning.wait import Deadline

broker, number = Broker(Path(sys.argv[1])), Path(sys.argv[2])
for _ in range(5):
    demand = Demand(memory_mib=1, cpus=broker.room.cpus)
    with broker.claim("counter", demand, deadline=Deadline.after(30)):
        number.write_text(str(int(number.read_text()) + 1))
"""


def test_room_of_a_killed_process_goes_to_the_one_that_waits(tmp_path: Path) -> None:
    folder = tmp_path / "account"
    process = spawn([sys.executable, "-c", HOLDER, str(folder)], stdin=PIPE, stdout=PIPE)
    told: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"granted\n"
        broker = Broker(folder)
        (holder,) = broker.claims()
        with (
            pytest.raises(HarnessError, match=rf"'holder' of process {process.pid}"),
            broker.claim("next", holder.demand, deadline=Deadline.after(0.2), tell=told.append),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    left = [path.name for path in folder.iterdir()]

    with broker.claim("next", holder.demand, deadline=Deadline.after(LONG_S)):
        remaining = [entry.who for entry in broker.claims()]

    assert len(told) == 1
    assert len(left) == 1
    assert remaining == ["next"]


def test_processes_that_ask_at_once_take_turns(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    argv = [sys.executable, "-c", COUNTER, str(tmp_path / "account"), str(number)]

    with contextlib.ExitStack() as ends:
        processes = [spawn(argv) for _ in range(4)]
        for process in processes:
            ends.callback(process.kill)
        codes = [process.wait(timeout=LONG_S * 2) for process in processes]

    assert codes == [0, 0, 0, 0]
    assert number.read_text() == "20"


def test_claimed_ports_can_be_bound(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "account")
    demand = Demand(memory_mib=1, cpus=0, ports=3)

    with (
        broker.claim("ports", demand, deadline=Deadline.after(LONG_S)) as claim,
        contextlib.ExitStack() as ends,
    ):
        for port in claim.ports:
            listener = ends.enter_context(socket.socket())
            listener.bind(("127.0.0.1", port))
            listener.listen()
        busy = [is_bindable(port) for port in claim.ports]

    assert busy == [False] * 3
    assert set(claim.ports) <= set(HostRoom.from_proc().ports)
