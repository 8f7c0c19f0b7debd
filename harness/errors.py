"""The two kinds of errors: the node is wrong, or the harness could not check the node."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

from harness.visible_text import shortened, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_Error = TypeVar("_Error", bound=BaseException)


#: The size limit of one error on terminals and in reports. The whole text of a longer error is
#: written to a file, and the shortened error names this file.
MESSAGE_BYTES = 8 << 10


class EvidencedError(Exception):
    """An error whose message ends with the path of the evidence folder, if there is such a folder.

    Code that moves the evidence folder sets `evidence` to the new path. Code that writes a message
    of more than MESSAGE_BYTES to a file sets `whole_text` to the path of this file. Messages quote
    text from guests, files and servers, so a message shows each unprintable character as an escape.
    """

    def __init__(self, sentence: str = "", *, evidence: Path | None = None) -> None:
        super().__init__(sentence)
        self.sentence = visible(sentence)
        self.evidence = evidence
        self.whole_text: Path | None = None

    @override
    def __str__(self) -> str:
        rest = "" if self.whole_text is None else f"The whole text is in '{self.whole_text}'."
        said = shortened(self.sentence, MESSAGE_BYTES, rest=rest)
        if self.evidence is None:
            return said
        # A message that quotes output has several lines; the path gets a line of its own.
        gap = "\n" if "\n" in said else " "
        return f"{said}{gap}The evidence is in '{visible(str(self.evidence))}'."


def errors_in(error: BaseException, kind: type[_Error]) -> Iterator[_Error]:
    """Yield each error of the class `kind` in a chain or a group of errors."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, kind):
            yield one
        left += (one.__cause__, one.__context__, *getattr(one, "exceptions", ()))


class ExpectationError(EvidencedError, AssertionError):
    """The node is not as expected; reports call this *failed*."""


class HarnessError(EvidencedError):
    """The harness could not check the node; reports call this *broken*, never *failed*."""


class BadInputError(HarnessError):
    """User input is wrong; the message names the input's source and, if known, the line and key.

    `source` is what the user edits to correct the input: a path, an option or an environment variable.
    """

    def __init__(
        self, message: str, *, source: str, line: int | None = None, key: str | None = None
    ) -> None:
        where = source if line is None else f"{source}:{line}"
        field = "" if key is None else f" key '{key}':"
        super().__init__(f"{where}:{field} {message}")
        self.source = source
        self.line = line
        self.key = key


class RequirementError(HarnessError):
    """The host lacks something that the harness needs; the message ends with a remedy."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to an OSError that names no file, such as the error of a write to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def listed(names: Iterable[str]) -> str:
    """Return the names as text for a message: each name in quotes, separated by commas."""
    return ", ".join(f"'{name}'" for name in names) or "none"
