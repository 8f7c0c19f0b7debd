"""The two error families: the node is wrong, or the harness could not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


class EvidencedError(Exception):
    """An error whose message ends with the folder of the evidence, where there is one.

    Whoever moves that folder sets `evidence` anew.
    """

    def __init__(self, sentence: str = "", *, evidence: Path | None = None) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.evidence = evidence

    @override
    def __str__(self) -> str:
        if self.evidence is None:
            return self.sentence
        # After what a machine printed it would be lost at the end of a line.
        gap = "\n" if "\n" in self.sentence else " "
        return f"{self.sentence}{gap}The evidence lies in '{self.evidence}'."


def evidenced_in(error: BaseException) -> Iterator[EvidencedError]:
    """Yield each error in a chain or a group that may say where its evidence lies."""
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
    """The node is not what was expected of it; a report calls this *failed*."""


class HarnessError(EvidencedError):
    """The harness could not find out; a report calls this *broken*, never failed."""


class BadInputError(HarnessError):
    """Something that a person wrote is wrong: names the file, the line where known, and the key.

    `source` is what the person would open to mend it (a path, an option, a variable).
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
    """The host lacks something; the message is one sentence that ends with the remedy."""


def listed(names: Iterable[str]) -> str:
    """Return the names in quotes, as messages list what is known."""
    return ", ".join(f"'{name}'" for name in names) or "none"
