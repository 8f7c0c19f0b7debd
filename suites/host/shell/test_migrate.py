"""A migrated spec is a module whose tests say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.migrate import migrate
from suites.host.shell.running import outcomes, row_evaluator

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject

_SPEC = """\
Describe 'provisioning'
  Include ./library.sh
  prefix=hello
  fetch() { echo "fetched $1"; }
  BeforeEach 'ready=yes'
  It 'uses a function mock'
    When call provision driver
    The output should equal 'hello fetched driver'
    The status should be success
    The variable ready should equal yes
    The line 1 of output should not include moon
  End
  It 'uses a command mock'
    Mock curl
      echo 'from curl'
      exit 3
    End
    When call in_child
    The output should equal 'from curl'
    The status should equal 3
  End
  Describe 'parameters'
    Parameters
      a 1
      "b c" 2
    End
    It "prints $1"
      When call echo "$1-$2"
      The output should match pattern '*'
    End
    It "writes $1"
      When call eval 'echo text >/etc/harness-migrated'
      The contents of file /etc/harness-migrated should equal text
    End
  End
  It 'fails'
    When run exit 4
    The status should be success
  End
  xIt 'is skipped'
    When call false
  End
End
"""
_LIBRARY = """\
provision() { echo "$prefix $(fetch "$1")"; }
in_child() { bash -c curl; }
"""


def _migrate(text: str) -> str:
    return migrate("a_spec.sh", text, row_evaluator("a_spec.sh"))


def test_migrated_examples_reach_the_same_verdicts(project: SpecProject) -> None:
    project.write("library.sh", _LIBRARY)
    project.write("conftest.py", "from fixtures.shell import shell, warm_shells\n")
    project.write("test_migrated.py", _migrate(_SPEC))

    result = project.run()

    seen = outcomes(result)
    assert seen.pop("test_provisioning_fails") == "failed"
    assert seen.pop("test_provisioning_is_skipped") == "skipped"
    by_hand = {name: seen.pop(name) for name in list(seen) if "prints" in name}
    assert set(by_hand.values()) == {"failed"}, "a pattern has no plain equivalent"
    assert len(by_hand) == 2
    assert len(seen) == 4, result.render()
    assert set(seen.values()) == {"passed"}, result.render()


def test_line_without_equivalent_fails_instead_of_vanishing() -> None:
    module = _migrate("It 'x'\nWhen call f\nThe output should satisfy g\nAssert true\nEnd\n")

    assert "pytest.fail('to be translated by hand: The output should satisfy g')" in module
    assert "pytest.fail('to be translated by hand: Assert true')" in module
