"""A background job of an example ends before the next example, or the report names the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_LATE = '(sleep 0.4; echo late >>"$SHELLSPEC_WORKDIR/log") &'
_EVALUATIONS = {
    "call": f"f() {{ {_LATE} }}\nWhen call f\nThe contents of file $SHELLSPEC_WORKDIR/log "
    "should equal late\n",
    "run": f"f() {{ {_LATE} exit 0; }}\nWhen run f\nThe contents of file $SHELLSPEC_WORKDIR/log "
    "should equal late\n",
    "script": "When run script ./late.sh\nThe contents of file $SHELLSPEC_WORKDIR/log "
    "should equal late\n",
    "code": f"{_LATE}\nThe value a should equal a\n",
}


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
@pytest.mark.parametrize("kind", _EVALUATIONS)
def test_background_job_ends_before_later_code_runs(
    project: SpecProject, kind: str, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("late.sh", f"#!/bin/sh\n{_LATE}\n").chmod(0o755)
    project.write(
        "jobs_spec.sh",
        f"It 'starts a job'\n{_EVALUATIONS[kind]}End\n"
        "It 'follows'\nThe contents of file $SHELLSPEC_WORKDIR/log should equal late\nEnd\n",
    )

    result = project.run()

    assert outcomes(result) == {"starts a job": "passed", "follows": "passed"}, result.render()


@pytest.mark.parametrize(
    ("shell", "workers"), [("bash", "0"), ("bash", "2"), ("dash", "0"), ("busybox", "0")]
)
@pytest.mark.parametrize("kind", ["call", "run"])
def test_background_job_that_does_not_end_is_reported_once(
    project: SpecProject, kind: str, shell: str, workers: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write(
        "jobs_spec.sh",
        "Describe 'group'\n"
        f"It 'starts a job'\nf() {{ sleep 3601 & }}\nWhen {kind} f\n"
        "The status should be success\nEnd\nEnd\n"
        "It 'follows'\nWhen call true\nThe status should be success\nEnd\n"
        "It 'is last'\nWhen call true\nThe status should be success\nEnd\n",
    )

    result = project.run("-n", workers)

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    named = [line for line in result.stdout.splitlines() if "still running" in line]
    assert named == [
        (
            "jobs_spec.sh::group::starts a job: still running 1 s after the example: 'sleep 3601'. "
            "The next example starts beside it."
        )
    ]
