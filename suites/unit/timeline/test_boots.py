"""The boots of a machine on one time axis."""

from __future__ import annotations

import pytest

from harness.timeline import Moment
from harness.timeline.boots import Boots
from suites.unit.timeline.journals import an_entry


def test_timeline_shows_the_latest_boots_and_begins_at_zero() -> None:
    entries = [
        an_entry(5.0, wall_s=100.0, boot="image"),
        an_entry(1.0, wall_s=200.0, boot="one"),
        an_entry(9.0, wall_s=208.0, boot="one"),
        an_entry(2.0, wall_s=220.0, boot="two"),
        an_entry(1.0, wall_s=225.0, boot="three"),
    ]

    boots = Boots.of(entries, most=3)

    assert [boot.at(0.0) for boot in boots.all] == [0.0, 19.0, 25.0]
    assert boots.moments() == [Moment(at_s=at_s, words="reboot") for at_s in (19.0, 25.0)]
    assert [boots.at_wall(wall) for wall in (100.0, 200.0, 210.0, 219.0, 230.0)] == [
        None,
        1.0,
        11.0,
        20.0,
        31.0,
    ]


def test_order_of_the_boots_is_kept_if_the_clock_was_set_back_between_them() -> None:
    entries = [an_entry(8.0, wall_s=5000.0, boot="a"), an_entry(1.0, wall_s=10.0, boot="b")]

    assert [boot.at(1.0) for boot in Boots.of(entries, most=9).all] == [1.0, 8.0]


@pytest.mark.parametrize(
    ("by_s", "words"),
    [
        (5.0, None),
        (-4.9, None),
        (6.0, "+6 s"),
        (-59.0, "-59 s"),
        (60.0, "+1.0 min"),
        (3600.0, "+1.0 h"),
        (-90000.0, "-1.0 d"),
    ],
)
def test_clock_change_beyond_ntp_corrections_is_reported(by_s: float, words: str | None) -> None:
    boots = Boots.of([an_entry(1.0), an_entry(3.0, wall_s=1003.0 + by_s)], most=1)

    expected = [] if words is None else [Moment(at_s=3.0, words=f"clock set by {words}")]
    assert boots.moments() == expected
    assert boots.at_wall(1002.9 + by_s) == pytest.approx(2.9)


def test_wall_clock_time_has_no_position_without_a_journal() -> None:
    assert Boots.of([], most=2).at_wall(1.0) is None
