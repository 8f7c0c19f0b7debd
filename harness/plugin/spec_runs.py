"""Which shell runs the examples of this process, one spec file after the other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from harness.plugin.spec_reports import ReportBatch
from harness.shell.clock import clock_environment, write_clock_commands
from harness.shell.coverage import Hits, merge, parse_trace
from harness.shell.mockdir import write_mocks
from harness.shell.project import ScratchFolder, environment
from harness.shell.sandbox import choose_sandbox
from harness.shell.specrun import ShellSetting, SpecRun

if TYPE_CHECKING:
    from harness.plugin.spec_nodes import SpecFileCollector, SpecItem
    from harness.shell.sandbox import Sandbox
    from harness.shell.specfile import Case
    from harness.shell.verdict import Problem, Verdict

_RUNS: pytest.StashKey[SpecRuns] = pytest.StashKey()


class SpecRuns:
    """The shell of the spec file that runs now; one at a time.

    `following` is the example that this file runs next, None at its end.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.scratch = ScratchFolder()
        self.following: Case | None = None
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
        if self.following is None:
            return self._run.run(item.case)
        if not self._stops_at_failure:
            return self._run.run(item.case, self.following)
        verdict = self._run.run(item.case)
        if not verdict.outcome.fails:
            self._run.expect_next(self.following)
        return verdict

    def take_late_problems(self) -> list[Problem]:
        """Return what hooks of whole groups complained of since the last call."""
        if self._run is None:
            return []
        if self.following is not None:
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


def runs_of(config: pytest.Config) -> SpecRuns:
    """Return the runs of this process, made at the first call."""
    runs = config.stash.get(_RUNS, None)
    if runs is None:
        runs = config.stash[_RUNS] = SpecRuns(config)
    return runs


def existing_runs_of(config: pytest.Config) -> SpecRuns | None:
    """Return the runs of this process, or None where no example has run."""
    return config.stash.get(_RUNS, None)
