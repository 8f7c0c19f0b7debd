"""A migrated spec is a module whose tests say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.spec.migrate import migrate
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
    project.write("test_migrated.py", _migrate(_SPEC))

    result = project.run()

    seen = outcomes(result)
    assert seen.pop("test_provisioning_fails") == "failed"
    assert seen.pop("test_provisioning_is_skipped") == "skipped"
    assert len(seen) == 6, result.render()
    assert set(seen.values()) == {"passed"}, result.render()


_FILES = """\
Describe 'files'
  setup() { work=$(mktemp -d); }
  cleanup() { rm -rf "$work"; }
  BeforeEach 'setup'
  AfterEach 'cleanup'
  save() { printf '%s\\n' "$2" >"$1"; }
  It 'reads a file by a variable'
    When call save "$work/out" "it's {text}"
    The contents of file "$work/out" should equal "it's {text}"
    The contents of file "$(dirname "$work/out")/out" should include 'text'
    The file "$work/out" should be exist
    The path "$work/none" should not be exist
    The dir "$work" should not be empty directory
    Assert [ -s "$work/out" ]
  End
  It 'reads another file'
    Path written="$work/out"
    When call save "$work/out" text
    The contents of file written should equal text
    The contents of file written should equal other
  End
  It 'has a wrong name'
    When call save "$work/out" "$work"
    The contents of file "$work/out" should equal "${work}x"
  End
  It 'has another file'
    When call save "$work/out" text
    Assert [ -e "$work/none" ]
  End
  Describe 'rows'
    Parameters
      a 1
      b 2
    End
    It "prints $1"
      When call echo "$1-$2"
      The output should equal "$1-${2}"
      The output should match pattern "[ab]-*"
    End
    It "prints no $1"
      When call echo "$1-$2"
      The output should match pattern "c-$2|d-*"
    End
  End
  It 'reads what a function prints'
    lines() { printf '%s\\n' one two; }
    Data lines
    When call wc -l
    The output should equal 2
  End
  It 'reads a text with variables'
    Data:expand
      #|in $work
    End
    When call cat
    The output should equal "in $work"
  End
  It 'is skipped where a command succeeds'
    Skip if 'always' true
    When call false
    The status should be failure
  End
  It 'is skipped unless a command succeeds'
    Skip unless 'never' false
    When call false
    The status should be failure
  End
  It 'is pending'
    Pending 'later'
    When call false
    The status should be success
  End
  It 'runs hooks around the call'
    before() { echo before; }
    after() { echo after; }
    BeforeCall 'before'
    AfterCall 'after'
    When call echo body
    The line 1 of output should equal before
    The line 2 of output should equal body
    The line 3 of output should equal after
  End
End
"""


def test_files_and_variables_are_read_after_the_evaluation(
    project: SpecProject,
) -> None:
    module = _migrate(_FILES)
    project.write("test_files.py", module)

    result = project.run()

    seen = {name.removeprefix("test_files_"): value for name, value in outcomes(result).items()}
    assert "by hand" not in module
    assert seen == {
        "reads_a_file_by_a_variable": "passed",
        "reads_another_file": "failed",
        "has_a_wrong_name": "failed",
        "has_another_file": "failed",
        "rows_prints_1[row0]": "passed",
        "rows_prints_1[row1]": "passed",
        "rows_prints_no_1[row0]": "failed",
        "rows_prints_no_1[row1]": "failed",
        "reads_what_a_function_prints": "passed",
        "reads_a_text_with_variables": "passed",
        "is_skipped_where_a_command_succeeds": "skipped",
        "is_skipped_unless_a_command_succeeds": "skipped",
        "is_pending": "xfail",
        "runs_hooks_around_the_call": "passed",
    }, result.render()


def test_line_without_equivalent_fails_instead_of_vanishing() -> None:
    module = _migrate("It 'x'\nWhen call f\nThe output should be odd\nIntercept h\nEnd\n")

    assert (
        "to be translated by hand ('be' has no equivalent here): The output should be o" in module
    )
    assert "to be translated by hand ('Intercept' has no equivalent here): Intercept h" in module


def _outcomes(project: SpecProject, text: str) -> dict[str, str]:
    """Return what becomes of the tests that a spec is translated to."""
    project.write("test_it.py", _migrate(text))
    return outcomes(project.run())


def test_line_of_data_that_ends_with_a_backslash_is_the_whole_line(project: SpecProject) -> None:
    spec = "It 'x'\nData\n#|one \\\nEnd\nWhen call cat\nThe output should equal 'one \\'\nEnd\n"

    assert _outcomes(project, spec) == {"test_x": "passed"}


def test_line_that_executes_the_spec_itself_is_left_out(project: SpecProject) -> None:
    spec = "eval \"$(shellspec - -c) exit 1\"\nIt 'x'\nWhen call true\nThe status should equal 0\nEnd\n"
    module = _migrate(spec)

    assert "shellspec -" not in module
    assert _outcomes(project, spec) == {"test_x": "passed"}


def test_comment_after_an_evaluation_is_left_out(project: SpecProject) -> None:
    spec = (
        "It 'runs'\nWhen run echo b # c\nThe output should equal b # d\nEnd\n"
        "It 'calls'\nWhen call echo 'b # c' # d\nAssert true # e\nThe output should equal 'b # c'\nEnd\n"
    )

    assert set(_outcomes(project, spec).values()) == {"passed"}


def test_quoted_text_over_several_lines_is_kept(project: SpecProject) -> None:
    spec = """\
It 'expects'
  f() { printf '%s\\n' "$1"; }
  When call f "one
  two"
  The output should equal "one
  two"
End
It 'expects another'
  When call printf 'one\\ntwo\\n'
  The output should equal 'one
three'
End
"""

    assert _outcomes(project, spec) == {
        "test_expects": "passed",
        "test_expects_another": "failed",
    }


def test_skip_with_a_condition_skips_if_the_condition_is_true(project: SpecProject) -> None:
    spec = """\
Describe 'group'
  holds() { [ "$1" = yes ]; }
  Skip if 'not here' holds yes
  It 'is skipped'
    When call false
  End
End
Describe 'other group'
  holds() { [ "$1" = yes ]; }
  Skip if 'not here' holds no
  It 'runs'
    When call true
    The status should be success
  End
  It 'is skipped by a function of its own'
    here() { true; }
    Skip if 'not here' here
    When call false
  End
End
Describe 'always'
  Skip 'never'
  It 'is skipped'
    When call false
  End
End
"""

    assert _outcomes(project, spec) == {
        "test_group_is_skipped": "skipped",
        "test_other_group_runs": "passed",
        "test_other_group_is_skipped_by_a_function_of_its_own": "skipped",
        "test_always_is_skipped": "skipped",
    }


def test_skip_without_if_ignores_words_after_its_reason(project: SpecProject) -> None:
    spec = "It 'x'\nSkip 'reason' false\nWhen call false\nEnd\n"

    assert _outcomes(project, spec) == {"test_x": "skipped"}


def test_rows_of_every_kind_are_kept(project: SpecProject) -> None:
    spec = """\
Describe 'matrix'
  Parameters:matrix
    a b
    1 2 # of them
  End
  It "x $1"
    When call echo "$1-$2"
    The output should equal b-2
  End
End
Describe 'value'
  Parameters:value one 'a b'
  It 'x'
    When call echo "$1"
    The output should equal 'a b'
  End
End
Describe 'dynamic'
  Parameters:dynamic
    for n in 1 2 3; do
      %data "$n" $((n * n))
    done
  End
  It 'x'
    When call echo "$(($1 * $1))"
    The output should equal "$2"
  End
End
Describe 'expanded'
  name='a b'
  Parameters
    "$name" 1
    c 2
  End
  It 'x'
    When call echo "$1$2"
    The output should equal 'a b1'
    The output should equal "$1$2"
  End
End
"""

    assert list(_outcomes(project, spec).items()) == [
        ("test_matrix_x_1[row0]", "failed"),
        ("test_matrix_x_1[row1]", "failed"),
        ("test_matrix_x_1[row2]", "failed"),
        ("test_matrix_x_1[row3]", "passed"),
        ("test_value_x[row0]", "failed"),
        ("test_value_x[row1]", "passed"),
        ("test_dynamic_x[row0]", "passed"),
        ("test_dynamic_x[row1]", "passed"),
        ("test_dynamic_x[row2]", "passed"),
        ("test_expanded_x[row0]", "passed"),
        ("test_expanded_x[row1]", "failed"),
    ]


def test_rows_that_commands_print_are_marked() -> None:
    module = _migrate(
        "Parameters:dynamic\nfor f in $(ls /); do %data $f; done\nEnd\n"
        "It 'x'\nWhen call true\nThe status should equal 0\nEnd\n"
    )

    assert "by hand (its rows are what commands print where the spec is run)" in module


def test_functions_of_the_spec_judge_values(project: SpecProject) -> None:
    spec = """\
later() { [ "$later" -gt "$1" ]; }
reads() { [ "$(cat)" = "$1" ]; }
has_moved() { [ "$moved" = "$1" ] && cat >/dev/null && echo yes; }
It 'is satisfied'
  move() { moved=there; echo "version is 12"; echo 3 >&2; return 4; }
  When call move
  The third word of output should satisfy later 10
  The stderr should satisfy reads 3
  The status should satisfy later 3
  The variable moved should satisfy reads there
  The value "$moved" should not satisfy reads here
End
It 'is not satisfied'
  When call echo 'version is 9'
  The third word of output should satisfy later 10
End
It 'is no satisfaction, since it complains'
  complains() { echo no >&2; }
  When call true
  The status should not satisfy complains
End
It 'has results'
  move() { moved=there; echo out; }
  shows() { echo "$1-$2-$3-$(cat)"; }
  checks() { has_moved there; }
  fails() { has_moved here; }
  When call move
  The result of function checks should be successful
  The result of "checks()" should equal yes
  The result of function fails should not be successful
  The result of function shows should equal "out
--0-out"
End
It 'has another result'
  When call echo
  The result of function false should be successful
End
"""

    assert _outcomes(project, spec) == {
        "test_is_satisfied": "passed",
        "test_is_not_satisfied": "failed",
        "test_is_no_satisfaction_since_it_complains": "failed",
        "test_has_results": "passed",
        "test_has_another_result": "failed",
    }
