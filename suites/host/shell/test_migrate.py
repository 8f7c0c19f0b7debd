"""The tests that `harness migrate` writes for a spec assert the same as the spec."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.spec.migrate import migrate
from suites.host.shell.running import outcomes, row_evaluator

if TYPE_CHECKING:
    from suites.host.shell.running import SpecProject


def _migrate(text: str) -> str:
    return migrate("a_spec.sh", text, row_evaluator("a_spec.sh"))


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


def test_translated_tests_of_files_and_variables_and_hooks_have_the_expected_verdicts(
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


def test_translated_docstrings_escape_the_example_name_and_the_file_name() -> None:
    name = 'a"""\\N{x}\x1b[2J\u202e'
    text = f"It '{name}'\n  When call true\n  The status should equal 0\nEnd\n"

    module = migrate(f"{name}_spec.sh", text, row_evaluator("a_spec.sh"))

    assert module.replace("\n", "").isprintable()
    shown = name.replace('"', "'")
    parsed = ast.parse(module)
    [test] = [each for each in parsed.body if getattr(each, "name", "").startswith("test")]
    assert isinstance(test, ast.FunctionDef)
    docstrings = [ast.get_docstring(parsed), ast.get_docstring(test)]
    assert docstrings == [f"Tests the shell code that {shown}_spec.sh tested.", shown]


def test_line_without_equivalent_is_marked_for_translation_by_hand() -> None:
    module = _migrate("It 'x'\nWhen call f\nThe output should be odd\nIntercept h\nEnd\n")

    assert (
        "to be translated by hand ('be' has no equivalent in Python): The output should be o"
        in module
    )
    assert (
        "to be translated by hand ('Intercept' has no equivalent in Python): Intercept h" in module
    )


def _outcomes(project: SpecProject, text: str) -> dict[str, str]:
    """Translate a spec, run the translated tests, and return their outcomes."""
    project.write("test_it.py", _migrate(text))
    return outcomes(project.run())


def test_unusual_characters_in_texts_keep_their_meaning(project: SpecProject) -> None:
    spec = (
        "It 'escapes'\n"
        "When call printf %s $'caf\\u00e9 \\U1F600 \\xe9\\0'\n"
        "The output should equal $'caf\\xc3\\xa9 \\360\\237\\230\\200 \\xe9'\n"
        "The output should start with \"$(printf caf)\"$'\\u00e9'\n"
        "End\n"
        "It 'quotes'\n"
        "name=x\n"
        'When call printf %s "<$name\udce9 \r\x0c\x01\\"\'"\n'
        'The output should equal "<$name\udce9 \r\x0c\x01\\"\'"\n'
        "End\n"
    )

    assert _outcomes(project, spec) == {"test_escapes": "passed", "test_quotes": "passed"}


def test_line_that_runs_shellspec_on_the_spec_itself_is_not_translated(
    project: SpecProject,
) -> None:
    spec = "eval \"$(shellspec - -c) exit 1\"\nIt 'x'\nWhen call true\nThe status should equal 0\nEnd\n"
    module = _migrate(spec)

    assert "shellspec -" not in module
    assert _outcomes(project, spec) == {"test_x": "passed"}


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


def test_parameters_that_depend_on_the_host_are_marked_for_translation_by_hand() -> None:
    module = _migrate(
        "Parameters:dynamic\nfor f in $(ls /); do %data $f; done\nEnd\n"
        "It 'x'\nWhen call true\nThe status should equal 0\nEnd\n"
    )

    assert "by hand (commands that ran on this host printed the rows of 'Parameters')" in module


def test_spec_with_an_unclosed_quote_around_a_block_is_refused() -> None:
    text = "Describe 'd'\nData 'x\nParameters:block\n'a\nb'\nEnd\nEnd\n"

    with pytest.raises(BadInputError, match=r"^a_spec\.sh:\d+: This 'End' closes nothing"):
        _migrate(text)


@pytest.mark.parametrize("text", ["", "x\n", "f() { :; }\n", "Describe 'a'\nEnd\n"])
def test_file_without_an_example_is_refused(text: str) -> None:
    """A module without tests would look like a migrated spec."""
    with pytest.raises(BadInputError, match=r"^a_spec\.sh: The file has no example"):
        _migrate(text)
