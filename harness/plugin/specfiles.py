"""Collects `*_spec.sh` files: each example is a test of its own."""

from __future__ import annotations

import functools
import gc
import importlib
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

import pytest
from typing_extensions import override

from harness.errors import HarnessError
from harness.plugin import spec_reports
from harness.plugin.spec_options import pytest_addoption
from harness.plugin.spec_reports import ReportBatch, passed_report
from harness.plugin.spec_scheduling import SpecScheduling, make_scheduler
from harness.provisioning.command import LocalRunner
from harness.shell.clock import clock_environment, write_clock_commands
from harness.shell.coverage import Hits, merge, parse_trace, render_lcov
from harness.shell.mockdir import write_mocks
from harness.shell.options import is_spec
from harness.shell.project import Project, ScratchFolder, environment, project_variables
from harness.shell.rows import ShellRowEvaluator
from harness.shell.sandbox import choose_sandbox
from harness.shell.specrun import ShellSetting, SpecRun
from harness.shell.translate import translate
from harness.shell.verdict import Outcome, Verdict
from harness.shell.wire import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from _pytest._code.code import TerminalRepr
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from harness.shell.sandbox import Sandbox
    from harness.shell.specfile import Case, Group, SpecFile
    from harness.shell.verdict import Problem

_CARRIED_HITS = "shell_coverage"
_CARRIED_UNPROTECTED = "shell_sandbox"
_HITS: pytest.StashKey[Hits] = pytest.StashKey()
_UNPROTECTED: pytest.StashKey[set[str]] = pytest.StashKey()
_RUNNERS: pytest.StashKey[SpecRuns] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(spec_reports, "harness-spec-reports")
    config.addinivalue_line(
        "markers", "shell_time(kind): 'real' or 'virtual' time for the shell code of this test"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the examples that no tag, name or focus asks for."""
    tags = set(config.getoption("--shell-tag"))
    focus = bool(config.getoption("--shell-focus"))
    kept = [
        item for item in items if not isinstance(item, SpecItem) or item.is_wanted(tags, focus)
    ]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep the garbage collector from walking thousands of examples again and again."""
    if any(isinstance(item, SpecItem) for item in session.items):
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once where specs did not get the sandbox that they should have."""
    for why in sorted(terminalreporter.config.stash.get(_UNPROTECTED, ())):
        terminalreporter.write_line(why, yellow=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SpecFileCollector | None:
    if file_path.suffix == ".py" or not is_spec(file_path):
        return None
    collector: SpecFileCollector = SpecFileCollector.from_parent(parent, path=file_path)
    return collector


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    runs = config.stash.get(_RUNNERS, None)
    unprotected = config.stash.setdefault(_UNPROTECTED, set())
    if runs is not None:
        runs.close()
        merge(config.stash.setdefault(_HITS, {}), runs.hits)
        unprotected.update({runs.sandbox.why} - {""})
    hits = config.stash.get(_HITS, {})
    if hasattr(config, "workeroutput"):
        config.workeroutput[_CARRIED_HITS] = {p: sorted(lines) for p, lines in hits.items()}
        config.workeroutput[_CARRIED_UNPROTECTED] = sorted(unprotected)
    elif config.getoption("--shell-cov"):
        # coverage.py is slow to import, and most runs do without it
        data = importlib.import_module("harness.shell.coverage_data")
        data.write_data(hits, config.rootpath / ".coverage.shell")
        lcov = config.getoption("--shell-cov-lcov")
        if lcov is not None:
            lcov.write_text(render_lcov(hits))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take what a worker's examples covered, and what held them less than they should be."""
    output = getattr(node, "workeroutput", {})
    stash = node.config.stash
    stash.setdefault(_UNPROTECTED, set()).update(output.get(_CARRIED_UNPROTECTED, ()))
    merge(stash.setdefault(_HITS, {}), output.get(_CARRIED_HITS, {}))


class SpecFileCollector(pytest.File):
    """A spec file."""

    spec: SpecFile
    project: Project

    @override
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        self.project = Project.of(self.path, self.config.invocation_params.dir)
        source = self.shown_path
        text = self.path.read_bytes().decode(errors="surrogateescape")
        evaluate = ShellRowEvaluator(
            LocalRunner(),
            lambda: _spec_runs(self.config).sandbox,
            source=source,
            cwd=self.project.exec_dir(self.path),
            env=project_variables(self.project, self.path),
        )
        self.spec = translate(source, text, evaluate)
        tree = _Tree()
        for case in self.spec.cases:
            tree.add(case)
        yield from _make_nodes(self, self, tree)

    @override
    def repr_failure(  # type: ignore[override]  # as narrow as pytest's own collectors'
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str | TerminalRepr:
        """Show what is wrong with the spec, and not where in this program that was noticed."""
        if isinstance(excinfo.value, HarnessError):
            return str(excinfo.value)
        return super().repr_failure(excinfo)

    @functools.cached_property
    def shown_path(self) -> str:
        root = self.config.rootpath
        inside = self.path.is_relative_to(root)
        return str(self.path.relative_to(root) if inside else self.path)


class GroupCollector(pytest.Collector):
    """A `Describe`."""

    tree: _Tree
    file: SpecFileCollector

    @override
    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        yield from _make_nodes(self, self.file, self.tree)


class _Tree:
    """The blocks of one group, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[Group, _Tree] | Case] = []

    def add(self, case: Case) -> None:
        tree = self
        for group in case.groups:
            last = tree.entries[-1] if tree.entries else None
            if isinstance(last, tuple) and last[0] is group:
                tree = last[1]
            else:
                below = _Tree()
                tree.entries.append((group, below))
                tree = below
        tree.entries.append(case)


def _make_nodes(
    parent: SpecFileCollector | GroupCollector, file: SpecFileCollector, tree: _Tree
) -> Iterator[pytest.Item | pytest.Collector]:
    names: dict[str, int] = {}

    def unique(name: str, line: int) -> str:
        name = printable(name).replace("::", ": :") or "<unnamed>"
        names[name] = names.get(name, 0) + 1
        return name if names[name] == 1 else f"{name} <line {line}>"

    for entry in tree.entries:
        if isinstance(entry, tuple):
            group, below = entry
            collector: GroupCollector = GroupCollector.from_parent(
                parent, name=unique(group.name, group.begin)
            )
            collector.tree, collector.file = below, file
            yield collector
        else:
            yield SpecItem.from_parent(
                parent, name=unique(entry.name, entry.begin), case=entry, file=file
            )


class SpecItem(pytest.Item):
    """An example, or one row of a parametrised one."""

    def __init__(
        self, *, name: str, parent: pytest.Collector, case: Case, file: SpecFileCollector
    ) -> None:
        super().__init__(name, parent)
        self.case = case
        self.file = file
        tags = case.all_tags
        if tags:
            self.extra_keyword_matches.update(tags)

    def is_wanted(self, tags: set[str], focus: bool) -> bool:
        """Tell whether the selection of the command line and of `.shellspec` includes this one.

        A focused example passes any other filter, as it does in shellspec; a tag without a value
        asks for all its values.
        """
        options = self.file.project.options
        tags = tags | set(options.tags)
        if self.case.is_focused and (tags or options.examples or focus or options.focus):
            return True
        if focus or options.focus:
            return False
        own = {part for tag in self.case.all_tags for part in (tag, tag.partition(":")[0])}
        if tags and not tags & own:
            return False
        names = [self.case.name, *(group.name for group in self.case.groups)]
        return not options.examples or any(
            fnmatchcase(name, pattern) for name in names for pattern in options.examples
        )

    @override
    def runtest(self) -> None:
        _raise_for(self, _spec_runs(self.config).run(self))

    @override
    def teardown(self) -> None:
        problems = _spec_runs(self.config).take_late_problems(self)
        if problems:
            text = "\n\n".join(problem.text for problem in problems)
            pytest.fail(printable(text), pytrace=False)

    @functools.cached_property
    @override
    def location(self) -> tuple[str, int | None, str]:
        """Return where reports place the example: pytest's own way there costs as much as a run."""
        name = printable(self.case.full_name)
        return self.file.shown_path, self.case.begin - 1, name

    @override
    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.case.begin - 1, printable(self.case.full_name)


def _raise_for(item: SpecItem, verdict: Verdict) -> None:
    outcome = verdict.outcome
    if outcome is Outcome.SKIPPED:
        pytest.skip(verdict.reason)
    if outcome is Outcome.PENDING:
        pytest.xfail(verdict.reason)
    if not outcome.fails:
        return
    if outcome is Outcome.WARNED and not item.file.project.options.warning_as_failure:
        return
    if outcome is Outcome.WARNED and item.config.getoption("--no-warning-as-failure"):
        return
    pytest.fail(printable(verdict.render(item.file.spec, item.case)), pytrace=False)


class SpecRuns:
    """The shell of the spec file that runs now; one at a time."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.scratch = ScratchFolder()
        self.next_item: pytest.Item | None = None
        self.hits: Hits = {}
        self.batch = ReportBatch() if hasattr(config, "workerinput") else None
        self._file: SpecFileCollector | None = None
        self._run: SpecRun | None = None
        self._stops_at_failure = bool(config.getoption("maxfail"))
        self.is_fast = not (
            config.getoption("allure_report_dir", None)
            or config.getoption("setupshow", default=False)
            or config.getoption("usepdb", default=False)
        )

    @functools.cached_property
    def sandbox(self) -> Sandbox:
        return choose_sandbox(self.config.getoption("--shell-sandbox"))

    def run(self, item: SpecItem) -> Verdict:
        """Run one example, and let the shell start on the next before its report is written."""
        if self._file is not item.file or self._run is None:
            self.leave_file()
            self._run = self._enter_file(item.file)
        following = self.next_item
        if not isinstance(following, SpecItem) or following.file is not item.file:
            return self._run.run(item.case)
        if not self._stops_at_failure:
            return self._run.run(item.case, following.case)
        verdict = self._run.run(item.case)
        if not verdict.outcome.fails:
            self._run.expect_next(following.case)
        return verdict

    def take_late_problems(self, item: SpecItem) -> list[Problem]:
        """Return what hooks of whole groups complained of since the last call."""
        if self._run is None:
            return []
        following = self.next_item
        if isinstance(following, SpecItem) and following.file is item.file:
            problems, self._run.late_problems = self._run.late_problems, []
            return problems
        problems = self._run.finish()
        self.leave_file()
        return problems

    def has_late_problems(self) -> bool:
        return self._run is not None and bool(self._run.late_problems)

    def _enter_file(self, file: SpecFileCollector) -> SpecRun:
        self._file = file
        work_dir = self.scratch.new_work_dir()
        mocks = work_dir / ".mocks"
        write_mocks(file.spec, mocks, file.project.options.shell)
        cwd = file.project.exec_dir(file.path)
        env = dict(environment(file.project, file.path, self.scratch.path, work_dir, mocks))
        if self.config.getoption("--shell-time") == "virtual":
            commands = write_clock_commands(work_dir / ".clock")
            env.update(clock_environment(commands, env["PATH"]))
            if "HX_PATH" in env:
                env["HX_PATH"] = f"{commands}:{env['HX_PATH']}"
        setting = ShellSetting(
            shell=file.project.options.shell,
            sandbox=self.sandbox,
            scratch=work_dir,
            cwd=cwd,
            env=env,
            traces=bool(self.config.getoption("--shell-cov")),
            timeout_s=self.config.getoption("--shell-timeout"),
        )
        return SpecRun(file.spec, setting)

    def leave_file(self) -> None:
        if self._run is not None:
            self._run.close()
            sources = self.config.getoption("--shell-cov")
            if sources:
                merge(self.hits, parse_trace(self._run.trace, self._run.setting.cwd, sources))
        self._file = self._run = None

    def close(self) -> None:
        self.leave_file()
        self.scratch.close()


def _spec_runs(config: pytest.Config) -> SpecRuns:
    runs = config.stash.get(_RUNNERS, None)
    if runs is None:
        runs = config.stash[_RUNNERS] = SpecRuns(config)
    return runs


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpecScheduling | None:
    return make_scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run an example without the phases it does not have.

    It has no fixtures, so set-up and teardown have nothing to do while the next test comes from
    the same file; they cost more than the example itself. A marked example, and one that a
    reporter wants to see phase by phase, takes the usual way, as does the last of each file.
    """
    if not isinstance(item, SpecItem):
        return None
    runs = _spec_runs(item.config)
    runs.next_item = nextitem
    if (
        not runs.is_fast
        or not isinstance(nextitem, SpecItem)
        or nextitem.file is not item.file
        or next(item.iter_markers(), None) is not None
    ):
        return None
    ihook = item.ihook
    if runs.batch is None:
        ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    start = time.time()
    started = time.perf_counter()
    verdict = runs.run(item)
    duration_s = time.perf_counter() - started
    if verdict.outcome is Outcome.SUCCEEDED:
        if runs.batch is not None and not verdict.stray_stdout and not runs.batch.is_due(start):
            runs.batch.add(item, start, duration_s)
            return True
        report = passed_report(item.nodeid, item.location, start, duration_s)
        report.sections = _sections(verdict)
        if runs.batch is not None:
            runs.batch.attach(report)
        ihook.pytest_runtest_logreport(report=report)
    else:
        _report(item, "call", lambda: _raise_for(item, verdict))
    if runs.has_late_problems():
        _report(item, "teardown", item.teardown)
    if runs.batch is None:
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report that goes its usual way take along those that wait."""
    report = yield
    if isinstance(item, SpecItem):
        batch = _spec_runs(item.config).batch
        if batch is not None:
            batch.attach(report)
    return report


def _sections(verdict: Verdict) -> list[tuple[str, str]]:
    text = verdict.stray_stdout
    return [("Captured stdout call", printable(text))] if text else []


def _report(item: SpecItem, when: Literal["call", "teardown"], act: Callable[[], None]) -> None:
    call = pytest.CallInfo.from_call(
        act, when=when, reraise=(KeyboardInterrupt, pytest.exit.Exception)
    )
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)
    if report.failed:
        item.ihook.pytest_exception_interact(node=item, call=call, report=report)


__all__ = ["pytest_addoption"]
