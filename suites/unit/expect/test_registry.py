"""Expectations on a registry's log, each with a log that it refuses."""

from __future__ import annotations

import pytest

from harness import expect
from harness.errors import ExpectationError
from harness.registry import PullFault, RegistryLog

TAG = "/v2/gpu/manifests/580.1"


def a_log(*pulls: tuple[float, float, int]) -> RegistryLog:
    """Return the log of pulls of one request each: start, end, status."""
    log = RegistryLog()
    for started, ended, status in pulls:
        request, _ = log.began(log.connected(), "HEAD", "mcr.microsoft.com", TAG, is_first=True)
        request.started_s, request.ended_s, request.status = started, ended, status
    return log


def test_no_request_holds_of_an_empty_log() -> None:
    expect.no_request(RegistryLog())


def test_no_request_is_refused_by_a_request() -> None:
    with pytest.raises(ExpectationError, match=r"there were 1:\n1\.000 2\.000 pull 1 .* HEAD mcr"):
        expect.no_request(a_log((1, 2, 200)))


def test_no_request_is_refused_by_a_connection_without_a_request() -> None:
    log = RegistryLog()
    log.connected()
    log.refused("the TLS handshake failed: unknown CA")

    with pytest.raises(ExpectationError, match="no request: the TLS handshake failed: unknown CA"):
        expect.no_request(log)


def test_number_of_tries_is_refused_where_it_differs() -> None:
    log = a_log((1, 2, 500), (7, 8, 200))

    expect.pulls_tried(log, 2)
    for times in (1, 3):
        with pytest.raises(ExpectationError, match=f"{times} tries .* but there were 2"):
            expect.pulls_tried(log, times)


def test_pause_is_between_the_end_of_a_try_and_the_next_one() -> None:
    expect.pulls_paused(a_log((1, 2, 500), (7, 8, 500), (13.5, 14, 200)), 5)
    with pytest.raises(ExpectationError, match=r"there were 5\.0 s, 4\.5 s"):
        expect.pulls_paused(a_log((1, 2, 500), (7, 8, 500), (12.5, 14, 200)), 5)


def test_pause_of_a_single_try_is_refused() -> None:
    with pytest.raises(ExpectationError, match="no two tries"):
        expect.pulls_paused(a_log((1, 2, 200)), 5)


def test_answer_of_a_pull_is_refused_where_it_differs_or_there_is_none() -> None:
    log = a_log((1, 2, 429), (7, 8, 200))

    expect.pull_answered(log, 1, status=429)
    with pytest.raises(
        ExpectationError, match=r"Pull 2 was expected to get 429 only, .* \['200'\]"
    ):
        expect.pull_answered(log, 2, status=429)
    with pytest.raises(ExpectationError, match=r"Pull 3 .* but got nothing"):
        expect.pull_answered(log, 3, status=200)


@pytest.mark.parametrize(
    "field",
    [{"status": 200}, {"blob_status": 200}, {"cut_after_bytes": -1}, {"bytes_per_s": 0}],
    ids=str,
)
def test_fault_that_is_none_is_refused(field: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="use "):
        PullFault(**field)
