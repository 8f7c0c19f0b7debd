"""Turns a `*_spec.sh` into a pytest module for the `shell` fixture, to be reviewed and kept.

What has an equivalent is translated; a line that has none becomes a call of `pytest.fail` that
quotes it, so that nothing passes by being left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.expectation import Sentence, SentenceError, SubjectKind, parse_sentence
from harness.shell.translate import translate
from harness.shell.words import rest_after, split_words, strip_comment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.shell.specfile import RowEvaluator
    from harness.shell.words import Word

_BLOCK = re.compile(r"[xf]?(Describe|Context|ExampleGroup|It|Specify|Example)\Z")
_EXAMPLES = {"It", "Specify", "Example"}
_HOOKS = {"BeforeEach", "Before", "BeforeAll", "AfterEach", "After", "AfterAll"}
_BY_HAND = {
    "Path",
    "File",
    "Dir",
    "Set",
    "Assert",
    "Skip",
    "Pending",
    "Intercept",
    "Dump",
    "BeforeCall",
    "AfterCall",
    "BeforeRun",
    "AfterRun",
}
_SIMPLE_MOCK = re.compile(r"\s*(?:echo (?P<text>'[^']*'|\"[^\"$`\\]*\")|exit (?P<code>\d+))\s*\Z")


@dataclass(kw_only=True)
class _Scope:
    """What a group or an example has stated so far."""

    name: str = ""
    is_example: bool = False
    mark: str = ""
    sources: list[str] = field(default_factory=list)
    shell: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    mocks: list[str] = field(default_factory=list)
    rows: list[tuple[str, ...]] = field(default_factory=list)
    python: list[str] = field(default_factory=list)
    stdin: str = ""
    evaluated: bool = False


def migrate(path: str, text: str, evaluate_rows: RowEvaluator) -> str:
    """Return the module that tests what the spec `text` from the file `path` tests.

    Raises BadInputError where the spec itself is wrong.
    """
    translate(path, text, evaluate_rows)
    return _Migration(path, text).run()


class _Migration:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        joined = re.sub(r"\\\n\s*", "", text.replace("\r\n", "\n"))
        self.lines = joined.split("\n")
        self.at = 0
        self.scopes = [_Scope()]
        self.functions: list[str] = []
        self.names: set[str] = set()

    def run(self) -> str:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            self._take(line)
        body = "\n\n\n".join(self.functions)
        return (
            f'"""Shell code as {self.path} tested it."""\n\n'
            "from __future__ import annotations\n\n"
            "import shlex\n\nimport pytest\n\n"
            "from harness.shell.zygote import Shell\n\n\n"
            f"{body}\n"
        )

    def _take(self, line: str) -> None:
        words = split_words(line.strip())
        keyword = words[0].text if words and words[0].raw == words[0].text else ""
        if _BLOCK.match(keyword):
            self._open(keyword, words)
        elif keyword == "End":
            scope = self.scopes.pop()
            if scope.is_example:
                self.functions.append(self._function(scope))
        elif keyword == "Mock":
            self._mock(words[1].text)
        elif keyword.partition(":")[0] in {"Parameters", "Data"}:
            self._block(keyword, line)
        else:
            self._take_statement(keyword, line, words)

    def _open(self, keyword: str, words: Sequence[Word]) -> None:
        skip = '@pytest.mark.skip(reason="skipped in the spec")\n'
        self.scopes.append(
            _Scope(
                name=words[1].text if len(words) > 1 else f"line {self.at}",
                is_example=keyword.lstrip("xf") in _EXAMPLES,
                mark=skip if keyword.startswith("x") else self.scopes[-1].mark,
            )
        )

    def _take_statement(self, keyword: str, line: str, words: Sequence[Word]) -> None:
        scope = self.scopes[-1]
        text = line.strip()
        if keyword in _HOOKS:
            hooks = scope.before if keyword.startswith("Before") else scope.after
            hooks.extend(word.text for word in words[1:])
        elif keyword == "Include":
            scope.sources.append(words[1].text)
        elif keyword == "When":
            self._when(text, [word.raw for word in words])
        elif keyword == "The":
            scope.python.extend(_assertion(text))
        elif keyword == "Skip" and len(words) < 3:
            scope.python.append(f"pytest.skip({words[1].text if words[1:] else 'skipped'!r})")
        elif keyword in _BY_HAND:
            scope.python.append(_give_up(text))
        elif scope.evaluated and text and not text.startswith("#"):
            scope.python.append(f"shell.evaluate({text!r})")
        elif keyword != "Todo":
            scope.shell.append(line.rstrip())

    def _inner(self) -> list[str]:
        inner: list[str] = []
        while strip_comment(self.lines[self.at]).strip() != "End":
            inner.append(self.lines[self.at].strip())
            self.at += 1
        self.at += 1
        return inner

    def _mock(self, name: str) -> None:
        body = [line for line in self._inner() if line and not line.startswith("#")]
        found = [_SIMPLE_MOCK.match(line) for line in body]
        scope = self.scopes[-1]
        if all(found):
            out = "".join(f"{split_words(m['text'])[0].text}\n" for m in found if m and m["text"])
            code = next((m["code"] for m in found if m and m["code"]), "0")
            scope.mocks.append(f"shell.mock({name!r}).answers({out!r}, exit_code={code})")
        else:
            # seen by functions, not by child processes
            scope.shell.extend([f"{name}() (", *(f"  {line}" for line in body), ")"])

    def _block(self, keyword: str, line: str) -> None:
        scope = self.scopes[-1]
        rest = strip_comment(line.strip()[len(keyword) :]).strip()
        if keyword.startswith("Data") and rest and not rest.startswith("|"):
            words = split_words(rest)
            is_text = rest[0] in "'\""
            scope.stdin = words[0].text + "\n" if is_text else scope.stdin
            if not is_text:
                scope.python.append(_give_up(line.strip()))
            return
        if keyword == "Parameters:value":
            scope.rows.extend((word.text,) for word in split_words(rest))
            return
        inner = self._inner()
        if keyword in {"Parameters", "Parameters:block"}:
            rows = [tuple(word.text for word in split_words(row)) for row in inner]
            scope.rows.extend(row for row in rows if row)
        elif keyword in {"Data", "Data:raw"} and not rest:
            scope.stdin = "".join(f"{row[2:]}\n" for row in inner if row.startswith("#|"))
        else:
            scope.python.append(_give_up(line.strip()))

    def _when(self, line: str, words: Sequence[str]) -> None:
        scope = self.scopes[-1]
        scope.evaluated = True
        stdin = next((s.stdin for s in reversed(self.scopes) if s.stdin), "")
        given = f", stdin={stdin!r}" if stdin else ""
        if words[1] == "call":
            scope.python.append(f"result = shell.evaluate({rest_after(line, 2)!r}{given})")
        elif words[2] == "script":
            code = f"bash {rest_after(line, 3)}"
            scope.python.append(f"result = shell.evaluate({code!r}{given})")
        elif words[2] == "source":
            code = f"( . {rest_after(line, 3)} )"
            scope.python.append(f"result = shell.evaluate({code!r}{given})")
        else:
            code = f"( {rest_after(line, 3 if words[2] == 'command' else 2)} )"
            scope.python.append(f"result = shell.evaluate({code!r}{given})")

    def _function(self, scope: _Scope) -> str:
        chain = [*self.scopes, scope]
        rows = [row for each in chain for row in each.rows]
        name = self._test_name(chain)
        lines = [f'    """{_docstring(chain)}"""']
        sources = [source for each in chain for source in each.sources]
        lines.extend(f"    shell.source({source!r})" for source in sources)
        if rows:
            lines.append('    shell.define(f"set -- {shlex.join(row)}")')
        for each in chain:
            code = "\n".join(each.shell).strip("\n")
            if code.strip():
                lines.append(f"    shell.define({_literal(code)})")
            lines.extend(f"    {mock}" for mock in each.mocks)
            lines.extend(f"    shell.define({hook!r})" for hook in each.before)
        lines.extend(f"    {line}" for line in scope.python)
        for each in reversed(chain):
            lines.extend(f"    shell.evaluate({hook!r})" for hook in each.after)
        decorator = scope.mark
        arguments = "shell: Shell"
        if rows:
            decorator += f'@pytest.mark.parametrize("row", {rows!r})\n'
            arguments += ", row: tuple[str, ...]"
        return f"{decorator}def {name}({arguments}) -> None:\n" + "\n".join(lines)

    def _test_name(self, chain: Sequence[_Scope]) -> str:
        words = re.sub(r"\W+", "_", " ".join(each.name for each in chain).lower()).strip("_")
        name = candidate = f"test_{words or 'example'}"
        number = 1
        while candidate in self.names:
            number += 1
            candidate = f"{name}_{number}"
        self.names.add(candidate)
        return candidate


def _docstring(chain: Sequence[_Scope]) -> str:
    text = ": ".join(each.name for each in chain if each.name)
    return text.replace("\\", "\\\\").replace('"', "'")


def _literal(code: str) -> str:
    if "\n" not in code:
        return repr(code)
    if '"""' in code or "\\" in code:
        return 'r"""\n' + code + '\n"""' if '"""' not in code else repr(code)
    return '"""\n' + code + '\n"""'


def _give_up(line: str) -> str:
    return f"pytest.fail({f'to be translated by hand: {line}'!r})"


def _assertion(line: str) -> list[str]:
    """Return the assertion that says what the sentence in `line` says."""
    words = split_words(line)[1:]
    try:
        sentence = parse_sentence(tuple(word.text for word in words))
    except SentenceError:
        return [_give_up(line)]
    if any(not word.literal for word in words):
        return [_give_up(line)]
    value = _value(sentence)
    test = None if value is None else _test(sentence, value)
    if test is None:
        return [_give_up(line)]
    return [f"assert {f'not ({test})' if sentence.negated else test}"]


def _value(sentence: Sentence) -> str | None:
    subject = sentence.subject
    base = {
        SubjectKind.OUTPUT: "result.stdout",
        SubjectKind.ERROR: "result.stderr",
        SubjectKind.STATUS: "result.status",
        SubjectKind.VARIABLE: f"result.variable({subject.argument!r})",
        SubjectKind.VALUE: repr(subject.argument),
        SubjectKind.PATH: f"(shell.root / {subject.argument.lstrip('/')!r})",
    }.get(subject.kind)
    if base is None or (subject.kind is SubjectKind.PATH and not subject.argument.startswith("/")):
        return None
    streams = {SubjectKind.OUTPUT, SubjectKind.ERROR}
    if subject.kind in streams and not subject.entire:
        base += '.rstrip("\\n")'
    for modifier in sentence.modifiers:
        if modifier.name == "line":
            base += f".splitlines()[{modifier.number - 1}]"
        elif modifier.name == "word":
            base += f".split()[{modifier.number - 1}]"
        elif modifier.name.endswith("contents"):
            base += ".read_text()" + ('.rstrip("\\n")' if modifier.name == "contents" else "")
        elif modifier.name in {"lines", "length"}:
            base = f"str(len({base}{'.splitlines()' if modifier.name == 'lines' else ''}))"
        else:
            return None
    return base


def _test(sentence: Sentence, value: str) -> str | None:
    wanted = repr(sentence.matcher.arguments[0]) if sentence.matcher.arguments else ""
    text = f"({value} or '')" if sentence.subject.kind is SubjectKind.VARIABLE else value
    if sentence.subject.kind is SubjectKind.STATUS:
        wanted = wanted.strip("'")
    return {
        "equal": f"{value} == {wanted}",
        "include": f"{wanted} in {text}",
        "start with": f"{text}.startswith({wanted})",
        "end with": f"{text}.endswith({wanted})",
        "be success": f"{value} == 0",
        "be failure": f"1 <= {value} <= 255",
        "be defined": f"{value} is not None",
        "be undefined": f"{value} is None",
        "be present": f"{value}",
        "be blank": f"not {value}",
        "be exist": f"{value}.exists()",
        "be file": f"{value}.is_file()",
        "be directory": f"{value}.is_dir()",
        "be symlink": f"{value}.is_symlink()",
    }.get(sentence.matcher.name)
