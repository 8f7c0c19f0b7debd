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

_LINES = re.compile(r"(?P<file>.+?)(?P<lines>(?::[0-9]+)+)")
_SHOWN_EXAMPLES = 20
_SELECTIONS: pytest.StashKey[dict[Path, Selection]] = pytest.StashKey()


@dataclass(frozen=True)
class Selection:
    """The selected examples of one file: the examples at `lines`, and the ids that begin with `names`."""

    lines: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def chosen(self, cases: Mapping[str, Case], source: str) -> set[int]:
        """Return the numbers of the selected cases, from their ids without the file's.

        Raises BadInputError if a line or a name has no example.
        """
        found: set[int] = set()
        for line in sorted(self.lines):
            at_line = {case.number for case in cases.values() if _is_at(case, line)}
            if not at_line:
                raise BadInputError(_none_at(line, cases), source=source)
            found |= at_line
        for name in sorted(self.names):
            # pytest 9.2 ends a name that has a '[' with a ']' in its summary
            named = _below(name, cases) or _below(name.removesuffix("]"), cases)
            if not named:
                raise BadInputError(
                    f"There is no group or example '{name}' in it; 'pytest --collect-only -q' "
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
        return f"There is no example at line {line}; the file has none."
    nearest = sorted(ranges, key=lambda lines: min(abs(line - at) for at in lines))
    shown = ", ".join(f"{begin} to {end}" for begin, end in sorted(nearest[:_SHOWN_EXAMPLES]))
    which = "examples are" if len(ranges) <= _SHOWN_EXAMPLES else "nearest examples are"
    return f"There is no example at line {line}, and no group begins there; the {which} at lines {shown}."


def take_selections(config: pytest.Config) -> None:
    """Let pytest collect files whose arguments are `FILE:LINE` or `FILE::NAME`, and note the part to run.

    If the file is also given without a line or name, or one of its parent folders is given, the whole file
    runs.
    """
    arguments: list[str] = []
    selections: dict[Path, Selection] = {}
    whole: set[Path] = set()
    for argument in config.args:
        file, lines, names = _parts(argument)
        path = (config.invocation_params.dir / file).resolve()
        if not (lines or names):
            whole.add(path)
        elif path.is_file() and is_spec(path):
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
    """Return the part of this file that the command line names; None if it runs whole."""
    return config.stash.get(_SELECTIONS, {}).get(path.resolve())
