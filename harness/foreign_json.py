"""Parses JSON from guests, bundles, servers and other people's files.

Unlike Python's own parser, this module limits the nesting. This module refuses `NaN`, numbers that
are too large for a float, and an object that has a key twice: Python would use the last of the two
values, and another program may use the first value.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING

from harness.limits import DATA_DIGITS, DATA_LEVELS, JSON
from harness.visible_text import shortened

if TYPE_CHECKING:
    from typing import Any, NoReturn

    from harness.limits import Limit

#: The size limit of a key in a message.
_SHOWN_BYTES = 200


class ForeignJsonError(ValueError):
    """A text is not JSON, or exceeds a limit; the message names the limit."""


def parse_json(content: str | bytes, *, limit: Limit = JSON) -> Any:
    """Parse one JSON document, which may begin with a byte order mark; raises ForeignJsonError."""
    raw = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    if len(raw) > limit.bytes:
        raise _beyond(limit)
    try:
        value = json.loads(
            content.removeprefix("\ufeff") if isinstance(content, str) else content,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique,
        )
    except RecursionError:
        raise _beyond(DATA_LEVELS) from None
    except ValueError as error:
        raise ForeignJsonError(str(error)) from error
    _refuse_deep(value)
    return value


def parse_json_object(content: str | bytes) -> dict[str, Any]:
    """Parse one JSON object; raises ForeignJsonError for any other text, even for another JSON value."""
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ForeignJsonError("it is not a JSON object")
    return value


def _beyond(limit: Limit) -> ForeignJsonError:
    return ForeignJsonError(str(limit.error("JSON")).rstrip("."))


def _refuse_deep(value: object) -> None:
    level = [value]
    for _ in range(DATA_LEVELS.value):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else _items(each))
            if isinstance(child, (dict, list))
        ]
        if not level:
            return
    raise _beyond(DATA_LEVELS)


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _integer(text: str) -> int:
    if len(text) > DATA_DIGITS.value:
        raise _beyond(DATA_DIGITS)
    return int(text)


def _number(text: str) -> float:
    if len(text) > DATA_DIGITS.value:
        raise _beyond(DATA_DIGITS)
    number = float(text)
    if not math.isfinite(number):
        raise ForeignJsonError(f"{text} is too large for a number")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise ForeignJsonError(f"{text} is not a JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ForeignJsonError(
            f"an object has the key {shortened(repr(twice), _SHOWN_BYTES)} twice"
        )
    return fields
