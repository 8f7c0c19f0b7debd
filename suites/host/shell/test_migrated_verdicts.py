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
#: Mocks of a translated test are strict.
_STRICT = {
    "an unknown command has the status 127",
    "an error message of the shell has the line number of the spec",
    "the body does not see functions",
    "a mock sees no function or variable of the spec",
    "a path does not match other kinds",
}
#: Each translated test has its own throw-away root, in which all hooks run.
_OWN_ROOT = {
    "AfterAll has run when its group is left",
    "a file of an earlier example of the group stays",
    "stderr of a group does not fail the example after the next",
    "hooks after a failed hook did not run",
    "hooks of the inner group run first after an example",
    "hooks of the inner group do not run after the group",
    "AfterAll hooks have run from the inner group to the outer group",
    "of the outer one alone: outer",
    "BeforeAll and AfterAll have run only if their group had an example to run",
}
#: The translation does not notice that a statement fails, or expands to no word or several words.
_UNNOTICED = {
    "unset in call ends the example",
    "an unquoted variable that splits",
    "Skip if with a command that expands to nothing does not skip",
    "plain statements after Skip still run",
    "stderr of a group fails a pending example",
    "Data from a function that fails",
    "Data through a filter that fails",
    "a hook after a pending example fails",
}
#: The fixture `shell` evaluates the code, and not the shell of a spec.
_OTHER_SHELL = {
    "local and return work",
    "a trace is part of stderr of the evaluation",
    "a trace shows the nesting depth of a command",
    "set -v shows input only during the evaluation",
    "on DEBUG, under call",
    "on ERR, under call",
    "on DEBUG and RETURN, under call, in code that fails",
    "Mock replaces an earlier function mock with a comma in its name",
    "a file whose last line does not end",
    "Dump shows the output and status of the evaluation",
    "When run command does not accept a path",
    "a file that may not run",
    "output and status are unset without When",
}
_DIFFERENT = _STRICT | _OWN_ROOT | _UNNOTICED | _OTHER_SHELL
#: In these groups, the fixture does not wait for a job, or uses a command that the spec redefines.
_EXCLUDED_GROUPS = {
    "output of a process that outlives its evaluation",
    "output of a job that outlives its evaluation",
    "commands of the shell that a spec redefines",
}


def _expected(case: Case) -> str:
    verdict, separator, _ = case.name.partition(":")
    is_verdict = separator and not case.name.startswith("<")
    return _OUTCOMES[verdict.lower()] if is_verdict else "passed"


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_translated_example_has_the_expected_verdict_or_is_marked_for_translation_by_hand(
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
        and not _EXCLUDED_GROUPS & {group.name for group in case.groups}
    }
    assert different == _DIFFERENT & {case.name.partition(": ")[2] for case in cases}
