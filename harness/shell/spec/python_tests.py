"""Writes an example of a spec, with the set-up of its groups, as a test in Python."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harness.shell.lexer import quote_on_lines, rest_after, split_words
from harness.shell.spec.python_assertions import AssertionWriter, NoEquivalentError, docstring
from harness.shell.spec.scopes import Kind, Scope, Statement
from harness.shell.spec.sentences import Stream
from harness.shell.spec.shell_syntax import is_complete, may_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

_CUT = "this shell statement has lines of the spec's own language inside it"
_LEFT = {
    Stream.STATUS: "result.status == 0",
    Stream.STDOUT: 'result.stdout == ""',
    Stream.STDERR: 'result.stderr == ""',
}


@dataclass(kw_only=True)
class TestWriter:
    """Writes the test of one example; `chain` lists the file, the groups and the example.

    `folder` is the spec's working directory, relative to pytest's root directory. If `warns` is
    true, the test fails for an output or a non-zero status that no expectation mentions.
    `has_errexit` says whether the project's helper modules set errexit, which then stays set in the
    evaluations of `When run`.
    """

    chain: Sequence[Scope]
    folder: str = ""
    warns: bool = True
    has_errexit: bool = False
    lines: list[str] = field(default_factory=list)

    def function(self, name: str) -> str:
        """Return the code of the test function."""
        example = self.chain[-1]
        rows, length = self._rows()
        body = self._body(example, length)
        by_hand = dict.fromkeys(one for scope in self.chain for one in scope.by_hand)
        body = [*(_by_hand(line, why) for line, why in by_hand), *body]
        marks = [mark for scope in self.chain for mark in scope.marks]
        arguments = "shell: Shell"
        if rows:
            comments = dict.fromkeys(s.rows_comment for s in self.chain if s.rows_comment)
            marks.extend(f"# {comment}" for comment in comments)
            marks.append(self._parametrize(rows, length))
            arguments += f", row: {'tuple[str, ...]' if length else 'str'}"
        names = ": ".join(scope.name for scope in self.chain if scope.name)
        text = [docstring(names), *body]
        head = "".join(f"{mark}\n" for mark in dict.fromkeys(marks))
        return f"{head}def {name}({arguments}) -> None:\n" + "\n".join(f"    {t}" for t in text)

    def _rows(self) -> tuple[list[str], int | None]:
        """Return the rows as Python literals, and the number of words in a row (None if the rows are shell code)."""
        rows = [row for scope in self.chain for row in scope.rows]
        if all(word.literal for row in rows for word in row):
            texts = [tuple(word.text for word in row) for row in rows]
            return [repr(text) for text in texts], min(map(len, rows), default=0)
        return [repr(" ".join(word.raw for word in row)) for row in rows], None

    def _parametrize(self, rows: Sequence[str], length: int | None) -> str:
        ids = f', ids=[f"row{{n}}" for n in range({len(rows)})]' if length is None else ""
        return f'@pytest.mark.parametrize("row", [{", ".join(rows)}]{ids})'

    def _body(self, example: Scope, row_length: int | None) -> list[str]:
        for scope in self.chain[:-1]:
            for statement in scope.statements:
                self._set_up(statement)
            for hook in scope.hooks.get("BeforeAll", ()):
                self._before(hook)
        for scope in self.chain:
            for hook in scope.hooks.get("BeforeEach", ()):
                self._before(hook)
        if any(scope.rows for scope in self.chain):
            given = "row" if row_length is None else "shlex.join(row)"
            self.lines.append(f'shell.define(f"set -- {{{given}}}")')
        if not example.has(Kind.EVALUATION, Kind.EXPECTATION, Kind.ASSERTION):
            return self._without_evaluation(example)
        return self._evaluated(example, row_length)

    def _set_up(self, statement: Statement) -> None:
        text = statement.text.strip("\n")
        if statement.kind is Kind.SOURCE:
            self._source(text)
        elif statement.kind is Kind.PYTHON:
            self.lines.extend(text.split("\n"))
        elif _has_code(text):
            self._define(text)

    def _source(self, text: str) -> None:
        """Add the line that sources a file.

        The line calls `shell.source` if possible, otherwise `shell.define`.
        """
        words = split_words(text)[1:]
        is_first = all(line.startswith("shell.source(") for line in self.lines)
        if is_first and len(words) == 1 and words[0].literal and "/" in words[0].text:
            path = f"{self.folder}/{words[0].text}" if self.folder else words[0].text
            self.lines.append(f"shell.source({path!r})")
        else:
            self._define(f"__SOURCED__={words[0].raw} . {rest_after(text, 1)}")

    def _define(self, code: str) -> None:
        if not is_complete(code):
            self.chain[-1].give_up(code.strip().partition("\n")[0], _CUT)
        code = code if "\n" in code else code.strip()
        self.lines.append(f"shell.define({literal(_guarded(code))})")

    def _before(self, hook: str) -> None:
        self.lines.append(f"shell.define({literal(f'spec_try {quote_on_lines(hook)}')})")

    def _without_evaluation(self, example: Scope) -> list[str]:
        """Return the test of an example without an evaluation and without expectations.

        The test ends with `pytest.skip` or `pytest.xfail`.
        """
        for statement in example.statements:
            self._set_up(statement)
        if not any(s.text.startswith("pytest.skip(") for s in example.statements):
            if any(s.kind is Kind.SHELL and _has_code(s.text) for s in example.statements):
                self.lines.append('shell.evaluate(":").check()')
            self.lines.append('pytest.xfail("not yet implemented")')
        return self.lines

    def _evaluated(self, example: Scope, row_length: int | None) -> list[str]:
        after = [
            hook
            for kind in ("AfterEach", "AfterAll")
            for scope in reversed(self.chain)
            for hook in reversed(scope.hooks.get(kind, []))
        ]
        writer = AssertionWriter(
            aliases=dict(ChainMap(*(scope.aliases for scope in self.chain))),
            row_length=row_length,
            in_shell=bool(after) or _changes_what_was_looked_at(example),
        )
        place: int | None = None
        code = ":"
        for statement in example.statements:
            if statement.kind is Kind.EVALUATION:
                place, code = len(self.lines), statement.text
            elif statement.kind in {Kind.EXPECTATION, Kind.ASSERTION}:
                place = len(self.lines) if place is None else place
                self._expect(writer, statement)
            elif place is None or statement.kind is not Kind.SHELL:
                self._set_up(statement)
            elif _has_code(statement.text):
                self._state(writer, statement.text.strip("\n"))
        has_when = example.has(Kind.EVALUATION)
        if has_when and self.warns:
            self.lines.extend(
                f"assert {test}" for left, test in _LEFT.items() if left not in writer.claims
            )
            if not example.has(Kind.EXPECTATION, Kind.ASSERTION):
                self.lines.append(
                    _by_hand("When", "shellspec warns about an example without an expectation")
                )
        elif not has_when and any(line.startswith("shell.define(") for line in self.lines):
            self.lines.append('assert result.stderr == ""')
        for hook in after:
            self.lines.extend(writer.hook(hook))
        self.lines.extend(writer.end())
        self.lines.insert(place or 0, self._evaluation(code, writer, has_when=has_when))
        return self.lines

    def _expect(self, writer: AssertionWriter, statement: Statement) -> None:
        is_sentence = statement.kind is Kind.EXPECTATION
        write = writer.expectation if is_sentence else writer.command
        try:
            self.lines.extend(write(statement.text))
        except NoEquivalentError as error:
            self.chain[-1].give_up(statement.text, str(error))

    def _state(self, writer: AssertionWriter, code: str) -> None:
        if not is_complete(code):
            self.chain[-1].give_up(code.strip().partition("\n")[0], _CUT)
        writer.statement(_guarded(code))

    def _evaluation(self, code: str, writer: AssertionWriter, *, has_when: bool) -> str:
        """Return the line of Python that evaluates the example's code.

        The `captures` of the expectations follow the line.
        """
        kind, _, code = code.partition(" ") if has_when else ("", "", code)
        before = [h for s in self.chain for h in s.hooks.get(f"Before{kind}", ())]
        after = [
            h for s in reversed(self.chain) for h in reversed(s.hooks.get(f"After{kind}", []))
        ]
        options = ["__hx_apply_options"] if any(s.sets_options for s in self.chain) else []
        given = next((s.stdin for s in reversed(self.chain) if s.stdin is not None), ("", ""))
        code += given[1]
        code = " && ".join(
            [*(f"{{ {h}\n}}" for h in before), code, *(f"{{ {h}\n}}" for h in after)]
        )
        if kind == "Run":
            options = ["set -e"] * self.has_errexit + options
            inner = "\n".join([*options, code])
            code = f"( {inner} )" if "\n" not in inner else f"(\n{inner}\n)"
        elif options:
            code = "\n".join([*options, "set +e", code])
        if writer.captures:
            code = (
                "\n".join([code, "__status=$?", *writer.captures, '(exit "$__status")'])
                if has_when
                else "\n".join(["__status=", *writer.captures])
            )
        stdin = f", stdin={given[0]!r}" if given[0] else ""
        used = "result = " if any("result" in line for line in self.lines) else ""
        return f"{used}shell.evaluate({literal(code)}{stdin})"


def _changes_what_was_looked_at(example: Scope) -> bool:
    """Return whether the example runs a statement after an expectation."""
    seen = False
    for statement in example.statements:
        seen = seen or statement.kind in {Kind.EXPECTATION, Kind.ASSERTION}
        if seen and statement.kind is Kind.SHELL and _has_code(statement.text):
            return True
    return False


def _has_code(text: str) -> bool:
    """Return whether the text has lines other than comments and empty lines."""
    return any(line.strip() and not line.lstrip().startswith("#") for line in text.split("\n"))


def _guarded(code: str) -> str:
    """Return `code` in a form that ends the shell if a statement of the code fails, as in a spec."""
    return f"set -e\n{code}\nset +e" if may_fail(code) else code


def _by_hand(line: str, why: str) -> str:
    """Return the call of `pytest.fail` for a line that has to be translated by hand."""
    return f"pytest.fail({f'to be translated by hand ({why}): {line}'!r})"


def literal(code: str) -> str:
    """Return shell code as a readable string literal of Python."""
    plain = code.replace("\n", "").replace("\t", "")
    if plain == code or '"""' in code or code.endswith('"') or not plain.isprintable():
        return repr(code)
    return ("r" if "\\" in code else "") + '"""\n' + code + '\n"""'
