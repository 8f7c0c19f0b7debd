"""Collects and runs `*_spec.sh` files: each example is a test of its own."""

from __future__ import annotations

import functools
import gc
import importlib
import itertools
import time
from typing import TYPE_CHECKING, Literal

import pytest

from harness.errors import HarnessError, RequirementError
from harness.plugin import fixture_modules
from harness.plugin.specs import reports
from harness.plugin.specs.items import (
    JOBS_SECTION,
    SpecFileCollector,
    SpecItem,
    in_file_order,
    raise_for,
)
from harness.plugin.specs.options import pytest_addoption
from harness.plugin.specs.reports import passed_report
from harness.plugin.specs.runs import existing_runs_of, hits_of, notes_of, runs_of
from harness.plugin.specs.selection import take_selections
from harness.shell.coverage import Tier, merge
from harness.shell.spec.options import is_spec
from harness.shell.spec.verdict import Outcome, Verdict
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from harness.plugin.specs.scheduling import SpecScheduling
    from harness.shell.spec.spec_file import Case

_CARRIED_HITS = "shell_coverage"
_CARRIED_NOTES = "shell_notes"
_CARRIED_REFUSAL = "shell_refusal"
_REFUSAL: pytest.StashKey[str] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(reports, "harness-spec-reports")
    fixture_modules.register(config, "shell")
    take_selections(config)
    config.addinivalue_line(
        "markers", "shell_time(kind): 'real' or 'virtual' time for the shell code of this test"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect examples that no tag, name or focus selects; keep the examples of a file in order.

    A shell runs the examples of its file once, from top to bottom: to run an earlier example, the
    harness would have to start a new shell and source all code under test again. A plugin that
    shuffles tests (pytest-randomly) changes the order of the files, but not the order of the
    examples in a file. `--failed-first` still works, since pytest sorts the tests after this hook
    has run.
    """
    tags = {tag for given in config.getoption("--shell-tag") for tag in given.split(",")} - {""}
    focus = bool(config.getoption("--shell-focus"))
    kept = [
        item for item in items if not isinstance(item, SpecItem) or item.is_wanted(tags, focus)
    ]
    if len(kept) < len(items):
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = in_file_order(kept)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude the collected examples, which may be thousands, from garbage collection."""
    if any(isinstance(item, SpecItem) for item in session.items):
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print facts that test results do not show: a refused sandbox, jobs that did not end, notes."""
    if _REFUSAL in terminalreporter.config.stash:
        terminalreporter.write_line(terminalreporter.config.stash[_REFUSAL], red=True)
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport) and report.when == "call":
            for title, text in report.sections:
                if title == JOBS_SECTION:
                    terminalreporter.write_line(f"{report.nodeid}: {text}", yellow=True)
    for note in sorted(notes_of(terminalreporter.config)):
        terminalreporter.write_line(note, yellow=True)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SpecFileCollector | None:
    if not is_spec(file_path):
        return None
    collector: SpecFileCollector = SpecFileCollector.from_parent(parent, path=file_path)
    return collector


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    runs = existing_runs_of(config)
    if runs is not None:
        runs.close()
        merge(hits_of(config, Tier.MOCKED), runs.hits)
        notes_of(config).update({runs.sandbox.why} - {""})
    if _REFUSAL in config.stash:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    if hasattr(config, "workeroutput"):
        config.workeroutput[_CARRIED_HITS] = {
            tier.name: {
                path: [tuple(place) for place in places]
                for path, places in hits_of(config, tier).items()
            }
            for tier in Tier
        }
        config.workeroutput[_CARRIED_NOTES] = sorted(notes_of(config))
        config.workeroutput[_CARRIED_REFUSAL] = config.stash.get(_REFUSAL, "")
    elif config.getoption("--shell-cov"):
        try:
            _write_coverage(config)
        except (HarnessError, OSError) as error:
            what = "" if isinstance(error, HarnessError) else "The coverage can't be written: "
            config.stash[_REFUSAL] = f"{what}{error}"
            session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _write_coverage(config: pytest.Config) -> None:
    # coverage.py is slow to import, and most runs do not need it
    data = importlib.import_module("harness.shell.coverage_data")
    path = config.rootpath / config.getoption("--shell-cov-data")
    hits = {tier: hits_of(config, tier) for tier in Tier}
    unread = data.write_data(hits, config.getoption("--shell-cov"), path)
    notes_of(config).update(
        f"The coverage lacks '{visible(str(file))}', which can't be read." for file in unread
    )
    lcov = config.getoption("--shell-cov-lcov")
    if lcov is not None:
        data.report(data.combine([path]), html=None, lcov=lcov)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Merge the coverage, notes and sandbox refusal of an ended worker into this process."""
    output = getattr(node, "workeroutput", {})
    stash = node.config.stash
    notes_of(node.config).update(output.get(_CARRIED_NOTES, ()))
    for name, carried in output.get(_CARRIED_HITS, {}).items():
        merge(hits_of(node.config, Tier[name]), carried)
    if output.get(_CARRIED_REFUSAL):
        stash[_REFUSAL] = output[_CARRIED_REFUSAL]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SpecScheduling | None:
    from harness.plugin.specs.scheduling import (  # noqa: PLC0415 - needs xdist's schedulers
        make_scheduler,
    )

    return make_scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run an example without pytest's set-up and teardown phases, if the example needs neither phase.

    An example has no fixtures, so set-up and teardown do nothing if the next test is in the same
    file. Set-up and teardown take longer than the example itself. Three kinds of examples still run
    through all phases: examples with a marker, examples of a run in which another plugin implements
    hooks for phases, and the last example of each file.
    """
    if not isinstance(item, SpecItem):
        return None
    if not _is_let_in(item):
        return True
    runs = runs_of(item.config)
    runs.following = _following(item, nextitem)
    if not runs.is_fast or runs.following is None or next(item.iter_markers(), None) is not None:
        return None
    ihook = item.ihook
    if runs.batch is None:
        ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    start = time.time()
    started = time.perf_counter()
    try:
        verdict = runs.run(item.file, item.case)
    except HarnessError as error:
        verdict = None
        _report(item, "call", functools.partial(_raise, error))
    duration_s = time.perf_counter() - started
    if verdict is not None and verdict.outcome is Outcome.SUCCEEDED:
        sections = _sections(verdict)
        if runs.batch is not None and not sections and not runs.batch.is_due(start):
            runs.batch.add(item, start, duration_s)
            return True
        report = passed_report(item.nodeid, item.location, start, duration_s)
        report.sections = sections
        if runs.batch is not None:
            runs.batch.attach(report)
        ihook.pytest_runtest_logreport(report=report)
    elif verdict is not None:
        item.note_jobs(verdict)
        _report(item, "call", lambda: raise_for(item, verdict))
    if runs.has_late_problems():
        if verdict is not None and verdict.outcome is Outcome.SUCCEEDED:
            _setup_report(item)
        _report(item, "teardown", item.teardown)
    if runs.batch is None:
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _raise(error: HarnessError) -> None:
    raise error


def _is_let_in(item: SpecItem) -> bool:
    """Start the first shell of this process; return whether this host can run specs.

    If the host cannot run specs, or has no space for the specs' files, a run without xdist ends
    here. An xdist worker instead reports the reason, and runs no examples.
    """
    config = item.config
    try:
        runs = runs_of(config)
        if not runs.has_entered and not item.case.todo and not item.case.is_skipped:
            runs.enter(item.file)
    except HarnessError as error:
        if existing_runs_of(config) is not None and not isinstance(error, RequirementError):
            return True  # the example fails with this error
        if not hasattr(config, "workeroutput"):
            pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
        config.stash[_REFUSAL] = str(error)
    return _REFUSAL not in config.stash


def _following(item: SpecItem, nextitem: pytest.Item | None) -> Case | None:
    """Return the next item if it is an example of the same file, else None."""
    if isinstance(nextitem, SpecItem) and nextitem.file is item.file:
        return nextitem.case
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the batch of waiting reports on passed examples to the report on this example."""
    report = yield
    if isinstance(item, SpecItem):
        batch = runs_of(item.config).batch
        if batch is not None:
            batch.attach(report)
    return report


def _sections(verdict: Verdict) -> list[tuple[str, str]]:
    sections: list[tuple[str, str]] = []
    if verdict.stray_stdout:
        sections.append(("Captured stdout call", visible(verdict.stray_stdout)))
    if verdict.running is not None:
        sections.append((JOBS_SECTION, visible(verdict.running.render())))
    return sections


def _setup_report(item: SpecItem) -> pytest.TestReport:
    # plugins that collect the reports of all phases expect a report of the set-up first
    begun = pytest.CallInfo.from_call(lambda: None, when="setup")
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=begun)
    return report


def _report(item: SpecItem, when: Literal["call", "teardown"], act: Callable[[], None]) -> None:
    call = pytest.CallInfo.from_call(
        act, when=when, reraise=(KeyboardInterrupt, pytest.exit.Exception)
    )
    if when == "call":
        item.ihook.pytest_runtest_logreport(report=_setup_report(item))
    report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
    item.ihook.pytest_runtest_logreport(report=report)
    if report.failed:
        item.ihook.pytest_exception_interact(node=item, call=call, report=report)


__all__ = ["pytest_addoption"]
