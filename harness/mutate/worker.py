"""Runs tests with one mutant at a time, in a pytest process that works in a copy of the project."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError, RequirementError
from harness.foreign_json import ForeignJsonError, parse_json
from harness.provisioning.command import LocalRunner, spawn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from harness.mutate.project_copy import Project

#: Tests import from the directory of the copy first, as with `python -m pytest`. This program
#: imports the harness before that directory is added to `sys.path`, since a project may have a
#: package named `harness`.
_START = """\
import os, sys
if sys.path[0] == "":
    del sys.path[0]
from harness.plugin.fork_server import main
sys.path.insert(0, os.getcwd())
main(sys.argv[1:])
"""
_LOG_CHARACTERS = 3000
_STARTING_S = 600.0
_READING_S = 60.0
#: A test is assumed to be in an endless loop if it takes this many times the CPU time of the
#: slowest test.
_CPU_FACTOR, _CPU_MORE_S = 5.0, 1.0
_WALL_FACTOR, _WALL_MORE_S = 10.0, 20.0


@dataclass(frozen=True, kw_only=True)
class TestChoice:
    """The choice of a run's tests: the paths on the command line, with or without tests on machines."""

    __test__ = False  # otherwise, pytest would collect this class as a test

    paths: tuple[str, ...]
    with_machines: bool = False
    options: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The longest CPU time and the longest duration among several tests."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of one request to run tests; `why` is the reason why the test `failed` has failed."""

    failed: str | None
    why: str
    timed_out: bool
    died: bool
    lines: Mapping[str, list[list[int]]]
    read: frozenset[str]
    cpu_s: float
    wall_s: float


class Worker:
    """Runs tests in a copy of the project, with or without a mutant in a script of the copy."""

    def __init__(
        self, project: Project, files: Sequence[Path], folder: Path, tests: TestChoice
    ) -> None:
        self._project = project
        self._folder = folder
        self._tests = tests
        self.top = folder / "copy"
        self.start = project.copy(files, self.top)
        self._link: socket.socket | None = None
        self._open = contextlib.ExitStack()
        self._lines: Iterator[str] = iter(())

    def begin(self, *, collecting: bool) -> dict[str, Any]:
        """Start pytest, and return the collected tests.

        With `collecting`, return an empty dict, since each call of `run` collects the tests again.
        """
        self.close()
        self._open = contextlib.ExitStack()
        self._log = self._folder / "log"
        own, other = socket.socketpair()
        self._open.enter_context(own)
        what = {
            "scripts": [str(self.top / script) for script in self._project.scripts],
            "machines": self._tests.with_machines,
            "tests": self._tests.paths,
        }
        options = [
            *("-x", "-q", "--tb=no", "--no-header", "-n", "0", "-p", "no:randomly"),
            # The server's package is a plug-in of pytest that is imported before pytest starts.
            *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
            *(f"--basetemp={self._folder / 'tmp'}", "-o", f"cache_dir={self._folder / 'cache'}"),
            *self._tests.options,
        ]
        mode = "collecting" if collecting else "collected"
        argv = [
            sys.executable,
            "-c",
            _START,
            str(other.fileno()),
            mode,
            json.dumps(what),
            *options,
        ]
        with other, self._log.open("ab") as log:
            process = spawn(
                argv,
                stdout=log.fileno(),
                stderr=log.fileno(),
                pass_fds=[other.fileno()],
                cwd=self.start,
            )
        self._open.callback(process.wait)
        # When pytest ends, its forks end, and so do the shells that the forks started.
        self._open.callback(process.kill)
        self._link = own
        self._lines = iter(own.makefile("r"))
        if collecting:
            return {}
        own.settimeout(_STARTING_S)
        told = self._next()
        own.settimeout(None)
        if "error" in told:
            raise RequirementError(
                "The tests can't be collected; repair them, or name other tests with --tests.\n"
                f"{told['error']}\n{self._log_end()}"
            )
        return told

    def run(self, tests: Sequence[str], cost: Cost, *, traces: bool = False) -> Answer:
        """Run tests until one fails."""
        request = {
            "tests": list(tests),
            "traces": traces,
            "cpu_limit_s": _CPU_FACTOR * cost.cpu_s + _CPU_MORE_S,
            "wall_limit_s": _WALL_FACTOR * cost.wall_s + _WALL_MORE_S,
        }
        if self._link is None:
            raise HarnessError("The worker has not been started.")
        self._link.sendall(json.dumps(request).encode() + b"\n")
        told = self._next()
        failed: list[str] = told.get("failed") or []
        return Answer(
            failed=failed[0] if failed else None,
            why=str(told.get("why") or ""),
            timed_out=bool(told.get("timed_out")),
            died=bool(told.get("died")),
            lines=told.get("hits", {}),
            read=frozenset(told.get("read", ())),
            cpu_s=float(told.get("cpu_s", 0.0)),
            wall_s=float(told["wall_s"]),
        )

    def _next(self) -> dict[str, Any]:
        try:
            line = next(self._lines, "")
            told = parse_json(line) if line else None
        except (OSError, ForeignJsonError) as error:
            raise HarnessError(f"pytest does not answer ({error}).\n{self._log_end()}") from error
        if not isinstance(told, dict):
            raise HarnessError(f"pytest ended before it answered.\n{self._log_end()}")
        return told

    def _log_end(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return f"Its output ends with:\n{text[-_LOG_CHARACTERS:].strip() or '-'}"

    @contextlib.contextmanager
    def planted(self, script: Path, text: bytes) -> Iterator[None]:
        """Replace the text of a script in the copy for the duration of the context."""
        path = self.top / script
        before = path.read_bytes()
        mode = path.stat().st_mode
        self._replace(path, text, mode)
        try:
            yield
        finally:
            self._replace(path, before, mode)

    def can_read(self, script: Path) -> bool:
        """Return whether bash can parse the script; mutants with a syntax error are not tried."""
        # With -n, bash does not run the script's own `shopt -s extglob`.
        argv = ["bash", "-O", "extglob", "-n", str(self.top / script)]
        return LocalRunner().run(argv, timeout_s=_READING_S).ok

    def _replace(self, path: Path, text: bytes, mode: int) -> None:
        beside = path.with_name(f".{path.name}.new")
        beside.write_bytes(text)
        beside.chmod(mode & 0o7777)
        beside.replace(path)

    def close(self) -> None:
        """End pytest, and keep the copy of the project."""
        link, self._link = self._link, None
        if link is not None:
            self._open.close()
