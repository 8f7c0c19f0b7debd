"""Which tests run for a defect, the defect's outcome, and which results the next run reuses."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import BadInputError, RequirementError
from harness.mutate.project_copy import Project
from harness.mutate.run import Report, Request, run
from harness.mutate.worker import Answer, Cost, TestChoice
from harness.shell.mocks.scripted_runner import ScriptedRunner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_SCRIPT, _OTHER = "one.sh", "two.sh"
_TEXT = "alpha\nbravo\ncharlie\ndelta \\\n  echo\n"
_PASSED = Answer(
    failed=None,
    why="",
    timed_out=False,
    died=False,
    lines={},
    read=frozenset(),
    cpu_s=0.0,
    wall_s=0.0,
)


@dataclass(kw_only=True)
class Behaviour:
    """A test: the lines that it runs, its times, and how it ends if the script lacks `notices`."""

    lines: Sequence[int] = ()
    other_lines: Sequence[int] = ()
    notices: str | None = None
    ends: str = "fails"
    reads: bool = False
    reads_other: bool = False
    cpu_s: float = 1.0
    wall_s: float = 2.0

    def answer(self, test: str, text: str) -> Answer:
        answer = replace(_PASSED, cpu_s=self.cpu_s, wall_s=self.wall_s)
        if self.notices is None or self.notices in text:
            return answer
        return replace(
            answer,
            failed=test if self.ends == "fails" else None,
            timed_out=self.ends == "takes too long",
            died=self.ends == "dies",
        )


@dataclass
class Suite:
    """The tests of a project; replaces the pytest that would run them."""

    tests: dict[str, Behaviour]
    asked: list[tuple[list[str], Cost]] = field(default_factory=list)

    def worker(
        self, project: Project, files: Sequence[Path], folder: Path, _: TestChoice
    ) -> Worker:
        top = folder / "copy"
        project.copy(files, top)
        return Worker(self, top)


class Worker:
    def __init__(self, suite: Suite, top: Path) -> None:
        self.suite = suite
        self.top = top

    def begin(self, *, collecting: bool) -> dict[str, Any]:
        assert not collecting
        tests = [[test, str(self.top / test.partition("::")[0])] for test in self.suite.tests]
        return {"tests": tests, "read": [], "left_out": 0}

    @contextlib.contextmanager
    def planted(self, script: Path, text: bytes) -> Iterator[None]:
        before = (self.top / script).read_bytes()
        (self.top / script).write_bytes(text)
        yield
        (self.top / script).write_bytes(before)

    def can_read(self, _: Path) -> bool:
        return True

    def run(self, tests: Sequence[str], cost: Cost, *, traces: bool = False) -> Answer:
        if not traces:
            self.suite.asked.append((list(tests), cost))
        answer = _PASSED
        for test in tests:
            behaviour = self.suite.tests[test]
            text = "".join(path.read_text() for path in sorted(self.top.glob("*.sh")))
            answer = behaviour.answer(test, text)
            if traces:
                lines = {
                    str(self.top.resolve() / name): [[line, 1, 1] for line in ran]
                    for name, ran in (
                        (_SCRIPT, behaviour.lines), (_OTHER, behaviour.other_lines),
                    )
                }  # fmt: skip
                read = {_SCRIPT: behaviour.reads, _OTHER: behaviour.reads_other}
                found = frozenset(str(self.top / name) for name in read if read[name])
                return replace(answer, lines=lines, read=found)
            if answer.failed or answer.timed_out or answer.died:
                break
        return answer

    def close(self) -> None:
        pass


@dataclass
class Runs:
    """A project whose script has four commands, and mutation runs on this project."""

    root: Path
    monkeypatch: pytest.MonkeyPatch
    scripts: dict[str, str] = field(default_factory=lambda: {_SCRIPT: _TEXT})
    options: tuple[str, ...] = ()
    versions: dict[str, str] = field(
        default_factory=lambda: {"gpu-node-harness": "1", "pytest": "1"}
    )

    def run(self, tests: dict[str, Behaviour], **options: Any) -> tuple[Report, Suite]:
        suite = Suite(tests)
        self.monkeypatch.setattr("harness.mutate.run.Worker", suite.worker)
        self.monkeypatch.setattr("importlib.metadata.version", self.versions.__getitem__)
        project = self.root / "project"
        project.mkdir(exist_ok=True)
        for name, text in self.scripts.items():
            (project / name).write_text(text)
        for test in tests:
            (project / test.partition("::")[0]).touch()
        runner = ScriptedRunner()
        runner.expect(["git", "-C", str(project), "rev-parse", "--show-toplevel"], exit_code=128)
        request = Request(
            project=Project(project, map(Path, self.scripts), runner),
            tests=TestChoice(paths=(), options=self.options),
            results=self.root / "results",
            workers=1,
            **options,
        )
        return run(request), suite


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def outcomes(report: Report) -> list[tuple[str, str | None]]:
    """Return the outcome of each mutant without a command, and the test that noticed the defect."""
    return [
        (each.outcome.value, each.noticed_by) for each in report.results if each.mutant.new == b":"
    ]


def test_mutant_is_tested_only_with_tests_that_run_the_line(runs: Runs) -> None:
    report, suite = runs.run(
        {
            "t.py::first": Behaviour(lines=[1, 2], notices="alpha"),
            "t.py::second": Behaviour(lines=[2, 3], notices="charlie"),
        }
    )

    assert outcomes(report) == [
        ("killed", "t.py::first"),
        ("survived", None),
        ("killed", "t.py::second"),
        ("not reached", None),
    ]
    assert sorted(sorted(tests) for tests, _ in suite.asked) == [
        ["t.py::first"],
        ["t.py::first", "t.py::second"],
        ["t.py::second"],
    ]


def test_mutant_is_killed_by_a_test_that_fails_or_times_out_or_crashes(runs: Runs) -> None:
    tests = {
        "t.py::fails": Behaviour(lines=[1], notices="alpha"),
        "t.py::hangs": Behaviour(lines=[2], notices="bravo", ends="takes too long"),
        "t.py::dies": Behaviour(lines=[3], notices="charlie", ends="dies"),
    }

    first, again = (outcomes(runs.run(tests)[0])[:3] for _ in range(2))

    assert first == [("killed", "t.py::fails"), ("timed out", None), ("killed", None)]
    assert again == [
        ("killed", "t.py::fails"),
        ("timed out", "t.py::hangs"),
        ("killed", "t.py::dies"),
    ]


def test_test_that_does_not_pass_on_the_original_script_is_not_used(runs: Runs) -> None:
    unfit = {
        "t.py::fails": Behaviour(lines=[1, 2], notices="zulu"),
        "t.py::hangs": Behaviour(lines=[1, 2], notices="zulu", ends="takes too long"),
        "t.py::dies": Behaviour(lines=[1, 2], notices="zulu", ends="dies"),
    }
    report, suite = runs.run({**unfit, "t.py::fit": Behaviour(lines=[1])})

    assert report.unfit == {
        "t.py::fails": "it fails",
        "t.py::hangs": "it takes too long",
        "t.py::dies": "it ends the test run",
    }
    assert [outcome for outcome, _ in outcomes(report)][:2] == ["survived", "not reached"]
    assert [tests for tests, _ in suite.asked] == [["t.py::fit"]]
    with pytest.raises(RequirementError, match=r"'t\.py::fails': it fails\."):
        runs.run(unfit)


def test_test_that_reads_the_script_as_a_file_is_run_for_mutants_of_every_line(runs: Runs) -> None:
    """A line stays 'not reached' if a test only reads the script and notices no defect."""
    report, suite = runs.run(
        {
            "t.py::reads": Behaviour(reads=True, notices="charlie"),
            "t.py::both": Behaviour(reads=True, lines=[1]),
        }
    )

    assert outcomes(report) == [
        ("survived", None),
        ("not reached", None),
        ("killed", "t.py::reads"),
        ("not reached", None),
    ]
    assert sum("t.py::both" in tests for tests, _ in suite.asked) == 1


def test_second_run_tries_only_tests_without_a_known_result(runs: Runs) -> None:
    tests = {
        "t.py::long": Behaviour(lines=[1, 2, 3], cpu_s=5.0, wall_s=1.0, notices="bravo"),
        "u.py::short": Behaviour(lines=[1, 2], cpu_s=1.0, wall_s=4.0),
    }
    first, suite = runs.run(tests)
    assert first.known_before == 0
    assert max(suite.asked, key=lambda each: len(each[0]))[1] == Cost(cpu_s=5.0, wall_s=4.0)

    again, suite = runs.run(tests)
    assert (again.known_before, suite.asked) == (3, [])
    assert outcomes(again) == outcomes(first)

    (runs.root / "project/u.py").write_text("changed\n")
    changed, suite = runs.run(tests)
    assert [asked for asked, _ in suite.asked] == [["u.py::short"]]
    assert suite.asked[0][1] == Cost(cpu_s=1.0, wall_s=4.0)
    assert (changed.known_before, outcomes(changed)) == (2, outcomes(first))


def test_results_of_a_test_are_discarded_after_a_change_of_its_dependencies(runs: Runs) -> None:
    """The lines that the test runs and the test's result for a defect are both found anew."""
    changes: dict[str, Callable[[], object]] = {
        "the script": lambda: runs.scripts.update({_SCRIPT: f"{_TEXT}zulu\n"}),
        "a script that it runs": lambda: runs.scripts.update({_OTHER: "yankee\nzulu\n"}),
        "the test": lambda: (runs.root / "project/t.py").write_text("changed\n"),
        "what tests use": lambda: (runs.root / "project/conftest.py").write_text("changed\n"),
        "the order of the options": lambda: setattr(runs, "options", runs.options[::-1]),
        "the harness": lambda: runs.versions.update({"gpu-node-harness": "2"}),
        "pytest": lambda: runs.versions.update({"pytest": "2"}),
        "Python": lambda: runs.monkeypatch.setattr("platform.python_version", lambda: "99"),
    }
    runs.scripts[_OTHER] = "yankee\n"
    runs.options = ("-k", "a")
    unreached, killed = ("not reached", None), ("killed", "t.py::a")
    before = Behaviour(lines=[1], other_lines=[1])
    after = replace(before, lines=[1, 2], notices="alpha\nbravo\n")
    runs.run({"t.py::a": before})

    for what, change in changes.items():
        before, after = after, before
        change()
        report, _ = runs.run({"t.py::a": before})

        expected = [killed, killed] if before.notices else [("survived", None), unreached]
        assert outcomes(report)[:3] == [*expected, unreached], what
        assert report.known_before == 0, what


def test_results_of_a_test_are_discarded_after_a_change_of_a_script_that_it_reads(
    runs: Runs,
) -> None:
    runs.scripts[_OTHER] = "yankee\n"
    runs.run({"t.py::a": Behaviour(lines=[1], reads_other=True)})
    runs.scripts[_OTHER] = "yankee\nzulu\n"

    report, _ = runs.run({"t.py::a": Behaviour(lines=[1], reads_other=True, notices="alpha")})

    assert outcomes(report)[0] == ("killed", "t.py::a")
    assert report.known_before == 0


def test_test_is_run_again_after_a_change_of_a_test_file_that_it_uses(runs: Runs) -> None:
    files = {name: runs.root / "project" / f"{name}.py" for name in ("test_a", "test_b", "test_c")}
    files["test_a"].parent.mkdir()
    files["test_a"].write_text("from tests.test_b import answer\n")
    tests = {f"{name}.py::x": Behaviour(lines=[1]) for name in files}
    runs.run(tests)
    files["test_b"].write_text("answer = 42\n")

    _, suite = runs.run(tests)

    assert [sorted(asked) for asked, _ in suite.asked] == [["test_a.py::x", "test_b.py::x"]]


def test_executed_lines_of_one_script_are_not_used_for_another_script_with_the_same_text(
    runs: Runs,
) -> None:
    runs.run({"t.py::a": Behaviour(lines=[1])})
    (runs.root / "project" / _SCRIPT).unlink()
    runs.scripts = {_OTHER: _TEXT}

    report, _ = runs.run({"t.py::a": Behaviour(other_lines=[2])})

    assert [outcome for outcome, _ in outcomes(report)][:2] == ["not reached", "survived"]


def test_results_are_kept_after_a_change_of_a_script_that_the_test_does_not_run(
    runs: Runs,
) -> None:
    runs.scripts[_OTHER] = "yankee\n"
    tests = {"t.py::a": Behaviour(lines=[1])}
    runs.run(tests)
    runs.scripts[_OTHER] = "zulu\n"

    report, suite = runs.run(tests)

    assert (report.known_before, suite.asked) == (1, [])


def test_test_that_noticed_a_defect_is_run_first_for_other_defects_of_the_same_line(
    runs: Runs,
) -> None:
    few, many = "t.py::few", "u.py::many"
    _, suite = runs.run(
        {few: Behaviour(lines=[4]), many: Behaviour(lines=[1, 4], notices="delta \\\n  echo\n")}
    )

    first, *others = [tests for tests, _ in suite.asked if few in tests]
    assert first == [few, many]
    assert others
    assert all(tests == [many, few] for tests in others)


def test_shellspec_examples_run_first_in_order_and_tests_with_few_lines_run_next(
    runs: Runs,
) -> None:
    _, suite = runs.run(
        {
            "a_spec.sh::one": Behaviour(lines=[1, 2, 3]),
            "a_spec.sh::two": Behaviour(lines=[1]),
            "t.py::many": Behaviour(lines=[1, 2, 3]),
            "t.py::few": Behaviour(lines=[1, 2]),
            "u.py::notices": Behaviour(lines=[1, 2, 3], notices="charlie"),
        }
    )

    asked = {frozenset(tests): tests for tests, _ in suite.asked}
    whole = asked[max(asked, key=len)]
    spec = ["a_spec.sh::one", "a_spec.sh::two"]
    assert [test for test in whole if test in spec] == spec
    assert whole[:2] == spec
    assert whole.index("t.py::few") < whole.index("t.py::many") < whole.index("u.py::notices")


def test_run_without_time_left_tests_no_mutant_and_reports_earlier_results(runs: Runs) -> None:
    tests = {"t.py::a": Behaviour(lines=[1, 2], notices="alpha")}
    over = time.monotonic() - 1

    assert {outcome for outcome, _ in outcomes(runs.run(tests, until=over)[0])} == {"not tried"}
    whole = outcomes(runs.run(tests)[0])
    assert outcomes(runs.run(tests, until=over)[0]) == whole


def test_only_defects_in_changed_lines_are_tried(runs: Runs) -> None:
    runs.monkeypatch.setattr(Project, "changed_lines", lambda *_: {2, 5})

    report, _ = runs.run({"t.py::a": Behaviour(lines=[1, 2])}, since="main")

    assert outcomes(report) == [("survived", None), ("not reached", None)]


def test_option_since_is_refused_outside_a_git_working_tree_before_tests_run(runs: Runs) -> None:
    runs.monkeypatch.setattr(Project, "files", lambda _: pytest.fail("the project was copied"))

    with pytest.raises(BadInputError, match="not a git working tree"):
        runs.run({"t.py::a": Behaviour(lines=[1, 2])}, since="main")


def test_run_without_tests_is_an_error(runs: Runs) -> None:
    with pytest.raises(BadInputError, match="No tests were collected"):
        runs.run({})
