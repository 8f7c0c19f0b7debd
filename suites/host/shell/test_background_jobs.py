"""A background job of an example ends before the next example, or the report names the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_LATE = '(sleep 0.4; echo late >>"$SHELLSPEC_WORKDIR/{kind}") &'
_READ = "The contents of file $SHELLSPEC_WORKDIR/{kind} should equal late\n"
_EVALUATIONS = {
    "call": f"f() {{{{ {_LATE} }}}}\nWhen call f\n{_READ}",
    "run": f"f() {{{{ {_LATE} exit 0; }}}}\nWhen run f\n{_READ}",
    "script": f"When run script ./late.sh\n{_READ}",
    "code": f"{_LATE}\nThe value a should equal a\n",
}


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
def test_background_job_finishes_before_later_checks_and_examples_run(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("late.sh", f"#!/bin/sh\n{_LATE.format(kind='script')}\n").chmod(0o755)
    pair = "It 'starts a job ({kind})'\n{code}End\nIt 'follows ({kind})'\n{read}End\n"
    examples = [
        pair.format(kind=kind, code=code.format(kind=kind), read=_READ.format(kind=kind))
        for kind, code in _EVALUATIONS.items()
    ]
    project.write("jobs_spec.sh", "".join(examples))

    result = project.run()

    seen = outcomes(result)
    assert len(seen) == 2 * len(examples)
    assert set(seen.values()) == {"passed"}, result.render()


@pytest.mark.parametrize(
    ("shell", "workers"), [("bash", "0"), ("bash", "1"), ("dash", "0"), ("busybox", "0")]
)
def test_background_jobs_that_do_not_end_are_reported_once(
    project: SpecProject, shell: str, workers: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    fine = "When call true\nThe status should be success\nEnd\n"
    examples = [
        f"Describe '{kind}'\nIt 'starts a job'\nf() {{ sleep {length} & }}\n"
        f"When {kind} f\nThe status should be success\nEnd\nEnd\n"
        f"It 'follows {kind}'\n{fine}It 'comes after {kind}'\n{fine}"
        for kind, length in (("call", 3601), ("run", 3602))
    ]
    project.write("jobs_spec.sh", "".join(examples))

    result = project.run("-n", workers)

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    named = [line for line in result.stdout.splitlines() if "still running" in line]
    assert named == [
        f"jobs_spec.sh::{kind}::starts a job: still running 1 s after the example: "
        f"'sleep {length}'. The next example starts nevertheless."
        for kind, length in (("call", 3601), ("run", 3602))
    ]
