"""Expectations on a registry's log, each with a log that it refuses."""

from __future__ import annotations

import pytest

from harness import expect
from harness.errors import ExpectationError
from harness.registry import RegistryLog

TAG = "/v2/gpu/manifests/580.1"


def a_log(*pulls: tuple[float, float, int]) -> RegistryLog:
    """Return the log of pulls with one request each; a pull has a start, an end and a status."""
    log = RegistryLog()
    for started, ended, status in pulls:
        request, _ = log.began(log.connected(), "HEAD", "mcr.microsoft.com", TAG, is_first=True)
        request.started_s, request.ended_s, request.status = started, ended, status
    return log


def with_request(
    log: RegistryLog, started: float, ended: float, status: int | None
) -> RegistryLog:
    """Add another request to the last pull."""
    request, _ = log.began(log.connected(), "GET", "mcr.microsoft.com", TAG, is_first=False)
    request.started_s, request.ended_s, request.status = started, ended, status
    return log


def test_error_for_an_unwanted_request_to_the_registry_shows_the_request() -> None:
    expect.no_request(RegistryLog())
    with pytest.raises(ExpectationError, match=r"there were 1:\n1\.000 2\.000 pull 1 .* HEAD mcr"):
        expect.no_request(a_log((1, 2, 200)))


def test_connection_without_a_request_is_refused_if_no_request_was_expected() -> None:
    log = RegistryLog()
    log.connected()
    log.refused("the TLS handshake failed: unknown CA")

    with pytest.raises(ExpectationError, match="no request: the TLS handshake failed: unknown CA"):
        expect.no_request(log)


def test_more_or_fewer_tries_of_a_pull_than_expected_are_refused() -> None:
    log = a_log((1, 2, 500), (7, 8, 200))

    expect.pulls_tried(log, 2)
    for times in (1, 3):
        with pytest.raises(ExpectationError, match=f"{times} tries .* but there were 2"):
            expect.pulls_tried(log, times)


def test_pause_is_measured_from_the_end_of_a_try_to_the_start_of_the_next_try() -> None:
    expect.pulls_paused(a_log((1, 2, 500), (7, 8, 500), (13.5, 14, 200)), 5)
    with pytest.raises(ExpectationError, match=r"there were 5\.0 s, 4\.5 s"):
        expect.pulls_paused(a_log((1, 2, 500), (7, 8, 500), (12.5, 14, 200)), 5)
    with pytest.raises(ExpectationError, match=r"there were 4\.5 s, 5\.0 s, 6\.0 s:"):
        expect.pulls_paused(a_log((1, 2, 500), (6.5, 8, 500), (13, 14, 500), (20, 21, 200)), 5)


def test_pull_is_refused_if_any_of_its_requests_got_an_unexpected_status() -> None:
    for first, second in ((500, 200), (200, 500), (200, None)):
        log = with_request(a_log((1, 2, first)), 3, 4, second)

        with pytest.raises(ExpectationError) as caught:
            expect.pull_answered(log, 1, status=200)
        seen = sorted(map(str, (first, second)))
        assert f"expected to get only status 200, but got {seen}:" in str(caught.value)

    expect.pull_answered(with_request(a_log((1, 2, 200)), 3, 4, 200), 1, status=200)


def test_pull_answered_checks_only_the_pull_with_the_given_number() -> None:
    log = a_log((1, 2, 200), (7, 8, 429), (13, 14, 500))

    for number, status in ((1, 200), (2, 429), (3, 500)):
        expect.pull_answered(log, number, status=status)
    for number, status in ((0, 500), (1, 500), (2, 200), (3, 429)):
        with pytest.raises(
            ExpectationError, match=f"Pull {number} was expected to get only status {status}"
        ):
            expect.pull_answered(log, number, status=status)


def test_pause_between_pulls_starts_at_the_end_of_the_last_request() -> None:
    log = with_request(a_log((1, 2, 200)), 3, 4, 500)
    request, _ = log.began(log.connected(), "HEAD", "mcr.microsoft.com", TAG, is_first=True)
    request.started_s, request.ended_s, request.status = 8, 9, 200

    expect.pulls_paused(log, 4)
    with pytest.raises(ExpectationError, match=r"there were 4\.0 s:"):
        expect.pulls_paused(log, 5)


def test_registry_log_without_a_pull_has_zero_tries() -> None:
    log = RegistryLog()
    log.connected()

    expect.pulls_tried(log, 0)
    with pytest.raises(ExpectationError, match=r"1 tries .* but there were 0"):
        expect.pulls_tried(log, 1)
    with pytest.raises(ExpectationError, match="no two tries"):
        expect.pulls_paused(log, 0)
    with pytest.raises(ExpectationError, match=r"Pull 1 .* but got nothing"):
        expect.pull_answered(log, 1, status=200)
