"""Runs the examples of this process in shells, one spec file after the other."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import tempfile
from typing import TYPE_CHECKING, Protocol, TypeVar

import pytest

from harness.errors import HarnessError
from harness.plugin.specs.reports import ReportBatch
from harness.shell.clock import clock_environment, write_clock_commands
from harness.shell.coverage import Hits, Tier, any_uses_trace, merge, parse_trace, uses_trace
from harness.shell.process import ShellSetting
from harness.shell.sandbox import Network, SandboxKind, choose_sandbox
from harness.shell.spec.mock_blocks import write_mocks, write_writable_folders
from harness.shell.spec.project import ScratchFolder, environment
from harness.shell.spec.spec_run import SpecRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pluggy import HookImpl

    from harness.shell.sandbox import Sandbox
    from harness.shell.spec.project import Project
    from harness.shell.spec.spec_file import Case, SpecFile
    from harness.shell.spec.verdict import Problem, Verdict

_Result = TypeVar("_Result")
_PROTOCOL_HOOKS = (
    "pytest_runtest_protocol", "pytest_runtest_logstart", "pytest_runtest_setup",
    "pytest_runtest_call", "pytest_runtest_teardown", "pytest_runtest_makereport",
    "pytest_runtest_logreport", "pytest_runtest_logfinish",
)  # fmt: skip
_KNOWN_PLUGINS = {
    "_pytest", "xdist", "harness", "_hypothesis_pytestplugin",
    "pytest_randomly",  # seeds Python's random numbers
    "__channelexec__",  # execnet's name for xdist.remote in a worker
}  # fmt: skip
"""Packages whose hooks do nothing for an example that passes without output."""
_NOTES: pytest.StashKey[set[str]] = pytest.StashKey()
_HITS: pytest.StashKey[dict[Tier, Hits]] = pytest.StashKey()
_RUNS: pytest.StashKey[SpecRuns] = pytest.StashKey()


class CollectedFile(Protocol):
    """A spec file that pytest has collected: its path, its translation into shell code, and its project."""

    path: Path
    spec: SpecFile
    project: Project


class SpecRuns:
    """Runs the examples of this process in shells; each spec file has a shell of its own.

    `following` is the next example of the same file, or None at the file's end.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.scratch = ScratchFolder()
        self.following: Case | None = None
        self.hits: Hits = {}
        self.batch = ReportBatch() if hasattr(config, "workerinput") else None
        self.has_entered = False
        self._file: CollectedFile | None = None
        self._run: SpecRun | None = None
        self._stops_at_failure = bool(config.getoption("maxfail"))

    @functools.cached_property
    def is_fast(self) -> bool:
        """Return whether examples may run without the phases that pytest runs for each test."""
        config = self.config
        return not (
            config.getoption("setupshow", default=False)
            or config.getoption("usepdb", default=False)
            or _others_follow_the_protocol(config)
        )

    @functools.cached_property
    def sandbox(self) -> Sandbox:
        return chosen_sandbox(self.config)

    def enter(self, file: CollectedFile) -> None:
        """Start the first shell of this process, to check whether the host allows the sandbox.

        Raises RequirementError if the host does not allow the sandbox.
        """
        self.has_entered = True
        self._explained(file, lambda: self._run_of(file).enter())

    def run(self, file: CollectedFile, case: Case) -> Verdict:
        """Run one example; let the shell start the next example before the report is written.

        Raises HarnessError if the shell can't start on this host.
        """
        return self._explained(file, lambda: self._run_example(file, case))

    def _explained(self, file: CollectedFile, act: Callable[[], _Result]) -> _Result:
        try:
            return act()
        except OSError as error:
            with contextlib.suppress(OSError):
                self.leave_file()
            self._file = self._run = None
            raise HarnessError(self._explain(file, error)) from error

    def _explain(self, file: CollectedFile, error: OSError) -> str:
        if not self.scratch.path.is_dir():
            return (
                f"The work folder of this run, '{self.scratch.path}', was deleted while the tests "
                "ran. Run them again."
            )
        what = f"The shell of '{file.spec.path}' can't run: {error.strerror or error}"
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            return f"{what}; raise the limit on open files ('ulimit -n') to 512 or more."
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return f"{what}; free space in '{tempfile.gettempdir()}', or set TMPDIR."
        return f"{what}{f' ({error.filename})' if error.filename else ''}."

    def _run_of(self, file: CollectedFile) -> SpecRun:
        if self._file is not file or self._run is None:
            self.leave_file()
            self._run = self._enter_file(file)
        return self._run

    def _run_example(self, file: CollectedFile, case: Case) -> Verdict:
        run = self._run_of(file)
        if self.following is None:
            return run.run(case)
        if not self._stops_at_failure:
            return run.run(case, self.following)
        verdict = run.run(case)
        if not verdict.outcome.fails:
            run.expect_next(self.following)
        return verdict

    def take_late_problems(self) -> list[Problem]:
        """Return the problems that hooks of whole groups have reported since the last call."""
        if self._run is None:
            return []
        if self.following is not None:
            problems, self._run.late_problems = self._run.late_problems, []
            return problems
        file, run = self._file, self._run
        problems = self._explained(file, run.finish) if file is not None else []
        self.leave_file()
        return problems

    def has_late_problems(self) -> bool:
        return self._run is not None and bool(self._run.late_problems)

    def _enter_file(self, file: CollectedFile) -> SpecRun:
        self._file = file
        work_dir = self.scratch.new_work_dir()
        mocks = work_dir / ".mocks"
        write_mocks(file.spec, mocks, file.project.options.shell)
        cwd = file.project.exec_dir(file.path)
        env = dict(environment(file.project, file.path, self.scratch.path, work_dir, mocks))
        layer = None
        if self.sandbox.kind is SandboxKind.THROWAWAY:
            env["HX_THROWAWAY"] = "1"
            layer = write_writable_folders(file.spec, work_dir / ".layer", cwd)
        if self.config.getoption("--shell-time") == "virtual":
            commands = write_clock_commands(work_dir / ".clock")
            env.update(clock_environment(commands, env["PATH"]))
            if "HX_PATH" in env:
                env["HX_PATH"] = f"{commands}:{env['HX_PATH']}"
        sources = tuple(self.config.getoption("--shell-cov"))
        setting = ShellSetting(
            shell=file.project.options.shell,
            sandbox=self.sandbox,
            scratch=work_dir,
            cwd=cwd,
            env=env,
            layer=layer,
            traces=bool(sources),
            traces_by_trap=bool(sources)
            and (any_uses_trace(sources) or uses_trace("\n".join(file.spec.lines))),
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


def chosen_sandbox(config: pytest.Config) -> Sandbox:
    """Return the sandbox that the options of this run select for shell code.

    Raises RequirementError if this host does not allow the sandbox.
    """
    network = Network(config.getoption("--shell-network", "loopback"))
    return choose_sandbox(config.getoption("--shell-sandbox", "auto"), network=network)


def _others_follow_the_protocol(config: pytest.Config) -> bool:
    """Return whether a plugin implements hooks that are not called for an example without phases.

    Wrappers of `pytest_runtest_protocol` are ignored, since pytest calls them for every example.
    """
    implementations = [
        implementation
        for name in _PROTOCOL_HOOKS
        for implementation in getattr(config.hook, name).get_hookimpls()
        if not (name == "pytest_runtest_protocol" and _is_wrapper(implementation))
    ]
    modules = {implementation.function.__module__ for implementation in implementations}
    others = {module.partition(".")[0] for module in modules} - _KNOWN_PLUGINS
    return any(name not in _SETTINGS or _SETTINGS[name](config) for name in others)


def _has_time_limit(config: pytest.Config) -> bool:
    return bool(
        config.getoption("timeout") or os.environ.get("PYTEST_TIMEOUT") or config.getini("timeout")
    )


def _has_reruns(config: pytest.Config) -> bool:
    given = (config.getoption("force_reruns", None), config.getoption("reruns", None))
    return any(count is not None for count in given) or bool(config.getini("reruns"))


_SETTINGS = {"pytest_timeout": _has_time_limit, "pytest_rerunfailures": _has_reruns}
"""Plugins that act only on tests with a marker or if an option is set, each with a function that
returns whether the option is set."""


def _is_wrapper(implementation: HookImpl) -> bool:
    return implementation.wrapper or implementation.hookwrapper


def hits_of(config: pytest.Config, tier: Tier) -> Hits:
    """Return the lines that ran in this process and in workers that have ended.

    Callers add to the returned mapping.
    """
    return config.stash.setdefault(_HITS, {}).setdefault(tier, {})


def notes_of(config: pytest.Config) -> set[str]:
    """Return the notes that are printed at the end of this run; callers add to the set."""
    return config.stash.setdefault(_NOTES, set())


def runs_of(config: pytest.Config) -> SpecRuns:
    """Return the SpecRuns of this process; the first call creates the object."""
    runs = config.stash.get(_RUNS, None)
    if runs is None:
        runs = config.stash[_RUNS] = SpecRuns(config)
    return runs


def existing_runs_of(config: pytest.Config) -> SpecRuns | None:
    """Return the SpecRuns of this process, or None if no example has run."""
    return config.stash.get(_RUNS, None)
