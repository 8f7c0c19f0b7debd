"""DKMS's builds, read from their logs."""

from __future__ import annotations

import pytest

from harness.timeline import Span, SpanState
from harness.timeline.boots import Boots
from harness.timeline.builds import build_of
from suites.unit.timeline.journals import an_entry

BEGAN_S = 1_764_237_606.0
LOG = (
    "DKMS make.log for nvidia-580.1 for kernel 6.1 (x86_64)\nThu Nov 27 10:00:06 UTC 2025\nmake\n"
)
BUILT = "/var/lib/dkms/nvidia/580.1/6.1/x86_64/log/make.log"


def built(path: str, log: str = LOG, ended_s: float | None = BEGAN_S + 30) -> Span | None:
    boots = Boots.of([an_entry(10.0, wall_s=BEGAN_S - 5)], most=1)
    return build_of(path, log, ended_s, boots, 40.0)


@pytest.mark.parametrize(
    "date",
    [
        "Thu Nov 27 10:00:06 UTC 2025",
        "Thu Nov 27 10:00:06 AM UTC 2025",
        "Thu 27 Nov 2025 10:00:06 AM UTC",
    ],
)
def test_build_begins_at_the_date_in_its_log_and_ends_with_the_last_write_to_the_log(
    date: str,
) -> None:
    span = built(BUILT, LOG.replace("Thu Nov 27 10:00:06 UTC 2025", date))

    assert span is not None
    assert (span.name, span.start_s, span.end_s, span.state) == (
        "nvidia 580.1, kernel 6.1",
        15.0,
        40.0,
        SpanState.DONE,
    )


@pytest.mark.parametrize(
    ("ended_s", "end_s"), [(None, 15.0), (BEGAN_S + 3, 18.0), (BEGAN_S - 9, 15.0)]
)
def test_end_of_a_build_before_the_beginning_of_the_build_is_ignored(
    ended_s: float | None, end_s: float
) -> None:
    span = built(BUILT, ended_s=ended_s)

    assert span is not None
    assert span.end_s == end_s


def test_log_that_was_left_in_the_build_folder_shows_a_failed_build() -> None:
    span = built("/var/lib/dkms/nvidia/580.1/build/make.log")

    assert span is not None
    assert (span.name, span.state) == ("nvidia 580.1", SpanState.FAILED)


@pytest.mark.parametrize(
    ("path", "log"),
    [
        ("/var/lib/dkms/nvidia/580.1/6.1/make.log", LOG),
        (f"{BUILT}.1", LOG),
        (BUILT, "one line"),
        (BUILT, "x\nThu Nov 27 10:00:06 CET 2025\n"),
        (BUILT, "x\nThu Nov 20 10:00:06 UTC 2025\n"),
    ],
)
def test_logs_at_other_paths_and_of_builds_in_the_image_are_ignored(path: str, log: str) -> None:
    assert built(path, log) is None
