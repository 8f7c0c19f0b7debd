"""The log of requests to a registry, and the faults that disturb pulls."""

from __future__ import annotations

from typing import Any

import pytest

from harness.limits import REGISTRY_REQUESTS, LimitError
from harness.registry import PullFault, RegistryLog, starts_pull

TAG = "/v2/gpu/manifests/580.1"
DIGEST = "/v2/gpu/manifests/sha256:12"
LAYER = "/v2/gpu/blobs/sha256:12"


def asked(
    log: RegistryLog, path: str, *, method: str = "GET", is_first: bool = False
) -> PullFault:
    return log.began(1, method, "registry.test", path, is_first=is_first)[1]


def pulled(log: RegistryLog) -> PullFault:
    """Begin a pull, and return the fault of the pull."""
    return asked(log, TAG, method="HEAD", is_first=True)


@pytest.mark.parametrize(
    ("method", "path", "is_first", "starts"),
    [
        ("HEAD", TAG, True, True),
        ("HEAD", TAG, False, False),
        ("GET", TAG, True, False),
        ("HEAD", DIGEST, True, False),
        ("HEAD", LAYER, True, False),
    ],
)
def test_pull_begins_with_the_request_for_a_tag(
    method: str, path: str, *, is_first: bool, starts: bool
) -> None:
    assert starts_pull(method, path, is_first_of_connection=is_first) is starts


def test_planned_faults_apply_to_one_pull_each_before_the_permanent_fault() -> None:
    log = RegistryLog()
    first, second, standing = (PullFault(status=status) for status in (500, 502, 503))
    log.disturb_next(first, second)
    log.disturb_all(standing)

    assert [pulled(log), asked(log, LAYER), pulled(log), pulled(log)] == [
        *(first, first),
        *(second, standing),
    ]
    log.disturb_all(PullFault())
    assert asked(log, LAYER) == PullFault()


def test_fault_for_all_pulls_replaces_the_fault_of_a_running_pull() -> None:
    log = RegistryLog()
    log.disturb_next(PullFault(status=500))
    pulled(log)

    log.disturb_all(PullFault(delay_s=1))

    assert asked(log, LAYER) == PullFault(delay_s=1)


def test_requests_are_grouped_by_pull_and_requests_before_the_first_pull_are_left_out() -> None:
    log = RegistryLog()
    asked(log, LAYER)
    for sizes in ((5, 7), (1,)):
        pulled(log)
        for size in sizes:
            request, _ = log.began(1, "GET", "registry.test", LAYER, is_first=False)
            request.body_bytes, request.ended_s = size, request.started_s + size
        manifest, _ = log.began(1, "GET", "registry.test", DIGEST, is_first=False)
        manifest.body_bytes = 100

    first, second = log.pulls
    assert [pull.blob_bytes for pull in (first, second)] == [12, 1]
    assert len(first.requests) == 4
    assert first.started_s == first.requests[0].started_s
    assert first.ended_s == max(each.ended_s for each in first.requests)
    assert len(log.requests) == 8


def test_returned_request_record_is_a_copy() -> None:
    log = RegistryLog()
    request, _ = log.began(1, "GET", "h", LAYER, is_first=True)
    (seen,) = log.requests

    request.status = 200

    assert seen.status is None
    assert log.requests[0].status == 200


def test_log_shows_the_result_of_each_request() -> None:
    log = RegistryLog()
    assert log.render() == "no request, 0 connections\n"
    assert [log.connected(), log.connected(), log.connections] == [1, 2, 2]
    for state in ({"is_cut": True}, {"is_aborted": True}, {"status": 404}):
        request, _ = log.began(2, "GET", "h", "/v2/\x1b[2J", is_first=True)
        request.started_s, request.ended_s, request.body_bytes = 1.0, 2.5, 7
        for name, value in state.items():
            setattr(request, name, value)
    log.refused("the TLS handshake failed")

    start = "1.000 2.500 pull 0 connection 2 GET h/v2/\\x1b[2J"
    assert log.render().splitlines() == [
        f"{start} unanswered 7 bytes cut",
        f"{start} unanswered 7 bytes aborted by the client",
        f"{start} 404 7 bytes",
        "no request: the TLS handshake failed",
    ]


def test_full_log_counts_the_requests_that_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REGISTRY_REQUESTS.variable, "2")
    log = RegistryLog()
    asked(log, LAYER)
    asked(log, "/v2/" + "x" * 5000)
    assert len(log.requests[1].path) < 1100

    with pytest.raises(LimitError):
        asked(log, LAYER)
    with pytest.raises(LimitError):
        _ = log.requests
    for _ in range(3):
        log.refused("x")

    assert log.refusals == ("x", "x")
    assert (
        log.render()
        .splitlines()[-1]
        .startswith("left out because of the limit 'registry-requests': 2 more")
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"status": 399},
        {"status": 600},
        {"status": 500, "blob_status": 200},
        {"cut_after_bytes": -1},
        {"bytes_per_s": 0},
    ],
)
def test_invalid_fault_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"is not an HTTP status|is negative|never end"):
        PullFault(**fields)
    PullFault(status=400, blob_status=599, cut_after_bytes=0, bytes_per_s=1)
