"""The check of a competition for GPUs accepts a fair competition, and finds each fault."""

from __future__ import annotations

import json

import pytest

from suites.e2e.passthrough.holder_log import judge, parse_log

GPU = "0000:02:00.0"


def a_log(*lines: tuple[float, int, str] | tuple[float, int, str, int]) -> str:
    """Return a log of one GPU from (time, process, event[, competitor])."""
    return "\n".join(
        json.dumps(
            {
                "at": at,
                "pid": pid,
                "event": event,
                **({"addresses": [GPU]} if event in {"taken", "leaving"} else {}),
                **({"competitor": rest[0]} if rest else {}),
            }
        )
        for at, pid, event, *rest in lines
    )


FAIR = (
    (0.0, 1, "started", 10),
    (0.1, 1, "started", 11),
    (1.0, 10, "taken"),
    (2.0, 10, "leaving"),
    (2.1, 10, "ended"),
    (3.0, 11, "taken"),
    (4.0, 1, "killing", 11),
    (4.1, 1, "killed", 11),
)


def test_log_of_a_fair_competition_has_no_faults() -> None:
    verdict = judge(parse_log(a_log(*FAIR)))

    assert verdict.faults == ()
    assert [(each.pid, each.begin, each.end) for each in verdict.holds] == [
        (10, 1.0, 2.0),
        (11, 3.0, 4.0),
    ]
    assert (verdict.started, verdict.killed, verdict.killed_while_holding) == (2, 1, 1)


def test_successor_of_a_killed_holder_may_be_logged_before_the_death_of_the_holder() -> None:
    log = a_log(*FAIR, (0.2, 1, "started", 12), (4.05, 12, "taken"), (5.0, 12, "leaving"))

    assert judge(parse_log(log + "\n" + a_log((5.1, 12, "ended")))).faults == ()


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (
            (
                (0.2, 1, "started", 12),
                (1.5, 12, "taken"),
                (5.0, 12, "leaving"),
                (5.1, 12, "ended"),
            ),
            f"{GPU} had two holders: process 10 until 2.000 s, and process 12 from 1.500 s.",
        ),
        (
            (
                (0.2, 1, "started", 12),
                (3.5, 12, "taken"),
                (5.0, 12, "leaving"),
                (5.1, 12, "ended"),
            ),
            f"{GPU} had two holders: process 11 until 4.000 s, and process 12 from 3.500 s.",
        ),
        (((0.2, 1, "started", 12),), "Process 12 neither ended nor was killed."),
        (
            ((0.2, 1, "started", 12), (6.0, 12, "taken"), (6.1, 12, "ended")),
            "Process 12 still holds GPUs at the end.",
        ),
        (((2.05, 10, "leaving"),), "Process 10 left GPUs that it did not hold."),
        (((1.5, 10, "taken"),), "Process 10 took GPUs while it held some."),
        (((6.0, 10, "failed"),), "Process 10 failed: "),
        (((6.0, 10, "danced"),), "The log has an unknown event 'danced'."),
    ],
)
def test_each_kind_of_fault_in_the_log_is_found(
    lines: tuple[tuple[float, int, str]], fault: str
) -> None:
    assert fault in judge(parse_log(a_log(*FAIR, *lines))).faults


def test_long_hold_that_overlaps_two_later_holds_is_reported_twice() -> None:
    """Each hold is compared with all earlier holds."""
    log = a_log(
        *((0.0, 1, "started", pid) for pid in (10, 11, 12)),
        *((1.0, 10, "taken"), (9.0, 10, "leaving"), (9.5, 10, "ended")),
        *((2.0, 11, "taken"), (3.0, 11, "leaving"), (3.5, 11, "ended")),
        *((4.0, 12, "taken"), (5.0, 12, "leaving"), (5.5, 12, "ended")),
    )

    assert sum("had two holders" in fault for fault in judge(parse_log(log)).faults) == 2
