"""Removes control sequences from a console's output, except sequences that only draw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: The control sequences of a terminal (ECMA-48), and all control characters that are not for
#: layout.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])?"
    r"|[\x05\x0e\x0f\x7f-\x9f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
_LONGEST_SEQUENCE = 4096
#: The control sequences that only draw: they set colours, move the cursor, or erase text. Colons may
#: separate only the numbers of a colour.
_DRAWS = re.compile(
    r"\x1b(?:\[[0-9;]*[@A-HJ-MPSTXZ`abdefrsu]|\[[0-9:;]*m|\[\?(?:7|25)[hl]|[78DEHM]|\([0AB])"
)

AS_BEFORE = "\x1b[0m\x1b[?25h\x1b[?7h\x1b7\x1b[r\x1b8\x1b(B"
"""Resets colours, cursor, line wrapping, scrolling region and character set."""


def without_commands(
    printed: Iterable[tuple[float, str]],
) -> Iterator[tuple[float, str]]:
    """Yield the timed parts of a console's output, without sequences that do more than draw.

    A guest's output may ask for the size of the user's terminal, and the terminal would type the
    answer into the user's shell. A guest's output could set the terminal's title or the user's
    clipboard.
    """
    held = ""
    for at, text in printed:
        whole = held + text
        found = _UNFINISHED.search(whole)
        is_held = found is not None and len(whole) - found.start() <= _LONGEST_SEQUENCE
        end = found.start() if found is not None and is_held else len(whole)
        held = whole[end:]
        yield (
            at,
            _SEQUENCE.sub(
                lambda sequence: sequence[0] if _DRAWS.fullmatch(sequence[0]) else "", whole[:end]
            ),
        )
