"""Checks texts and numbers that a test passes to a shell or to a mock."""

from __future__ import annotations

from harness.errors import BadInputError, HarnessError


def encode(text: str) -> bytes:
    """Return a text as bytes. Raises HarnessError for a text with a lone surrogate, which has no bytes."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        raise HarnessError(
            f"'{text[error.start]}' can't be passed to a shell: it is a lone surrogate, which has "
            "no bytes."
        ) from error


def require_text(value: object, *, source: str, may_have_nul: bool = False) -> None:
    """Raise BadInputError for a value that is not text, and for a text with a NUL character.

    No shell word can contain NUL.
    """
    if not isinstance(value, str):
        raise unexpected(value, "a text", source=source)
    encode(value)
    if "\0" in value and not may_have_nul:
        raise BadInputError("The text has a NUL character, which a shell drops.", source=source)


def require_whole_number(value: object, *, source: str) -> None:
    """Raise BadInputError for a value that is not a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise unexpected(value, "a whole number", source=source)


def unexpected(value: object, expected: str, *, source: str) -> BadInputError:
    """Return the error for a value that does not have the expected type."""
    return BadInputError(
        f"The value is of type {type(value).__name__}, but {expected} was expected.",
        source=source,
    )
