"""Plants mutants in copies of a project, and runs the tests that reach each mutant."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import queue
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import BadInputError, RequirementError
from harness.lease import temporary_folder
from harness.mutate.mutants import mutants_of
from harness.mutate.project_copy import digest_of_all
from harness.mutate.results import Outcome, Reach, Results
from harness.mutate.worker import Cost, Worker
from harness.shell.commands_of import executed_lines
from harness.shell.coverage import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from harness.mutate.change import Mutant
    from harness.mutate.project_copy import Project
    from harness.mutate.worker import Answer, TestChoice

#: The time limit of a test whose duration is not known yet.
_UNKNOWN = Cost(cpu_s=60.0, wall_s=60.0)
_UNKNOWN_WITH_MACHINES = Cost(cpu_s=3600.0, wall_s=600.0)


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of a run; `until` is the value of `time.monotonic` at which the run ends, or None."""

    project: Project
    tests: TestChoice
    results: Path
    workers: int
    until: float | None = None
    since: str | None = None
    messages: bool = False
    progress: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A mutant, its outcome, the tests that reach the mutant, and the test that noticed the mutant."""

    script: Path
    mutant: Mutant
    outcome: Outcome
    tests: tuple[str, ...] = ()
    noticed_by: str | None = None


@dataclass(kw_only=True)
class Report:
    """The results of a run.

    `unfit` maps each test that fails even without a mutant to the reason of the failure.
    """

    results: list[Result]
    texts: Mapping[Path, bytes]
    tests: int
    unfit: Mapping[str, str]
    left_out: int
    seconds: float
    known_before: int = 0

    def count(self, outcome: Outcome) -> int:
        return sum(each.outcome is outcome for each in self.results)

    @property
    def noticed(self) -> int:
        return sum(each.outcome.is_noticed for each in self.results)

    @property
    def tried(self) -> int:
        return len(self.results) - self.count(Outcome.NOT_TRIED)

    @property
    def score(self) -> float | None:
        """The percentage of tried mutants that tests noticed, or None if no mutant was tried."""
        return 100 * self.noticed / self.tried if self.tried else None


def run(request: Request) -> Report:
    """Try the mutants of the request's scripts; mark mutants that were not tried in time."""
    started = time.monotonic()
    project = request.project
    changed: dict[Path, set[int]] = {}
    if request.since is not None:
        changed = {each: project.changed_lines(each, request.since) for each in project.scripts}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("harness-mutate"))
        files = project.files()
        workers: list[Worker] = []
        for number in range(request.workers):
            own = folder / str(number)
            own.mkdir()
            workers.append(Worker(project, files, own, request.tests))
            stack.callback(workers[-1].close)
        texts = {script: (project.top / script).read_bytes() for script in project.scripts}
        found = _Run(request, workers, project.digests(files), texts, changed)
        report = found.report()
        report.seconds = time.monotonic() - started
        return report


@dataclass
class _Run:
    request: Request
    workers: list[Worker]
    digests: Mapping[str, str]
    texts: Mapping[Path, bytes]
    changed: Mapping[Path, set[int]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    noticing: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))

    def report(self) -> Report:
        self.request.progress("collecting the tests")
        told = self.workers[0].begin(collecting=False)
        digests = self._digests_of_tests({path for _, path in told["tests"]})
        tests: dict[str, str] = {test: digests[path] for test, path in told["tests"]}
        if not tests:
            raise BadInputError(
                "No tests were collected; name tests with --tests, and add --machines for tests on machines.",
                source="--tests",
            )
        self.collecting = bool(told["read"])
        scripts = {str(script) for script in self.texts}
        without = scripts | {self._inside(path) for _, path in told["tests"]}
        surroundings = digest_of_all(self.digests, without)
        options = json.dumps(self.request.tests.options)
        self.results = Results(self.request.results, _key(surroundings, options, *_versions()))
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        with concurrent.futures.ThreadPoolExecutor(len(self.workers)) as pool:
            others = self.workers if self.collecting else self.workers[1:]
            list(pool.map(lambda worker: worker.begin(collecting=self.collecting), others))
            for worker in self.workers:
                self.idle.put(worker)
            reaches = self._reaches(pool, tests)
            return self._tried(pool, tests, reaches, int(told["left_out"]))

    def _inside(self, path: str) -> str:
        found = Path(path)
        top = self.workers[0].top
        return str(found.relative_to(top)) if found.is_relative_to(top) else path

    def _digests_of_tests(self, paths: set[str]) -> dict[str, str]:
        """Return a digest of each test file, combined with the other test files that the file mentions."""
        texts = {path: Path(path).read_bytes() for path in sorted(paths)}
        own = {
            path: self.digests.get(self._inside(path)) or hashlib.sha256(text).hexdigest()
            for path, text in texts.items()
        }
        names = {path: os.fsencode(Path(path).stem) for path in texts}
        return {
            path: _key(own[path], *(own[o] for o in texts if o != path and names[o] in text))
            for path, text in texts.items()
        }

    def _digest_for(self, script: Path, digest: str, reach: Reach) -> str:
        """Return a digest of a test's file and of the scripts, except `script`, that the test reaches."""
        others = [
            f"{other} {hashlib.sha256(text).hexdigest()}"
            for other, text in self.texts.items()
            if other != script and (reach.lines.get(str(other)) or str(other) in reach.read)
        ]
        return _key(digest, *others)

    @contextlib.contextmanager
    def _worker(self) -> Iterator[Worker]:
        worker = self.idle.get()
        try:
            yield worker
        finally:
            self.idle.put(worker)

    def _is_over(self) -> bool:
        return self.request.until is not None and time.monotonic() > self.request.until

    # --- what tests reach ------------------------------------------------------------------

    def _reaches(
        self, pool: concurrent.futures.Executor, tests: Mapping[str, str]
    ) -> dict[str, Reach]:
        contents = "".join(hashlib.sha256(text).hexdigest() for text in self.texts.values())
        names = " ".join(map(str, self.texts))
        done = 0

        def find(test: str) -> tuple[str, Reach | None]:
            nonlocal done
            key = _key(names, contents, test, tests[test])
            known = self.results.reach_of(key)
            if known is None and not self._is_over():
                with self._worker() as worker:
                    known = self._measure(worker, test)
                with self.lock:
                    self.results.keep_reach(key, known)
            with self.lock:
                done += known is not None
                self.request.progress(f"{done} of {len(tests)} tests were run without a defect")
            return test, known

        found = {test: reach for test, reach in pool.map(find, tests) if reach is not None}
        # if a test did not run, that test might notice a mutant that all other tests miss
        self.knows_all = len(found) == len(tests)
        return found

    def _measure(self, worker: Worker, test: str) -> Reach:
        cost = _UNKNOWN_WITH_MACHINES if self.request.tests.with_machines else _UNKNOWN
        answer = worker.run([test], cost, traces=True)
        failure = f"it fails ({answer.why})" if answer.why else "it fails"
        problem = failure if answer.failed else "it takes too long" if answer.timed_out else ""
        lines: dict[str, list[int]] = {}
        read: set[str] = set()
        for script, text in self.texts.items():
            path = str((worker.top / script).resolve())
            places = [Place(*place) for place in answer.lines.get(path, ())]
            ran = executed_lines(text.decode(errors="replace"), places)
            lines[str(script)] = sorted(ran)
            if str(worker.top / script) in answer.read and not ran:
                read.add(str(script))
        return Reach(
            lines=lines,
            read=sorted(read),
            cpu_s=answer.cpu_s,
            wall_s=answer.wall_s,
            problem="it ends the test run" if answer.died else problem,
        )

    # --- mutants ---------------------------------------------------------------------------

    def _tried(
        self,
        pool: concurrent.futures.Executor,
        tests: Mapping[str, str],
        reaches: Mapping[str, Reach],
        left_out: int,
    ) -> Report:
        unfit = {test: reach.problem for test, reach in reaches.items() if reach.problem}
        fit = {test: reach for test, reach in reaches.items() if not reach.problem}
        if unfit and not fit:
            test, why = next(iter(unfit.items()))
            raise RequirementError(
                f"All tests fail even without a planted defect, for example '{test}': {why}. Repair the "
                "tests first; pytest runs them without planted defects."
            )
        chosen = [(script, mutant) for script in self.texts for mutant in self._mutants(script)]
        # shuffle, so that the results of an interrupted run are a sample of all results
        order = sorted(
            range(len(chosen)),
            key=lambda i: _key(str(chosen[i][0]), str(chosen[i][1].start), repr(chosen[i][1].new)),
        )
        report = Report(
            results=[],
            texts=self.texts,
            tests=len(reaches),
            unfit=unfit,
            left_out=left_out,
            seconds=0.0,
        )
        found: dict[int, Result | None] = {}
        by_line = _by_line(fit)

        def attempt(i: int) -> None:
            result, was_known = self._try(*chosen[i], tests, fit, by_line)
            with self.lock:
                found[i] = result
                report.known_before += was_known
                tried = sum(
                    each is None or each.outcome is not Outcome.NOT_TRIED
                    for each in found.values()
                )
                survived = sum(
                    each is not None and each.outcome is Outcome.SURVIVED
                    for each in found.values()
                )
                self.request.progress(
                    f"{tried} of {len(chosen)} defects were tried, {survived} survived"
                )

        futures = [pool.submit(attempt, i) for i in order]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            raise
        report.results = [each for i in range(len(chosen)) if (each := found[i]) is not None]
        return report

    def _mutants(self, script: Path) -> list[Mutant]:
        mutants = mutants_of(self.texts[script], messages=self.request.messages)
        if self.request.since is None:
            return mutants
        changed = self.changed[script]
        return [m for m in mutants if changed.intersection(range(m.line, m.last_line + 1))]

    def _try(
        self,
        script: Path,
        mutant: Mutant,
        digests: Mapping[str, str],
        fit: Mapping[str, Reach],
        by_line: Mapping[tuple[str, int], list[str]],
    ) -> tuple[Result | None, bool]:
        """Return a mutant's result, and whether the result was already stored.

        The result is None if bash can't parse the mutant.
        """
        running: set[str] = set()
        for line in mutant.reached_by:
            running |= set(by_line.get((str(script), line), ()))
        reaching = running | set(by_line.get((str(script), 0), ()))
        unnoticed = Outcome.SURVIVED if running else Outcome.NOT_REACHED
        places = [(str(script), line) for line in sorted(mutant.reached_by)]
        with self.lock:
            noticing = set().union(*(self.noticing[place] for place in places))
        tests = _ordered(reaching, fit, str(script), noticing)
        text = mutant.apply(self.texts[script])
        key = _key(str(script), hashlib.sha256(text).hexdigest())
        own = {test: self._digest_for(script, digests[test], fit[test]) for test in tests}

        def result(outcome: Outcome, noticed_by: str | None = None) -> Result:
            return Result(
                script=script,
                mutant=mutant,
                outcome=outcome,
                tests=tuple(tests),
                noticed_by=noticed_by,
            )

        if not tests and self.knows_all:
            return result(Outcome.NOT_REACHED), False
        with self.lock:
            noticed = self.results.noticed(key, own)
            untried = self.results.untried(key, own)
        if noticed is not None:
            return result(*noticed), True
        if not self.knows_all or (untried and self._is_over()):
            return result(Outcome.NOT_TRIED), False
        if not untried:
            return result(unnoticed), True
        cost = Cost(
            cpu_s=max(fit[test].cpu_s for test in untried),
            wall_s=max(fit[test].wall_s for test in untried),
        )
        with self._worker() as worker, worker.planted(script, text):
            if not worker.can_read(script):
                return None, False
            answer = worker.run(untried, cost)
        outcome, noticed_by = self._keep(
            key, answer, {test: own[test] for test in untried}, places
        )
        return result(outcome or unnoticed, noticed_by), False

    def _keep(
        self,
        key: str,
        answer: Answer,
        digests: Mapping[str, str],
        places: Sequence[tuple[str, int]],
    ) -> tuple[Outcome | None, str | None]:
        """Store the results from `answer`; return the outcome, and the test that noticed the mutant."""
        if answer.failed is None and not answer.timed_out and not answer.died:
            with self.lock:
                self.results.keep_passed(key, digests)
            return None, None
        outcome = Outcome.TIMED_OUT if answer.timed_out else Outcome.KILLED
        failed = answer.failed or ""
        test = failed if failed in digests else next(iter(digests))
        with self.lock:
            for place in places:
                self.noticing[place].add(test)
            self.results.keep_noticed(key, outcome, test, digests[test])
        return outcome, answer.failed


def _versions() -> list[str]:
    """Return the versions of the programs that run the tests."""
    packages = [importlib.metadata.version(name) for name in ("gpu-node-harness", "pytest")]
    return [platform.python_version(), *packages]


def _key(*parts: str) -> str:
    joined = "\0".join(parts).encode(errors="surrogateescape")
    return hashlib.sha256(joined).hexdigest()[:32]


def _by_line(reaches: Mapping[str, Reach]) -> dict[tuple[str, int], list[str]]:
    """Map each line to the tests that run it, and line 0 to tests that read the whole script."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for test, reach in reaches.items():
        for script, lines in reach.lines.items():
            for line in lines:
                found[script, line].append(test)
        for script in reach.read:
            found[script, 0].append(test)
    return found


def _ordered(
    tests: set[str], reaches: Mapping[str, Reach], script: str, noticing: set[str]
) -> list[str]:
    """Return the tests file by file; begin with the file that probably notices the mutant soonest.

    Files with tests that noticed other mutants on the same line come before all other files; among
    the others, files with tests that run few lines of the script come first. The examples of a spec
    file keep their order.
    """
    files: dict[str, list[str]] = defaultdict(list)
    for test in reaches:  # in the order of collection
        if test in tests:
            files[test.partition("::")[0]].append(test)

    def rank(test: str) -> tuple[bool, int]:
        return test not in noticing, len(reaches[test].lines.get(script, ()))

    groups = sorted(files.items(), key=lambda item: min(map(rank, item[1])))
    return [
        test
        for file, group in groups
        for test in (sorted(group, key=rank) if file.endswith(".py") else group)
    ]
