"""Writes expectations of a spec as assertions in Python, for `harness migrate`.

A word with plain variables becomes an f-string of the evaluation's variables. Any other expansion
is done by the evaluation itself, at its end, and read from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.lexer import Word, rest_after, split_words
from harness.shell.spec.sentences import (
    Modifier,
    Sentence,
    SentenceError,
    SubjectKind,
    parse_sentence,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The names of functions that a module defines where a test calls them.
AT = """\
def at(shell: Shell, result: Evaluation, path: str, *, follow: bool = True) -> Path:
    \"\"\"Return where a path of the code is found; a relative one begins where the code was.\"\"\"
    place = PurePosixPath(result.variable("PWD") or "/") / path
    return shell.path(place) if follow else shell.path(place.parent) / place.name
"""

_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*|[1-9])|\{([A-Za-z_]\w*|[1-9])\})")
_STREAMS = {SubjectKind.OUTPUT: "result.stdout", SubjectKind.ERROR: "result.stderr"}
_PATH_TESTS = {
    "be exist": "{}.exists()",
    "be file": "{}.is_file()",
    "be directory": "{}.is_dir()",
    "be symlink": "{}.is_symlink()",
    "be pipe": "{}.is_fifo()",
    "be socket": "{}.is_socket()",
    "be block device": "{}.is_block_device()",
    "be character device": "{}.is_char_device()",
    "be empty file": "{}.stat().st_size == 0",
    "be empty directory": "not any({}.iterdir())",
    "be empty dir": "not any({}.iterdir())",
    "be readable": "os.access({}, os.R_OK)",
    "be writable": "os.access({}, os.W_OK)",
    "be executable": "os.access({}, os.X_OK)",
    "has setuid": "{}.stat().st_mode & stat.S_ISUID",
    "has setgid": "{}.stat().st_mode & stat.S_ISGID",
}
_TEXT_TESTS = {
    "equal": "{value} == {wanted}",
    "include": "{wanted} in {text}",
    "start with": "{text}.startswith({wanted})",
    "end with": "{text}.endswith({wanted})",
    "match pattern": "pattern_matches({wanted}, {text})",
    "be success": "{value} == 0",
    "be failure": "1 <= {value} <= 255",
    "be defined": "{value} is not None",
    "be undefined": "{value} is None",
    "be successful": "{value} is not None",
    "be present": "{value}",
    "be blank": "not {value}",
    "be valid number": "re.fullmatch('[0-9]+', {text})",
    "be valid funcname": "re.fullmatch('[A-Za-z_][A-Za-z0-9_]*', {text})",
}


class NoEquivalentError(ValueError):
    """A line that has no equivalent in Python."""


@dataclass(kw_only=True)
class AssertionWriter:
    """Writes the expectations of one example.

    `captures` are lines of shell that the evaluation has to run at its end. `aliases` are the
    paths that the spec has named; `has_rows` says whether the example has parameters.
    """

    aliases: Mapping[str, Word] = field(default_factory=dict)
    has_rows: bool = False
    captures: list[str] = field(default_factory=list)

    def expectation(self, line: str) -> str:
        """Return the assertion that says what the sentence in `line` says.

        Raises NoEquivalentError where there is none.
        """
        words = split_words(line)[1:]
        unknown = {f"\0{at}": word for at, word in enumerate(words) if not word.literal}
        texts = [word.text if word.literal else f"\0{at}" for at, word in enumerate(words)]
        try:
            sentence = parse_sentence(tuple(texts))
        except SentenceError as error:
            raise NoEquivalentError(line) from error
        test = self._test(sentence, unknown)
        return f"assert {f'not ({test})' if sentence.negated else test}"

    def command(self, line: str) -> str:
        """Return the assertion that a command of the example succeeds."""
        name = f"__assert_{len(self.captures)}"
        self.captures.append(
            f"{name}=0; {{ {rest_after(line, 1)}; }} >/dev/null 2>&1 || {name}=$?"
        )
        return f'assert result.variable("{name}") == "0"'

    def _text(self, argument: str, unknown: Mapping[str, Word]) -> str:
        """Return the expression for an argument of a sentence."""
        word = unknown.get(argument)
        return repr(argument) if word is None else self._expression(word)

    def _expression(self, word: Word) -> str:
        """Return the expression for a word; where it is not plain, the evaluation expands it."""
        if word.literal:
            return repr(word.text)
        plain = self._formatted(word.raw)
        if plain is not None:
            return plain
        name = f"__word_{len(self.captures)}"
        self.captures.append(f"{name}={word.raw}")
        return f'result.variable("{name}")'

    def _formatted(self, raw: str) -> str | None:
        """Return an f-string for a word with plain variables only."""
        out: list[str] = []
        is_quoted = False
        at = 0
        while at < len(raw):
            char = raw[at]
            variable = _VARIABLE.match(raw, at)
            if char == '"':
                is_quoted = not is_quoted
                at += 1
            elif char == "'" and not is_quoted:
                end = raw.index("'", at + 1)
                out.append(_literal(raw[at + 1 : end]))
                at = end + 1
            elif char == "\\":
                following = raw[at + 1 : at + 2]
                kept = is_quoted and following not in '$`"\\'
                out.append(_literal(f"\\{following}" if kept else following))
                at += 2
            elif variable is not None:
                out.append(f"{{{self._variable(variable[1] or variable[2])}}}")
                at = variable.end()
            elif char in "$`" or (char in "*?[~" and not is_quoted):
                return None
            else:
                out.append(_literal(char))
                at += 1
        return f'f"{"".join(out)}"'

    def _variable(self, name: str) -> str:
        if name.isdigit():
            return f"row[{int(name) - 1}]" if self.has_rows else "''"
        return f"result.variable('{name}') or ''"

    def _path(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        argument = sentence.subject.argument
        alias = self.aliases.get(argument)
        text = self._text(argument, unknown) if alias is None else self._expression(alias)
        follows = sentence.matcher.name != "be symlink"
        if follows and argument.startswith("/"):
            return f"shell.path({text})"
        return f"at(shell, result, {text}{'' if follows else ', follow=False'})"

    def _value(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        """Return the expression for what the sentence speaks of."""
        subject = sentence.subject
        if subject.kind is SubjectKind.PATH:
            base = self._path(sentence, unknown)
        elif subject.kind in _STREAMS:
            base = _STREAMS[subject.kind] + ("" if subject.entire else '.rstrip("\\n")')
        elif subject.kind is SubjectKind.STATUS:
            base = "result.status"
        elif subject.kind is SubjectKind.VALUE:
            base = self._text(subject.argument, unknown)
        elif subject.kind is SubjectKind.VARIABLE and subject.argument not in unknown:
            base = f"result.variable({subject.argument!r})"
        else:
            raise NoEquivalentError(subject.argument)
        for modifier in sentence.modifiers:
            base = _modified(base, modifier)
        return base

    def _test(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        value = self._value(sentence, unknown)
        name = sentence.matcher.name
        if name in _PATH_TESTS and sentence.subject.kind is SubjectKind.PATH:
            return _PATH_TESTS[name].format(value)
        if name in {"be exported", "be readonly"}:
            letter = "x" if name == "be exported" else "r"
            return f"'{letter}' in result.variables[{sentence.subject.argument!r}].attributes"
        if name not in _TEXT_TESTS:
            raise NoEquivalentError(name)
        arguments = sentence.matcher.arguments
        wanted = self._text(arguments[0], unknown) if arguments else ""
        is_status = sentence.subject.kind is SubjectKind.STATUS
        if is_status and name == "equal":
            number = wanted.strip("'")
            return f"{value} == {number}" if number.isdigit() else f"str({value}) == {wanted}"
        is_variable = sentence.subject.kind is SubjectKind.VARIABLE
        text = f"({value} or '')" if is_variable else f"str({value})" if is_status else value
        return _TEXT_TESTS[name].format(value=value, wanted=wanted, text=text)


def _literal(text: str) -> str:
    """Return text as it stands in an f-string between double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return escaped.replace("\t", "\\t").replace("{", "{{").replace("}", "}}")


def _modified(base: str, modifier: Modifier) -> str:
    if modifier.name == "line":
        return f"{base}.splitlines()[{modifier.number - 1}]"
    if modifier.name == "word":
        return f"{base}.split()[{modifier.number - 1}]"
    if modifier.name == "contents":
        return f'{base}.read_text().rstrip("\\n")'
    if modifier.name == "entire contents":
        return f"{base}.read_text()"
    if modifier.name == "lines":
        return f"str(len({base}.splitlines()))"
    if modifier.name == "length":
        return f"str(len({base}))"
    raise NoEquivalentError(modifier.name)
