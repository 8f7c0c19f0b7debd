"""A mock of a path is a file of the throw-away root at that path, until the mock's block ends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from suites.host.shell.running import ordinary_user, outcomes, run_pytest, this_user

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from harness.shell.testing import Shell
    from suites.host.shell.running import PytestRun, SpecProject

_SPEC = """\
Describe 'paths'
  Describe 'mocked'
    Mock /usr/bin/no-such-tool
      echo "mocked $*"
    End
    Mock /usr/bin/id
      echo outer
    End
    It 'are seen by callers of the full path'
      When call sh -c '/usr/bin/no-such-tool -L; /bin/id; id'
      The output should equal "$(printf 'mocked -L\\nouter\\nouter')"
    End
    It 'are mocked anew in an example, and again there'
      Mock /usr/bin/id
        echo first
      End
      Mock /usr/bin/id
        echo inner
      End
      Mock /opt/harness-trial/bin/tool
        echo tool
      End
      Mock ./tool
        echo relative
      End
      When call sh -c '/opt/harness-trial/bin/tool; /usr/bin/id; ./tool'
      The output should equal "$(printf 'tool\\ninner\\nrelative')"
    End
    It 'are those of the group again'
      When call sh -c '/usr/bin/id; ls -d /opt/harness-trial ./tool 2>/dev/null'
      The output should equal outer
      The status should be failure
    End
  End
  It 'are as they were'
    When call sh -c 'ls /usr/bin/no-such-tool 2>/dev/null; /usr/bin/id -g'
    The output should equal "$(id -g)"
  End
  Describe 'of what puts them there'
    Parameters
      mv
      cp
    End
    It "$1"
      Mock "/usr/bin/$1"
        echo moved
      End
      When call "/usr/bin/$1" a b
      The output should equal moved
    End
  End
End
"""
_REFUSED = """\
Describe 'names'
  Parameters
    /bin/sh 'it runs the mocks themselves'
    /usr 'it is a directory'
    .. "A mock can't be called '..'"
    /proc/no-such/tool 'there can be no such file'
    /opt/../tool "A mock can't be called '/opt/../tool'"
  End
  It "$1"
    Mock "$1"
      :
    End
    The value a should equal a
  End
End
"""


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("as_user", [this_user, ordinary_user])
def test_mocked_path_exists_until_the_block_of_the_mock_ends(
    shell: str, as_user: Callable[[], AbstractContextManager[PytestRun]]
) -> None:
    with as_user() as run:
        (run.root / ".shellspec").write_text(f"--shell {shell}\n")
        (run.root / "paths_spec.sh").write_text(_SPEC)

        result = run_pytest(run)

    assert set(outcomes(result).values()) == {"passed"}, result.render()
    assert len(outcomes(result)) == 6


@pytest.mark.parametrize("shell", ["bash", "dash"])
def test_path_that_cannot_be_mocked_is_named_in_the_failure(
    project: SpecProject, shell: str
) -> None:
    project.write(".shellspec", f"--shell {shell}\n")
    project.write("refused_spec.sh", _REFUSED)

    result = project.run()

    assert set(outcomes(result).values()) == {"failed"}, result.render()
    for line in _REFUSED.splitlines()[2:7]:
        assert line.split(maxsplit=1)[1].strip("'\"") in result.stdout


@pytest.mark.parametrize("name", ["/usr/bin/harness-trial", "./harness-trial"])
def test_mocked_path_without_a_throwaway_root_is_refused(project: SpecProject, name: str) -> None:
    project.write("a_spec.sh", f"It 'x'\nMock {name}\n:\nEnd\nThe value a should eq a\nEnd\n")

    result = project.run("--shell-sandbox=off")

    assert outcomes(result) == {"x": "failed"}
    assert f"A mock of the path '{name}' needs the throw-away root" in result.stdout
    assert not Path(name).exists()
    assert not (project.root / name).exists()


def test_mocked_path_does_not_exist_on_the_host(shell: Shell) -> None:
    host = Path("/opt/harness-trial")
    shell.mock("/opt/harness-trial/tool").answers("mocked\n")
    shell.mock("./harness-trial-tool").answers("relative\n")

    result = shell.evaluate("sh -c /opt/harness-trial/tool; sh -c ./harness-trial-tool").check()

    assert result.stdout == "mocked\nrelative\n"
    assert not host.exists()
    assert not Path("harness-trial-tool").exists()


@pytest.mark.parametrize("name", ["", "..", "../x", "/usr/../x", "/usr/bin/", "a\0b", "a\nb"])
def test_mock_with_an_impossible_name_is_refused(shell: Shell, name: str) -> None:
    for refuse in (shell.mock, shell.spy, shell.allow, shell.hide):
        with pytest.raises(BadInputError, match="A mock can't be called"):
            refuse(name)
