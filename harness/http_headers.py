"""Pure functions that parse the HTTP headers that resumed downloads and retries need (RFC 9110)."""

from __future__ import annotations

import email.utils
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

    from harness.provisioning.wait import Clock

#: No file has a size of more than 18 digits.
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-[0-9]{1,18}|\*)/([0-9]{1,18}|\*)")
_NUMBER = re.compile(r"[0-9]{1,18}")


def length(headers: Message) -> int | None:
    value = headers.get("Content-Length", "")
    return int(value) if _NUMBER.fullmatch(value) else None


def content_range(headers: Message) -> tuple[int | None, int | None]:
    """Return the offset of the body in the file, and the file's size; each is None if unknown."""
    found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
    if found is None:
        return None, None
    begin, total = found.groups()
    return (
        None if begin is None else int(begin),
        None if total == "*" else int(total),
    )


def retry_after(headers: Message, clock: Clock) -> float | None:
    """Return the number of seconds that a server asks to wait, from a number or a date (RFC 9110)."""
    value = headers.get("Retry-After")
    if value is None:
        return None
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        until = email.utils.parsedate_to_datetime(value)
        return max(0.0, (until - clock.now()).total_seconds())
    except (ValueError, TypeError, OverflowError):
        # A time zone with an offset of years raises OverflowError.
        return None


def validator(headers: Message) -> str | None:
    """Return the identifier of a file's version: a strong ETag, else `Last-Modified`, else None."""
    tag = headers.get("ETag", "")
    return tag if tag.startswith('"') else headers.get("Last-Modified")
