"""Which lines of a script are commands, and which commands ran according to a trace.

suites/host/shell/test_coverage_lines.py compares the results with real bash.
"""

from __future__ import annotations

from harness.shell.commands_of import code_lines, executed_lines
from harness.shell.coverage import Place
from suites.unit.shell.samples import SCRIPT


def test_code_lines_are_the_lines_of_commands() -> None:
    assert code_lines(SCRIPT) == {4, 5, 7, 9}


COMMANDS: dict[str, set[int]] = {
    "# echo\n\necho\n": {3},
    "cat <<'END'\nif true; then\nEND\necho\n": {1, 4},
    "cat <<-END\n\techo $(\n\tdate)\n\tEND\n": {1},
    "cat <<<x\necho\n": {1, 2},
    "f() {\n  a\n}\nfunction g {\n  b\n}\n": {2, 5},
    "f() (\n  cd /\n)\n": {2},
    "case $1 in\n  a | b)\n    x\n    ;;\n  *) y ;;\nesac\n": {1, 3, 5},
    "case $1 in\n  *)\nesac\n": {1},
    "echo a \\\n  b \\\n  c\n": {1},
    "a &&\n  b ||\n  c\n": {1, 2, 3},
    "a |\n  b\n": {1, 2},
    "if a; then\n  b\nelif c; then\n  d\nelse\n  e\nfi\n": {1, 2, 3, 4, 6},
    "if\n  a\nthen\n  b\nfi\n": {2, 4},
    "for x in a \\\n  b; do\n  c\ndone\n": {1, 3},
    "for ((i = 0; i < 2; i++)); do\n  c\ndone\n": {1, 2},
    "while a; do\n  b\ndone < <(\n  c\n)\n": {1, 2},
    "x=$(\n  a\n  b\n)\nc\n": {1, 5},
    "x=(\n  a\n  b\n)\n": {1},
    "local a=1 \\\n  b\n": {1},
    "((i++))\n(\n  (a)\n)\n": {1, 3},
    "echo 'a\nb\n' \"c\nd\"\n": {1},
    "[[ a == b &&\n  c == d ]] && e\n": {1, 2},
    '"$dir/my tool" x\n': {1},
    "{\n  a\n} >file\n": {2},
    ">file\n": set(),
    "": set(),
}


def test_each_command_has_one_code_line() -> None:
    assert {text: code_lines(text) for text in COMMANDS} == COMMANDS


def test_traced_line_covers_the_first_line_of_its_command() -> None:
    assert executed_lines("echo 'a\nb'\ntrue\n", {Place(2, 1, 1)}) == {1}
    assert executed_lines("# trap\n\necho\n", {Place(1, 1, 1), Place(9, 1, 1)}) == set()


def test_code_in_a_substitution_does_not_cover_the_lines_below_it() -> None:
    """Bash counts the lines of this code from the end of the outer command."""
    text = "true\nx=$(\n  a\n  b\n)\nif false; then\n  c\nfi\n"
    traced = [Place(6, 1, 2), Place(5, 1, 2), Place(5, 1, 1), Place(1, 1, 1)]

    assert executed_lines(text, traced) == {1, 2}


def test_function_that_is_called_only_in_a_substitution_is_covered() -> None:
    text = "f() {\n  a\n  b\n}\nx=$(f)\n"
    traced = {Place(5, 1, 2), Place(2, 2, 2), Place(3, 2, 2), Place(5, 1, 1)}

    assert executed_lines(text, traced) == {2, 3, 5}


def test_function_called_inside_and_outside_a_substitution_is_covered() -> None:
    text = "f() {\n  a\n  if b; then\n    c\n  fi\n}\n"
    traced = {Place(2, 2, 1), Place(3, 2, 1), Place(2, 2, 2), Place(3, 2, 2), Place(4, 2, 2)}

    assert executed_lines(text, traced) == {2, 3, 4}


def test_function_whose_first_command_has_two_lines_is_covered() -> None:
    text = "f() {\n  a \\\n    x\n  y=$(b)\n  c\n}\n"
    traced = {Place(3, 2, 1), Place(4, 2, 2), Place(4, 2, 1), Place(5, 2, 2)}

    assert executed_lines(text, traced) == {2, 4}
