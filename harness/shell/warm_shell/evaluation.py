"""The result of an evaluation of shell code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.errors import ExpectationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.shell.clock import Sleep
    from harness.shell.variables import Variable


_SHOWN_LINES = 40
_SHOWN_CHARACTERS = 4000


class ShellTimeoutError(ExpectationError):
    """Code under test ran longer than the test allows."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The results of an evaluation; `sleeps` lists the sleeps if the test uses virtual time."""

    status: int
    stdout: str
    stderr: str
    variables: Mapping[str, Variable] = field(repr=False)
    sleeps: tuple[Sleep, ...] = ()

    def variable(self, name: str) -> str | None:
        """Return a variable's text, or None if the variable is unset.

        For an array, the result is the element with the index or key `0`, like `$NAME` in bash.
        """
        found = self.variables.get(name)
        if found is None:
            return None
        return found.value if found.elements is None else found.elements.get("0")

    def array(self, name: str) -> list[str]:
        """Return an indexed array's elements in order, or an empty list if the array is unset."""
        found = self.variables.get(name)
        return list((found.elements or {}).values()) if found else []

    def mapping(self, name: str) -> dict[str, str]:
        """Return an associative array as a mapping, which is empty if the array is unset."""
        found = self.variables.get(name)
        return dict(found.elements or {}) if found else {}

    def check(self) -> Evaluation:
        """Return this evaluation; if its status is not 0, raise ExpectationError with its stdout and stderr."""
        if self.status:
            raise ExpectationError(
                f"The shell code ended with status {self.status}.\n{self.streams()}"
            )
        return self

    def streams(self) -> str:
        """Return stdout and stderr as lines for a message."""
        return render_streams(self.stdout, self.stderr)


def render_streams(stdout: str, stderr: str) -> str:
    """Return stdout and stderr as lines for a message."""
    return f"stdout: {excerpt(stdout) or '-'}\nstderr: {excerpt(stderr) or '-'}"


def excerpt(text: str) -> str:
    """Return `text`, or its last lines if it is long, without trailing blanks and line breaks."""
    text = text.rstrip()
    lines = text.splitlines()
    shown = "\n".join(lines[-_SHOWN_LINES:])[-_SHOWN_CHARACTERS:]
    if shown == text:
        return text
    return f"[… {len(lines)} lines, {len(text)} characters; the last are]\n{shown}"
