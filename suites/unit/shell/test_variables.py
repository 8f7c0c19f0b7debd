"""Parses what bash's `declare -p` prints; each text is real output of bash."""

from __future__ import annotations

from harness.shell.variables import Variable, parse_declarations


def test_declarations_are_parsed_into_values_and_elements_and_attributes() -> None:
    found = parse_declarations(
        'declare -- plain="a b"\n'
        'declare -x lines="1\ndeclare -- no=\\"x\\"\n3"\n'
        'declare -ir number="7"\n'
        "declare -- only\n"
        'declare -a list=([0]="a [7]=x" [2]="b ] c")\n'
        'declare -A map=([k]="v" ["a key"]="w" ["]\\""]="" ["x]=\\"y"]="a\nb" )\n'
        "declare -a none=()\n"
        "declare -- tab=$'a\\t\"b'\n"
        'declare -- quotes="\\$HOME \\"q\\" \\\\"\n'
    )

    assert found == {
        "plain": Variable(value="a b"),
        "lines": Variable(value='1\ndeclare -- no="x"\n3', attributes="x"),
        "number": Variable(value="7", attributes="ir"),
        "only": Variable(),
        "list": Variable(elements={"0": "a [7]=x", "2": "b ] c"}, attributes="a"),
        "map": Variable(
            elements={"k": "v", "a key": "w", ']"': "", 'x]="y': "a\nb"}, attributes="A"
        ),
        "none": Variable(elements={}, attributes="a"),
        "tab": Variable(value='a\t"b'),
        "quotes": Variable(value='$HOME "q" \\'),
    }


def test_large_variable_is_parsed_in_linear_time() -> None:
    numbers = [str(number) for number in range(20_000)]
    elements = " ".join(f'[{number}]="{number}"' for number in numbers)
    text = "\n".join(f'\\"{number}\\"' for number in numbers)

    found = parse_declarations(f'declare -a list=({elements})\ndeclare -x lines="{text}"\n')

    assert list((found["list"].elements or {}).values()) == numbers
    assert found["lines"].value == "\n".join(f'"{number}"' for number in numbers)


def test_text_that_declares_nothing_has_no_variables() -> None:
    assert parse_declarations("") == {}
    assert parse_declarations("bash: x: not found\n") == {}
