"""mutmut over all of provisioning, judged by the unit suite of that room alone."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.provisioning.command import LocalRunner, spawn
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for

from .nursery import copy_sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.provisioning.command import ChildProcess, Runner
    from harness.provisioning.wait import Clock

KILLED_AT_LEAST = 0.9
SURVIVORS_PAGE = "docs/mutation.md"
LOG = "mutmut.log"
LOG_SHOWN = 4000
PROGRESS_S = 60.0
RUN_LIMIT_S = 4 * 3600.0
UNTRIED = "not checked"
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


def run_tool(
    repository: Path,
    children: int,
    *,
    try_all: Callable[[Path, int], None] | None = None,
    runner: Runner | None = None,
) -> int:
    """Run mutmut in a copy of the sources; return 0 where enough was killed and the rest known.

    Takes about half an hour with two children. The copy stays, and its name is said, wherever
    there is something left to look at in it.
    """
    top = Path(tempfile.mkdtemp(prefix="mutants-"))
    code = None
    try:
        copy_sources(repository, top)
        (try_all or try_mutants)(top, children)
        code = judge(top, repository / SURVIVORS_PAGE, runner or LocalRunner())
    finally:
        if code == 0:
            shutil.rmtree(top)
        else:
            _say(f"The mutants stay in '{top}'; there, 'python -m mutmut show NAME' shows one.")
    return code


def try_mutants(
    top: Path,
    children: int,
    *,
    start: Callable[..., ChildProcess] = spawn,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Have mutmut try every mutant of the sources in `top`; say once a minute how far it is.

    Raises ToolError where it fails, with the end of what it printed: a suite that fails without
    any mutant ends it too.
    """
    log = top / LOG
    argv = (sys.executable, "-m", "mutmut", "run", "--max-children", str(children))
    with contextlib.ExitStack() as ending:
        # What endless mutants leave goes with the run: half a million files of one were seen.
        scratch = ending.enter_context(
            tempfile.TemporaryDirectory(
                prefix="mutants-", dir=_memory(), ignore_cleanup_errors=True
            )
        )
        with log.open("wb") as output:
            process = start(argv, stdout=output, stderr=output, cwd=top, env={"TMPDIR": scratch})
        _wait_for_end(process, log, clock)


def _memory() -> Path | None:
    """Return where temporary files cost least; None for the usual place."""
    memory = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    return memory if os.access(memory, os.R_OK | os.W_OK | os.X_OK) else None


def _wait_for_end(process: ChildProcess, log: Path, clock: Clock) -> None:
    deadline = Deadline.after(RUN_LIMIT_S, clock)
    said_s = clock.monotonic()

    def look() -> Observation[int]:
        nonlocal said_s
        code, words = process.poll(), _last_words(log)
        if code is None and clock.monotonic() - said_s >= PROGRESS_S:
            said_s = clock.monotonic()
            _say(words)
        return Observation(code, words)

    try:
        code = wait_for("mutmut to end", look, deadline, interval_s=1)
    finally:
        if process.poll() is None:
            # The group: mutmut's children are in it, and one of them may be an endless mutant.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        end = log.read_text(errors="replace").replace("\r", "\n")[-LOG_SHOWN:]
        raise ToolError(f"mutmut ended with {code}. The end of its log '{log}':\n{end.strip()}")


def _last_words(log: Path) -> str:
    """Return what a program that writes over its own line shows now."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_SHOWN))
        shown = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(shown) if line.strip()), "no output")


def judge(top: Path, page: Path, runner: Runner) -> int:
    """Say what the run in `top` came to, and hold the survivors against the page that lists them."""

    def ask(*words: str) -> str:
        argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut", *words)
        return runner.run(argv, timeout_s=600).check("Asking mutmut").stdout

    mutants = parse_results(ask("results", "--all", "true"))
    if not mutants:
        raise ToolError(f"mutmut left no results in '{top}'.")
    untried = sum(mutant.status == UNTRIED for mutant in mutants)
    if untried:
        raise ToolError(f"mutmut was stopped: {untried} of {len(mutants)} mutants are untried.")
    total, killed = (
        Counter(m.module for m in mutants),
        Counter(m.module for m in mutants if m.is_killed),
    )
    for module in sorted(total):
        _say(f"{module:16} {killed[module]:5} of {total[module]:5} killed")
    known = parse_page(page.read_text()) if page.exists() else {}
    stale = dict(known)
    unknown = 0
    for mutant in sorted(m for m in mutants if not m.is_killed):
        change = parse_change(ask("show", mutant.name))
        reason = known.get((mutant.function, change))
        stale.pop((mutant.function, change), None)
        unknown += reason is None
        _say(f"| `{mutant.function}` | {change} | {reason or 'NOT LISTED: ' + mutant.status} |")
    for function, change in stale:
        # No failure: a slow host's time limit kills what lives elsewhere.
        _say(f"{page.name} lists what did not survive: `{function}` | {change}")
    share = killed.total() / total.total()
    _say(f"{killed.total()} of {total.total()} killed ({share:.1%}); {unknown} not in {page.name}")
    return 0 if share >= KILLED_AT_LEAST and not unknown else 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
