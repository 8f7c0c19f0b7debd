"""mutmut over all of provisioning, judged by the unit suite of that room alone."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner, spawn

from .nursery import copy_sources

if TYPE_CHECKING:
    from harness.provisioning.command import Runner

KILLED_AT_LEAST = 0.9
SURVIVORS_PAGE = "docs/mutation.md"
_RESULT = re.compile(r"^\s*(?P<name>\S+__mutmut_\d+): (?P<status>.+)$")
_KILLED = frozenset({"killed", "timeout", "segfault", "suspicious"})
"""What counts as noticed: a suite that no longer ends has noticed as well as one that fails."""
_ROW = re.compile(r"^\| `(?P<function>[^`]+)` \| (?P<change>`.*`) \| (?P<reason>.+) \|$")


class ToolError(HarnessError):
    """The tool gave no answer."""


@dataclass(frozen=True, order=True, kw_only=True)
class Mutant:
    """One change that the tool made: in which function, and what it came to."""

    name: str
    status: str

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0].rpartition(".")[2]

    @property
    def function(self) -> str:
        """Return the function's name as a person writes it: `module.Class.method`."""
        mangled = self.name.rpartition(".")[2].partition("__mutmut_")[0]
        # mutmut joins class and method by a letter that no English name has.
        parts = mangled.split("\N{LATIN LETTER LATERAL CLICK}")
        path = parts[1:] if len(parts) > 1 else [mangled.removeprefix("x_")]
        return ".".join([self.module, *path])

    @property
    def is_killed(self) -> bool:
        return self.status in _KILLED


def parse_results(text: str) -> tuple[Mutant, ...]:
    """Read `mutmut results --all true`."""
    matches = (_RESULT.match(line) for line in text.splitlines())
    return tuple(Mutant(name=m["name"], status=m["status"]) for m in matches if m)


def parse_change(diff: str) -> str:
    """Return what a diff of `mutmut show` changes, on one line, as the page of survivors has it."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "#"))]
    removed = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    added = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    old, new = _differing(removed, added)
    return f"`{old}` becomes `{new}`"


def _differing(old: str, new: str) -> tuple[str, str]:
    """Return two lines without the words at their start and end that are the same in both."""
    before, after = old.split(" "), new.split(" ")
    start = _common(before, after)
    before, after = before[start:], after[start:]
    end = _common(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    return " ".join(before) or "nothing", " ".join(after) or "nothing"


def _common(one: list[str], other: list[str]) -> int:
    """Return how many words two lists have in common at their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def parse_page(text: str) -> dict[tuple[str, str], str]:
    """Read the page of survivors: the reason for each, by function and change."""
    rows = (_ROW.match(line) for line in text.splitlines())
    return {(row["function"], row["change"]): row["reason"] for row in rows if row}


def run_tool(repository: Path) -> int:
    """Run mutmut in a copy of the sources; return 0 where enough was killed and the rest known.

    Takes an hour or so of two cores.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        top = Path(folder)
        copy_sources(repository, top)
        mutmut = (sys.executable, "-m", "mutmut")
        children = str(len(os.sched_getaffinity(0)))
        process = spawn(
            (*mutmut, "run", "--max-children", children), stdout=None, stderr=None, cwd=top
        )
        if process.wait() != 0:
            raise ToolError("mutmut ended before it had tried all mutants; see what it printed.")
        return judge(top, repository / SURVIVORS_PAGE, LocalRunner())


def judge(top: Path, page: Path, runner: Runner) -> int:
    """Say what the run in `top` came to, and hold the survivors against the page that lists them."""

    def ask(*words: str) -> str:
        argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut", *words)
        return runner.run(argv, timeout_s=600).check("Asking mutmut").stdout

    mutants = parse_results(ask("results", "--all", "true"))
    if not mutants:
        raise ToolError(f"mutmut left no results in '{top}'.")
    total, killed = (
        Counter(m.module for m in mutants),
        Counter(m.module for m in mutants if m.is_killed),
    )
    for module in sorted(total):
        _say(f"{module:16} {killed[module]:5} of {total[module]:5} killed")
    known = parse_page(page.read_text()) if page.exists() else {}
    unknown = 0
    for mutant in sorted(m for m in mutants if not m.is_killed):
        change = parse_change(ask("show", mutant.name))
        reason = known.get((mutant.function, change))
        unknown += reason is None
        _say(f"| `{mutant.function}` | {change} | {reason or 'NOT LISTED: ' + mutant.status} |")
    share = killed.total() / total.total()
    _say(f"{killed.total()} of {total.total()} killed ({share:.1%}); {unknown} not in {page.name}")
    return 0 if share >= KILLED_AT_LEAST and not unknown else 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
