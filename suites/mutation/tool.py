"""Runs mutmut over one package, with the tests of this package only."""

from __future__ import annotations

import contextlib
import os
import random
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

from .mutant_runner import copy_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.provisioning.command import ChildProcess, Runner
    from harness.provisioning.wait import Clock

    from .packages import Package

LOG = "mutmut.log"
LOG_SHOWN = 4000
PROGRESS_S = 60.0
RUN_LIMIT_S = 4 * 3600.0
UNTRIED = "not checked"
#: A name that no mutant has: mutmut then makes all mutants, and tries none.
_NONE = "only-make-them"
_NO_MATCH = "nothing matches"
_RESULT = re.compile(r"^\s*(?P<name>\S+__mutmut_\d+): (?P<status>.+)$")
_KILLED = frozenset({"killed", "timeout", "segfault", "suspicious"})
"""Statuses of killed mutants; a suite that never ends counts as one that fails."""


class ToolError(HarnessError):
    """mutmut failed or gave no results."""


@dataclass(frozen=True, order=True, kw_only=True)
class Mutant:
    """One change by the tool: its function and its status."""

    name: str
    status: str

    @property
    def module(self) -> str:
        return self.name.rpartition(".")[0].rpartition(".")[2]

    @property
    def function(self) -> str:
        """Return the name of the function as `module.Class.method`."""
        mangled = self.name.rpartition(".")[2].partition("__mutmut_")[0]
        # mutmut separates class and method by this letter.
        parts = mangled.split("\N{LATIN LETTER LATERAL CLICK}")
        path = parts[1:] if len(parts) > 1 else [mangled.removeprefix("x_")]
        return ".".join([self.module, *path])

    @property
    def is_killed(self) -> bool:
        return self.status in _KILLED


def parse_results(text: str) -> tuple[Mutant, ...]:
    """Parse the output of `mutmut results --all true`."""
    matches = (_RESULT.match(line) for line in text.splitlines())
    return tuple(Mutant(name=m["name"], status=m["status"]) for m in matches if m)


def parse_change(diff: str) -> str:
    """Return the change in a diff of `mutmut show` on one line."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "#"))]
    removed = " ".join(line[1:].strip() for line in lines if line.startswith("-"))
    added = " ".join(line[1:].strip() for line in lines if line.startswith("+"))
    old, new = _differing(removed, added)
    return f"`{old}` becomes `{new}`"


def _differing(old: str, new: str) -> tuple[str, str]:
    """Return two lines without their common words at the start and at the end."""
    before, after = old.split(" "), new.split(" ")
    start = _common(before, after)
    before, after = before[start:], after[start:]
    end = _common(before[::-1], after[::-1])
    before, after = before[: len(before) - end], after[: len(after) - end]
    return " ".join(before) or "nothing", " ".join(after) or "nothing"


def _common(one: list[str], other: list[str]) -> int:
    """Return the number of common words at the start of two lists."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A random choice of `size` mutants; the same `seed` chooses the same of the same sources."""

    size: int
    seed: int

    def choose(self, mutants: Iterable[Mutant]) -> tuple[str, ...]:
        names = sorted(mutant.name for mutant in mutants)
        chosen = random.Random(self.seed).sample(names, min(self.size, len(names)))  # noqa: S311
        return tuple(sorted(chosen))


def run_tool(
    repository: Path,
    children: int,
    package: Package,
    *,
    sample: Sample | None = None,
    try_all: Callable[[Path, int, Sequence[str]], None] | None = None,
    runner: Runner | None = None,
) -> int:
    """Run mutmut in a copy of the sources; return 0 if enough are killed.

    With a `sample` only that is tried. Otherwise the copy is kept, and its path is printed.
    """
    top = Path(tempfile.mkdtemp(prefix="mutants-"))
    code = None
    try_chosen = try_all or try_mutants
    runner = runner or LocalRunner()
    try:
        copy_sources(repository, top)
        package.write_configuration(top)
        chosen: tuple[str, ...] = ()
        if sample is not None:
            _make_mutants(top, children, try_chosen)
            chosen = sample.choose(read_results(top, runner))
        try_chosen(top, children, chosen)
        code = judge(top, package, runner, chosen)
    finally:
        if code == 0:
            shutil.rmtree(top)
        else:
            _say(
                f"The mutants are kept in '{top}'; run 'python -m mutmut show NAME' there to see one."
            )
    return code


def _make_mutants(
    top: Path, children: int, try_chosen: Callable[[Path, int, Sequence[str]], None]
) -> None:
    """Let mutmut make all mutants and try none, which it reports as an error."""
    try:
        try_chosen(top, children, (_NONE,))
    except ToolError as error:
        if _NO_MATCH not in str(error):
            raise


def try_mutants(
    top: Path,
    children: int,
    chosen: Sequence[str] = (),
    *,
    start: Callable[..., ChildProcess] = spawn,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Run mutmut on the sources in `top`, on all mutants or the chosen; print progress each minute.

    Raises ToolError with the end of its output if it fails, also if the suite fails without a
    mutant.
    """
    log = top / LOG
    argv = (sys.executable, "-m", "mutmut", "run", "--max-children", str(children), *chosen)
    with contextlib.ExitStack() as ending:
        # Mutants that never end may leave half a million files; these are removed with the run.
        scratch = ending.enter_context(
            tempfile.TemporaryDirectory(
                prefix="mutants-", dir=_memory(), ignore_cleanup_errors=True
            )
        )
        with log.open("wb") as output:
            process = start(argv, stdout=output, stderr=output, cwd=top, env={"TMPDIR": scratch})
        _wait_for_end(process, log, clock)


def _memory() -> Path | None:
    """Return a folder in memory for temporary files; None for the default."""
    memory = Path("/dev/shm")  # noqa: S108 - a private folder is made below it
    return memory if os.access(memory, os.R_OK | os.W_OK | os.X_OK) else None


def _wait_for_end(process: ChildProcess, log: Path, clock: Clock) -> None:
    deadline = Deadline.after(RUN_LIMIT_S, clock)
    printed_s = clock.monotonic()

    def poll() -> Observation[int]:
        nonlocal printed_s
        code, line = process.poll(), _last_line(log)
        if code is None and clock.monotonic() - printed_s >= PROGRESS_S:
            printed_s = clock.monotonic()
            _say(line)
        return Observation(code, line)

    try:
        code = wait_for("mutmut to end", poll, deadline, interval_s=1)
    finally:
        if process.poll() is None:
            # Kill the group, because one of mutmut's children may run a mutant that never ends.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        end = log.read_text(errors="replace").replace("\r", "\n")[-LOG_SHOWN:]
        raise ToolError(f"mutmut ended with {code}. The end of its log '{log}':\n{end.strip()}")


def _last_line(log: Path) -> str:
    """Return the last line of a program that overwrites its line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_SHOWN))
        shown = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(shown) if line.strip()), "no output")


def _ask(top: Path, runner: Runner, *words: str) -> str:
    argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut", *words)
    return runner.run(argv, timeout_s=600).check("Reading the results of mutmut").stdout


def read_results(top: Path, runner: Runner) -> tuple[Mutant, ...]:
    """Return all mutants in `top`; raises ToolError if there are none."""
    mutants = parse_results(_ask(top, runner, "results", "--all", "true"))
    if not mutants:
        raise ToolError(f"There are no results of mutmut in '{top}'.")
    return mutants


def judge(top: Path, package: Package, runner: Runner, chosen: Sequence[str] = ()) -> int:
    """Print the results in `top`, with each survivor; return 0 if enough were killed.

    Where mutants were `chosen`, only these count.
    """
    mutants = read_results(top, runner)
    if chosen:
        mutants = tuple(mutant for mutant in mutants if mutant.name in set(chosen))
    untried = sum(mutant.status == UNTRIED for mutant in mutants)
    if untried:
        raise ToolError(f"mutmut was stopped: {untried} of {len(mutants)} mutants are untried.")
    total, killed = (
        Counter(m.module for m in mutants),
        Counter(m.module for m in mutants if m.is_killed),
    )
    for module in sorted(total):
        _say(f"{module:16} {killed[module]:5} of {total[module]:5} killed")
    for mutant in sorted(m for m in mutants if not m.is_killed):
        change = parse_change(_ask(top, runner, "show", mutant.name))
        _say(f"{mutant.status}: {mutant.function}: {change}")
    share = killed.total() / total.total()
    _say(f"{killed.total()} of {total.total()} killed ({share:.1%})")
    return 0 if share >= package.least else 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201
