"""The name of each example under `conformance/` states the verdict that it must get.

A comment that begins with `#>` quotes text from the example's report, or the reason for its
verdict. The examples run in each supported shell; examples with the tag `bash` run only in bash.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.shell.process import ShellSetting
from harness.shell.sandbox import Sandbox, SandboxKind
from harness.shell.shells import SpecShell, find_shell
from harness.shell.spec.mock_blocks import write_mocks
from harness.shell.spec.options import SpecOptions
from harness.shell.spec.project import Project, environment
from harness.shell.spec.spec_run import SpecRun
from harness.shell.spec.translate import translate
from harness.shell.spec.verdict import Outcome, Verdict
from suites.host.shell.running import row_evaluator

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.shell.spec.spec_file import Case, SpecFile

_FILES = sorted((Path(__file__).parent / "conformance").glob("*.sh"))
_VERDICTS = {outcome.value: outcome for outcome in Outcome}


_SHELLS = {
    name: find_shell(name, source="conformance", line=None)
    for name in ("bash", "dash", "busybox ash")
}


def _load(path: Path, shell: SpecShell) -> SpecFile:
    evaluate = row_evaluator(path.name, shell)
    return translate(path.name, path.read_text(), evaluate, shell=shell)


def _is_for(case: Case, shell: SpecShell) -> bool:
    return not (shell.is_posix and "bash" in case.all_tags)


def _run(spec: SpecFile, shell: SpecShell, work_dir: Path, *, ahead: bool) -> dict[int, Verdict]:
    """Run a file's examples in order; with `ahead`, send each before the previous example ends."""
    write_mocks(spec, work_dir / "mocks", shell)
    path = work_dir / "a_spec.sh"
    project = Project(root=work_dir, options=SpecOptions(shell=shell))
    env = environment(project, path, work_dir, work_dir, work_dir / "mocks")
    setting = ShellSetting(
        shell=shell,
        sandbox=Sandbox(kind=SandboxKind.THROWAWAY),
        scratch=work_dir,
        cwd=work_dir,
        env=env,
        timeout_s=30,
    )
    cases = [case for case in spec.cases if _is_for(case, shell)]
    following = [*cases[1:], None] if ahead else [None] * len(cases)
    open_before = set(Path("/proc/self/fd").iterdir())
    with contextlib.closing(SpecRun(spec, setting)) as run:
        verdicts = {
            case.number: run.run(case, later) for case, later in zip(cases, following, strict=True)
        }
    assert set(Path("/proc/self/fd").iterdir()) <= open_before
    return verdicts


def _outcomes(verdicts: dict[int, Verdict]) -> dict[int, Outcome]:
    return {number: verdict.outcome for number, verdict in verdicts.items()}


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
@pytest.mark.parametrize("name", _SHELLS)
def test_conformance_examples_get_the_expected_verdicts_and_reports(
    tmp_path: Path, name: str, path: Path
) -> None:
    shell = _SHELLS[name]
    spec = _load(path, shell)
    folders = {ahead: tmp_path / str(ahead) for ahead in (True, False)}
    for folder in folders.values():
        folder.mkdir()

    verdicts, one_by_one = (
        _run(spec, shell, folder, ahead=ahead) for ahead, folder in folders.items()
    )

    assert _outcomes(one_by_one) == _outcomes(verdicts)
    cases = [case for case in spec.cases if _is_for(case, shell)]
    assert len(verdicts) == len(cases)
    wrong = [problem for case in cases for problem in _problems(spec, case, verdicts[case.number])]
    assert not wrong


def _problems(spec: SpecFile, case: Case, verdict: Verdict) -> Iterator[object]:
    """Yield what is wrong with the verdict of an example."""
    expected, separator, _ = case.name.partition(":")
    if not separator or case.name.startswith("<"):
        expected = "succeeded"
    if verdict.outcome is not _VERDICTS[expected.lower()]:
        yield case.number, case.name, verdict.outcome, verdict.problems
    report = f"{verdict.reason}\n{verdict.render(spec, case)}"
    for line in spec.lines[case.begin : case.end]:
        _, is_expected, text = line.partition("#> ")
        if is_expected and text not in report:
            yield case.number, case.name, f"no {text!r} in {report!r}"


_REASONS = {
    "It 'a'\nSkip 'first'\nSkip 'second'\nEnd\n": "first",
    "It 'b'\nSkip if 'condition  x' true\nEnd\n": "condition  x",
    "It 'c'\nSkip\nEnd\n": "Temporarily skipped",
    "It 'd'\nPending 'first'\nPending 'second'\nThe value a should eq b\nEnd\n": "second",
    "Describe\nSkip 'outer'\nDescribe\nSkip 'inner'\nIt\nfalse\nEnd\nEnd\nEnd\n": "outer",
    "Describe\nPending 'outer'\nDescribe\nPending 'inner'\nIt\nThe value a should eq b\n"
    "End\nEnd\nEnd\n": "inner",
}


@pytest.mark.parametrize("name", _SHELLS)
def test_skip_or_pending_verdict_has_the_reason_of_the_effective_mark(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "a_spec.sh"
    path.write_text("".join(_REASONS))

    verdicts = _run(_load(path, _SHELLS[name]), _SHELLS[name], tmp_path, ahead=True)

    assert [verdict.reason for verdict in verdicts.values()] == list(_REASONS.values())


_LOUD = """\
It 'loud {0}'
  Mock tool
    kept=1
    %preserve kept
  End
  Data 'much more than the quiet one has'
  loud() {{ tool; cat; echo "error {0}" >&2; return 3; }}
  echo "printed by {0}"
  echo "complaint of {0}" >&2
  When call loud
  The value {0} should satisfy eval 'echo noise >&2; false'
  Skip 'reason {0}'
End
"""
_QUIET = """\
It 'quiet {0}'
  Data 'little'
  When call cat
  The entire output should equal "little$SHELLSPEC_LF"
  The entire error should equal ''
  The value a should satisfy true
  The result of function true should equal ''
  The variable kept should be undefined
End
"""


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("name", _SHELLS)
def test_later_examples_see_no_output_or_variables_of_earlier_examples(
    tmp_path: Path, name: str, *, ahead: bool
) -> None:
    """Examples use two sets of output files in turn; each set gets a loud and then a quiet example."""
    text = "".join(part.format(number) for part in (_LOUD, _QUIET) for number in (1, 2))
    path = tmp_path / "a_spec.sh"
    path.write_text(text)

    first, second, *quiet = _run(
        _load(path, _SHELLS[name]), _SHELLS[name], tmp_path, ahead=ahead
    ).values()

    assert [(one.outcome, one.stray_stdout) for one in (first, second)] == [
        (Outcome.FAILED, "printed by 1\n"),
        (Outcome.FAILED, "printed by 2\n"),
    ]
    texts = ["".join(problem.text for problem in one.problems) for one in (first, second)]
    assert ["complaint of 1" in text for text in texts] == [True, False]
    assert ["complaint of 2" in text for text in texts] == [False, True]
    assert quiet == [Verdict(outcome=Outcome.SUCCEEDED)] * 2
