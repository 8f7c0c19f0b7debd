"""The run of mutmut over a package, and the failure if too few mutants are killed."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.provisioning.command import CommandResult
from harness.shell.mocks.scripted_runner import ScriptedRunner
from suites.mutation.packages import PACKAGES, Package
from suites.mutation.tool import ToolError, judge, run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.provisioning.command import ChildProcess

KILLED = "harness.some.a.x_f__mutmut_"
SURVIVOR = "harness.some.b.x_m__mutmut_12"
RESULTS = "".join(f"    {KILLED}{n}: killed\n" for n in range(9)) + f"    {SURVIVOR}: survived\n"
PACKAGE = Package(source="harness/some", tests=("suites/unit/some",), least=0.9)


def script(top: object, results: str) -> ScriptedRunner:
    argv = ("env", "--chdir", str(top), sys.executable, "-m", "mutmut", "results", "--all", "true")
    return ScriptedRunner().expect(argv, stdout=results)


def test_surviving_mutants_are_printed_and_a_low_kill_rate_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with script(tmp_path, f"noise\n{RESULTS}") as runner:
        assert judge(tmp_path, PACKAGE, runner) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"survived: {SURVIVOR}",
        "9 of 10 killed (90.0%)",
    ]

    with script(tmp_path, RESULTS) as runner:
        assert judge(tmp_path, replace(PACKAGE, least=0.91), runner) == 1


@pytest.mark.parametrize("status", ["timeout", "segfault", "suspicious"])
def test_mutant_is_killed_if_the_suite_never_ends_or_crashes(tmp_path: Path, status: str) -> None:
    with script(tmp_path, RESULTS.replace("survived", status)) as runner:
        assert judge(tmp_path, replace(PACKAGE, least=1), runner) == 0


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ("", r"^There are no results of mutmut"),
        (
            RESULTS.replace("survived", "not checked"),
            r"^mutmut was stopped: 1 of 10 mutants are untried\.$",
        ),
    ],
)
def test_run_without_all_results_is_an_error(tmp_path: Path, results: str, message: str) -> None:
    with script(tmp_path, results) as runner, pytest.raises(ToolError, match=message):
        judge(tmp_path, PACKAGE, runner)


class FakeMutmut:
    """A fake mutmut, which ends with the exit status `code`, or is interrupted if it is None."""

    pid = 4711

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.argv: tuple[str, ...] = ()
        self.is_killed = False

    def start(
        self,
        argv: Sequence[str],
        *,
        stdout: None,
        stderr: None,
        cwd: Path,
        env: Mapping[str, str],
    ) -> ChildProcess:
        assert (stdout, stderr) == (None, None)
        assert (cwd / "harness").is_dir()
        assert "[tool.mutmut]" in (cwd / "pyproject.toml").read_text()
        self.argv = tuple(argv)
        (Path(env["TMPDIR"]) / "left by a mutant").touch()
        return self  # type: ignore[return-value]  # as much of a process as is asked of it

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert (timeout_s, stdin, env) == (600, None, None)
        return CommandResult(argv=tuple(argv), exit_code=0, stdout=RESULTS, stderr="")

    def poll(self) -> int | None:
        return -signal.SIGKILL if self.is_killed else self.code

    def wait(self) -> int:
        code = self.poll()
        if code is None:
            raise KeyboardInterrupt
        return code

    def kill_group(self, pid: int, number: int) -> None:
        assert (pid, number) == (self.pid, signal.SIGKILL)
        self.is_killed = True


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repository = tmp_path / "repository"
    (repository / "harness").mkdir(parents=True)
    (repository / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    return repository


def test_successful_run_leaves_no_copy(repository: Path) -> None:
    mutmut = FakeMutmut(0)

    assert run_tool(repository, 3, PACKAGE, start=mutmut.start, runner=mutmut) == 0

    assert mutmut.argv == (sys.executable, "-m", "mutmut", "run", "--max-children", "3")
    assert list(repository.parent.glob("copies/*")) == []


def test_copy_of_the_repository_is_kept_if_mutmut_fails(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ToolError, match=r"^mutmut ended with 1\.$"):
        run_tool(repository, 1, PACKAGE, start=FakeMutmut(1).start)

    (copy,) = repository.parent.glob("copies/*")
    assert capsys.readouterr().out == (
        f"The mutants are in '{copy}'; run 'python -m mutmut show NAME' there to see one.\n"
    )


def test_interrupt_kills_the_process_group_of_mutmut(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutmut = FakeMutmut(None)
    monkeypatch.setattr(os, "killpg", mutmut.kill_group)

    with pytest.raises(KeyboardInterrupt):
        run_tool(repository, 1, PACKAGE, start=mutmut.start)

    assert mutmut.is_killed


@pytest.mark.parametrize("name", PACKAGES)
def test_sources_and_tests_of_each_mutated_package_exist(name: str) -> None:
    root = Path(__file__).parents[3]
    package = PACKAGES[name]

    for path in (package.source, *package.tests, *package.left_out):
        assert (root / path).exists(), path


def test_only_the_given_modules_of_a_package_are_mutated(tmp_path: Path) -> None:
    (tmp_path / "repository/a/b").mkdir(parents=True)
    (tmp_path / "repository/a/b/c.py").touch()
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    package = Package(source="a", tests=("t",), left_out=("l",)).of_modules(
        ["b.c"], tmp_path / "repository"
    )
    package.write_configuration(tmp_path)

    text = (tmp_path / "pyproject.toml").read_text()
    assert text.startswith("[project]\n\n[tool.mutmut]\n")
    for line in (
        'source_paths = ["a"]\n',
        'only_mutate = ["a/b/c.py"]\n',
        'do_not_mutate = ["l"]\n',
        'pytest_add_cli_args_test_selection = ["t"]\n',
    ):
        assert line in text


def test_module_that_a_package_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"--module: 'a' has no module 'd': .*'a/d\.py'"):
        Package(source="a", tests=()).of_modules(["d"], tmp_path)
