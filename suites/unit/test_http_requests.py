"""URLs that are requested, redirects that are followed, and the pace of an exchange."""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import socket
import ssl
import urllib.error
import urllib.request
from http.client import HTTPMessage
from typing import Any

import pytest

from harness.http_requests import (
    HttpOpener,
    NoDowngrade,
    Pace,
    PacedFile,
    RefusedUrlError,
    StalledError,
    _PacedSocket,
    joined,
    origin,
    read_whole,
    why_not_followed,
)
from harness.provisioning.wait import Deadline, WaitTimeoutError
from suites.fakes.clock import FakeClock


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://Registry.example/v2/", ("https", "registry.example", 443)),
        ("https://registry.example:443", ("https", "registry.example", 443)),
        ("http://registry.example", ("http", "registry.example", 80)),
        ("http://[::1]:5000/x", ("http", "::1", 5000)),
    ],
)
def test_origin_is_scheme_and_host_and_port(url: str, found: tuple[str, str, int]) -> None:
    assert origin(url) == found


def test_url_without_a_host_is_refused() -> None:
    accepted = []
    for url in (
        "",
        "registry.example",
        "//registry.example/x",
        "file:///etc/passwd",
        "http:///x",
        "http://[::1",
        "http://h:0/",
        "http://h:99999/",
        "http://h@evil.example/",
        "http://h/a b",
        "http://h/\r\nX: y",
        "ht\ntp://h/",
        "http://h/\u0663",
        "http://" + "h" * 9000,
    ):
        with contextlib.suppress(RefusedUrlError):
            accepted.append((url, origin(url)))

    assert accepted == []


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("", "https://r/v2/a"),
        ("b?n=1", "https://r/v2/b?n=1"),
        ("/c", "https://r/c"),
        ("https://other/c", "https://other/c"),
    ],
)
def test_reference_is_resolved_against_the_base_url(reference: str, url: str) -> None:
    assert joined("https://r/v2/a", reference) == url


@pytest.mark.parametrize(
    "reference", ["http://r/c", "http://[::1", "file:///etc/passwd", "//[::1", "//"]
)
def test_reference_without_a_host_or_without_encryption_is_refused(reference: str) -> None:
    base = "https://r/v2/a"
    if reference == "//":
        assert joined(base, reference) == base
        return
    with pytest.raises(RefusedUrlError):
        joined(base, reference)


@pytest.mark.parametrize(
    ("target", "is_followed"),
    [
        ("https://example.org/y", True),
        ("https://other.example/y", True),
        ("http://example.org/y", False),
        ("ftp://example.org/y", False),
    ],
)
def test_redirect_from_https_is_followed_only_to_https(target: str, *, is_followed: bool) -> None:
    request = urllib.request.Request("https://example.org/x")

    made = NoDowngrade().redirect_request(
        request, io.BytesIO(), 302, "Found", HTTPMessage(), target
    )

    assert (made is not None) == is_followed


@pytest.mark.parametrize(
    ("code", "header"), [(301, "URI"), *((code, "Location") for code in (302, 303, 307, 308))]
)
def test_redirect_that_is_not_followed_is_closed_and_explained(code: int, header: str) -> None:
    request = urllib.request.Request("https://example.org/x")
    headers, body = HTTPMessage(), io.BytesIO(b"moved")
    headers[header] = "http://example.org/y"

    follow = getattr(NoDowngrade(), f"http_error_{code}")
    assert follow(request, body, code, "Found", headers) is None
    assert body.closed
    error = urllib.error.HTTPError(request.full_url, code, "Found", headers, None)
    assert why_not_followed(error) == (
        "'http://example.org/y' is not https, but 'https://example.org/x' is"
    )


def test_server_certificate_and_host_name_are_verified_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contexts: list[ssl.SSLContext] = []

    def connect(connection: Any) -> None:
        assert connection.timeout == 7.0
        contexts.append(connection._context)
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.HTTPSConnection, "connect", connect)
    with pytest.raises(urllib.error.URLError):
        HttpOpener().open(urllib.request.Request("https://r/v2/"), a_pace(FakeClock(), 7.0))

    (context,) = contexts
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_body_is_read_up_to_one_byte_beyond_the_limit() -> None:
    bodies = [read_whole(io.BytesIO(bytes(size)), 9) for size in (8, 9, 10, 50)]  # type: ignore[arg-type]

    assert [len(body) for body in bodies] == [8, 9, 10, 10]


def a_pace(clock: FakeClock, within_s: float = 100.0) -> Pace:
    return Pace(stall_s=10.0, stall_bytes=100, deadline=Deadline.after(within_s, clock))


def test_pace_measures_only_the_time_of_waiting_for_the_network() -> None:
    """A slow disk of this host does not end the exchange."""
    clock = FakeClock()
    pace = a_pace(clock)

    for _ in range(5):
        since = pace.now()
        clock.advance(1.0)
        pace.count(10, since)
        clock.advance(12.0)

    assert pace.seconds == 5.0


def test_waiting_time_starts_again_after_enough_bytes() -> None:
    clock = FakeClock()
    pace = a_pace(clock)

    for _ in range(5):
        since = pace.now()
        clock.advance(9.0)
        pace.count(100, since)

    assert pace.seconds == 10.0
    clock.advance(10.0)
    with pytest.raises(StalledError, match="sent nothing"):
        pace.count(0, clock.monotonic() - 10.0)


def test_exchange_ends_if_too_few_bytes_arrive() -> None:
    clock = FakeClock()
    pace = a_pace(clock)
    since = pace.now()
    clock.advance(10.0)

    with pytest.raises(StalledError, match=r"^sent fewer than 100 bytes within 10 s$"):
        pace.count(99, since)
    # Whoever closes the connection may read once more; a timeout of 0 would be another mode.
    assert pace.seconds > 0


def test_too_slow_upload_raises_a_stalled_error() -> None:
    clock = FakeClock()
    file = PacedFile(io.BytesIO(b"x" * 219), a_pace(clock))
    # The time of each block counts once.
    for _ in range(3):
        assert len(file.read(40)) == 40
        clock.advance(4.0)
    assert len(file.read(1000)) == 99
    clock.advance(10.0)

    with pytest.raises(StalledError):
        file.read(1000)


def test_deadline_ends_the_exchange() -> None:
    clock = FakeClock()
    pace = a_pace(clock, within_s=3.0)
    assert pace.seconds == 3.0
    clock.advance(3.0)

    with pytest.raises(WaitTimeoutError):
        _ = pace.seconds


def test_network_error_is_not_reported_as_a_disk_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error would end the pull at once and remove the received data."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        paced = _PacedSocket(ours, a_pace(FakeClock()))

        def no_route(_buffer: object) -> int:
            raise OSError(errno.EHOSTUNREACH, "No route to host")

        monkeypatch.setattr(paced._raw, "readinto", no_route)

        with pytest.raises(ConnectionError, match="No route to host"):
            paced.readinto(bytearray(1))
        paced.close()


def test_error_for_a_silent_server_says_that_it_sent_nothing() -> None:
    ours, theirs = socket.socketpair()
    pace = Pace(stall_s=0.01, stall_bytes=100, deadline=Deadline.after(100.0, FakeClock()))
    with ours, theirs:
        paced = _PacedSocket(ours, pace)

        with pytest.raises(StalledError, match=r"^sent nothing for 0\.01 s$"):
            paced.readinto(bytearray(1))
        paced.close()
