"""The rows of `Parameters` blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.shell.lexer import split_words
from harness.shell.spec.parameters import name_of_row, read

if TYPE_CHECKING:
    from collections.abc import Sequence


class Shell:
    """Replaces the shell that evaluates rows."""

    def __init__(self, *rows: tuple[str, ...]) -> None:
        self.rows = rows
        self.codes: list[str] = []

    def __call__(self, code: str) -> Sequence[tuple[str, ...]]:
        self.codes.append(code)
        return self.rows


def rows_of(mode: str, lines: list[str], shell: Shell | None = None) -> list[list[str]]:
    found = read(mode, lines, shell or Shell())
    return [[word.text for word in row] for row in found.rows]


def test_each_line_of_a_parameters_block_is_a_row_that_the_shell_expands() -> None:
    found = read("block", ['  "a b" $x', "", "  # none", "c"], Shell())

    assert [[word.text for word in row] for row in found.rows] == [["a b", "$x"], ["c"]]
    assert found.code == ':\n__hx_row "a b" $x\n\n  # none\n__hx_row c\n:'


def test_open_quote_continues_a_row_on_the_next_line() -> None:
    found = read("block", ["'a", "# b' c # it's", "d"], Shell())

    assert [[word.text for word in row] for row in found.rows] == [["a\n# b", "c"], ["d"]]


def test_parameters_matrix_combines_its_lines_and_its_last_line_varies_fastest() -> None:
    assert rows_of("matrix", ["a b # two", "", "  # none", "1 \\\n 2"]) == [
        *(["a", "1"], ["a", "2"]),
        *(["b", "1"], ["b", "2"]),
    ]


def test_open_quote_continues_a_line_of_a_matrix() -> None:
    assert rows_of("matrix", ["'a", "# b' c # it's", "1"]) == [["a\n# b", "1"], ["c", "1"]]


def test_parameters_value_block_has_a_row_for_each_word() -> None:
    found = read("value", ["a 'b c'"], Shell())

    assert [[word.text for word in row] for row in found.rows] == [["a"], ["b c"]]
    assert found.code == ":; __hx_row 'a'; __hx_row 'b c'"


def test_parameters_matrix_with_expansions_becomes_loops_in_the_shell() -> None:
    shell = Shell(("x", "1"), ("y", "1"))

    assert rows_of("matrix", ["$words", "1"], shell) == [["x", "1"], ["y", "1"]]
    assert shell.codes == [
        'for __hx_1 in $words; do for __hx_2 in 1; do __hx_data_row "$__hx_1" "$__hx_2"; done; done'
    ]


#: The test replaces each `_` by `%data`.
CODE = (
    "for i in 1; do _ $i; done", "true && _ 2", "false || _ 3", "if true; then _ 4; fi", "f() { _ 5; }",
    " _ 6; _ 7", "echo x%data",
)  # fmt: skip


def test_data_directive_is_replaced_only_where_bash_expects_a_command() -> None:
    shell = Shell(("1",))

    rows_of("dynamic", [code.replace("_", "%data") for code in CODE], shell)

    assert shell.codes == ["\n".join(CODE).replace("_", "__hx_data_row")]


def test_name_of_an_example_contains_the_words_of_its_row() -> None:
    names: list[tuple[str, str]] = [
        ("installs $1 on ${2}", "installs a b on c"),
        ("$3 and ${12}", " and "),
        ("$12", "a b2"),
        ("costs $", "costs $"),
        ("a\nb", "a b"),
    ]
    for name, shown in names:
        assert name_of_row(name, split_words("'a b' c")) == shown
