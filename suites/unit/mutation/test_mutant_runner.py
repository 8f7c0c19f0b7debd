"""The runner of mutants, which plants bugs in a copy of the sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import CommandResult
from suites.mutation.__main__ import run_all
from suites.mutation.mutant_runner import MutantResult, MutantRunner, PlantError
from suites.mutation.plants import Plant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PLANT = Plant(name="one for two", file="a.py", old="1", new="2")
DIED = "F\nFAILED suites/unit/x.py::test_y[a b - c] - assert 1 == 2\n1 failed\n"


class FakePytest:
    """A fake unit suite that fails if the file has the bug."""

    def __init__(self, source: Path, result: tuple[int, str] = (1, DIED)) -> None:
        self.source = source
        self.result = result
        self.argv: tuple[str, ...] = ()
        self.env: dict[str, str] = {}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        assert timeout_s > 0
        assert stdin is None
        self.argv, self.env = tuple(argv), dict(env or {})
        exit_code, stdout = self.result if "2" in self.source.read_text() else (0, "1 passed")
        return CommandResult(argv=self.argv, exit_code=exit_code, stdout=stdout, stderr="")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "harness/provisioning/a.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    return path


def test_result_has_the_test_that_caught_the_bug_and_the_source_is_restored(
    tmp_path: Path, source: Path
) -> None:
    pytest_ = FakePytest(source)

    result = MutantRunner(tmp_path, pytest_).run(PLANT, "suites/unit", "-k", "y")

    assert result == MutantResult(plant=PLANT, killer="suites/unit/x.py::test_y[a b - c]")
    assert source.read_text() == "x = 1\n"
    assert pytest_.argv[:3] == ("env", "--chdir", str(tmp_path))
    assert pytest_.argv[-3:] == ("suites/unit", "-k", "y")
    assert pytest_.env["PYTHONPATH"] == str(tmp_path)


def test_result_of_a_surviving_bug_names_no_test(tmp_path: Path, source: Path) -> None:
    result = MutantRunner(tmp_path, FakePytest(source, (0, "1 passed"))).run(PLANT)

    assert result.killer is None


@pytest.mark.parametrize("result", [(2, "ERROR collecting"), (1, "no such line"), (5, "no tests")])
def test_suite_that_cannot_run_is_an_error_and_not_a_caught_bug(
    tmp_path: Path, source: Path, result: tuple[int, str]
) -> None:
    with pytest.raises(PlantError, match=r"^The suite could not be run\."):
        MutantRunner(tmp_path, FakePytest(source, result)).run(PLANT)
    assert source.read_text() == "x = 1\n"


@pytest.mark.parametrize(("text", "times"), [("x = 3\n", 0), ("x = 11\n", 2)])
def test_text_that_does_not_occur_exactly_once_is_refused(
    tmp_path: Path, source: Path, text: str, times: int
) -> None:
    source.write_text(text)

    with pytest.raises(PlantError) as error:
        MutantRunner(tmp_path, FakePytest(source)).run(PLANT)

    assert str(error.value) == (
        f"'one for two' cannot be planted: its text occurs {times} times in "
        "'harness/provisioning/a.py', expected once. Update the plant."
    )


def test_copy_has_the_sources_but_no_compiled_files(tmp_path: Path) -> None:
    repository, top = tmp_path / "repository", tmp_path / "copy"
    for name in ("harness/a.py", "harness/__pycache__/a.pyc", "suites/b.py", "pyproject.toml"):
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    top.mkdir()

    MutantRunner.copy(repository, top)

    files = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert files == {"harness/a.py", "suites/b.py", "pyproject.toml"}


def test_each_bug_is_reported_and_survivors_fail_the_run(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    harmless = Plant(name="none", file="a.py", old="1", new="3")
    mutant_runner = MutantRunner(tmp_path, FakePytest(source))

    assert run_all(mutant_runner, [(PLANT, ("s",)), (harmless, ("s",))], 2) == 1
    assert capsys.readouterr().out == (
        "one for two  [a.py]\n    killed by suites/unit/x.py::test_y[a b - c]\n"
        "none  [a.py]\n    SURVIVED\n"
        "1 of 2 killed\n"
    )
    assert run_all(mutant_runner, [(PLANT, ("s",))], 1) == 0
