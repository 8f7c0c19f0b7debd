"""Reservations of capacity by several processes; no machine is started."""

from __future__ import annotations

import contextlib
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.capacity.broker import Broker, Demand, HostCapacity, is_bindable
from harness.provisioning.command import PIPE, spawn
from harness.provisioning.wait import Deadline

if TYPE_CHECKING:
    from pathlib import Path

LONG_S = 30.0

#: Reserves all cores, reports this, and keeps them until its input ends.
HOLDER = """\
import sys
from pathlib import Path
from harness.machine.capacity.broker import Broker, Demand
from harness.provisioning.wait import Deadline

broker = Broker(Path(sys.argv[1]))
demand = Demand(memory_mib=broker.capacity.memory_mib // 4, cpus=broker.capacity.cpus)
with broker.reserve("holder", demand, deadline=Deadline.after(30)):
    print("granted", flush=True)
    sys.stdin.read()
"""

#: Increments a number in a file five times, each time with a reservation of the whole host.
COUNTER = """\
import sys
from pathlib import Path
from harness.machine.capacity.broker import Broker, Demand
from harness.provisioning.wait import Deadline

broker, number = Broker(Path(sys.argv[1])), Path(sys.argv[2])
for _ in range(5):
    demand = Demand(memory_mib=1, cpus=broker.capacity.cpus)
    with broker.reserve("counter", demand, deadline=Deadline.after(30)):
        number.write_text(str(int(number.read_text()) + 1))
"""


def test_capacity_of_a_killed_process_is_given_to_the_waiting_process(tmp_path: Path) -> None:
    folder = tmp_path / "reservations"
    process = spawn([sys.executable, "-c", HOLDER, str(folder)], stdin=PIPE, stdout=PIPE)
    reports: list[str] = []
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"granted\n"
        broker = Broker(folder)
        (holder,) = broker.entries()
        with (
            pytest.raises(HarnessError, match=rf"'holder' of process {process.pid}"),
            broker.reserve(
                "next", holder.demand, deadline=Deadline.after(0.2), report=reports.append
            ),
        ):
            pass
    finally:
        process.kill()
        process.communicate()
    left = [path.name for path in folder.iterdir()]

    with broker.reserve("next", holder.demand, deadline=Deadline.after(LONG_S)):
        remaining = [entry.who for entry in broker.entries()]

    assert len(reports) == 1
    assert len(left) == 1
    assert remaining == ["next"]


def test_simultaneous_reservations_are_made_one_after_another(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")
    argv = [sys.executable, "-c", COUNTER, str(tmp_path / "reservations"), str(number)]

    with contextlib.ExitStack() as ends:
        processes = [spawn(argv) for _ in range(4)]
        for process in processes:
            ends.callback(process.kill)
        codes = [process.wait(timeout=LONG_S * 2) for process in processes]

    assert codes == [0, 0, 0, 0]
    assert number.read_text() == "20"


def test_reserved_ports_can_be_bound(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "reservations")
    demand = Demand(memory_mib=1, cpus=0, ports=3)

    with (
        broker.reserve("ports", demand, deadline=Deadline.after(LONG_S)) as reservation,
        contextlib.ExitStack() as ends,
    ):
        for port in reservation.ports:
            listener = ends.enter_context(socket.socket())
            listener.bind(("127.0.0.1", port))
            listener.listen()
        busy = [is_bindable(port) for port in reservation.ports]

    assert busy == [False] * 3
    assert set(reservation.ports) <= set(HostCapacity.from_proc().ports)
