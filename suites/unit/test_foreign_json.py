"""JSON from untrusted sources becomes a value, or an error with the reason."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.foreign_json import ForeignJsonError, parse_json, parse_json_object

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=VALUES)
def test_parse_json_returns_the_same_value_as_json_loads(value: object) -> None:
    text = json.dumps(value)

    assert parse_json(text) == json.loads(text)
    assert parse_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "'data-levels'"),
        ('{"a":' * 101 + "1" + "}" * 101, "'data-levels'"),
        ("[0," * 101 + "0" + "]" * 101, "'data-levels'"),
        ('{"b":0,"a":' * 101 + "1" + "}" * 101, "'data-levels'"),
        ("9" * 301, "'data-digits'"),
        ("0." + "9" * 5000, "'data-digits'"),
        ('"' + "\u00e9" * (3 << 20) + '"', "'json-mib'"),
        ("1e400", "is too large for a number"),
        ("NaN", "not a JSON number"),
        ("-Infinity", "not a JSON number"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "the key 'b' twice"),
        ("", "Expecting value"),
        ("{} {}", "Extra data"),
    ],
    ids=lambda value: value[:12],
)
def test_invalid_json_or_json_beyond_a_limit_is_refused(text: str, words: str) -> None:
    with pytest.raises(ForeignJsonError, match=words):
        parse_json(text)


@pytest.mark.parametrize("raw", [b"\xff", b"\xff\xfe", "\ufeff{}".encode(), b"\0", b"[\0"])
def test_unusual_bytes_are_read_or_raise_a_foreign_json_error(raw: bytes) -> None:
    """Python's parser accepts a byte order mark and UTF-16."""
    with contextlib.suppress(ForeignJsonError):
        parse_json(raw)


def test_byte_order_mark_is_ignored() -> None:
    text = "\ufeff[1]"

    assert [parse_json(text), parse_json(text.encode())] == [[1], [1]]


def test_limits_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LIMIT_DATA_LEVELS", "200")
    monkeypatch.setenv("HARNESS_LIMIT_DATA_DIGITS", "400")

    assert parse_json("[" * 101 + "]" * 101)
    assert parse_json("9" * 400) == int("9" * 400)


@pytest.mark.parametrize("text", ["[]", "1", "null", '"x"'])
def test_value_that_is_not_an_object_is_refused(text: str) -> None:
    with pytest.raises(ForeignJsonError, match="not a JSON object"):
        parse_json_object(text)
