"""Parses a sentence of a spec (the words after `The`), and decides whether a value satisfies the sentence.

The module is long because the parser and the decision share the tables of the language's words.
"""

from __future__ import annotations

import enum
import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.spec.patterns import pattern_matches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ARTICLES = frozenset({"a", "an", "as", "the"})
_ORDINALS = {
    word: number
    for number, word in enumerate(
        [
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
            "thirteenth",
            "fourteenth",
            "fifteenth",
            "sixteenth",
            "seventeenth",
            "eighteenth",
            "nineteenth",
            "twentieth",
        ],
        start=1,
    )
}
_VARIABLE = re.compile(r"[A-Za-z_]\w*(\[.+\])?", re.ASCII | re.DOTALL)
_NUMBERED = re.compile(r"([0-9]{1,9})(?:st|nd|rd|th)?\Z")


class SentenceError(ValueError):
    """The words are not a valid sentence: a subject, modifier or matcher is wrong."""


class SubjectKind(enum.Enum):
    """The kind of a sentence's subject; the value is the word for this kind in specs."""

    OUTPUT = "output"
    ERROR = "error"
    STATUS = "status"
    VARIABLE = "variable"
    VALUE = "value"
    FUNCTION = "function"
    PATH = "path"


class Stream(enum.Flag):
    """The results of an evaluation that sentences can mention."""

    NONE = 0
    STDOUT = enum.auto()
    STDERR = enum.auto()
    STATUS = enum.auto()
    ALL = STDOUT | STDERR | STATUS


_SUBJECT_WORDS = {
    "output": SubjectKind.OUTPUT,
    "stdout": SubjectKind.OUTPUT,
    "error": SubjectKind.ERROR,
    "stderr": SubjectKind.ERROR,
    "status": SubjectKind.STATUS,
    "variable": SubjectKind.VARIABLE,
    "value": SubjectKind.VALUE,
    "function": SubjectKind.FUNCTION,
    "path": SubjectKind.PATH,
    "file": SubjectKind.PATH,
    "dir": SubjectKind.PATH,
    "directory": SubjectKind.PATH,
}
_WITHOUT_ARGUMENT = {SubjectKind.OUTPUT, SubjectKind.ERROR, SubjectKind.STATUS}
_CLAIMS = {
    SubjectKind.OUTPUT: Stream.STDOUT,
    SubjectKind.ERROR: Stream.STDERR,
    SubjectKind.STATUS: Stream.STATUS,
}


@dataclass(frozen=True)
class Subject:
    """The subject of a sentence.

    `argument_at` is the index of the subject's argument among the words of the sentence.
    """

    kind: SubjectKind
    argument: str = ""
    argument_at: int = -1
    entire: bool = False


@dataclass(frozen=True)
class Modifier:
    """A step that derives another value from the subject's value, such as the value's second line."""

    name: str
    number: int = 0


@dataclass(frozen=True)
class Matcher:
    """The condition that the value has to meet."""

    name: str
    arguments: tuple[str, ...] = ()

    @property
    def is_custom(self) -> bool:
        return self.name not in _ARITY and not self.name.startswith(("be ", "has "))


@dataclass(frozen=True)
class Sentence:
    """A parsed expectation."""

    subject: Subject
    modifiers: tuple[Modifier, ...]
    negated: bool
    matcher: Matcher

    @functools.cached_property
    def claims(self) -> Stream:
        if any(modifier.name == "result" for modifier in self.modifiers):
            return Stream.ALL
        return _CLAIMS.get(self.subject.kind, Stream.NONE)

    def has_modifier(self, *names: str) -> bool:
        return any(modifier.name in names for modifier in self.modifiers)


@dataclass(frozen=True, kw_only=True)
class PathFact:
    """The properties of a path; `flags` has the letters of the `test` operators that are true."""

    path: str
    flags: str
    contents: str | None = None


@dataclass(frozen=True, kw_only=True)
class VariableFact:
    """A variable in the example's shell; `attributes` is the output of `${name@a}`."""

    value: str | None
    attributes: str = ""


@dataclass(kw_only=True)
class Facts:
    """The values that the shell captured for one sentence."""

    stdout: str | None = None
    stderr: str | None = None
    status: int | None = None
    variable: VariableFact | None = None
    path: PathFact | None = None
    result: str | None = None
    answer: bool | None = None
    message: str = ""
    unreadable: str = ""
    stderr_texts: list[str] = field(default_factory=list)


# --- reading -------------------------------------------------------------------------------

_ARITY = {
    "equal": 1, "include": 1, "start with": 1, "end with": 1, "match pattern": 1, "exist": 0,
}  # fmt: skip
_ALIASES = {"eq": "equal"}
_SECOND_WORD = {"start": "with", "end": "with", "match": "pattern"}
_BE_ONE = {
    "success", "failure", "defined", "undefined", "present", "blank", "exported", "readonly",
    "exist", "file", "directory", "symlink", "pipe", "socket", "readable", "writable",
    "executable", "successful",
}  # fmt: skip
_BE_TWO = {
    ("empty", "file"), ("empty", "directory"), ("empty", "dir"), ("block", "device"),
    ("character", "device"), ("valid", "number"), ("valid", "funcname"),
}  # fmt: skip
PATH_FLAGS = {
    "be exist": "e", "be file": "f", "be directory": "d", "be symlink": "L", "be pipe": "p",
    "be socket": "S", "be readable": "r", "be writable": "w", "be executable": "x",
    "be block device": "b", "be character device": "c", "be empty file": "0",
    "be empty directory": "E", "be empty dir": "E", "has setuid": "u", "has setgid": "g",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def parse_sentence(words: tuple[str, ...]) -> Sentence:
    """Parse the words that follow `The` in a spec.

    Raises SentenceError if the words are not a sentence.
    """
    reader = _Reader(words)
    subject, modifiers = _read_subject(reader)
    negated = reader.take("not")
    matcher = _read_matcher(reader)
    if matcher.name in PATH_FLAGS and any(each.name.endswith("contents") for each in modifiers):
        raise SentenceError(f"'{matcher.name}' checks a path, so leave out 'contents of'")
    return Sentence(subject, modifiers, negated, matcher)


class _Reader:
    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.at = 0

    def keyword(self, what: str) -> str:
        """Consume and return the next word that is not an article."""
        while self.at < len(self.words) and self.words[self.at] in ARTICLES:
            self.at += 1
        return self.argument(what)

    def argument(self, what: str) -> str:
        if self.at >= len(self.words):
            raise SentenceError(f"the sentence ends where {what} was expected")
        self.at += 1
        return self.words[self.at - 1]

    def take(self, word: str) -> bool:
        if self.at < len(self.words) and self.words[self.at] == word:
            self.at += 1
            return True
        return False

    def rest(self) -> tuple[str, ...]:
        return tuple(self.words[self.at :])


def _read_subject(reader: _Reader) -> tuple[Subject, tuple[Modifier, ...]]:
    parts: list[list[Subject | Modifier]] = [[]]  # the word 'of' separates the parts
    while True:
        parts[-1].append(_read_unit(reader))
        if reader.take("of"):
            parts.append([])
        elif reader.take("should"):
            break
    units = [unit for part in reversed(parts) for unit in part]
    first = units[0]
    if isinstance(first, Modifier) and first.name in {"line", "word"}:
        units.insert(0, Subject(SubjectKind.OUTPUT))
    subject, modifiers = units[0], units[1:]
    if not isinstance(subject, Subject):
        raise SentenceError(
            f"'{subject.name}' needs a subject, such as '{subject.name} of output'"
        )
    if any(isinstance(unit, Subject) for unit in modifiers):
        raise SentenceError("the sentence names two subjects")
    return subject, tuple(unit for unit in modifiers if isinstance(unit, Modifier))


def _read_unit(reader: _Reader) -> Subject | Modifier:
    word = reader.keyword("a subject")
    entire = word == "entire"
    if entire:
        word = reader.keyword("'output', 'error' or 'contents'")
        if word not in {"output", "stdout", "error", "stderr", "contents"}:
            raise SentenceError(f"'entire' can't precede '{word}'")
    kind = _SUBJECT_WORDS.get(word)
    if kind is not None:
        return _finish_subject(reader, word, kind, entire=entire)
    if word.endswith("()"):
        return Subject(SubjectKind.FUNCTION, word[:-2], reader.at - 1)
    if word == "contents":
        return Modifier("entire contents" if entire else "contents")
    return _finish_modifier(reader, word)


def _finish_subject(reader: _Reader, word: str, kind: SubjectKind, *, entire: bool) -> Subject:
    if kind in _WITHOUT_ARGUMENT:
        return Subject(kind, entire=entire)
    argument = reader.argument(f"the argument of '{word}'")
    return Subject(kind, _function_name(kind, argument), reader.at - 1)


def _finish_modifier(reader: _Reader, word: str) -> Modifier:
    if word in {"line", "word"}:
        return Modifier(word, _number(reader.argument(f"the number of the {word}")))
    if word in {"lines", "length", "result"}:
        return Modifier(word)
    ordinal = _ORDINALS.get(word) or _leading_number(word)
    if ordinal is None:
        raise SentenceError(f"there is no subject or modifier '{word}'")
    noun = reader.keyword("'line' or 'word'")
    if noun not in {"line", "word"}:
        raise SentenceError(f"'{word}' can precede only 'line' or 'word', not '{noun}'")
    return Modifier(noun, _counted_from_1(ordinal))


def _function_name(kind: SubjectKind, argument: str) -> str:
    return argument.removesuffix("()") if kind is SubjectKind.FUNCTION else argument


def _leading_number(word: str) -> int | None:
    found = _NUMBERED.match(word)
    return int(found[1]) if found else None


def _number(word: str) -> int:
    number = _ORDINALS.get(word) or _leading_number(word)
    if number is None:
        raise SentenceError(f"'{word}' is not a number")
    return _counted_from_1(number)


def _counted_from_1(number: int) -> int:
    if number == 0:
        raise SentenceError("the first line or word has the number 1, not 0")
    return number


def _read_matcher(reader: _Reader) -> Matcher:
    word = reader.keyword("a matcher")
    word = _ALIASES.get(word, word)
    words = reader.rest()
    if word == "be":
        state = _read_state(reader)
        return Matcher(word, words) if state is None else _finish(reader, f"be {state}", 0)
    if word == "has":
        bit = reader.keyword("'setuid' or 'setgid'")
        if bit not in {"setuid", "setgid"}:
            return Matcher(word, words)
        reader.take("flag")
        return _finish(reader, f"has {bit}", 0)
    if word in _SECOND_WORD:
        second = reader.keyword(f"'{_SECOND_WORD[word]}'")
        if f"{word} {second}" not in _ARITY:
            return Matcher(word, words)
        word = f"{word} {second}"
    if word in _ARITY:
        return _finish(reader, "be exist" if word == "exist" else word, _ARITY[word])
    if word == "satisfy" and not reader.rest():
        raise SentenceError("'satisfy' needs the name of a function")
    return Matcher(word, reader.rest())


def _read_state(reader: _Reader) -> str | None:
    """Read the words after 'be'; return None if they are not a built-in matcher."""
    word = reader.keyword("what it should be")
    if word in _BE_ONE:
        return word
    second = reader.keyword(f"what follows 'be {word}'") if reader.rest() else ""
    return f"{word} {second}" if (word, second) in _BE_TWO else None


def _finish(reader: _Reader, name: str, arity: int) -> Matcher:
    arguments = reader.rest()
    if len(arguments) != arity:
        raise SentenceError(
            f"'{name}' takes {arity or 'no'} argument{'' if arity == 1 else 's'}, "
            f"not {len(arguments)}"
        )
    return Matcher(name, arguments)


# --- judging -------------------------------------------------------------------------------


def subject_value(sentence: Sentence, facts: Facts) -> str | None:
    """Return the value that the matcher checks, or None if there is no value."""
    value = _plain_value(sentence.subject, facts)
    for modifier in sentence.modifiers:
        value = _modify(modifier, value, facts)
    return value


def _plain_value(subject: Subject, facts: Facts) -> str | None:
    if subject.kind in {SubjectKind.OUTPUT, SubjectKind.ERROR}:
        text = facts.stdout if subject.kind is SubjectKind.OUTPUT else facts.stderr
        return text if text is None or subject.entire else text.rstrip("\n")
    if subject.kind is SubjectKind.STATUS:
        return None if facts.status is None else str(facts.status)
    if subject.kind is SubjectKind.VARIABLE:
        return None if facts.variable is None else facts.variable.value
    if subject.kind is SubjectKind.PATH:
        return subject.argument if facts.path is None else facts.path.path
    return subject.argument


def _modify(modifier: Modifier, value: str | None, facts: Facts) -> str | None:
    if modifier.name == "result":
        return facts.result
    if modifier.name.endswith("contents"):
        text = None if facts.path is None else facts.path.contents
        return text if text is None or modifier.name != "contents" else text.rstrip("\n")
    if value is None:
        return None
    if modifier.name == "length":
        return str(len(value))
    lines = value.removesuffix("\n").split("\n") if value else []
    if modifier.name == "lines":
        return str(len(lines))
    parts = value.split() if modifier.name == "word" else lines
    return parts[modifier.number - 1] if 1 <= modifier.number <= len(parts) else None


def is_satisfied(sentence: Sentence, facts: Facts) -> bool:
    """Return whether the expectation is met.

    Raises SentenceError if the matcher does not fit the subject.
    """
    subject = sentence.subject
    if subject.kind is SubjectKind.VARIABLE and not _VARIABLE.fullmatch(subject.argument):
        raise SentenceError(f"no variable can have the name '{subject.argument}'")
    return _matches(sentence, subject_value(sentence, facts), facts) != sentence.negated


def _matches(sentence: Sentence, value: str | None, facts: Facts) -> bool:
    matcher = sentence.matcher
    if matcher.name in PATH_FLAGS:
        return facts.path is not None and PATH_FLAGS[matcher.name] in facts.path.flags
    if matcher.name in {"be exported", "be readonly"}:
        if sentence.subject.kind is not SubjectKind.VARIABLE or facts.variable is None:
            raise SentenceError(f"'{matcher.name}' works only with variables")
        return ("x" if matcher.name == "be exported" else "r") in facts.variable.attributes
    if matcher.name == "satisfy" or matcher.is_custom:
        if facts.unreadable or facts.answer is None:
            raise SentenceError(facts.unreadable or f"'{matcher.name}' returned no verdict")
        return facts.answer
    about_being_set = {
        "be defined": value is not None,
        "be successful": value is not None,
        "be undefined": value is None,
        "be blank": not value,
    }
    if matcher.name in about_being_set:
        return about_being_set[matcher.name]
    return value is not None and _text_matches(matcher, value)


def _text_matches(matcher: Matcher, value: str) -> bool:
    return _TEXT_TESTS[matcher.name](value, matcher.arguments[0] if matcher.arguments else "")


_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "equal": lambda value, wanted: value == wanted,
    "include": lambda value, wanted: wanted in value,
    "start with": lambda value, wanted: value.startswith(wanted),
    "end with": lambda value, wanted: value.endswith(wanted),
    "match pattern": lambda value, wanted: pattern_matches(wanted, value),
    "be success": lambda value, _: value == "0",
    "be failure": lambda value, _: (
        re.fullmatch(r"[0-9]{1,9}", value) is not None and 1 <= int(value) <= 255
    ),
    "be present": lambda value, _: value != "",
    "be valid number": lambda value, _: re.fullmatch(r"[0-9]+", value) is not None,
    "be valid funcname": lambda value, _: (
        re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value) is not None
    ),
}
