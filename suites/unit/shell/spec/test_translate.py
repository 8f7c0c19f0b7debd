"""The translator finds the blocks of a spec file, and refuses invalid or misplaced ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError
from harness.shell.spec.directives import mock_needs
from harness.shell.spec.translate import continues, translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.spec.spec_file import SpecFile


def _no_rows(code: str, *, line: int) -> Sequence[tuple[str, ...]]:
    raise AssertionError(f"line {line} asks for rows: {code}")


def _translate(text: str) -> SpecFile:
    return translate("a_spec.sh", text, _no_rows)


def test_translated_lines_keep_their_line_numbers() -> None:
    text = """\
Describe 'x'
  Parameters
    a \\
      b
  End # of rows
  It 'y'
    Data
      #|text
    End # of text
    Mock curl
      echo x
    End # of the mock
    When call f \\
      arg
    marker=here
    The output should equal z
  End
End
"""

    spec = _translate(text)

    example, group = (body.split("\n") for body in spec.texts)
    assert group[5].strip().startswith("while __hx_example 0 1;")
    assert len(group) == 17
    assert example[9].strip() == "marker=here"
    assert example[10].strip() == "__hx_the 16 output should equal z"
    assert spec.script.split("\n")[17:] == [" fi", "", "__hx_end_of_file", ""]


def test_case_has_the_lines_and_the_groups_and_the_tags_of_its_example() -> None:
    spec = _translate("Describe 'outer' a:1\nContext 'inner' b\nIt 'name' c\nfoo\nEnd\nEnd\nEnd\n")

    (case,) = spec.cases
    assert case.full_name == "outer inner name"
    assert (case.begin, case.end) == (3, 5)
    assert case.all_tags == {"a:1", "b", "c"}


def test_example_has_rows_and_skip_marks_of_all_enclosing_groups() -> None:
    rows = "Parameters\na 1\nb 1\nEnd\n"
    text = (
        f"xDescribe 'o'\n{rows}fDescribe 'i'\nIt 'gets $1'\n:\nEnd\nIt 'is $2'\n:\nEnd\n"
        "Todo 'writes $1'\nEnd\nEnd\n"
    )

    cases = _translate(f"{text}It 'alone'\n:\nEnd\n").cases

    assert [(case.number, case.name, case.row) for case in cases] == [
        *((0, "gets a", 0), (1, "gets b", 1), (2, "is 1 [1]", 0), (3, "is 1 [2]", 1)),
        *((4, "writes a", 0), (5, "writes b", 1), (6, "alone", None)),
    ]
    assert [(case.is_skipped, case.is_focused) for case in cases] == [
        *[(True, True)] * 6,
        (False, False),
    ]


def test_mocks_share_a_file_if_name_and_text_are_the_same() -> None:
    mocks = "".join(
        f"Mock {name}\n{text}\nEnd\n" for name, text in (*[("a", ":")] * 2, ("b", ":"), ("a", "x"))
    )

    assert [(mock.name, mock.body) for mock in _translate(mocks).mocks] == [
        *(("a", ":\n"), ("b", ":\n"), ("a", "x\n")),
    ]


CONTINUES = {
    "a \\": True,
    "a \\\\": False,
    "a \\\\\\": True,
    " #|a \\": False,
    "a": False,
    "": False,
}


def test_line_continues_after_an_odd_number_of_backslashes() -> None:
    assert {line: continues(line) for line in CONTINUES} == CONTINUES


NEEDS = {
    "echo a": "inline", 'echo "$1" x\nexit 3': "inline", "# a\n:": "inline",
    "exit $code": "fork code", "echo $x": "fork x", "trap a EXIT": "process", "a; . b": "process",
    "set -x": "process", "read a; f $a": "fork a f", "printf x; f.sh a-b": "fork a a-b b f f.sh sh x",
    **dict.fromkeys(
        ("a $0", "a $$", "${!a}", "a $BASHPID", "a $PPID", "eval a", "declare a", "typeset a", "a; compgen",
         "source a", "env", "printenv", "return", "exec a", "type a", "command a", "a $FUNCNAME", "caller",
         "$a", '"$a" b', "if $a; then", "a && $b"),
        "process",
    ),
}  # fmt: skip


def test_body_of_a_mock_decides_between_inline_and_fork_and_process() -> None:
    assert {body: mock_needs(body) for body in NEEDS} == NEEDS


def test_word_before_a_tab_is_not_a_keyword() -> None:
    assert _translate("Describe\tx\n").script.startswith("Describe\tx\n")


def test_groups_that_are_nested_too_deeply_are_refused() -> None:
    example = "It 'x'\nEnd\n"

    assert len(_translate("Describe\n" * 100 + example + "End\n" * 100).cases) == 1
    with pytest.raises(
        BadInputError, match=r"^a_spec\.sh:101: More than 100 groups are nested\.$"
    ):
        _translate("Describe\n" * 2000 + example + "End\n" * 2000)


def test_byte_order_mark_of_a_spec_is_left_out() -> None:
    (case,) = _translate("\ufeffIt 'x'\nEnd\n").cases

    assert case.name == "x"


def test_misplaced_construct_is_refused_with_its_line() -> None:
    refusals: list[tuple[str, int, str]] = [
        ("Describe 'x'\n", 1, "'Describe' is not closed"),
        ("End\n", 1, "'End' closes nothing"),
        ("It 'x'\nIt 'y'\nEnd\nEnd\n", 2, "'It' is not allowed inside an example"),
        ("It 'x'\nDescribe 'y'\nEnd\nEnd\n", 2, "'Describe' is not allowed inside an example"),
        ("When call f\n", 1, "'When' is allowed only inside an example"),
        ("Describe 'x'\nThe output should eq x\nEnd\n", 2, "'The' is allowed only inside"),
        ("Assert true\n", 1, "'Assert' is allowed only inside"),
        ("It 'x'\nParameters\nEnd\nEnd\n", 2, "'Parameters' is not allowed inside"),
        ("It 'x'\nInclude y\nEnd\n", 2, "'Include' is not allowed inside"),
        ("Include\n", 1, "'Include' names no file"),
        ("It 'x'\nTodo 'y'\nEnd\n", 2, "'Todo' is not allowed inside"),
        ("It 'x'\n:\nEnd\nBeforeAll y\n", 4, "'BeforeAll' must come before"),
        ("Describe 'x'\nEnd\nBeforeAll y\n", 3, "'BeforeAll' must come before"),
        *(
            (f"It 'x'\n{hook} y\nEnd\n", 2, f"'{hook}' is not allowed inside")
            for hook in ("Before", "After", "BeforeEach", "AfterEach", "BeforeAll", "AfterAll")
        ),
        ("It 'x'\nData\nfoo\nEnd\nEnd\n", 3, "A 'Data' block may contain only '#|' lines"),
        ("It 'x'\nData\n#|foo\n", 2, "'Data' is not closed"),
        ("\nParameters\na\n", 2, "'Parameters' is not closed"),
        ("Parameters\n# a\nEnd\nIt 'x'\n:\nEnd\n", 4, "the block 'Parameters' above"),
        ("\nMock x\n:\n", 2, "'Mock' is not closed"),
        ("%const a: 1\n", 1, "'%const' needs 'NAME: value', with the name in capitals"),
        ("It 'x'\nData:wrong\nEnd\nEnd\n", 2, "There is no 'Data:wrong'"),
        ("\nParameters:value 'a\nb\n", 2, "has a quote that is not closed"),
        ("\nParameters:matrix\n'a\nEnd\n", 2, "has a quote that is not closed"),
        ("Parameters:wrong\nEnd\n", 1, "There is no 'Parameters:wrong'"),
        ("Mock x\nThe output should eq x\nEnd\n", 2, "'The' is not allowed inside 'Mock'"),
        ("Mock\nEnd\n", 1, "'Mock' takes one name"),
        ("Describe 'x'\n%const A: 1\nEnd\n", 2, "'%const' is not allowed inside a block"),
    ]
    for text, line, message in refusals:
        with pytest.raises(BadInputError) as caught:
            _translate(text)

        assert caught.value.line == line, text
        assert message in str(caught.value)


def test_line_break_in_a_quote_is_a_part_of_the_value_in_each_kind_of_parameters() -> None:
    examples = "It 'gets $1'\n:\nEnd\nIt 'b'\n:\nEnd\n"
    for parameters in (":value 'a\nb' c\n", "\n'a\nb'\nc\nEnd\n", ":matrix\n'a\nb' c\nEnd\n"):
        spec = _translate(f"Parameters{parameters}{examples}")

        assert [case.name for case in spec.cases[:2]] == ["gets a b", "gets c"], parameters
        assert spec.cases[0].begin == parameters.count("\n") + 1, parameters


def test_example_without_generated_rows_does_not_run() -> None:
    text = "It 'a'\n:\nEnd\nParameters:dynamic\n:\nEnd\nIt 'b'\n:\nEnd\n"

    def generate_none(code: str, *, line: int) -> Sequence[tuple[str, ...]]:
        assert (code, line) == (":", 4)
        return []

    spec = translate("a_spec.sh", text, generate_none)

    assert [case.name for case in spec.cases] == ["a"]


def test_impossible_name_of_a_mock_block_is_refused_with_its_line() -> None:
    names: list[str] = ["''", "..", "../x", "/usr/bin/", "$'a\\nb'", "/a/../b"]
    for name in names:
        with pytest.raises(BadInputError, match=r"^a_spec.sh:3: A mock can't be called"):
            _translate(f"Describe 'x'\nIt 'y'\nMock {name}\n  echo x\nEnd\nEnd\nEnd\n")


def test_block_restores_paths_at_its_end_only_if_it_mocks_paths() -> None:
    text = "It 'a'\nMock {}\n:\nEnd\nWhen call x\nEnd\n"

    assert "__hx_unmock_paths 1;" in _translate(text.format("/usr/bin/x")).script
    assert "__hx_unmock_paths 1;" in _translate(text.format('"$name"')).script
    assert "__hx_unmock_paths" not in _translate(text.format("x")).script
