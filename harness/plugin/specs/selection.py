"""The examples of a spec file that the command line names: by a line of the file, or by their ids."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.spec.options import is_spec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.shell.spec.spec_file import Case

_LINES = re.compile(r"(?P<file>.+?)(?P<lines>(?::[0-9]{1,9})+)")
_SHOWN_EXAMPLES = 20
_SELECTIONS: pytest.StashKey[dict[Path, Selection]] = pytest.StashKey()


@dataclass(frozen=True)
class Selection:
    """The selected examples of one file: examples at `lines`, and examples whose ids begin with `names`."""

    lines: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def chosen(self, cases: Mapping[str, Case], source: str) -> set[int]:
        """Return the `number` of each selected case.

        The keys of `cases` are the ids of examples; the path of the file is left out of the ids.

        Raises BadInputError if a line or a name has no example.
        """
        found: set[int] = set()
        for line in sorted(self.lines):
            at_line = {case.number for case in cases.values() if _is_at(case, line)}
            if not at_line:
                raise BadInputError(_none_at(line, cases), source=source)
            found |= at_line
        for name in sorted(self.names):
            # in its summary, pytest 9.2 appends a ']' to a name that contains a '['
            named = _below(name, cases) or _below(name.removesuffix("]"), cases)
            if not named:
                raise BadInputError(
                    f"The file has no group or example '{name}'; 'pytest --collect-only -q' "
                    "lists the examples.",
                    source=source,
                )
            found |= named
        return found


def _below(name: str, cases: Mapping[str, Case]) -> set[int]:
    return {case.number for id_, case in cases.items() if f"{id_}::".startswith(f"{name}::")}


def _is_at(case: Case, line: int) -> bool:
    return case.begin <= line <= case.end or any(group.begin == line for group in case.groups)


def _none_at(line: int, cases: Mapping[str, Case]) -> str:
    ranges = sorted({(case.begin, case.end) for case in cases.values()})
    if not ranges:
        return f"There is no example at line {line}; the file has no examples."
    nearest = sorted(ranges, key=lambda lines: min(abs(line - at) for at in lines))
    shown = ", ".join(f"{begin} to {end}" for begin, end in sorted(nearest[:_SHOWN_EXAMPLES]))
    which = "examples are" if len(ranges) <= _SHOWN_EXAMPLES else "nearest examples are"
    return f"There is no example at line {line}, and no group begins there; the {which} at lines {shown}."


def take_selections(config: pytest.Config) -> None:
    """Replace arguments `FILE:LINE` and `FILE::NAME` by `FILE`, and note which examples to run.

    The whole file runs if another argument names the file or one of its parent folders.
    """
    arguments: list[str] = []
    selections: dict[Path, Selection] = {}
    whole: set[Path] = set()
    for argument in config.args:
        file, lines, names = _parts(argument)
        path = config.invocation_params.dir / file
        try:
            path = path.resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError):
            # The path is too long, or, before Python 3.13, a link to itself.
            is_file = False
        if not (lines or names):
            whole.add(path)
        elif is_file and is_spec(path):
            selection = selections.setdefault(path, Selection())
            selection.lines.update(lines)
            selection.names.update(names)
            argument = file  # noqa: PLW2901
        if argument not in arguments:
            arguments.append(argument)
    if selections:
        config.args[:] = arguments
    config.stash[_SELECTIONS] = {
        path: selection
        for path, selection in selections.items()
        if whole.isdisjoint((path, *path.parents))
    }


def _parts(argument: str) -> tuple[str, list[int], list[str]]:
    file, separator, name = argument.partition("::")
    if separator:
        return file, [], [name]
    found = _LINES.fullmatch(argument)
    if found is None:
        return argument, [], []
    return found["file"], [int(line) for line in found["lines"].split(":")[1:]], []


def selection_of(config: pytest.Config, path: Path) -> Selection | None:
    """Return the examples of this file that the command line selects, or None if the whole file runs."""
    return config.stash.get(_SELECTIONS, {}).get(path.resolve())
