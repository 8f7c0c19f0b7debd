"""Runs chosen tests again and again, each time in a fork of one pytest that has collected them.

`harness mutate` starts this server in a copy of a project, and exchanges lines of JSON with the
server through a socket. Python and the tests' modules are loaded only once for all defects, and
changes that a test makes to its process are lost when the fork ends.

In the mode `collected`, the server forks after collection, so tests that read the script under test
during collection do not see the defect. In the mode `collecting`, each fork collects the tests
itself, so tests that read the script under test during collection see the defect.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from harness.plugin.specs.runs import hits_of
from harness.shell.coverage import Tier
from harness.visible_text import shortened, visible_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: The audit events of calls by which a test can read a script without a shell of the harness.
_READING = frozenset({"open", "subprocess.Popen", "os.exec", "os.posix_spawn"})
_PDEATHSIG, _SUBREAPER = 1, 36
_LOOK_S = 0.25
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_CHUNK = 1 << 16
#: Every test on a machine requests one of these fixtures, directly or through other fixtures.
_NEEDS_MACHINE = frozenset({"lab", "existing_node"})
_ERROR_CHARACTERS = 4000
_WHY_BYTES = 1000
#: The time limit of the work before the first test and after the last test.
_AROUND_TESTS_S = 60.0


class _Reads:
    """Records which scripts this process itself opens, or passes to a program."""

    def __init__(self, scripts: Sequence[str]) -> None:
        self.scripts = set(scripts)
        self.found: set[str] = set()
        self._names = {Path(script).name: script for script in scripts}
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _READING or len(self.found) == len(self._names):
            return
        words = arguments[:1] if event == "open" else arguments[:2]
        for word in words:
            for each in word if isinstance(word, (list, tuple)) else [word]:
                if not isinstance(each, (str, bytes, os.PathLike)):
                    continue
                text = os.fsdecode(each)
                self.found |= {script for name, script in self._names.items() if name in text}


class ForkServer:
    """A pytest plug-in that, after collection, runs the tests of each request in a forked process."""

    def __init__(
        self, link: socket.socket, scripts: Sequence[str], *, with_machines: bool
    ) -> None:
        self._link = link
        self._requests = link.makefile("r")
        self._reads = _Reads(scripts)
        self._with_machines = with_machines
        self._problems: list[str] = []
        self._config: pytest.Config | None = None
        self._report: TextIO | None = None
        self.request: Mapping[str, Any] | None = None
        self.failed: list[str] = []
        self._why = ""

    @property
    def is_fork(self) -> bool:
        """Return whether this process is a fork, which runs the tests of a request."""
        return self.request is not None

    # --- hooks of pytest -----------------------------------------------------------------

    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config
        if self.request is not None:
            self._prepare(config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._problems.append(f"{report.nodeid}: {report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Serve requests; in a fork, let pytest continue with the tests of the request."""
        if self.request is not None:
            if self._problems and self._report is not None:
                self.failed.append(self._problems[0].partition(":")[0])
                return True
            self._choose(session)
            return None
        if session.testsfailed:
            self.send({"error": "\n".join(self._problems)[:_ERROR_CHARACTERS]})
            return True
        items = [
            item
            for item in session.items
            if self._with_machines
            or not _NEEDS_MACHINE.intersection(getattr(item, "fixturenames", ()))
        ]
        self.send(
            {
                "tests": [[item.nodeid, str(item.path)] for item in items],
                "left_out": len(session.items) - len(items),
                "read": sorted(self._reads.found),
            }
        )
        self._reads.found.clear()
        self.serve(lambda: None)
        if not self.is_fork:
            return True
        self._prepare(session.config)
        self._choose(session)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._report is None:
            return
        if report.failed:
            self.failed.append(report.nodeid)
            # Even without tracebacks, pytest keeps the failure's message and the line that failed.
            crash = getattr(report.longrepr, "reprcrash", None)
            self._why = self._why or str(crash.message if crash else report.longreprtext)
        self._tell({"after": report.nodeid})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """End a fork before pytest prints its summary, since plug-ins load many modules for the summary."""
        if self.is_fork:
            self.finish()

    # --- a request -----------------------------------------------------------------------

    def serve(self, run: Callable[[], object]) -> None:
        """Answer requests until the socket closes; in each fork, call `run` and return."""
        for line in self._requests:
            request = json.loads(line)
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                self._become(request, writing)
                run()
                return
            os.close(writing)
            self.send(self._watch(child, reading, request))

    def _become(self, request: Mapping[str, Any], writing: int) -> None:
        parent = os.getppid()
        os.setsid()
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        self._link.close()
        self._report = os.fdopen(writing, "w")
        self.request = request
        os.ftruncate(1, 0)

    def _prepare(self, config: pytest.Config) -> None:
        """Switch line coverage on or off; with coverage, act like an xdist worker, which writes no files."""
        request = self.request or {}
        config.option.maxfail = 1
        if request.get("traces"):
            config.workeroutput = {}  # type: ignore[attr-defined]
        else:
            config.option.shell_cov = []

    def _choose(self, session: pytest.Session) -> None:
        request = self.request or {}
        known = {item.nodeid: item for item in session.items}
        session.items[:] = [known[test] for test in request["tests"] if test in known]
        session.testscollected = len(session.items)

    def finish(self) -> None:
        """If this process is a fork, report the outcome and end the process."""
        hits: dict[str, list[tuple[int, ...]]] = {}
        request = self.request or {}
        if self._config is not None and request.get("traces"):
            for tier in Tier:
                for path, places in hits_of(self._config, tier).items():
                    hits.setdefault(path, []).extend(tuple(place) for place in places)
        usage = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        self._tell(
            {
                "failed": self.failed[:1],
                "why": visible_line(shortened(self._why, _WHY_BYTES)),
                "hits": hits,
                "read": sorted(self._reads.found),
                "cpu_s": sum(each.ru_utime + each.ru_stime for each in usage),
            }
        )
        sys.stdout.flush()
        os._exit(0)

    def _tell(self, what: Mapping[str, object]) -> None:
        if self._report is not None:
            self._report.write(json.dumps(what) + "\n")
            self._report.flush()

    def send(self, what: Mapping[str, object]) -> None:
        self._link.sendall(json.dumps(what).encode() + b"\n")

    # --- the watch over a fork ------------------------------------------------------------

    def _watch(self, child: int, reading: int, request: Mapping[str, Any]) -> dict[str, object]:
        """Wait for the fork, kill the fork if a test takes too long, and return the fork's message."""
        started = time.monotonic()
        told = _Lines(reading)
        reached: str | None = None
        answer: dict[str, object] | None = None
        quiet_since = looked = started
        used_before: float | None = None
        timed_out = False
        cpu_limit, wall_limit = float(request["cpu_limit_s"]), float(request["wall_limit_s"])
        while answer is None:
            ready = select.select([reading, self._link.fileno()], [], [], _LOOK_S)[0]
            if self._link.fileno() in ready and not self._link.recv(1, socket.MSG_PEEK):
                _end(child)
                os._exit(0)
            now = time.monotonic()
            if now - looked > 2 * _LOOK_S:  # this process and the fork were both stopped meanwhile
                quiet_since += now - looked - _LOOK_S
            looked = now
            if reading in ready:
                lines = told.read()
                if lines is None:
                    break
                for line in lines:
                    if "after" in line:
                        reached = str(line["after"])
                        quiet_since, used_before = now, None
                    else:
                        answer = dict(line)
            elif now - quiet_since > wall_limit + _AROUND_TESTS_S * (reached is None):
                timed_out = True
                break
            elif now - quiet_since > cpu_limit / 2:
                used = _cpu_of(child)
                used_before = used if used_before is None else used_before
                if used - used_before > cpu_limit:
                    timed_out = True
                    break
        os.close(reading)
        _end(child)
        if answer is None:
            answer = {
                "failed": [],
                "timed_out": timed_out,
                "died": not timed_out,
                "after": reached,
            }
        return {**answer, "wall_s": time.monotonic() - started}


class _Lines:
    """Reads lines of JSON from a pipe."""

    def __init__(self, reading: int) -> None:
        self._reading = reading
        self._rest = b""

    def read(self) -> list[dict[str, Any]] | None:
        """Return the complete lines that have arrived, or None at the end of the pipe."""
        chunk = os.read(self._reading, _CHUNK)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines]


def _processes() -> Iterator[tuple[int, int, float]]:
    """Yield the id, the parent's id and the used processor time of each process of this host."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (
                    Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
                )
                yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) / _CLOCK_TICKS


def _family(ancestor: int) -> dict[int, float]:
    """Return the processor time of a process and of each of its descendants, by process id."""
    parents: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for pid, parent, seconds in _processes():
        parents.setdefault(parent, []).append(pid)
        used[pid] = seconds
    found: dict[int, float] = {}
    waiting = [ancestor]
    while waiting:
        pid = waiting.pop()
        found[pid] = used.get(pid, 0.0)
        waiting.extend(parents.get(pid, ()))
    return found


def _cpu_of(child: int) -> float:
    return sum(_family(child).values())


def _end(child: int) -> None:
    """Kill the fork and its orphaned descendants, whose parent is now this process (a subreaper)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for each in _family(os.getpid()):
                if each != os.getpid():
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(each, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)


def main(argv: Sequence[str]) -> None:
    """Serve requests until the other end of the socket closes.

    `argv` contains the socket's descriptor, the mode, the scripts and tests as JSON, and options of
    pytest.
    """
    descriptor, mode, what = int(argv[0]), argv[1], json.loads(argv[2])
    link = socket.socket(fileno=descriptor)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    server = ForkServer(link, what["scripts"], with_machines=bool(what["machines"]))
    options = [*argv[3:], *(f"--shell-cov={script}" for script in what["scripts"])]
    tests: list[str] = list(what["tests"])
    if mode == "collecting":
        server.serve(lambda: _run(server, [*options, *tests]))
    else:
        code = _run(server, [*options, *tests])
        if not server.is_fork and code not in {0, 1, 5}:
            server.send({"error": f"pytest ended with exit code {code}"})
    if server.is_fork:
        server.finish()


def _run(server: ForkServer, arguments: list[str]) -> int:
    return int(pytest.main(arguments, plugins=[server]))
