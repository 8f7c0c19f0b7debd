"""The requests that a worker sends to pytest in a copy, and how the worker reads the answers."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import HarnessError, RequirementError
from harness.mutate.project_copy import Project
from harness.mutate.worker import Cost, TestChoice, Worker
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Pytest:
    """Replaces a pytest process; a test prepares the answers before the worker sends requests."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.argv: Sequence[str] = ()
        self.link: socket.socket | None = None
        self.ended: list[str] = []

    def spawn(
        self, argv: Sequence[str], *, stdout: int, pass_fds: Sequence[int], **_: object
    ) -> Pytest:
        self.argv = argv
        self.link = socket.socket(fileno=os.dup(pass_fds[0]))
        self.link.sendall("".join(f"{each}\n" for each in self.answers).encode())
        self.link.shutdown(socket.SHUT_WR)
        os.write(stdout, b"what pytest printed\n")
        return self

    def request(self) -> dict[str, Any]:
        assert self.link is not None
        found: dict[str, Any] = json.loads(self.link.recv(1 << 16))
        return found

    def kill(self) -> None:
        self.ended.append("killed")

    def wait(self) -> None:
        self.ended.append("waited for")


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pytest]:
    answering = Pytest()
    monkeypatch.setattr("harness.mutate.worker.spawn", answering.spawn)
    yield answering
    if answering.link is not None:
        answering.link.close()


@pytest.fixture
def worker(tmp_path: Path, answering: Pytest) -> Iterator[Worker]:
    del answering
    root, own = tmp_path / "project", tmp_path / "own"
    for path in (root / "tests", own):
        path.mkdir(parents=True)
    for name in ("a.sh", "b.sh"):
        (root / name).touch()
    runner = ScriptedRunner()
    runner.expect(
        ["git", "-C", str(root / "tests"), "rev-parse", "--show-toplevel"], stdout=f"{root}\n"
    )
    project = Project(root / "tests", [Path("../a.sh"), Path("../b.sh")], runner)
    tests = TestChoice(paths=("t.py", "u.py"), with_machines=True, options=("-k", "x y"))
    with contextlib.closing(Worker(project, [Path("a.sh"), Path("b.sh")], own, tests)) as worker:
        yield worker


@pytest.mark.parametrize(("collecting", "mode"), [(False, "collected"), (True, "collecting")])
def test_pytest_in_the_copy_gets_the_mode_and_the_scripts_and_the_tests_and_the_options(
    worker: Worker, answering: Pytest, mode: str, *, collecting: bool
) -> None:
    answering.answers = ['{"tests": []}']

    assert worker.begin(collecting=collecting) == ({} if collecting else {"tests": []})

    told_mode, what, *options = answering.argv[4:]
    assert told_mode == mode
    assert json.loads(what) == {
        "scripts": [str(worker.top / "a.sh"), str(worker.top / "b.sh")],
        "machines": True,
        "tests": ["t.py", "u.py"],
    }
    assert options[-2:] == ["-k", "x y"]
    worker.close()
    worker.close()
    assert answering.ended == ["killed", "waited for"]


def test_each_request_to_a_worker_has_time_limits_and_a_separate_answer(
    worker: Worker, answering: Pytest
) -> None:
    answering.answers = [
        '{"failed": ["t::b", "t::a"], "why": "boom", "read": ["a.sh"], "cpu_s": 3, "wall_s": 4}',
        '{"timed_out": true, "hits": {"b.sh": [[1, 2, 3]]}, "wall_s": 5}',
        '{"died": true, "wall_s": 6}',
    ]
    worker.begin(collecting=True)

    first = worker.run(["t::a", "t::b"], Cost(cpu_s=1.0, wall_s=7.0), traces=True)
    assert answering.request() == {
        "tests": ["t::a", "t::b"],
        "traces": True,
        "cpu_limit_s": 6.0,
        "wall_limit_s": 90.0,
    }
    second, third = (worker.run([test], Cost(cpu_s=0.0, wall_s=0.0)) for test in ("u", "v"))

    assert (first.failed, first.why, sorted(first.read)) == ("t::b", "boom", ["a.sh"])
    assert (first.cpu_s, first.wall_s, first.timed_out, first.died) == (3.0, 4.0, False, False)
    assert (second.failed, second.timed_out, second.died, second.wall_s) == (None, True, False, 5)
    assert second.lines == {"b.sh": [[1, 2, 3]]}
    assert (third.timed_out, third.died) == (False, True)
    assert not third.lines
    assert not third.read


@pytest.mark.parametrize(
    ("answers", "error", "told"),
    [
        (['{"error": "no module x"}'], RequirementError, "no module x"),
        ([], HarnessError, "ended before"),
        (["[]"], HarnessError, "ended before"),
        (["{"], HarnessError, "does not answer"),
    ],
)
def test_error_for_an_invalid_answer_of_pytest_has_the_output_of_pytest(
    worker: Worker, answering: Pytest, answers: list[str], error: type[Exception], told: str
) -> None:
    answering.answers = answers

    with pytest.raises(error, match=rf"{told}[\s\S]*what pytest printed"):
        worker.begin(collecting=False)
