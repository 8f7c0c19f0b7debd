"""`--shell-cov` counts all code under test that ran, and changes no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.shell.coverage_data import combine
from suites.host.shell.running import PytestRun, outcomes, run_pytest, this_user

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A script in which each command runs, except on lines that end with `# no`.
_TOOL = """\
#!/bin/bash
set -e
if [ "$1" = x ]; then
  echo x
else
  echo other # no
fi
helper() {
  echo "helped ${1:-}"
}
helper a
"""
_TRACED = """\
#!/bin/bash
traced() {
  set -x
  echo hi
  { set +x; } 2>/dev/null
  echo after
  false || echo "status $?"
}
unused() {
  echo # no
}
"""
_INSTALL = """\
#!/bin/bash
set -eu
pick() {
  if [ "$1" = open ]; then
    echo kernel-open
  else
    echo kernel # no
  fi
}
tidy() {
  echo tidied
}
leave() {
  trap tidy EXIT
}
main() { pick "$@"; } # no
main "$@" # no
exit 3 # no
"""
_SPEC = """\
Describe 'code'
  Include ./lib/traced.sh
  It 'of a script run by a form of its own'
    When run script lib/tool.sh x
    The line 1 of output should equal x
  End
  It 'run by path'
    When call ./lib/tool.sh x
    The line 1 of output should equal x
  End
  It 'run by bash'
    When call bash lib/tool.sh x
    The line 2 of output should equal 'helped a'
  End
  It 'traced by bash'
    When call bash -x lib/tool.sh x
    The line 1 of output should equal x
    The line 1 of stderr should equal '+ set -e'
    The stderr should end with '+ echo '"'helped a'"
    The lines of stderr should equal 5
  End
  It 'that traces itself, called'
    When call traced
    The line 2 of output should equal after
    The stderr should equal '+ echo hi'
  End
  It 'that traces itself, run'
    When run traced
    The line 3 of output should equal 'status 1'
    The stderr should equal '+ echo hi'
  End
  It 'with a trap on RETURN'
    f() { trap 'echo cleaned' RETURN; g; echo data; }
    g() { echo g; }
    When call f
    The line 2 of output should equal data
    The lines of output should equal 3
  End
  It 'that says where its trace goes'
    f() { BASH_XTRACEFD=2; set -x; echo hi; }
    When call f
    The output should equal hi
    The stderr should end with '+ echo hi'
  End
End
"""
_TEST = """\
def test_processes(shell):
    assert shell.run_script("lib/tool.sh", "x").check().stdout == "x\\nhelped a\\n"
    assert shell.evaluate("bash lib/tool.sh x; ./lib/tool.sh x").check().stdout.count("x") == 2

def test_trace(shell):
    shell.source("lib/traced.sh")
    result = shell.call("traced").check()
    assert result.stderr.lstrip("+") == " echo hi\\n"
    assert result.stdout.endswith("status 1\\n")

def test_extract(shell):
    shell.extract("lib/install.sh", "pick", "tidy", "leave")
    assert shell.call("leave").check().stdout == "tidied\\n"
    assert shell.call("pick", "open").check().stdout == "kernel-open\\n"
    assert "line 4: $1: unbound" in shell.call("pick").stderr

def test_return_trap(shell):
    shell.define("f() { trap 'echo cleaned' RETURN; g; echo data; }; g() { echo g; }")
    assert shell.call("f").stdout == "g\\ndata\\ncleaned\\n"
"""


@pytest.fixture
def run() -> Iterator[PytestRun]:
    with this_user() as run:
        (run.root / ".shellspec").touch()
        yield run


def _write(run: PytestRun, *, traced: str) -> None:
    for name, text in {
        "lib/tool.sh": _TOOL, "lib/traced.sh": traced, "lib/install.sh": _INSTALL,
        "spec/a_spec.sh": _SPEC, "test_a.py": _TEST,
    }.items():  # fmt: skip
        path = run.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def _counted(run: PytestRun, name: str) -> set[int]:
    data = combine([run.root / ".coverage.shell"])
    return set(data.lines(str(run.root / "lib" / name)) or ())


@pytest.mark.parametrize("option", [[], ["--shell-cov=lib"]], ids=["plain", "coverage"])
def test_coverage_changes_no_verdict(run: PytestRun, option: list[str]) -> None:
    _write(run, traced=_TRACED)

    result = run_pytest(run, *option)

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    assert len(outcomes(result)) == 12


@pytest.mark.parametrize("tests", ["spec", "test_a.py"])
@pytest.mark.parametrize("traced", [_TRACED, ""], ids=["some code traces itself", "none does"])
def test_coverage_counts_all_executed_lines(run: PytestRun, tests: str, traced: str) -> None:
    _write(run, traced=traced)

    run_pytest(run, tests, "--shell-cov=lib")

    assert _counted(run, "tool.sh") == {2, 3, 4, 9, 11}
    if traced:
        assert _counted(run, "traced.sh") == {3, 4, 5, 6, 7}
    if tests == "test_a.py":
        assert _counted(run, "install.sh") == {4, 5, 11, 14}


@pytest.mark.parametrize("name", ["a_spec.sh", "test_a.py"])
def test_coverage_counts_a_trap_that_runs_after_the_code_signals_itself(
    run: PytestRun, name: str
) -> None:
    script = run.root / "lib/told.sh"
    script.parent.mkdir()
    script.write_text("f() {\n  trap told USR1\n  kill -s USR1 $$\n}\ntold() {\n  echo told\n}\n")
    tests = {
        "a_spec.sh": "Include ./lib/told.sh\nIt 'a'\nWhen run f\nThe output should eq told\nEnd\n",
        "test_a.py": "def test_a(shell):\n    shell.source('lib/told.sh')\n    shell.call('f').check()\n",
    }
    (run.root / name).write_text(tests[name])

    result = run_pytest(run, name, "--shell-cov=lib")

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    assert _counted(run, "told.sh") == {2, 3, 6}
