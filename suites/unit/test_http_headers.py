"""Headers of HTTP answers, as servers really send them."""

from __future__ import annotations

from email.message import Message

import pytest

from harness.http_headers import content_range, length, retry_after, validator
from suites.fakes.clock import FakeClock


def a_header(name: str, value: str) -> Message:
    headers = Message()
    headers[name] = value
    return headers


def test_content_range_is_parsed_into_offset_and_size() -> None:
    meant = {
        "bytes 600-999/1000": (600, 1000),
        "bytes 600-999/*": (600, None),
        "bytes */1000": (None, 1000),
        "bytes 600-999/1" + "0" * 18: (None, None),
        "bytes 600-999/" + "9" * 5000: (None, None),
        "items 1-2/3": (None, None),
        "": (None, None),
    }

    assert {each: content_range(a_header("Content-Range", each)) for each in meant} == meant


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("1000", 1000), ("", None), ("-1", None), ("\xb2", None), ("9" * 5000, None)],
)
def test_content_length_is_a_number_or_unknown(value: str, meaning: int | None) -> None:
    assert length(a_header("Content-Length", value)) == meaning


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    seconds = {
        "7": 7.0,
        "Fri, 21 Aug 2026 12:00:40 GMT": 40.0,
        "Fri, 21 Aug 2026 11:00:00 GMT": 0.0,
        "soon": None,
        "\xb2": None,
        "9" * 5000: None,
        "Fri, 21 Aug 2026 12:00:40 +9999999999999999": None,
        "Fri, 21 Aug 99999 12:00:40 GMT": None,
    }

    read = {each: retry_after(a_header("Retry-After", each), FakeClock()) for each in seconds}

    assert read == seconds


def test_retry_after_is_none_if_the_header_is_absent() -> None:
    assert retry_after(Message(), FakeClock()) is None


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("ETag", '"abc"', '"abc"'),
        ("ETag", 'W/"abc"', None),
        ("Last-Modified", "Fri, 21 Aug 2026 12:00:00 GMT", "Fri, 21 Aug 2026 12:00:00 GMT"),
    ],
)
def test_weak_etag_is_ignored(name: str, value: str, meaning: str | None) -> None:
    assert validator(a_header(name, value)) == meaning
