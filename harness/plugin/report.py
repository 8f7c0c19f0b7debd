"""Keeps the evidence of tests, and counts unmet expectations and errors of the harness separately."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pytest

from harness.errors import EvidencedError, errors_in
from harness.plugin.allure_results import docstring_of, words_of
from harness.plugin.attachments import attach
from harness.plugin.failure_summary import (
    hide_own_frames,
    note_reason,
    write_causes,
    write_missing,
)
from harness.plugin.node_ids import folder_name
from harness.plugin.tested_machines import note_machines
from harness.plugin.verdicts import is_verdict, mark_broken
from harness.settings import EvidenceMode, MachineKeep, MachineShell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from pathlib import Path

    from harness.lab.machine import LabMachine
    from harness.settings import Settings

#: The name under which the plugin registers its Reporter.
REPORTER = "harness-reporter"

#: Exceptions that end a test without a failure.
_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception)
_BROKEN = "harness_could_not_tell"
_KEPT = "machine_kept"
_MISWRITTEN = "miswritten_test"
#: The phases of a test; the report of a crashed worker has another phase.
_PHASES = ("setup", "call", "teardown")


@runtime_checkable
class MachineSource(Protocol):
    """A source of evidence whose machine ends when the test ends."""

    @property
    def machine(self) -> LabMachine: ...


class EvidenceSource(Protocol):
    """An object that can write evidence while its test still runs."""

    @property
    def name(self) -> str: ...

    def gather(self, folder: Path, error: BaseException | None) -> Iterator[tuple[Path, Path]]:
        """Write all available evidence to `folder`, replacing the evidence of an earlier run.

        Yield the old path and the new path of each folder as soon as the folder is written. `error`
        is the error that ended the test, or None if the test passed.
        """
        ...


@dataclass
class _KeptEvidence:
    """The kept evidence of one source: its folder, and an error if the evidence is incomplete."""

    folder: Path
    moved: dict[Path, Path] = field(default_factory=dict)
    error: str | None = None
    saved: str | None = None
    kept: str | None = None

    @property
    def sentence(self) -> str:
        if self.error is None:
            saved = "" if self.saved is None else f"; {self.saved}"
            return f"kept in '{self.folder}'{saved}"
        return f"not kept completely in '{self.folder}': {self.error}"


class Reporter:
    """Keeps the evidence of tests while the sources of this evidence are still alive."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._started_s = time.time()
        self._sources: list[EvidenceSource] = []

    def add(self, source: EvidenceSource) -> None:
        self._sources.append(source)

    def discard(self, source: EvidenceSource) -> None:
        self._sources.remove(source)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        error = None if call.excinfo is None else call.excinfo.value
        has_failed = error is not None and not isinstance(error, _NO_FAILURES)
        if call.when == "setup":
            _note_title(item)
        if call.when != "teardown":
            note_machines(item, self._machines(), self.settings)
        kept = self._keep(item, error) if self._is_wanted(call) else []
        self._open_shells(item, call, has_failed=has_failed)
        self._save_machines(item, call, kept, has_failed=has_failed)
        if has_failed and kept:
            from harness.plugin.failure_bundle import finish_bundle  # noqa: PLC0415 - only for failures

            finish_bundle(
                item,
                call,
                self.settings,
                [one.folder for one in kept],
                run_started_s=self._started_s,
            )
        if error is not None:
            # The message names a folder that is removed after the test. Name the new folder instead.
            _point(error, kept)
            hide_own_frames()
        made = yield
        if made.failed and call.when == "call" and not kept:
            # The test is a strict xfail that passed.
            kept = self._keep(item, None)
        if error is not None:
            note_reason(made, error, [one.folder for one in kept])
        if made.failed and isinstance(error, pytest.FixtureLookupError):
            made.user_properties.append((_MISWRITTEN, "true"))
        elif made.failed and error is not None and not is_verdict(error):
            mark_broken(made)
            # JUnit's file gets the properties of the teardown's report, which copies the item's
            # properties.
            item.user_properties.append((_BROKEN, "true"))
            made.user_properties.append((_BROKEN, "true"))
        for one in kept:
            item.user_properties.append(("evidence", str(one.folder)))
            made.user_properties.append(("evidence", str(one.folder)))
            made.sections.append(("evidence", one.sentence))
            if one.kept is not None:
                made.user_properties.append((_KEPT, one.kept))
        return made

    def _machines(self) -> list[LabMachine]:
        return [each.machine for each in self._sources if isinstance(each, MachineSource)]

    def _open_shells(
        self, item: pytest.Item, call: pytest.CallInfo[None], *, has_failed: bool
    ) -> None:
        moment = self.settings.machine_shell
        is_moment = call.when == "call" and moment is MachineShell.AFTER
        if not is_moment and not (has_failed and moment is MachineShell.FAILED):
            return
        from harness.plugin.live_machines import open_shell  # noqa: PLC0415 - few runs need it

        for machine in self._machines():
            open_shell(
                item.config, machine, f"{item.nodeid} {'failed' if has_failed else 'passed'}"
            )

    def _save_machines(
        self,
        item: pytest.Item,
        call: pytest.CallInfo[None],
        kept: list[_KeptEvidence],
        *,
        has_failed: bool,
    ) -> None:
        """Save the machines whose evidence was kept; catch exceptions, which would end the run."""
        if call.when == "teardown" or not self._machines() or not kept:
            return
        from harness.plugin.live_machines import is_to_be_saved, save_machine  # noqa: PLC0415

        if not is_to_be_saved(self.settings, has_failed=has_failed):
            return
        for source, one in zip(self._sources, kept, strict=True):
            if not isinstance(source, MachineSource):
                continue
            try:
                saved = save_machine(
                    source.machine,
                    one.folder,
                    self.settings,
                    test=item.nodeid,
                    has_failed=has_failed,
                )
            except Exception as raised:
                one.saved = f"the machine could not be saved: {raised!r}"
                continue
            one.saved, one.kept = saved.sentence, saved.kept

    def pytest_enter_pdb(self, config: pytest.Config) -> None:
        """Print how to enter the machines of a test that stopped in the debugger."""
        if not self._machines():
            return
        from harness.plugin.live_machines import ways_in  # noqa: PLC0415

        reporter = config.pluginmanager.getplugin("terminalreporter")
        for line in ways_in(self._machines()):
            reporter.write_line(f"enter the machine, in another terminal: {line}")

    def _is_wanted(self, call: pytest.CallInfo[None]) -> bool:
        if call.when == "teardown":
            return False
        if call.excinfo is not None and not call.excinfo.errisinstance(_NO_FAILURES):
            return True
        is_always = (
            self.settings.evidence is EvidenceMode.ALWAYS
            or self.settings.machine_keep is MachineKeep.ALL
        )
        return is_always and call.when == "call"

    def _keep(self, item: pytest.Item, error: BaseException | None) -> list[_KeptEvidence]:
        # pytest-rerunfailures counts the runs of a test in this attribute.
        repeat = getattr(item, "execution_count", 1)
        parent = self.settings.evidence_folder / folder_name(item.nodeid, repeat=repeat)
        kept: list[_KeptEvidence] = []
        for name, source in zip(_names(self._sources), self._sources, strict=True):
            one = _KeptEvidence(parent / name)
            kept.append(one)
            try:
                for origin, place in source.gather(one.folder, error):
                    one.moved[origin] = place
                    if item.config.getoption("allure_report_dir", None):
                        attach(place, place.relative_to(parent).as_posix())
            except Exception as raised:
                # An exception from a hook would end the whole run.
                one.error = repr(raised)
        return kept

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> Generator[None, None, None]:
        """Print why tests failed, below pytest's short summary, which has truncated lines."""
        try:
            return (yield)
        finally:
            self._summarize(terminalreporter)

    def _summarize(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the counts of unmet expectations and of harness errors, and list kept machines."""
        for reports in terminalreporter.stats.values():
            for report in reports:
                for name, value in getattr(report, "user_properties", ()):
                    if name == _KEPT:
                        terminalreporter.write_line(f"kept: {value}")
        reports = [
            report
            for outcome in ("failed", "error")
            for report in terminalreporter.stats.get(outcome, [])
            if isinstance(report, pytest.TestReport)
        ]
        if reports:
            broken = sum(
                (_BROKEN, "true") in report.user_properties or report.when not in _PHASES
                for report in reports
            )
            miswritten = sum((_MISWRITTEN, "true") in report.user_properties for report in reports)
            write_causes(terminalreporter, reports)
            terminalreporter.write_line(
                f"expectations not met: {len(reports) - broken - miswritten}; "
                f"the harness could not tell: {broken}"
                + (f"; tests that ask for an unknown fixture: {miswritten}" if miswritten else "")
            )
        write_missing(terminalreporter)


def _reporter_of(config: pytest.Config) -> Reporter:
    reporter = config.pluginmanager.getplugin(REPORTER)
    assert isinstance(reporter, Reporter)  # noqa: S101 - the plugin registers it
    return reporter


@contextlib.contextmanager
def kept_on_failure(config: pytest.Config, source: EvidenceSource) -> Iterator[None]:
    """Keep evidence of `source` for each test that fails before the context ends."""
    reporter = _reporter_of(config)
    reporter.add(source)
    try:
        yield
    finally:
        reporter.discard(source)


def shell_before(config: pytest.Config, machine: LabMachine) -> None:
    """If `--machine-shell` requests it, open a shell in a machine before or instead of the test."""
    moment = _reporter_of(config).settings.machine_shell
    if moment in (MachineShell.BEFORE, MachineShell.INSTEAD):
        from harness.plugin.live_machines import open_shell, run_command  # noqa: PLC0415 - few need it

        command = config.getoption("--machine-shell-command")
        if command is not None and moment is MachineShell.INSTEAD:
            code = run_command(config, machine, command)
            pytest.exit(
                f"The command in machine '{machine.name}' ended with exit code {code}.",
                returncode=code,
            )
        open_shell(
            config, machine, f"{moment.value} {'of ' * (moment is MachineShell.INSTEAD)}the test"
        )
        if moment is MachineShell.INSTEAD:
            pytest.skip("a shell was opened instead of the test")


def _names(sources: Iterable[EvidenceSource]) -> list[str]:
    """Return a folder name for each source; append numbers to names that are equal."""
    names: list[str] = []
    for source in sources:
        possible = (source.name if n == 1 else f"{source.name}-{n}" for n in itertools.count(1))
        names.append(next(name for name in possible if name not in names))
    return names


def _note_title(item: pytest.Item) -> None:
    """Add a test's title to its JUnit properties, unless an earlier run of the test has added the title."""
    title = words_of(docstring_of(item), None).title
    if title is not None and ("title", title) not in item.user_properties:
        item.user_properties.append(("title", title))


def _point(error: BaseException, kept: Iterable[_KeptEvidence]) -> None:
    """Replace the evidence folders that an error and its causes name by the kept folders."""
    moved = {origin: place for one in kept for origin, place in one.moved.items()}
    for each in errors_in(error, EvidencedError):
        if each.evidence is not None:
            each.evidence = moved.get(each.evidence, each.evidence)
