"""Sentences after `The` are parsed and decided as in shellspec 0.28."""

from __future__ import annotations

import pytest

from harness.shell.spec.sentences import (
    Facts,
    PathFact,
    SentenceError,
    VariableFact,
    is_satisfied,
    parse_sentence,
    subject_value,
)

FACTS = Facts(
    stdout="one two\nthree\n\n",
    stderr="",
    status=3,
    variable=VariableFact(value="a b", attributes="rx"),
    path=PathFact(path="/etc/x", flags="efrw", contents="text\n\n"),
    result="17\n",
)


def holds(sentence: str, facts: Facts = FACTS) -> bool:
    return is_satisfied(parse_sentence(tuple(sentence.split())), facts)


ORDINALS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
    "eighteenth", "nineteenth", "twentieth", "21st", "22nd", "23rd", "24th",
)  # fmt: skip


def test_each_ordinal_word_is_read_as_its_number() -> None:
    facts = Facts(stdout="\n".join(ORDINALS))

    assert [
        each for each in ORDINALS if not holds(f"{each} line should equal {each}", facts)
    ] == []


VALUES = {
    "output": "one two\nthree",
    "stdout": "one two\nthree",
    "stderr": "",
    "status": "3",
    "variable X": "a b",
    "value a": "a",
    "function f()": "f",
    "file x": "/etc/x",
    "contents of the file x": "text",
    "the entire contents of file x": "text\n\n",
    "line 1 of output": "one two",
    "the second line of output": "three",
    "line second of output": "three",
    "2nd line of the output": "three",
    "output line 2": "three",
    "line 3 of output": None,
    "line 3 of entire output": "",
    "word 3 of output": "three",
    "word 2 of line 1 of output": "two",
    "first word of the second line": "three",
    "length of line 1 of output": "7",
    "length of value é": "1",
    "lines of output": "2",
    "lines of entire output": "3",
    "lines of stderr": "0",
    "line 1 of stderr": None,
    "twentieth word of output": None,
    "result of f()": "17\n",
    "first word of output line 1": "one",
    "line 1 word 1 of output": "one",
    "length of output line 1 word 1": "3",
}


def test_modifiers_are_applied_to_the_value_of_the_subject() -> None:
    found = {
        subject: subject_value(parse_sentence(tuple(f"{subject} should equal x".split())), FACTS)
        for subject in VALUES
    }
    assert found == VALUES


HOLDING = (
    "output should include two",
    "output should start with one",
    "output should end with three",
    "output should match pattern one*three",
    "status should be failure",
    "status should not be success",
    "status should eq 3",
    "variable X should be exported",
    "variable X should be readonly",
    "variable X should be defined",
    "stderr should be blank",
    "stderr should be defined",
    "line 9 of output should be undefined",
    "line 9 of output should not equal x",
    "path x should exist",
    "path x should be a file",
    "file x should be readable",
    "file x should not be executable",
    "file x should not be empty file",
    "value 12 should be valid number",
    "value -1 should not be valid number",
    "value 0 should be success",
    "value 255 should be failure",
    "value 256 should not be failure",
    "value 0 should not be failure",
    "value \u00b2 should not be failure",
    f"value {'9' * 5000} should not be failure",
    "value x_1 should be valid funcname",
    "value 1x should not be valid funcname",
)


def turned(sentence: str) -> str:
    plain = sentence.replace(" should not ", " should ")
    return plain if plain != sentence else sentence.replace(" should ", " should not ")


def test_satisfied_sentence_fails_when_it_is_negated() -> None:
    assert [each for each in HOLDING if not holds(each) or holds(turned(each))] == []


def test_invalid_sentence_is_refused() -> None:
    refusals: list[tuple[str, str]] = [
        ("output should", "ends where a matcher was expected"),
        ("output", "ends where a subject was expected"),
        ("should equal a", "no subject or modifier 'should'"),
        ("variable", "ends where the argument of 'variable' was expected"),
        ("line x of output should equal a", "'x' is not a number"),
        (f"line {'9' * 5000} of output should equal a", "is not a number"),
        ("line 0 of output should be undefined", "has the number 1, not 0"),
        ("0th word of output should be undefined", "has the number 1, not 0"),
        ("contents of file /x should be exist", "checks a path, so leave out 'contents of'"),
        ("second file of output should equal a", "'second' can precede only 'line' or 'word'"),
        ("entire file x should equal a", "'entire' can't precede 'file'"),
        ("length should equal 1", "'length' needs a subject"),
        ("output of stderr should equal 1", "names two subjects"),
        ("output should equal", "'equal' takes 1 argument, not 0"),
        ("output should equal a b", "'equal' takes 1 argument, not 2"),
        ("output should be blank a", "'be blank' takes no arguments, not 1"),
        ("output should satisfy", "'satisfy' needs the name of a function"),
    ]
    for sentence, why in refusals:
        with pytest.raises(SentenceError, match=why):
            parse_sentence(tuple(sentence.split()))


def test_matcher_that_does_not_fit_its_subject_is_refused() -> None:
    with pytest.raises(SentenceError, match="works only with variables"):
        holds("output should be exported")
    for name in ("a-b", "$X", "1"):
        with pytest.raises(SentenceError, match="no variable can have the name"):
            holds(f"variable {name} should be undefined", Facts())
    with pytest.raises(SentenceError, match="'has_two_words' returned no verdict"):
        holds("output should has_two_words")
    assert holds("output should has_two_words", Facts(stdout="", answer=True))
    assert not holds("output should not satisfy f", Facts(stdout="", answer=True))
    assert not holds("path x should be file", Facts())
    assert holds("path x should be block device", Facts(path=PathFact(path="x", flags="eb")))
