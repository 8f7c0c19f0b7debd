"""The two error families: the node is wrong, or the harness could not find out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class EvidencedError(Exception):
    """An error whose message ends with the path of the evidence folder, if there is one.

    Code that moves the folder sets `evidence` to the new path.
    """

    def __init__(self, sentence: str = "", *, evidence: Path | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.evidence = evidence

    @override
    def __str__(self) -> str:
        if self.evidence is None:
            return self.sentence
        # A message that quotes output has several lines; the path gets a line of its own.
        gap = "\n" if "\n" in self.sentence else " "
        return f"{self.sentence}{gap}The evidence is in '{self.evidence}'."


def evidenced_in(error: BaseException) -> Iterator[EvidencedError]:
    """Yield each EvidencedError in a chain or a group of errors."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, EvidencedError):
            yield one
        left += (one.__cause__, one.__context__, *getattr(one, "exceptions", ()))


class ExpectationError(EvidencedError, AssertionError):
    """The node is not as expected; reports call this *failed*."""


class HarnessError(EvidencedError):
    """The harness could not find out; reports call this *broken*, never failed."""


class BadInputError(HarnessError):
    """User input is wrong; the message names the file, the line if known, and the key.

    `source` is what the user edits to correct it: a path, an option or an environment variable.
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
    """The host lacks something; the message is one sentence that ends with what to do."""


def printable(text: str) -> str:
    """Return a text of a guest or a file as one line that can't control a terminal.

    What is not printable becomes U+FFFD, since neither terminals nor XML take it.
    """
    return "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))


def listed(names: Iterable[str]) -> str:
    """Return the names in quotes, separated by commas, for a message."""
    return ", ".join(f"'{name}'" for name in names) or "none"
