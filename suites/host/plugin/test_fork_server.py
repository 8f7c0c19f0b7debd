"""The server that runs chosen tests in forks of one pytest, tested by its protocol with short limits."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.provisioning.command import spawn
from harness.provisioning.wait import SYSTEM_CLOCK, Deadline, Observation, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_START = "import sys; from harness.plugin.fork_server import main; main(sys.argv[1:])"
_TESTS = """\
import os, signal, subprocess, sys, time
from pathlib import Path

import pytest
from harness.plugin.specs.runs import hits_of
from harness.shell.coverage import Tier

FOLDER = Path(__file__).parent
TEXT = (FOLDER / "collected.sh").read_text()
count = 0

def burn(seconds):
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass

@pytest.mark.parametrize("number", range(3))
def test_some_work(number):
    burn(0.15)
    time.sleep(0.3)

def test_child_works():
    subprocess.run([sys.executable, "-c", "while True: pass"])

def test_waits():
    time.sleep(600)

def test_first_in_its_process():
    global count
    count += 1
    assert count == 1
    (FOLDER / "run.sh").read_text()

@pytest.fixture
def ends_badly():
    yield
    raise OSError("the end fails too")

def test_fails(ends_badly):
    assert not "the first reason"

def test_leaves_a_process():
    left = subprocess.Popen(["setsid", "sleep", "600"])
    (FOLDER / "left").write_text(str(left.pid))

def test_dies():
    os._exit(3)

def test_runs_lines_in_both_tiers(pytestconfig):
    for number, tier in enumerate(Tier):
        hits_of(pytestconfig, tier)["run.sh"] = {(number, line) for line in range(9999)}

def test_stops_the_server():
    time.sleep(0.4)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1.3)
    os.kill(os.getppid(), signal.SIGCONT)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forks")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(_TESTS)
    for name in ("collected.sh", "run.sh"):
        (folder / name).write_text("true\n")
    return folder


@pytest.fixture(scope="module")
def hello_and_ask(folder: Path) -> Iterator[tuple[Mapping[str, Any], Callable[..., Any]]]:
    """Start the server; yield its first message, and a function that requests a run of tests."""
    own, other = socket.socketpair()
    scripts = [str(folder / name) for name in ("collected.sh", "run.sh")]
    what = json.dumps({"scripts": scripts, "machines": False, "tests": [str(folder)]})
    options = ["-x", "-q", "--tb=no", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly"]
    argv = [sys.executable, "-c", _START, str(other.fileno()), "collected", what, *options]
    with own, other, (folder / "log").open("wb") as log:
        server = spawn(
            argv, cwd=folder, stdout=log.fileno(), stderr=log.fileno(), pass_fds=[other.fileno()]
        )
        other.close()
        own.settimeout(100.0)

        def answer() -> Mapping[str, Any]:
            with own.makefile("r") as lines:
                read: Mapping[str, Any] = json.loads(lines.readline())
            return read

        def ask(
            *tests: str, cpu_s: float = 30.0, wall_s: float = 60.0, traces: bool = False
        ) -> Mapping[str, Any]:
            request = {
                "traces": traces,
                "tests": [f"test_it.py::{test}" for test in tests],
                "cpu_limit_s": cpu_s,
                "wall_limit_s": wall_s,
            }
            own.sendall(json.dumps(request).encode() + b"\n")
            return answer()

        try:
            yield answer(), ask
        finally:
            server.kill()
            server.wait()


@pytest.fixture
def ask(hello_and_ask: tuple[Mapping[str, Any], Callable[..., Any]]) -> Callable[..., Any]:
    return hello_and_ask[1]


def test_cpu_time_limit_applies_to_each_test_separately(
    ask: Callable[..., Any],
) -> None:
    answer = ask(*(f"test_some_work[{number}]" for number in range(3)), cpu_s=0.25)
    assert answer["failed"] == []
    assert answer["cpu_s"] >= 0.45
    assert "timed_out" not in answer


@pytest.mark.parametrize(
    ("test", "limits"),
    [("test_child_works", {"cpu_s": 0.2}), ("test_waits", {"wall_s": 0.2})],
)
def test_test_that_exceeds_a_limit_is_ended_and_reported(
    ask: Callable[..., Any], test: str, limits: Mapping[str, float]
) -> None:
    """The limit includes the processor time of the test's child processes."""
    answer = ask("test_first_in_its_process", test, **limits)
    assert (answer["timed_out"], answer["died"]) == (True, False)
    assert answer["after"] == f"test_it.py::{test}"


def test_time_in_which_the_server_was_stopped_does_not_count_towards_the_limit(
    ask: Callable[..., Any],
) -> None:
    answer = ask("test_first_in_its_process", "test_stops_the_server", wall_s=1.0)
    assert answer["failed"] == []
    assert "timed_out" not in answer


def test_fork_that_exits_during_a_test_is_reported_as_died(ask: Callable[..., Any]) -> None:
    answer = ask("test_first_in_its_process", "test_dies")
    assert (answer["timed_out"], answer["died"]) == (False, True)


def test_each_request_runs_in_a_fresh_fork_and_lists_only_the_files_that_it_read(
    hello_and_ask: tuple[Mapping[str, Any], Callable[..., Any]], folder: Path
) -> None:
    hello, ask = hello_and_ask
    assert hello["read"] == [str(folder / "collected.sh")]
    for _ in range(2):
        answer = ask("test_first_in_its_process")
        assert (answer["failed"], answer["read"]) == ([], [str(folder / "run.sh")])


def test_only_the_first_failure_of_a_test_is_reported(ask: Callable[..., Any]) -> None:
    answer = ask("test_fails", "test_waits")
    assert answer["failed"] == ["test_it.py::test_fails"]
    assert "the first reason" in answer["why"]
    assert "the end fails" not in answer["why"]


@pytest.mark.parametrize("traces", [True, False])
def test_executed_script_lines_of_both_tiers_are_returned_if_tracing_is_requested(
    ask: Callable[..., Any], *, traces: bool
) -> None:
    """The list of lines is longer than the buffer of a pipe."""
    answer = ask("test_runs_lines_in_both_tiers", traces=traces)

    assert answer["failed"] == []
    found = {tuple(place) for place in answer["hits"].get("run.sh", ())}
    assert found == (
        {(tier, line) for tier in range(2) for line in range(9999)} if traces else set()
    )


def test_process_that_a_test_leaves_behind_ends_with_the_fork(
    ask: Callable[..., Any], folder: Path
) -> None:
    assert ask("test_leaves_a_process")["failed"] == []
    left = folder / "left"
    stat = Path("/proc", left.read_text(), "stat")

    def gone() -> Observation[bool]:
        state = stat.read_text().rpartition(")")[2].split()[0] if stat.exists() else "gone"
        return Observation(True if state in ("gone", "Z") else None, f"it is {state}")

    wait_for("the end of the process", gone, Deadline.after(30.0, SYSTEM_CLOCK), interval_s=0.05)
