"""Code under test has the same environment as under shellspec, so its verdicts are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_SIGNALS = """\
It 'ignores no signal'
  When run command grep SigIgn /proc/self/status
  The output should equal "SigIgn:	0000000000000000"
End
It 'ends a writer whose reader has gone'
  f() { echo "$(printf %100000s x)" | head -c1 >/dev/null; }
  When call f
  The stderr should equal ''
End
"""


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
@pytest.mark.parametrize("sandbox", ["throwaway", "off"])
def test_code_under_test_starts_with_no_ignored_signals(
    project: SpecProject, sandbox: str, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("signals_spec.sh", _SIGNALS)

    result = project.run(f"--shell-sandbox={sandbox}")

    assert set(outcomes(result).values()) == {"passed"}, result.render()


@pytest.mark.parametrize("status", [130, 143, 169, 255])
@pytest.mark.parametrize("sandbox", ["throwaway", "off"])
def test_exit_status_above_128_is_not_reported_as_a_signal(
    project: SpecProject, sandbox: str, status: int
) -> None:
    project.write(
        "exit_spec.sh",
        f"It 'exits'\nf() {{ exit {status}; }}\nWhen call f\nThe status should be success\nEnd\n",
    )

    result = project.run(f"--shell-sandbox={sandbox}")

    assert f"its shell ended with exit code {status} in the evaluation" in result.stdout
    assert "signal" not in result.stdout


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
def test_signal_that_ends_an_example_is_named_in_the_failure(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write(
        "signal_spec.sh",
        "It 'is killed'\nf() { sh -c 'kill -USR1 $PPID'; }\nWhen call f\n"
        "The status should be success\nEnd\n",
    )

    result = project.run()

    assert "its shell was killed by signal 10 (User defined signal 1)" in result.stdout


@pytest.mark.parametrize("sandbox", ["throwaway", "off"])
def test_early_end_of_a_spec_file_is_reported_with_signal_or_exit_code(
    project: SpecProject, sandbox: str
) -> None:
    project.write("exit_spec.sh", "exit 169\nIt 'is not reached'\nEnd\nIt 'has a body'\n:\nEnd\n")
    project.write("signal_spec.sh", "kill -USR1 $$\nIt 'is not reached'\n:\nEnd\n")

    result = project.run(f"--shell-sandbox={sandbox}")

    assert "The shell of this file ended early, with exit code 169." in result.stdout
    assert "The shell of this file was killed by signal 10 (User defined signal 1)" in (
        result.stdout
    )


_TO_ITS_OWN_SHELL = """\
Describe 'a group'
  It 'ends in a call'
    f() { echo before; kill -TERM $$; echo after; }
    When call f
    The output should include before
  End
  It 'cleans up'
    f() { trap 'trap - TERM; echo cleaned; kill -s TERM $$' TERM; (kill -TERM $$); echo after; }
    When run f
    The output should equal cleaned
    The status should equal 143
    The stderr should be defined
  End
  It 'comes after'
    When call kill -0 $$
    The status should be success
  End
End
"""


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox"])
def test_signal_from_code_to_its_shell_ends_only_the_current_example(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("own_spec.sh", _TO_ITS_OWN_SHELL)

    result = project.run()

    assert outcomes(result) == {
        "ends in a call": "failed",
        "cleans up": "passed",
        "comes after": "passed",
    }, result.render()
    assert "its shell was killed by signal 15 (Terminated)" in result.stdout
