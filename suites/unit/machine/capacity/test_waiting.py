"""Waits for capacity of the host: their order, their time limits and their messages."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError
from harness.machine.capacity.broker import Demand, Entry, HostCapacity, reservations_in
from harness.provisioning.wait import Deadline
from suites.fakes.clock import FakeClock, in_turn
from suites.unit.machine.capacity.builders import FakeHost, at_once, mib, whos

if TYPE_CHECKING:
    from pathlib import Path

    from harness.machine.capacity.broker import Reservation


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def test_wait_reports_the_holders_of_the_capacity_once(host: FakeHost) -> None:
    reports: list[str] = []

    with (
        at_once(host.broker(7), "node-a", mib(3000)),
        pytest.raises(HarnessError, match=r"Waited 1.0 s for 2000 MiB on 1 vCPU .*'node-a'"),
        host.broker(8).reserve(
            "node-b", mib(2000), deadline=Deadline.after(1, FakeClock()), report=reports.append
        ),
    ):
        pass

    (line,) = reports
    assert line == (
        "'node-b' waits for 2000 MiB on 1 vCPU: 1000 of 4000 MiB are not reserved; held by "
        "'node-a' of process 7 (3000 MiB on 1 vCPU)."
    )


def test_wait_reports_every_kind_of_missing_capacity_and_every_holder(host: FakeHost) -> None:
    with (
        at_once(host.broker(7), "node-a", mib(3000, cpus=2)),
        at_once(host.broker(8), "node-b", mib(500, cpus=5)),
        pytest.raises(
            HarnessError,
            match=re.escape(
                "last seen: 500 of 4000 MiB are not reserved; 1 of 8 vCPUs are not reserved; held by "
                "'node-a' of process 7 (3000 MiB on 2 vCPUs), "
                "'node-b' of process 8 (500 MiB on 5 vCPUs). End"
            ),
        ),
        at_once(host.broker(9), "node-c", mib(600, cpus=2)),
    ):
        pass


def test_wait_reports_a_change_of_the_first_process_in_the_queue(host: FakeHost) -> None:
    reports: list[str] = []
    with contextlib.ExitStack() as waiting:
        first, second, third = (waiting.enter_context(contextlib.ExitStack()) for _ in range(3))
        for number, leaving in enumerate((first, second, third), start=1):
            entry = Entry(who=f"node-{number}", process=number, demand=mib(4000))
            leaving.enter_context(reservations_in(host.folder).enter(entry))
        clock = FakeClock(on_sleep=in_turn(second.close, first.close, third.close))

        with host.broker(9).reserve(
            "node-9", mib(1), deadline=Deadline.after(9, clock), report=reports.append
        ):
            pass

    assert [line.partition("; held by")[0] for line in reports] == [
        f"'node-9' waits for 1 MiB on 1 vCPU: 'node-{number}' of process {number} (4000 MiB on 1 "
        "vCPU) asked earlier"
        for number in (1, 3)
    ]


def test_failed_wait_leaves_no_reservation(host: FakeHost) -> None:
    with at_once(host.broker(), "a", mib(3000)):
        with pytest.raises(HarnessError), at_once(host.broker(2), "b", mib(2000)):
            pass

        assert whos(host.broker()) == ["a"]


def test_wait_ends_if_the_capacity_is_no_longer_needed(host: FakeHost) -> None:
    reasons: list[str] = []
    clock = FakeClock(on_sleep=in_turn(lambda: reasons.append("Nobody wants it.")))

    with at_once(host.broker(), "a", mib(3000)):
        with (
            pytest.raises(HarnessError, match=r"^Nobody wants it\.$"),
            host.broker(2).reserve(
                "b",
                mib(2000),
                deadline=Deadline.after(900, clock),
                cancelled=lambda: reasons[0] if reasons else None,
            ),
        ):
            pass

        assert whos(host.broker()) == ["a"]


def test_demand_that_waits_gets_the_capacity_that_other_processes_release(host: FakeHost) -> None:
    reports: list[str] = []
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        first.enter_context(at_once(host.broker(1), "a", mib(2000)))
        second.enter_context(at_once(host.broker(2), "b", mib(2000)))
        deadline = Deadline.after(
            5, FakeClock(on_sleep=in_turn(first.close, lambda: None, second.close))
        )

        with host.broker(3).reserve("c", mib(4000), deadline=deadline, report=reports.append):
            assert whos(host.broker()) == ["c"]

    holders = [line.partition("held by ")[2] for line in reports]
    assert [line.count("process") for line in holders] == [2, 1]


def test_removed_file_of_a_waiting_process_ends_the_wait(host: FakeHost) -> None:
    removed: list[Path] = []

    def remove() -> None:
        removed.append(sorted(host.folder.iterdir())[1])
        removed[0].unlink()

    with (
        at_once(host.broker(1), "a", mib(4000)),
        pytest.raises(
            HarnessError,
            match="', by which this process waits for memory and cores of the host, was removed",
        ) as ended,
        host.broker(2).reserve(
            "b", mib(1), deadline=Deadline.after(9, FakeClock(on_sleep=in_turn(remove)))
        ),
    ):
        pass

    assert f"'{removed[0]}'" in str(ended.value)


def test_large_demand_is_not_starved_by_small_demands(host: FakeHost) -> None:
    """Later demands wait even if there is enough capacity for them."""
    reports: list[str] = []

    def ask_later() -> None:
        with (
            pytest.raises(HarnessError, match=r"'large' of process 2 .* asked earlier"),
            at_once(host.broker(3), "small", mib(1), reports.append),
        ):
            pass

    with (
        at_once(host.broker(1), "a", mib(2000)),
        pytest.raises(HarnessError, match="2000 of 4000 MiB are not reserved"),
        host.broker(2).reserve(
            "large", mib(4000), deadline=Deadline.after(1, FakeClock(on_sleep=in_turn(ask_later)))
        ),
    ):
        pass
    assert len(reports) == 1


def test_process_that_holds_a_reservation_is_served_before_the_queue(host: FakeHost) -> None:
    """The process keeps its first reservation while it waits, so a strict queue would deadlock."""
    given_out: list[Reservation] = []

    def ask_for_a_second() -> None:
        with at_once(host.broker(1), "second", mib(1)) as reservation:
            given_out.append(reservation)

    with (
        at_once(host.broker(1), "first", mib(2000)),
        pytest.raises(HarnessError),
        host.broker(2).reserve(
            "large",
            mib(4000),
            deadline=Deadline.after(1, FakeClock(on_sleep=in_turn(ask_for_a_second))),
        ),
    ):
        pass
    assert len(given_out) == 1


# -- other load, on a host with two processors ------------------------------------------


def test_machine_does_not_start_beside_a_machine_of_another_process_on_a_busy_host(
    host: FakeHost,
) -> None:
    busy: tuple[tuple[dict[str, float], str], ...] = (
        ({"load": 9, "cpu": 99}, r"about 7 other tasks share its 2 processors.*99 % of the time"),
        ({"load": 0.5, "memory": 21}, r"memory is short for 21 % of the time"),
        ({"load": 0.5, "io": 81}, r"all work waits for the disk for 81 % of the time"),
    )
    for load, said in busy:
        host.is_busy(**load)
        reports: list[str] = []
        clock = FakeClock(on_sleep=in_turn(lambda: host.is_busy(load=0.5)))

        with (
            at_once(host.broker(7), "node-a", mib(100)),
            host.broker(8).reserve(
                "node-b", mib(100), deadline=Deadline.after(900, clock), report=reports.append
            ),
        ):
            assert whos(host.broker()) == ["node-a", "node-b"]

        (line,) = reports
        assert re.search(rf"'node-b' waits for .*: {said}.*; held by 'node-a'", line)
        assert clock.elapsed_s < 1


def _unasked(
    host: FakeHost, process: int, who: str, demand: Demand
) -> contextlib.AbstractContextManager[Reservation]:
    """Reserve capacity with a long time limit, and fail if the broker reports a wait."""

    def told(line: str) -> None:
        pytest.fail(f"It waits: {line}")

    deadline = Deadline.after(900, FakeClock())
    return host.broker(process).reserve(who, demand, deadline=deadline, report=told)


def test_machine_starts_beside_another_machine_if_only_machines_load_the_host(
    host: FakeHost,
) -> None:
    loads: tuple[dict[str, float], ...] = (
        {"load": 9, "cpu": 49},
        {"load": 6, "cpu": 99},
        {"load": 0.5, "cpu": 99, "memory": 20, "io": 80},
    )
    for load in loads:
        host.is_busy(**load)

        with at_once(host.broker(7), "node-a", mib(100)), _unasked(host, 8, "node-b", mib(100)):
            assert whos(host.broker()) == ["node-a", "node-b"]


def test_load_is_attributed_to_running_machines_by_the_number_of_their_vcpus(
    host: FakeHost,
) -> None:
    host.is_busy(load=9.0, cpu=99)

    with (
        at_once(host.broker(7), "node-a", mib(100, cpus=2)),
        at_once(host.broker(7), "node-a", mib(100, cpus=1)),
        _unasked(host, 8, "node-b", mib(100)),
    ):
        assert whos(host.broker()) == ["node-a", "node-a", "node-b"]


def test_load_delays_neither_the_first_machine_nor_later_machines_of_the_same_process(
    host: FakeHost,
) -> None:
    busy = {"load": 90.0, "cpu": 99.0, "memory": 99.0, "io": 99.0}
    host.is_busy(**busy)

    with contextlib.ExitStack() as machines:
        machines.enter_context(at_once(host.broker(7), "node-a", mib(100)))
        host.is_busy(load=0.5)
        machines.enter_context(at_once(host.broker(8), "other", mib(100)))
        host.is_busy(**busy)
        machines.enter_context(_unasked(host, 7, "node-b", mib(100)))

        assert whos(host.broker()) == ["node-a", "other", "node-b"]


def test_lasting_load_delays_a_machine_by_30_s_or_half_of_its_time_limit(host: FakeHost) -> None:
    def slow_clock() -> FakeClock:
        """Return a clock by which each look at the load takes some seconds."""
        clock = FakeClock(on_sleep=lambda: clock.advance(2.7))
        return clock

    host.is_busy(load=90, cpu=99)
    for limit_s, delay_s in ((900, 30), (20, 10)):
        clock = slow_clock()
        with (
            at_once(host.broker(7), "node-a", mib(100)),
            host.broker(8).reserve("node-b", mib(100), deadline=Deadline.after(limit_s, clock)),
        ):
            assert delay_s <= clock.elapsed_s < delay_s + 3


def test_tasks_per_processor_are_1_unless_the_host_is_busy(host: FakeHost) -> None:
    for load, cpu, running, tasks in (
        (40.0, 99, 3, 20.0),
        (0.5, 99, 40, 20.0),
        (40.0, 50, 3, 1.0),
        (4.0, 99, 3, 1.0),
    ):
        host.is_busy(load=load, cpu=cpu, running=running)

        assert host.broker().tasks_per_processor() == tasks


def test_tasks_per_processor_of_a_busy_host_with_one_processor_equal_its_load(
    host: FakeHost,
) -> None:
    host.is_busy(load=3.0, cpu=99)
    capacity = HostCapacity.from_proc(host.proc, cores=1)

    assert host.broker(capacity=capacity).tasks_per_processor() == 3.0


def test_busy_host_is_detected_from_the_pressure_total_before_the_pressure_average_rises(
    host: FakeHost,
) -> None:
    for waited_s, elapsed_s, tasks in ((3.1, 6, 20.0), (2.9, 6, 1.0), (9.0, 10, 1.0)):
        host.is_busy(load=0.5, cpu=20, waited_s=700)
        clock = FakeClock()
        broker = host.broker(clock=clock)
        clock.advance(elapsed_s)
        host.is_busy(load=0.5, cpu=20, running=40, waited_s=700 + waited_s)

        assert broker.tasks_per_processor() == tasks


def test_running_machines_alone_do_not_keep_the_host_busy(host: FakeHost) -> None:
    host.is_busy(load=9.0, cpu=99)

    with at_once(host.broker(7), "node-a", mib(100, cpus=4)):
        assert host.broker().tasks_per_processor() == 1.0


def test_pressure_file_in_an_unknown_format_delays_no_machine(host: FakeHost) -> None:
    host.is_busy(load=90)
    for content in ("some\n", "some avg10=x\nfull avg10\n", "some avg60=99\n"):
        for name in ("cpu", "memory", "io"):
            (host.proc / "pressure" / name).write_text(content)

        with at_once(host.broker(7), "node-a", mib(100)), _unasked(host, 8, "node-b", mib(100)):
            assert whos(host.broker()) == ["node-a", "node-b"]
