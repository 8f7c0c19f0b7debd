"""Each example under `conformance/` is named by the verdict that the language gives it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.shell.mockdir import write_mocks
from harness.shell.project import Project, environment
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.specrun import ShellSetting, SpecRun
from harness.shell.translate import translate
from harness.shell.verdict import Outcome, Verdict
from suites.host.shell.running import row_evaluator

if TYPE_CHECKING:
    from harness.shell.specfile import Case, SpecFile

_FILES = sorted((Path(__file__).parent / "conformance").glob("*.sh"))
_VERDICTS = {outcome.value: outcome for outcome in Outcome}


def _load(path: Path) -> SpecFile:
    return translate(path.name, path.read_text(), row_evaluator(path.name))


_SPECS = {path.stem: _load(path) for path in _FILES}


def _run(spec: SpecFile, work_dir: Path, *, ahead: bool) -> dict[int, Verdict]:
    """Run all examples of a file in order; `ahead`: the shell always knows the next one."""
    write_mocks(spec, work_dir / "mocks", "bash")
    path = work_dir / "a_spec.sh"
    env = environment(Project(root=work_dir), path, work_dir, work_dir, work_dir / "mocks")
    setting = ShellSetting(
        sandbox=Sandbox(kind=SandboxKind.THROWAWAY),
        scratch=work_dir,
        cwd=work_dir,
        env=env,
        timeout_s=30,
    )
    following = [*spec.cases[1:], None] if ahead else [None] * len(spec.cases)
    with contextlib.closing(SpecRun(spec, setting)) as run:
        return {
            case.number: run.run(case, later)
            for case, later in zip(spec.cases, following, strict=True)
        }


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Verdict]:
    name: str = request.param
    spec = _SPECS[name]
    ahead = _run(spec, tmp_path_factory.mktemp(name), ahead=True)
    one_by_one = _run(spec, tmp_path_factory.mktemp(name), ahead=False)
    assert {number: verdict.outcome for number, verdict in one_by_one.items()} == {
        number: verdict.outcome for number, verdict in ahead.items()
    }
    return ahead


def _cases() -> list[object]:
    return [
        pytest.param(name, case, id=f"{name}-{case.number}-{case.name}")
        for name, spec in _SPECS.items()
        for case in spec.cases
    ]


@pytest.mark.parametrize(("verdicts", "case"), _cases(), indirect=["verdicts"], scope="module")
def test_example_gets_the_verdict_in_its_name(verdicts: dict[int, Verdict], case: Case) -> None:
    expected, separator, _ = case.name.partition(":")
    if not separator or case.name.startswith("<"):
        expected = "succeeded"

    verdict = verdicts[case.number]

    assert verdict.outcome is _VERDICTS[expected.lower()], verdict.problems
