"""Collects and runs `*_spec.sh` files: each example is a test of its own."""

from __future__ import annotations

import gc
import importlib
import time
from typing import TYPE_CHECKING, Literal

import pytest

from harness.plugin import spec_reports
from harness.plugin.spec_nodes import SpecFileCollector, SpecItem, raise_for
from harness.plugin.spec_options import pytest_addoption
from harness.plugin.spec_reports import passed_report
from harness.plugin.spec_runs import existing_runs_of, runs_of
from harness.plugin.spec_scheduling import SpecScheduling, make_scheduler
from harness.shell.coverage import Hits, merge, render_lcov
from harness.shell.options import is_spec
from harness.shell.verdict import Outcome, Verdict
from harness.shell.wire import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

    from harness.shell.specfile import Case

_CARRIED_HITS = "shell_coverage"
_CARRIED_UNPROTECTED = "shell_sandbox"
_HITS: pytest.StashKey[Hits] = pytest.StashKey()
_UNPROTECTED: pytest.StashKey[set[str]] = pytest.StashKey()


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
    runs = existing_runs_of(config)
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
    runs = runs_of(item.config)
    runs.following = _following(item, nextitem)
    if not runs.is_fast or runs.following is None or next(item.iter_markers(), None) is not None:
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
        _report(item, "call", lambda: raise_for(item, verdict))
    if runs.has_late_problems():
        _report(item, "teardown", item.teardown)
    if runs.batch is None:
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _following(item: SpecItem, nextitem: pytest.Item | None) -> Case | None:
    """Return the example that the same file runs next, or None at its end."""
    if isinstance(nextitem, SpecItem) and nextitem.file is item.file:
        return nextitem.case
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a report that goes its usual way take along those that wait."""
    report = yield
    if isinstance(item, SpecItem):
        batch = runs_of(item.config).batch
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
