"""A translated example passes or fails as its name in `conformance/` says.

An example that must be translated by hand is marked instead. The sets below list the exceptions to
both rules, by reason.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.shell.spec.migrate import migrate
from harness.shell.spec.translate import translate
from suites.host.shell.running import outcomes, row_evaluator

if TYPE_CHECKING:
    from harness.shell.spec.spec_file import Case
    from suites.host.shell.running import SpecProject

_FILES = sorted((Path(__file__).parent / "conformance").glob("*.sh"))
_OUTCOMES = {
    "succeeded": "passed", "failed": "failed", "warned": "failed", "fixed": "failed",
    "pending": "xfail", "skipped": "skipped",
}  # fmt: skip
_STRICT = {
    "an unknown command",
    "an error message of the shell has the line number of the spec",
    "the body does not see functions",
    "a mock sees no function or variable of the spec",
    "a path does not match other kinds",
}
_ROOT_OF_ITS_OWN = {
    "AfterAll has run when its group is left",
    "a file of an earlier example of the group stays",
    "stderr of a group does not fail the example after the next",
    "hooks after a failed hook did not run",
    "hooks of the inner group run first after an example",
    "after the inner group its hooks no longer run",
    "AfterAll hooks have run from the inner group to the outer group",
    "of the outer one alone: outer",
    "BeforeAll and AfterAll have run only if their group had an example to run",
}
_NOT_TOLD = {
    "unset in call ends the example",
    "an unquoted variable that splits",
    "Skip if, with a command that expands to nothing",
    "plain statements after Skip still run",
    "stderr of a group fails a pending example",
    "Data from a function that fails",
    "Data through a filter that fails",
    "a hook after a pending example fails",
}
_OTHER_SHELL_AROUND = {
    "local and return work",
    "a trace is stderr of the evaluation",
    "a trace shows how deep a command is",
    "the shell shows its input during the evaluation only",
    "on DEBUG, under call",
    "on ERR, under call",
    "on DEBUG and RETURN, under call, in code that fails",
    "an earlier function mock with a comma in its name loses",
    "a file whose last line does not end",
    "Dump shows the output and status of the evaluation",
    "a path is not found",
    "a file that may not run",
    "no When leaves output and status unset",
}
_DIFFERENT = _STRICT | _ROOT_OF_ITS_OWN | _NOT_TOLD | _OTHER_SHELL_AROUND
_GROUPS_APART = {
    "output of a process that outlives its evaluation",
    "output of a job that outlives its evaluation",
    "commands of the shell that a spec redefines",
}
"""Their jobs are not waited for, or the commands that they redefine are in use."""


def _expected(case: Case) -> str:
    verdict, separator, _ = case.name.partition(":")
    is_verdict = separator and not case.name.startswith("<")
    return _OUTCOMES[verdict.lower()] if is_verdict else "passed"


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_translated_example_has_the_verdict_in_its_name_or_is_marked_for_translation_by_hand(
    project: SpecProject, path: Path
) -> None:
    text, evaluate = path.read_text(), row_evaluator(path.name)
    cases = translate(path.name, text, evaluate).cases
    module = migrate(path.name, text, evaluate)
    project.write("test_it.py", module)

    seen = outcomes(project.run())

    functions = [n for n in ast.parse(module).body if isinstance(n, ast.FunctionDef)]
    marked = {n.name for n in functions if "translated by hand" in ast.unparse(n)}
    assert len(seen) == len(cases)
    different = {
        case.name.partition(": ")[2]
        for case, (name, outcome) in zip(cases, seen.items(), strict=True)
        if name.partition("[")[0] not in marked
        and outcome != _expected(case)
        and not _GROUPS_APART & {group.name for group in case.groups}
    }
    assert different == _DIFFERENT & {case.name.partition(": ")[2] for case in cases}
