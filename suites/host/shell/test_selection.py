"""`pytest FILE:LINE` and `pytest FILE::NAME`, as failures print them, run the failed examples."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from suites.host.shell.running import outcomes

if TYPE_CHECKING:
    from harness.provisioning.command import CommandResult
    from suites.host.shell.running import SpecProject

_SPEC = """\
Describe 'group [with] brackets'
  It 'passes'
    When call true
    The status should be success
  End
  It 'fails: here'
    When call false
    The status should be success
  End
  Describe 'of rows'
    Parameters
      1
      2
    End
    It "has row $1"
      When call test "$1" -lt 3
      The status should be success
    End
  End
End
"""


def _run(project: SpecProject, *arguments: str, workers: str = "0") -> CommandResult:
    argv = ["-p", "xdist.plugin", "-p", "harness.plugin.specs.hooks", "-v", "-n", workers]
    return project.pytest.run(*argv, f"--rootdir={project.root}", *arguments, cwd=project.root)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_file_line_or_test_id_in_a_failure_report_selects_the_failed_example(
    project: SpecProject, workers: str
) -> None:
    project.write("a_spec.sh", _SPEC)
    project.write("b_spec.sh", _SPEC)
    first = _run(project, ".")
    line = re.search(r"^(\S+_spec\.sh:\d+): The status", first.stdout, re.MULTILINE)
    node_id = re.search(r"^FAILED (.*?_spec\.sh::.*?)(?: - .*)?$", first.stdout, re.MULTILINE)
    assert line is not None, first.render()
    assert node_id is not None, first.render()

    for place in (line[1], node_id[1]):
        again = _run(project, place, workers=workers)
        ending = again.stdout.splitlines()[-1]
        assert "1 failed" in ending, again.render()
        assert "passed" not in ending, again.render()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["a_spec.sh:2"], ["passes"]),
        (["a_spec.sh:16"], ["has row 1", "has row 2"]),
        (["a_spec.sh:10"], ["has row 1", "has row 2"]),
        (["a_spec.sh:2:9"], ["passes", "fails: here"]),
        (["a_spec.sh:2", "a_spec.sh::group [with] brackets::of rows"],
         ["passes", "has row 1", "has row 2"]),
    ],
)  # fmt: skip
def test_line_numbers_and_names_on_the_command_line_select_examples(
    project: SpecProject, arguments: list[str], names: list[str]
) -> None:
    project.write("a_spec.sh", _SPEC)

    result = _run(project, *arguments)

    assert list(outcomes(result)) == names, result.render()


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("a_spec.sh:30", "There is no example at line 30"),
        ("a_spec.sh::group [with] brackets::gone", "no group or example"),
    ],
)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_line_or_name_without_an_example_is_an_error(
    project: SpecProject, place: str, sentence: str, workers: str
) -> None:
    project.write("a_spec.sh", _SPEC)
    project.write("b_spec.sh", "It 'passes'\nWhen call true\nThe status should equal 0\nEnd\n")

    result = _run(project, place, "b_spec.sh", workers=workers)

    assert sentence in result.stdout, result.render()
    assert result.exit_code != 0
