"""What pytest reports about tests with the `shell` fixture, and about traced specs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import coverage
import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_LIBRARY = """\
choose() {
  if [[ $1 == left ]]; then
    echo left
  else
    echo right
  fi
}
"""
_TEST = """\
def test_left(shell):
    shell.source("lib/choose.sh")
    shell.call("choose", "left").check()


def test_script(shell):
    shell.run_script({script!r}).check()
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_coverage_of_python_tests_is_recorded(project: SpecProject, workers: list[str]) -> None:
    library = project.write("lib/choose.sh", _LIBRARY)
    script = project.write("lib/script.sh", "true\nif false; then\n  echo\nfi\n")
    project.write("test_choose.py", _TEST.format(script=str(script)))
    secret = library.parent / "secret"
    secret.symlink_to("/proc/self/mem")  # a file whose start nobody can read

    result = project.run(f"--shell-cov={library.parent}", *workers)

    assert "2 passed" in result.stdout, result.stdout
    assert f"The coverage lacks '{secret}', which can't be read." in result.stdout
    data = coverage.CoverageData(basename=str(project.root / ".coverage.shell"))
    data.read()
    assert set(data.lines(str(library.resolve())) or []) == {2, 3}
    assert set(data.lines(str(script.resolve())) or []) == {1, 2}


def test_unused_mock_is_reported_only_for_a_test_that_passes(project: SpecProject) -> None:
    project.write(
        "test_both.py",
        "def test_fails(shell):\n    shell.mock('curl').answers('x')\n    assert False\n\n\n"
        "def test_passes(shell):\n    shell.mock('curl').answers('x')\n",
    )

    result = project.run()

    assert "1 failed, 1 passed, 1 error" in result.stdout


def test_xtrace_of_a_spec_shows_only_the_code_under_test(project: SpecProject) -> None:
    project.write(
        "trace_spec.sh",
        """\
Describe 'trace'
  It 'has no lines of the harness'
    Mock curl
      echo "body $1"
    End
    Mock nvidia-smi
      :
    End
    f() { set -x; out=$(curl a 2>&1); sleep 5; nvidia-smi; }
    When call f
    The line 1 of stderr should equal '++ curl a'
    The line 2 of stderr should equal "+ out='body a'"
    The line 3 of stderr should equal '+ sleep 5'
    The line 4 of stderr should equal '+ nvidia-smi'
    The lines of stderr should equal 4
    The variable out should equal 'body a'
  End
  It 'has none of a mock that preserves variables'
    Mock wget
      COUNT=$((COUNT + 1))
      %preserve COUNT
      echo "body $1"
    End
    g() { set -x; COUNT=1; out=$(wget a 2>&1); { set +x; } 2>/dev/null; echo "$out"; }
    When run g
    The output should equal 'body a'
    The lines of stderr should equal 3
  End
End
""",
    )

    result = project.run("--shell-time=virtual")

    assert set(outcomes(result).values()) == {"passed"}, result.stdout


def test_coverage_option_for_a_path_without_scripts_is_refused(project: SpecProject) -> None:
    project.write("test_nothing.py", "def test_nothing():\n    pass\n")

    result = project.run(f"--shell-cov={project.root / 'absent'}")

    assert result.exit_code == 4
    assert "--shell-cov: There is no bash script at" in result.stdout
