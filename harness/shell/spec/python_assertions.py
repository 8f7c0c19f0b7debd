"""Writes expectations of a spec as assertions in Python, for `harness migrate`.

A word that contains only text and plain variables becomes an f-string, which reads the variables
from the evaluation's result. Other expansions of a word run in the evaluation, after the evaluated
code, and the test reads the results of the expansions from the evaluation. If later code of the
example could change a file or a variable, the evaluation reads the file or the variable.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.lexer import Word, quote, quote_on_lines, rest_after, split_words
from harness.shell.spec.sentences import (
    PATH_FLAGS,
    Modifier,
    Sentence,
    SentenceError,
    Stream,
    SubjectKind,
    parse_sentence,
)
from harness.visible_text import visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Helper functions by name; a module defines the helper functions that its tests call.
AT = """\
def at(shell: Shell, result: Evaluation, path: str, *, follow: bool = True) -> Path:
    \"\"\"Return a file's path on the host; a relative path starts at the code's last PWD.\"\"\"
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
    "be empty file": "{0}.is_file() and {0}.stat().st_size == 0",
    "be empty directory": "{0}.is_dir() and not any({0}.iterdir())",
    "be empty dir": "{0}.is_dir() and not any({0}.iterdir())",
    "be readable": "os.access({}, os.R_OK)",
    "be writable": "os.access({}, os.W_OK)",
    "be executable": "os.access({}, os.X_OK)",
    "has setuid": "{0}.exists() and {0}.stat().st_mode & stat.S_ISUID",
    "has setgid": "{0}.exists() and {0}.stat().st_mode & stat.S_ISGID",
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


_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_SHELL_PARTS = {"line", "word", "lines", "length"}
_CONTENTS = ("contents", "entire contents")
_OF_ANY_VALUE = {"be present", "be blank", "be defined", "be undefined", "be successful"}


def docstring(text: str) -> str:
    """Return a docstring that contains `text`: a text from a spec, or a sentence with the path of a spec."""
    quoted = text.replace("\\", "\\\\").replace('"', "'")
    return f'"""{visible(quoted)}"""'


class NoEquivalentError(ValueError):
    """A line of a spec has no equivalent in Python; the message states the reason."""


@dataclass(kw_only=True)
class AssertionWriter:
    """Writes the expectations of one example as Python assertions.

    `captures` lists the lines of shell code that the evaluation has to run after the evaluated
    code. If `in_shell` is true, the lines in `captures` read the files and variables that the
    expectations mention. `aliases` maps each name that the spec defines for a path to this path.
    `row_length` is the number of parameters in a row, or None if the rows are shell code.
    """

    aliases: Mapping[str, Word] = field(default_factory=dict)
    row_length: int | None = 0
    in_shell: bool = False
    captures: list[str] = field(default_factory=list)
    claims: Stream = Stream.NONE
    runs_statements: bool = False

    def expectation(self, line: str) -> list[str]:
        """Return the Python lines for the sentence in `line`.

        Raises NoEquivalentError if the sentence has no equivalent in Python.
        """
        words = split_words(line)[1:]
        unknown = {f"\0{at}": word for at, word in enumerate(words) if not word.literal}
        texts = [word.text if word.literal else f"\0{at}" for at, word in enumerate(words)]
        try:
            sentence = parse_sentence(tuple(texts))
        except SentenceError as error:
            raise NoEquivalentError(_plain(str(error), unknown)) from error
        self.claims |= sentence.claims
        if sentence.matcher.name == "satisfy":
            return self._satisfaction(sentence, unknown, words)
        test = self._test(sentence, unknown)
        return [f"assert {f'not ({test})' if sentence.negated else test}"]

    def command(self, line: str) -> list[str]:
        """Return the assertion that a command of the example succeeds."""
        return [f"assert {self._succeeds(rest_after(line, 1))}"]

    def statement(self, code: str) -> None:
        """Let the evaluation run a statement of the example after the current `captures`."""
        self.captures.append(f"{{\n{code}\n}} >/dev/null")
        self.runs_statements = True

    def end(self) -> list[str]:
        """Return the assertions for the end of the example."""
        lines: list[str] = []
        if any("spec_result" in code for code in self.captures):
            lines.append('assert result.variable("spec_noise") is None')
        if self.runs_statements:
            self.captures.append("spec_ended=1")
            lines.append('assert result.variable("spec_ended") == "1"')
        return lines

    def hook(self, code: str) -> list[str]:
        """Return the assertion that a hook after the example succeeds."""
        name = self._capture(f"spec_hook NAME {quote_on_lines(code)}", "hook")
        return [f'assert result.variable("{name}") == "0"']

    def _succeeds(self, command: str) -> str:
        """Return the expression that tests whether a command succeeds in the evaluation."""
        name = self._capture(f"spec_assert NAME {command}", "assert")
        return f'result.variable("{name}") == "0"'

    def _capture(self, code: str, kind: str) -> str:
        """Let the evaluation run `code`, which sets the variable NAME.

        Return the name that replaces NAME in the code.
        """
        name = f"__{kind}_{len(self.captures)}"
        self.captures.append(code.replace("NAME", name))
        return name

    def _satisfaction(
        self, sentence: Sentence, unknown: Mapping[str, Word], words: Sequence[Word]
    ) -> list[str]:
        """Return the assertion for `satisfy`, which calls a function of the spec."""
        command = words[-len(sentence.matcher.arguments) :]
        asks = f"spec_satisfies NAME {' '.join(word.raw for word in command)}"
        name = self._capture(f"{self._shell_value(sentence, unknown)}; {asks}", "assert")
        if sentence.negated:
            return [f'assert result.variable("{name}") not in {{"0", "it wrote to stderr"}}']
        return [f'assert result.variable("{name}") == "0"']

    def _text(self, argument: str, unknown: Mapping[str, Word]) -> str:
        """Return the Python expression for an argument of a sentence."""
        word = unknown.get(argument)
        return repr(argument) if word is None else self._expression(word)

    def _expression(self, word: Word) -> str:
        """Return the Python expression for a word; the evaluation expands a word that is not plain."""
        if word.literal:
            return repr(word.text)
        plain = self._formatted(word.raw)
        if plain is not None:
            return plain
        name = self._capture(f"NAME={word.raw}", "word")
        return f'(result.variable("{name}") or "")'

    def _formatted(self, raw: str) -> str | None:
        """Return an f-string for a word whose only expansions are plain variables, or None for another word."""
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
                text = self._variable(variable[1] or variable[2])
                if text is None:
                    return None
                out.append(f"{{{text}}}")
                at = variable.end()
            elif char in "$`" or (char in "*?[~" and not is_quoted):
                return None
            else:
                out.append(_literal(char))
                at += 1
        return f'f"{"".join(out)}"'

    def _variable(self, name: str) -> str | None:
        if name.isdigit():
            if self.row_length is None or 0 < self.row_length < int(name):
                return None
            return f"row[{int(name) - 1}]" if self.row_length else "''"
        return None if self.in_shell else f"result.variable('{name}') or ''"

    def _path(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        argument = sentence.subject.argument
        alias = self.aliases.get(argument)
        text = self._text(argument, unknown) if alias is None else self._expression(alias)
        follows = sentence.matcher.name != "be symlink"
        if follows and argument.startswith("/"):
            return f"shell.path({text})"
        return f"at(shell, result, {text}{'' if follows else ', follow=False'})"

    def _path_word(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        """Return the path in a sentence as a word of shell code."""
        argument = sentence.subject.argument
        word = self.aliases.get(argument) or unknown.get(argument)
        return quote(argument) if word is None else word.raw

    def _value(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        """Return the Python expression for the value of the sentence's subject and modifiers."""
        subject = sentence.subject
        modifiers = list(sentence.modifiers)
        is_file = subject.kind is SubjectKind.PATH and sentence.has_modifier(*_CONTENTS)
        if self.in_shell and (is_file or subject.kind is SubjectKind.VARIABLE):
            return self._kept(sentence, unknown)
        if subject.kind is SubjectKind.PATH:
            base = self._path_value(sentence, unknown, modifiers)
        elif subject.kind in _STREAMS:
            base = _STREAMS[subject.kind] + ("" if subject.entire else '.rstrip("\\n")')
        elif subject.kind is SubjectKind.STATUS:
            base = "result.status"
        elif subject.kind is SubjectKind.VALUE:
            base = self._text(subject.argument, unknown)
        elif subject.kind is SubjectKind.VARIABLE and subject.argument not in unknown:
            base = f"result.variable({subject.argument!r})"
        else:
            base = self._kept(sentence, unknown)
            modifiers.clear()
        if modifiers and subject.kind is SubjectKind.VARIABLE:
            base = f"({base} or '')"
        for modifier in modifiers:
            base = _modified(base, modifier)
        return base

    def _kept(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        """Return the Python expression for the value of a sentence, which the evaluation's shell computes."""
        value = self._shell_value(sentence, unknown)
        return f'result.variable("{self._capture(f"{value}; spec_keep NAME", "value")}")'

    def _shell_value(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        """Return the commands that compute the value of the subject and modifiers in the shell."""
        subject = sentence.subject
        modifiers = list(sentence.modifiers)
        if subject.kind in _STREAMS:
            number = 1 if subject.kind is SubjectKind.OUTPUT else 2
            commands = [f"spec_output {number}{' entire' if subject.entire else ''}"]
        elif subject.kind is SubjectKind.STATUS:
            commands = ['spec_value "$__status"']
        elif subject.kind is SubjectKind.FUNCTION:
            if not modifiers or modifiers.pop(0).name != "result":
                raise NoEquivalentError("only the result of a function has an equivalent")
            commands = [f"spec_result {self._word(subject.argument, unknown)}"]
        elif subject.kind is SubjectKind.VARIABLE:
            commands = [f"spec_variable {self._word(subject.argument, unknown)}"]
        elif subject.kind is SubjectKind.PATH:
            commands = [f"spec_value {self._path_word(sentence, unknown)}"]
        else:
            commands = [f"spec_value {self._word(subject.argument, unknown)}"]
        for modifier in modifiers:
            if modifier.name.endswith("contents"):
                commands.append("spec_contents" + " entire" * modifier.name.startswith("entire"))
            elif modifier.name in _SHELL_PARTS:
                commands.append(f"spec_part {modifier.name} {modifier.number or ''}".rstrip())
            else:
                raise NoEquivalentError(f"'{modifier.name}' has no equivalent in Python")
        return "; ".join(commands)

    def _word(self, argument: str, unknown: Mapping[str, Word]) -> str:
        """Return an argument of a sentence as a word of shell code."""
        return unknown[argument].raw if argument in unknown else quote(argument)

    def _path_value(
        self, sentence: Sentence, unknown: Mapping[str, Word], modifiers: list[Modifier]
    ) -> str:
        kinds = [modifier.name for modifier in modifiers]
        if kinds and not kinds[0].endswith("contents"):
            return self._text(sentence.subject.argument, unknown)
        if not kinds and sentence.matcher.name not in _PATH_TESTS:
            return self._text(sentence.subject.argument, unknown)
        return self._path(sentence, unknown)

    def _test(self, sentence: Sentence, unknown: Mapping[str, Word]) -> str:
        name = sentence.matcher.name
        if name in _PATH_TESTS and sentence.subject.kind is SubjectKind.PATH and self.in_shell:
            return self._succeeds(_path_test(name, self._path_word(sentence, unknown)))
        may_be_missing = sentence.negated or name in _OF_ANY_VALUE
        is_kept = may_be_missing and sentence.has_modifier("line", "word", *_CONTENTS)
        is_kept = is_kept or sentence.has_modifier("lines")
        get = self._kept if is_kept or _is_element(sentence) else self._value
        value = get(sentence, unknown)
        if name in _PATH_TESTS and sentence.subject.kind is SubjectKind.PATH:
            return _PATH_TESTS[name].format(value)
        if (
            name in {"be exported", "be readonly"}
            and sentence.subject.kind is SubjectKind.VARIABLE
        ):
            letter = "x" if name == "be exported" else "r"
            if self.in_shell:
                return self._succeeds(f"spec_has_attribute {letter} {sentence.subject.argument}")
            return f"'{letter}' in result.variables[{sentence.subject.argument!r}].attributes"
        if name not in _TEXT_TESTS:
            raise NoEquivalentError(f"'{_plain(name, unknown)}' has no equivalent in Python")
        arguments = sentence.matcher.arguments
        wanted = self._text(arguments[0], unknown) if arguments else ""
        is_status = sentence.subject.kind is SubjectKind.STATUS and not sentence.modifiers
        if is_status and name == "equal":
            number = wanted.strip("'")
            return f"{value} == {number}" if number.isdigit() else f"str({value}) == {wanted}"
        may_be_unset = value.startswith("result.variable(")
        text = f"({value} or '')" if may_be_unset else f"str({value})" if is_status else value
        return _TEXT_TESTS[name].format(value=value, wanted=wanted, text=text)


def _plain(message: str, unknown: Mapping[str, Word]) -> str:
    """Return a message in which the placeholders are replaced by the words of the spec."""
    for argument, word in unknown.items():
        message = message.replace(argument, word.raw)
    return message


def _path_test(name: str, path: str) -> str:
    flag = PATH_FLAGS[name]
    if flag == "0":
        return f"test -f {path} -a ! -s {path}"
    return f"spec_is_empty_directory {path}" if flag == "E" else f"test -{flag} {path}"


def _literal(text: str) -> str:
    """Return text escaped for an f-string between double quotes."""
    # a double quote in the text makes `repr` use single quotes
    escaped = repr(f'{text}"')[1:-2].replace('"', '\\"')
    return escaped.replace("{", "{{").replace("}", "}}")


def _is_element(sentence: Sentence) -> bool:
    """Return whether the subject of the sentence is an element of an array."""
    return sentence.subject.kind is SubjectKind.VARIABLE and "[" in sentence.subject.argument


def _modified(base: str, modifier: Modifier) -> str:
    if modifier.name == "line":
        return f'{base}.split("\\n")[{modifier.number - 1}]'
    if modifier.name == "word":
        return f"{base}.split()[{modifier.number - 1}]"
    if modifier.name == "contents":
        return f'{base}.read_text().rstrip("\\n")'
    if modifier.name == "entire contents":
        return f"{base}.read_text()"
    if modifier.name == "length":
        return f"str(len({base}))"
    raise NoEquivalentError(f"'{modifier.name}' has no equivalent in Python")
