"""Turns a `*_spec.sh` into a pytest module for the `shell` fixture, to be reviewed and kept.

What has an equivalent is translated; a line that has none becomes a call of `pytest.fail` that
quotes it, so that nothing passes by being left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.lexer import is_open, rest_after, split_words, strip_comment
from harness.shell.spec.python_assertions import AT, AssertionWriter, NoEquivalentError
from harness.shell.spec.translate import SELF_EXECUTING, continues, translate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from harness.shell.lexer import Word
    from harness.shell.spec.spec_file import RowEvaluator

_BLOCK = re.compile(r"[xf]?(Describe|Context|ExampleGroup|It|Specify|Example)\Z")
_SENTENCE = re.compile(r"[ \t]*(?:The|When|Assert) ")
_EXAMPLES = {"It", "Specify", "Example"}
_HOOKS = {"BeforeEach", "Before", "BeforeAll", "AfterEach", "After", "AfterAll"}
_BY_HAND = {"Intercept"}
_PATHS = {"Path", "File", "Dir"}
_AROUND = {"BeforeCall", "AfterCall", "BeforeRun", "AfterRun"}
#: What a module imports where its text has the name behind it.
_IMPORTS = {
    "import os": "os.",
    "import re": "re.",
    "import shlex": "shlex.",
    "import stat": "stat.",
    "from pathlib import Path, PurePosixPath": "PurePosixPath",
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
    stdin_code: str = ""
    aliases: dict[str, Word] = field(default_factory=dict)
    around: dict[str, list[str]] = field(default_factory=dict)
    code: str | None = None
    evaluated_at: int = 0
    writer: AssertionWriter = field(default_factory=AssertionWriter)


def migrate(path: str, text: str, evaluate_rows: RowEvaluator) -> str:
    """Return the module that tests what the spec `text` from the file `path` tests.

    Raises BadInputError where the spec itself is wrong.
    """
    translate(path, text, evaluate_rows)
    return _Migration(path, text).run()


class _Migration:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.lines = list(_joined(text.replace("\r\n", "\n").split("\n")))
        self.at = 0
        self.scopes = [_Scope()]
        self.functions: list[str] = []
        self.names: set[str] = set()

    def run(self) -> str:
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if _SENTENCE.match(line):
                while is_open(line) and self.at < len(self.lines):
                    line += f"\n{self.lines[self.at]}"
                    self.at += 1
            self._take(line)
        body = "\n\n\n".join(self.functions)
        if "at(shell, result" in body:
            body = f"{AT}\n\n{body}"
        standard = [line for line, name in _IMPORTS.items() if name in body]
        classes = "Evaluation, Shell" if ": Evaluation" in body else "Shell"
        ours = [f"from harness.shell.testing import {classes}"]
        if "pattern_matches(" in body:
            ours.insert(0, "from harness.shell.spec.patterns import pattern_matches")
        blocks = [
            "from __future__ import annotations",
            "\n".join(standard),
            "import pytest",
            "\n".join(ours),
        ]
        imports = "\n\n".join(block for block in blocks if block)
        return f'"""Shell code as {self.path} tested it."""\n\n{imports}\n\n\n{body}\n'

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
        scope = self.scopes[-1]
        scope.writer = AssertionWriter(
            aliases={name: word for each in self.scopes for name, word in each.aliases.items()},
            has_rows=any(each.rows for each in self.scopes),
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
            self._when(strip_comment(text), [word.raw for word in words])
        elif keyword in {"The", "Assert"}:
            self._expect(keyword, strip_comment(text))
        elif not SELF_EXECUTING.match(line) and not self._take_directive(keyword, text, words):
            if scope.code is not None and text and not text.startswith("#"):
                scope.python.append(f"shell.evaluate({text!r})")
            else:
                scope.shell.append(line.rstrip())

    def _take_directive(self, keyword: str, text: str, words: Sequence[Word]) -> bool:
        """Take a line that is neither shell nor an expectation; return whether it is one."""
        scope = self.scopes[-1]
        if keyword == "Skip":
            scope.python.extend(_skip(text, words))
        elif keyword == "Pending":
            reason = words[1].text if words[1:] else "pending in the spec"
            scope.mark += f"@pytest.mark.xfail(reason={reason!r}, strict=True)\n"
        elif keyword in _PATHS:
            scope.aliases.update(_named_paths(words))
            scope.writer.aliases = {**scope.writer.aliases, **scope.aliases}
        elif keyword == "Set":
            scope.shell.extend(_shell_options(words))
        elif keyword in _AROUND:
            scope.around.setdefault(keyword, []).extend(word.text for word in words[1:])
        elif keyword in _BY_HAND:
            scope.python.append(_give_up(text))
        else:
            return keyword in {"Dump", "Todo"}
        return True

    def _expect(self, keyword: str, line: str) -> None:
        scope = self.scopes[-1]
        if scope.code is None:
            self._evaluate(":")
        try:
            write = scope.writer.command if keyword == "Assert" else scope.writer.expectation
            scope.python.append(write(line))
        except NoEquivalentError:
            scope.python.append(_give_up(line))

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
            if rest[0] in "'\"" and words[0].literal:
                scope.stdin = words[0].text + "\n"
            elif rest.startswith("<"):
                scope.stdin_code = f" {rest}"
            else:
                source = f"printf '%s\\n' {rest}" if rest[0] in "'\"" else rest
                scope.stdin_code = f" < <({source})"
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
        elif keyword == "Data:expand" and not rest:
            text = "".join(f"{row[2:]}\n" for row in inner if row.startswith("#|"))
            scope.stdin_code = f" <<__DATA__\n{text}__DATA__"
        else:
            scope.python.append(_give_up(line.strip()))

    def _when(self, line: str, words: Sequence[str]) -> None:
        if words[1] == "call":
            self._evaluate(rest_after(line, 2), "Call")
        elif words[2] == "script":
            self._evaluate(f"bash {rest_after(line, 3)}", "Run")
        elif words[2] == "source":
            self._evaluate(f"( . {rest_after(line, 3)}", "Run")
        else:
            self._evaluate(f"( {rest_after(line, 3 if words[2] == 'command' else 2)}", "Run")

    def _evaluate(self, code: str, kind: str = "") -> None:
        """Note what the example evaluates; `_evaluation` writes it when all is known."""
        scope = self.scopes[-1]
        given = next((s.stdin_code for s in reversed(self.scopes) if s.stdin_code), "")
        scope.code = code + (" )" if code.startswith("( ") else "") + given
        for when in ("Before", "After"):
            hooks = [h for s in self.scopes for h in s.around.get(f"{when}{kind}", ())]
            if hooks and when == "Before":
                scope.code = "\n".join([*hooks, scope.code])
            elif hooks:
                scope.code = "\n".join([scope.code, "__status=$?", *hooks, "(exit $__status)"])
        scope.python.append("")  # the place of the evaluation
        scope.evaluated_at = len(scope.python) - 1

    def _evaluation(self, scope: _Scope) -> str:
        """Return the line that evaluates an example's code, and what its expectations need."""
        code = scope.code or ":"
        if scope.writer.captures:
            code = "\n".join([code, "__status=$?", *scope.writer.captures, "(exit $__status)"])
        stdin = next((s.stdin for s in reversed([*self.scopes, scope]) if s.stdin), "")
        given = f", stdin={stdin!r}" if stdin else ""
        return f"result = shell.evaluate({_literal(code)}{given})"

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
        if scope.code is not None:
            scope.python[scope.evaluated_at] = self._evaluation(scope)
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


def _joined(lines: Sequence[str]) -> Iterator[str]:
    """Yield each line with those that continue it; a line of text ends where it ends."""
    rest = iter(lines)
    for line in rest:
        joined = line
        while continues(joined) and (following := next(rest, None)) is not None:
            joined = joined[:-1] + following.lstrip()
        yield joined


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


def _skip(line: str, words: Sequence[Word]) -> list[str]:
    """Return the lines that skip a test, always or where a command succeeds."""
    if len(words) < 3:
        return [f"pytest.skip({words[1].text if words[1:] else 'skipped'!r})"]
    if words[1].text not in {"if", "unless"} or len(words) < 4:
        return [_give_up(line)]
    code, sign = rest_after(line, 3), "==" if words[1].text == "if" else "!="
    return [
        f"if shell.evaluate({code!r}).status {sign} 0:",
        f"    pytest.skip({words[2].text!r})",
    ]


def _named_paths(words: Sequence[Word]) -> list[tuple[str, Word]]:
    """Return the paths that `Path name=path` names."""
    found: list[tuple[str, Word]] = []
    for word in words[1:]:
        name = word.text.partition("=")[0]
        raw = word.raw.partition("=")[2]
        quoted = raw if word.raw.startswith(f"{name}=") else f'"{raw}'
        found.append((name, split_words(quoted)[0]))
    return found


def _shell_options(words: Sequence[Word]) -> list[str]:
    """Return the commands that set what `Set 'name:on'` sets."""
    lines: list[str] = []
    for word in words[1:]:
        name, _, value = word.text.partition(":")
        lines.append(f"set {'-' if value == 'on' else '+'}o {name}")
    return lines
