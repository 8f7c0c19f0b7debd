"""Runs one shard of the tests, and records for `harness report merge` which tests the shard ran."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError
from harness.plugin.node_ids import shown_id
from harness.plugin.unwritten import note_unwritten
from harness.sharding import Shard
from harness.sharding.durations import read_durations, write_durations
from harness.sharding.engine import shard_of
from harness.sharding.manifest import (
    ALLURE,
    DURATIONS,
    JUNIT,
    SHELL_COVERAGE,
    ShardManifest,
    begin,
    digest_of,
    starts_of,
    write_manifest,
)
from harness.sharding.split import ordered, split, timed_tests

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from xdist.workermanage import WorkerController

_CARRIED = "harness_shard"
#: Fixtures on which all images and saved states depend.
_ROOTS = frozenset({"lab", "image_name"})


def register(config: pytest.Config) -> None:
    """Register the plugin that implements `--shard` and `--report-dir`.

    Raises pytest.UsageError if the shard or the file of durations is wrong.
    """
    word = config.getoption("--shard")
    report = config.getoption("--report-dir")
    if report == "":
        raise pytest.UsageError("--report-dir: '' is not a folder; name a folder for the reports.")
    try:
        shard = None if word is None else shard_of(word)
        durations = read_durations(config.rootpath / config.getoption("--durations-file"))
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from error
    folder = None if report is None else config.rootpath / report
    if shard is not None and getattr(config.option, "maxschedchunk", 0) is None:
        # Without this option, xdist gives the longest tests to its first worker as one chunk.
        config.option.maxschedchunk = 1
    plugin = ShardPlugin(shard=shard, durations=durations, folder=folder)
    given = getattr(config, "workerinput", {}).get(_CARRIED)
    if given is not None:
        # A worker of xdist parses the command line again, so the worker needs the folder too.
        _send_reports_to(Path(given), config)
    elif folder is not None and not config.getoption("collectonly"):
        try:
            plugin.start, plugin.reports = begin(folder)
        except OSError as error:
            raise pytest.UsageError(
                f"--report-dir: '{folder}' can't be written: {error.strerror}."
            ) from error
        _send_reports_to(plugin.reports, config)
    if report is not None and threading.current_thread() is threading.main_thread():
        # CI engines cancel a job by SIGTERM. As after Ctrl-C, machines then end and reports are written.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    config.pluginmanager.register(plugin, "harness-shards")


def _send_reports_to(folder: Path, config: pytest.Config) -> None:
    """Write the run's reports into `folder`.

    If the own option of a report, such as `--junitxml`, names another path, the report is written
    to that path, and copied into `folder` at the end of the run.
    """
    option = config.option
    for name, plugin in (("xmlpath", "junitxml"), ("allure_report_dir", "allure_pytest")):
        if not hasattr(option, name):
            raise pytest.UsageError(
                f"--report-dir: The reports need pytest's plug-in '{plugin}'; leave out '-p no:{plugin}'."
            )
    if not option.xmlpath:
        option.xmlpath = str(folder / JUNIT)
    if not option.allure_report_dir:
        option.allure_report_dir = str(folder / ALLURE)
    option.shell_cov_data = folder / SHELL_COVERAGE


def _allure_folder(config: pytest.Config) -> Path:
    return Path(config.option.allure_report_dir).absolute()


def _files_of(folder: Path) -> dict[Path, int]:
    """Map each file in `folder`, which may be missing, to its modification time in ns."""
    files = folder.iterdir() if folder.is_dir() else ()
    return {file: file.stat().st_mtime_ns for file in files if file.is_file()}


# Instances compare by identity, because pytest keeps plugins in sets.
@dataclass(kw_only=True, eq=False)
class ShardPlugin:
    """Selects the tests of a shard, and records which tests ran.

    With xdist, workers select the tests, and the controller records which tests ran. Only the
    controller has `reports`, the folder for the reports of this start of the shard. The run ends
    early if the scheduler has started the shard's job again on another node.
    """

    shard: Shard | None
    durations: Mapping[str, float]
    folder: Path | None
    start: int = 0
    reports: Path | None = None
    _started: float = field(default_factory=time.time)
    _began: float = field(default_factory=time.monotonic)
    _session: pytest.Session | None = None
    _first_test: float | None = None
    _collection: tuple[str, int] | None = None
    _tests: tuple[str, ...] = ()
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _ended: Counter[str] = field(default_factory=Counter)
    _earlier: Mapping[Path, int] = field(default_factory=dict)
    """The files of earlier runs in the Allure folder, as `_files_of` returns them."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        if self.reports is not None:
            self._earlier = _files_of(_allure_folder(session.config))

    # This hook runs after all hooks that deselect or reorder tests, except the wrapper of --lf.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        families = {shown_id(item.nodeid): family_of(item) for item in items}
        tests = timed_tests(families, self.durations)
        chosen = list(tests.values())
        if self.shard is not None:
            own = {each.test_id for each in split(chosen, self.shard.count)[self.shard.number - 1]}
            chosen = [each for each in chosen if each.test_id in own]
        place = {each.test_id: at for at, each in enumerate(ordered(chosen))}
        dropped = [item for item in items if shown_id(item.nodeid) not in place]
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        kept = [item for item in items if shown_id(item.nodeid) in place]
        if self.shard is not None:
            kept.sort(key=lambda item: place[shown_id(item.nodeid)])
        items[:] = kept
        self._collection = (digest_of(families), len(families))
        self._tests = tuple(place)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Remove the tests that `--lf` has deselected from the list of the shard's tests."""
        left = {shown_id(item.nodeid) for item in session.items}
        if self._collection is not None and not left.issuperset(self._tests):
            self._tests = tuple(test for test in self._tests if test in left)
            if self.shard is None:
                self._collection = (digest_of(left), len(left))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        if self._first_test is None:
            self._first_test = time.monotonic()

    def pytest_runtest_logfinish(self) -> None:
        if self._is_superseded() and self._session is not None:
            self._session.shouldstop = (
                f"this shard was started again: this run is start {self.start} of the shard, but "
                f"'{self.folder}' has a later start"
            )

    def _is_superseded(self) -> bool:
        return self.folder is not None and self.start > 0 and starts_of(self.folder) > self.start

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = shown_id(report.nodeid)
        self._seconds[test] += report.duration
        # Only the report of a teardown, or of a crashed worker, shows that the test has ended.
        if report.when not in ("setup", "call"):
            self._ended[test] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        if self.reports is not None:
            node.workerinput[_CARRIED] = str(self.reports)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        """Store the list of tests that a worker has selected; all workers select the same tests."""
        output = getattr(node, "workeroutput", {}).get(_CARRIED)
        if output is None:
            return
        digest, collected, tests, first_test = output
        self._collection, self._tests = (digest, collected), tuple(tests)
        known = [each for each in (self._first_test, first_test) if each is not None]
        self._first_test = min(known, default=None)

    # This hook is the outermost wrapper, since other plug-ins may change the exit status at the
    # end.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(
        self, session: pytest.Session, exitstatus: int
    ) -> Generator[None, object, object]:
        config = session.config
        if self._collection is not None and hasattr(config, "workeroutput"):
            config.workeroutput[_CARRIED] = (
                *self._collection,
                list(self._tests),
                self._first_test,
            )
        is_empty = self._collection is not None and not self._tests and self._collection[1] > 0
        if is_empty and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            # This shard has no tests, since there are more shards than tests.
            session.exitstatus = pytest.ExitCode.OK
        result = yield
        if self.reports is not None and self._collection is not None and not self._is_superseded():
            try:
                self._copy_reports(self.reports, config)
                self._record(
                    self.reports, self._collection, int(session.exitstatus), config=config
                )
            except OSError as error:
                note_unwritten(session, self.reports.parent, error)
        return result

    def _copy_reports(self, reports: Path, config: pytest.Config) -> None:
        """Copy the reports at the paths of `--junitxml` and `--alluredir` into the folder `reports`."""
        junit = Path(config.option.xmlpath).expanduser()
        if junit.is_file() and junit.resolve() != (reports / JUNIT).resolve():
            shutil.copyfile(junit, reports / JUNIT)
        allure = _allure_folder(config)
        if allure.resolve() == (reports / ALLURE).resolve():
            return
        for file, written in _files_of(allure).items():
            if self._earlier.get(file) != written:
                (reports / ALLURE).mkdir(exist_ok=True)
                shutil.copyfile(file, reports / ALLURE / file.name)

    def _record(
        self, reports: Path, collection: tuple[str, int], status: int, *, config: pytest.Config
    ) -> None:
        shard = self.shard or Shard(number=1, count=1)
        ran = {test: self._seconds[test] for test in self._tests if test in self._ended}
        write_durations(reports / DURATIONS, ran)
        stamp = dt.datetime.fromtimestamp(self._started, tz=dt.timezone.utc)
        write_manifest(
            reports.parent,
            ShardManifest(
                number=shard.number,
                count=shard.count,
                collection_sha256=collection[0],
                collected=collection[1],
                tests=self._tests,
                ran=tuple(sorted(ran)),
                repeated=tuple(test for test in self._tests if self._ended[test] > 1),
                junit_prefix=config.getoption("junitprefix", None) or "",
                start=self.start,
                host=platform.node(),
                # A path may have bytes that are not UTF-8, which JSON can't contain.
                root=os.fsencode(config.rootpath).decode(errors="backslashreplace"),
                started=stamp.isoformat(timespec="seconds"),
                seconds=round(time.monotonic() - self._began, 2),
                first_test_s=None
                if self._first_test is None
                else round(self._first_test - self._began, 2),
                exit_status=status,
            ),
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.shard is not None and self._collection is not None:
            terminalreporter.write_line(
                f"shard {self.shard}: {len(self._tests)} of {self._collection[1]} tests"
            )


def family_of(item: pytest.Item) -> str:
    """Return the name of a test's family.

    Tests with the same images and saved states are a family. Images and saved states are session
    fixtures that depend on the lab or on the choice of the image. The tests of one file that use no
    images and no saved states are a family.
    """
    names = sorted(set(shared_fixtures(item)))
    if not names:
        return item.nodeid.partition("::")[0]
    params = parameters_of(item)
    marker = item.get_closest_marker("provisioner")
    words = [*names, str(params.get("image_name", "")), *map(str, marker.args if marker else ())]
    return " ".join(words)


def parameters_of(item: pytest.Item) -> Mapping[str, Any]:
    """Return the values of a test's parameters by their names."""
    return getattr(getattr(item, "callspec", None), "params", {})


def shared_fixtures(item: pytest.Item) -> Iterator[str]:
    """Yield the folders and names of a test's session fixtures that depend on the lab or the image."""
    # pytest has no public function that returns the definitions of a test's fixtures.
    info = getattr(item, "_fixtureinfo", None)
    definitions = {} if info is None else info.name2fixturedefs

    def depends(name: str, seen: frozenset[str]) -> bool:
        if name in _ROOTS:
            return True
        return any(
            depends(below, seen | {name})
            for each in definitions.get(name, ())
            for below in each.argnames
            if below not in seen and below != name
        )

    for name, known in definitions.items():
        closest = known[-1]
        if closest.scope == "session" and name not in _ROOTS and depends(name, frozenset()):
            # A suite may define another fixture with this name.
            yield f"{closest.baseid}::{name}" if closest.baseid else name
