"""Parsing and evaluation of the results of mutmut."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.provisioning.command import CommandResult
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.fakes.clock import FakeClock
from suites.mutation.packages import PACKAGES, Package
from suites.mutation.tool import (
    Mutant,
    Sample,
    ToolError,
    judge,
    parse_change,
    parse_results,
    run_tool,
    try_mutants,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import IO

    from harness.provisioning.command import ChildProcess

    Try = Callable[[Path, int, Sequence[str]], None]

CLICK = "\N{LATIN LETTER LATERAL CLICK}"
KILLED = "harness.provisioning.a.x_f__mutmut_1"
SURVIVOR = f"harness.provisioning.b.x{CLICK}C{CLICK}m__mutmut_12"
RESULTS = f"    {KILLED}: killed\n    {SURVIVOR}: survived\n"
DIFF = """\
# harness.provisioning.b: survived
--- harness/provisioning/b.py
+++ harness/provisioning/b.py
@@ -1,3 +1,3 @@
 def m(self):
-    return f(1, b) + 2
+    return f(2, b) + 2
"""
CHANGE = "`f(1,` becomes `f(2,`"
PACKAGE = Package(source="harness/some", tests=("suites/unit/some",), least=0.9)


def test_mutants_are_named_as_a_person_would() -> None:
    first, second = parse_results(f"noise\n{RESULTS}")

    assert (first.module, first.function, first.is_killed) == ("a", "a.f", True)
    assert (second.module, second.function, second.is_killed) == ("b", "b.C.m", False)


@pytest.mark.parametrize(
    ("status", "is_killed"),
    [("killed", True), ("timeout", True), ("survived", False), ("no tests", False)],
)
def test_what_the_suite_noticed_counts_as_killed(status: str, *, is_killed: bool) -> None:
    assert Mutant(name=KILLED, status=status).is_killed is is_killed


def test_change_is_what_differs() -> None:
    assert parse_change(DIFF) == CHANGE
    assert parse_change("-a = 1\n-b\n+a = 1\n") == "`b` becomes `nothing`"


def script(top: Path, results: str = RESULTS) -> ScriptedRunner:
    argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut")
    return (
        ScriptedRunner()
        .expect([*argv, "results", "--all", "true"], stdout=results)
        .expect([*argv, "show", SURVIVOR], stdout=DIFF)
    )


@pytest.mark.parametrize(
    ("results", "code"), [(RESULTS + f"    {KILLED}: killed\n" * 9, 0), (RESULTS, 1)]
)
def test_run_is_good_when_enough_died(tmp_path: Path, results: str, code: int) -> None:
    with script(tmp_path, results) as runner:
        assert judge(tmp_path, PACKAGE, runner) == code


def test_survivors_are_printed_with_their_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with script(tmp_path) as runner:
        judge(tmp_path, PACKAGE, runner)

    assert capsys.readouterr().out.splitlines() == [
        "a                    1 of     1 killed",
        "b                    0 of     1 killed",
        f"survived: b.C.m: {CHANGE}",
        "1 of 2 killed (50.0%)",
    ]


def test_run_without_results_raises_an_error(tmp_path: Path) -> None:
    argv = ("env", "--chdir", str(tmp_path), sys.executable, "-m", "mutmut")
    with (
        ScriptedRunner().expect([*argv, "results", "--all", "true"]) as runner,
        pytest.raises(ToolError, match=r"^There are no results of mutmut"),
    ):
        judge(tmp_path, PACKAGE, runner)


def test_stopped_run_raises_an_error(tmp_path: Path) -> None:
    argv = ("env", "--chdir", str(tmp_path), sys.executable, "-m", "mutmut")
    results = f"    {KILLED}: killed\n    {SURVIVOR}: not checked\n"
    with (
        ScriptedRunner().expect([*argv, "results", "--all", "true"], stdout=results) as runner,
        pytest.raises(ToolError, match=r"^mutmut was stopped: 1 of 2 mutants are untried\.$"),
    ):
        judge(tmp_path, PACKAGE, runner)


# -- the run ------------------------------------------------------------------------------------


class FakeMutmut:
    """A fake mutmut process that ends at a given time and prints scripted lines."""

    pid = 4711

    def __init__(self, top: Path, clock: FakeClock, *, ends_s: float, code: int = 0) -> None:
        self.top = top
        self.clock = clock
        self.ends_s = ends_s
        self.code = code
        self.argv: tuple[str, ...] = ()
        self.is_killed = False

    def start(
        self,
        argv: Sequence[str],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        cwd: Path,
        env: Mapping[str, str],
    ) -> ChildProcess:
        assert (stderr, cwd) == (stdout, self.top)
        self.scratch = Path(env["TMPDIR"])
        (self.scratch / "left by a mutant").touch()
        stdout.write(b"done in 3 s\n")
        self.argv = tuple(argv)
        return self  # type: ignore[return-value]  # as much of a process as is asked of it

    def poll(self) -> int | None:
        with (self.top / "mutmut.log").open("a") as log:
            log.write(f"\r{self.clock.elapsed_s:.0f}/5000 tried")
        if self.is_killed:
            return -signal.SIGKILL
        return None if self.clock.elapsed_s < self.ends_s else self.code

    def wait(self) -> None:
        assert self.is_killed, "nothing else is waited for without a limit"

    def kill_group(self, pid: int, number: int) -> None:
        assert (pid, number) == (self.pid, signal.SIGKILL)
        self.is_killed = True


def test_progress_is_printed_once_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    mutmut = FakeMutmut(tmp_path, clock, ends_s=150)

    try_mutants(tmp_path, 3, start=mutmut.start, clock=clock)

    assert mutmut.argv == (sys.executable, "-m", "mutmut", "run", "--max-children", "3")
    assert not mutmut.scratch.exists()
    assert capsys.readouterr().out == "60/5000 tried\n120/5000 tried\n"


def test_tool_that_fails_shows_the_end_of_its_log(tmp_path: Path) -> None:
    clock = FakeClock()
    mutmut = FakeMutmut(tmp_path, clock, ends_s=2, code=1)

    with pytest.raises(ToolError) as error:
        try_mutants(tmp_path, 1, start=mutmut.start, clock=clock)

    assert str(error.value) == (
        f"mutmut ended with 1. The end of its log '{tmp_path}/mutmut.log':\n"
        "done in 3 s\n\n0/5000 tried\n1/5000 tried\n2/5000 tried\n2/5000 tried"
    )


def test_interrupt_ends_the_tool_and_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    clock = FakeClock()
    mutmut = FakeMutmut(tmp_path, clock, ends_s=10)
    monkeypatch.setattr(clock, "sleep", interrupt)
    monkeypatch.setattr(os, "killpg", mutmut.kill_group)

    with pytest.raises(KeyboardInterrupt):
        try_mutants(tmp_path, 1, start=mutmut.start, clock=clock)

    assert mutmut.is_killed


class Answers:
    """A runner with results of mutmut: one survivor among ten mutants."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s > 0
        assert (stdin, env) == (None, None)
        results = f"{RESULTS}" + f"    {KILLED}: killed\n" * 9
        stdout = DIFF if "show" in argv else results
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=stdout, stderr="")


def run_in(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    try_all: Try = lambda _top, _children, _chosen: None,
    sample: Sample | None = None,
) -> int:
    """Run the tool on a repository, with its own temporary folders."""
    copies = repository.parent / "copies"
    copies.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(copies))
    return run_tool(repository, 1, PACKAGE, sample=sample, try_all=try_all, runner=Answers())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    repository = tmp_path / "repository"
    (repository / "harness").mkdir(parents=True)
    (repository / "pyproject.toml").write_text("[project]\n")
    return repository


def test_good_run_leaves_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_in(repository, monkeypatch) == 0

    assert list(repository.parent.glob("copies/*")) == []


def test_copy_is_kept_if_too_many_survive(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", replace(PACKAGE, least=0.99))

    assert run_in(repository, monkeypatch) == 1

    (copy,) = repository.parent.glob("copies/*")
    assert (copy / "harness").is_dir()
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"The mutants are kept in '{copy}'; run 'python -m mutmut show NAME' there to see one."
    )


def test_copy_is_kept_if_the_tool_fails(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_top: Path, _children: int, _chosen: Sequence[str]) -> None:
        raise ToolError("mutmut ended with 1.")

    with pytest.raises(ToolError):
        run_in(repository, monkeypatch, fail)

    (copy,) = repository.parent.glob("copies/*")
    assert re.search(rf"^The mutants are kept in '{copy}'", capsys.readouterr().out)


def test_sample_is_the_same_for_a_seed_whatever_the_order() -> None:
    mutants = [Mutant(name=f"harness.a.x_f__mutmut_{number}", status="s") for number in range(50)]
    sample = Sample(size=9, seed=1)

    chosen = sample.choose(mutants)

    assert len(set(chosen)) == 9
    assert sample.choose(reversed(mutants)) == chosen
    assert Sample(size=9, seed=2).choose(mutants) != chosen
    assert len(Sample(size=90, seed=1).choose(mutants)) == 50


def test_only_the_sample_is_tried_and_judged(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[str, ...]] = []

    def try_chosen(_top: Path, _children: int, chosen: Sequence[str]) -> None:
        tried.append(tuple(chosen))
        if len(tried) == 1:
            raise ToolError("mutmut ended with 1: AssertionError: but nothing matches")

    sample = Sample(size=1, seed=3)
    (name,) = sample.choose(parse_results(RESULTS))

    run_in(repository, monkeypatch, try_chosen, sample)

    assert tried == [("only-make-them",), (name,)]
    shown = {KILLED: "10 of 10", SURVIVOR: "0 of 1"}[name]
    assert f"{shown} killed" in capsys.readouterr().out


def test_suite_that_fails_while_mutants_are_made_is_an_error(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ToolError("mutmut ended with 1: Failed to run clean test")

    with pytest.raises(ToolError, match="clean test"):
        run_in(repository, monkeypatch, fail, Sample(size=1, seed=3))


@pytest.mark.parametrize("name", PACKAGES)
def test_package_names_sources_and_tests_that_are_there(name: str) -> None:
    root = Path(__file__).parents[3]
    package = PACKAGES[name]
    deselected = (test.partition("::")[0] for test in package.deselected)

    for path in (package.source, *package.tests, *package.left_out, *deselected):
        assert (root / path).exists(), path


def test_configuration_of_a_package_is_added_to_the_projects(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    Package(source="a", tests=("b",), left_out=("c",), deselected=("d",)).write_configuration(
        tmp_path
    )

    text = (tmp_path / "pyproject.toml").read_text()
    assert text.startswith("[project]\n\n[tool.mutmut]\n")
    assert 'source_paths = ["a"]\n' in text
    assert 'pytest_add_cli_args_test_selection = ["b"]\n' in text
    assert 'do_not_mutate = ["c"]\n' in text
    assert '"--deselect=d"' in text


def test_only_the_named_modules_of_a_package_are_mutated(tmp_path: Path) -> None:
    (tmp_path / "repository/a/b").mkdir(parents=True)
    (tmp_path / "repository/a/b/c.py").touch()
    (tmp_path / "pyproject.toml").touch()

    package = Package(source="a", tests=("t",)).of_modules(["b.c"], tmp_path / "repository")
    package.write_configuration(tmp_path)

    assert 'only_mutate = ["a/b/c.py"]\n' in (tmp_path / "pyproject.toml").read_text()


def test_module_that_a_package_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"--module: 'a' has no module 'd': .*'a/d\.py'"):
        Package(source="a", tests=()).of_modules(["d"], tmp_path)
