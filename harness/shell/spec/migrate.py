"""Translates a `*_spec.sh` file into a pytest module that uses the `shell` fixture; people review the module.

A line of a spec without an equivalent in Python becomes a call of `pytest.fail` in the test of the
line's example. The call of `pytest.fail` quotes the line and states why the line has no equivalent,
so the test cannot pass by accident.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.shell.lexer import (
    Word,
    is_open,
    quote_on_lines,
    rest_after,
    split_words,
    strip_comment,
)
from harness.shell.spec import directives, parameters
from harness.shell.spec.migrated_project import MOCKS, MigratedProject
from harness.shell.spec.python_module import module_text
from harness.shell.spec.python_tests import TestWriter
from harness.shell.spec.scopes import Kind, Scope
from harness.shell.spec.translate import (
    EVALUATIONS,
    FIRST_WORD,
    SELF_EXECUTING,
    continues,
    translate,
    without_articles,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.spec.spec_file import RowEvaluator

_BLOCK = re.compile(r"[xf]?(Describe|Context|ExampleGroup|It|Specify|Example)\Z")
_EXAMPLES = {"It", "Specify", "Example"}
_HOOKS = {"Before": "BeforeEach", "After": "AfterEach"}
_HOOK = re.compile(r"(?:Before|After)(?:Each|All|Call|Run)?\Z")
_PATHS = {"Path", "File", "Dir"}
_SIMPLE_MOCK = re.compile(r"\s*(?:echo (?P<text>'[^']*'|\"[^\"$`\\]*\")|exit (?P<code>\d+))\s*\Z")
_NUMBERS = re.compile(r"SHELLSPEC_(?:GROUP_ID|EXAMPLE_ID|EXAMPLE_NO)\b")
_OF_THE_HOST = re.compile(r"\$\((?!\()|`|[<>]\(")
_ROWS_OF_CODE = "the rows that the spec's code printed during the translation"
_SKIPPED = '@pytest.mark.skip(reason="skipped in the spec")'


def migrate(
    path: str, text: str, evaluate_rows: RowEvaluator, project: MigratedProject | None = None
) -> str:
    """Return the text of a pytest module with the same tests as the spec whose content is `text`.

    Raises BadInputError if the spec has an error.
    """
    text = text.removeprefix("\ufeff")
    translate(path, text, evaluate_rows)
    return _Migration(path, text, evaluate_rows, project or MigratedProject(spec=path)).run()


class _Migration:
    def __init__(
        self, path: str, text: str, evaluate_rows: RowEvaluator, project: MigratedProject
    ) -> None:
        self.path = path
        self.lines = [line.removesuffix("\r") for line in text.split("\n")]
        self.evaluate_rows = evaluate_rows
        self.project = project
        self.is_numbered = bool(_NUMBERS.search(text + project.helper_text))
        self.at = 0
        self.scopes = [Scope()]
        if project.has_hooks_after:
            self.scopes[0].give_up("after_each", "the project's helper modules add hooks")
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.names: set[str] = set()
        self.examples = 0

    def run(self) -> str:
        while self.at < len(self.lines):
            self._take(self._next_line())
        if not self.functions:
            raise BadInputError(
                "The file has no example (It, Specify, Example or Todo); give the path of a *_spec.sh file.",
                source=self.path,
            )
        return module_text(self.path, [self.project.fixture(), *self.functions])

    def _next_line(self) -> str:
        """Return the next line, joined with its continuation lines."""
        if self.at >= len(self.lines):
            raise BadInputError("The file ends inside a block or a quote.", source=self.path)
        first = self.at
        while self.at + 1 < len(self.lines) and continues(self.lines[self.at]):
            self.at += 1
        self.at += 1
        return "\n".join(self.lines[first : self.at])

    def _inner(self) -> list[str]:
        """Return the lines up to the next `End`, for a block without inner blocks."""
        inner: list[str] = []
        while strip_comment(line := self._next_line()).strip() != "End":
            inner.append(line)
        return inner

    # --- lines ---------------------------------------------------------------------------

    def _take(self, line: str) -> None:
        directive = directives.match(line)
        found = FIRST_WORD.match(line)
        keyword = found[1] if found else ""
        take = self._statement(keyword)
        if directive is not None:
            self._directive(directive, line)
        elif take is not None:
            while is_open(line) and self.at < len(self.lines):
                line += f"\n{self._next_line()}"
            text = line.strip().replace("\\\n", "")
            take(keyword, text, split_words(text))
        elif not SELF_EXECUTING.match(line):
            self.scopes[-1].add(Kind.SHELL, line.rstrip())

    def _statement(self, keyword: str) -> Callable[[str, str, Sequence[Word]], None] | None:
        name, _, mode = keyword.partition(":")
        if mode:
            return {"Data": self._data, "Parameters": self._parameters}.get(name)
        if _BLOCK.match(name):
            return self._open
        if _HOOK.match(name):
            return self._hook
        if name in _PATHS:
            return self._name_paths
        return {
            "End": self._end, "Todo": self._todo, "Include": self._include, "When": self._when,
            "The": self._expect, "Assert": self._expect, "Skip": self._skip,
            "Pending": self._pending, "Set": self._set, "Dump": self._leave_out,
            "Intercept": self._intercept, "Data": self._data, "Parameters": self._parameters,
            "Mock": self._mock,
        }.get(name)  # fmt: skip

    def _directive(self, directive: directives.Directive, line: str) -> None:
        scope = self.scopes[-1]
        if directive.name == "preserve":
            scope.give_up(line.strip(), "a child process can't return variables")
        elif directive.name == "const":
            assignment = directives.constant(directive) or ":"
            self.constants.append(assignment)
            scope.add(Kind.SHELL, assignment)
        else:
            scope.add(Kind.SHELL, self._command(directive))

    def _command(self, directive: directives.Directive) -> str:
        """Return the command for any directive except `%preserve` and `%const`."""
        if directive.name != "text":
            return directives.render(directive)
        lines: list[str] = []
        while self.at < len(self.lines) and self.lines[self.at].lstrip(" \t").startswith("#|"):
            lines.append(self.lines[self.at].lstrip(" \t")[2:])
            self.at += 1
        text = quote_on_lines("".join(f"{one}\n" for one in lines))
        is_raw = directive.mode == "raw"
        command = f"printf '%s' {text}" if is_raw else f'__hx_expand {text} "$@"'
        return f"{directive.head}{command}{directive.rest}"

    def _leave_out(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, text, words

    # --- blocks --------------------------------------------------------------------------

    def _open(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del text
        around = self.scopes[-1]
        around.children += 1
        number = f"{around.number}-{around.children}".lstrip("-")
        is_example = keyword.lstrip("xf") in _EXAMPLES
        scope = Scope(
            name=words[1].text if len(words) > 1 else f"line {self.at}",
            number=number,
            is_example=is_example,
            marks=[_SKIPPED] if keyword.startswith("x") else [],
        )
        self.scopes.append(scope)
        if self.is_numbered:
            self._number(scope)
        if is_example:
            self.examples += max(1, sum(len(each.rows) for each in self.scopes))

    def _number(self, scope: Scope) -> None:
        if not scope.is_example:
            scope.add(Kind.SHELL, f"SHELLSPEC_GROUP_ID={scope.number}")
            return
        scope.add(Kind.SHELL, f"SHELLSPEC_EXAMPLE_ID={scope.number}")
        scope.add(Kind.SHELL, f"SHELLSPEC_EXAMPLE_NO={self.examples + 1}")
        if any(each.rows for each in self.scopes):
            scope.give_up("Parameters", "each row has a SHELLSPEC_EXAMPLE_NO of its own")

    def _end(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, text, words
        if len(self.scopes) == 1:
            raise BadInputError(
                "This 'End' closes nothing; an earlier line may have a quote that is not closed.",
                source=self.path,
                line=self.at,
            )
        if self.scopes[-1].is_example:
            self._write_test()
        self.scopes.pop()

    def _todo(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        self._open("It", text, words)
        self._end(keyword, text, words)

    def _write_test(self) -> None:
        writer = TestWriter(
            chain=self.scopes,
            folder=self.project.folder,
            warns=self.project.warns,
            has_errexit=self.project.has_errexit,
        )
        self.functions.append(writer.function(self._test_name()))

    def _test_name(self) -> str:
        words = re.sub(r"\W+", "_", " ".join(each.name for each in self.scopes).lower()).strip("_")
        name = candidate = f"test_{words or 'example'}"
        number = 1
        while candidate in self.names:
            number += 1
            candidate = f"{name}_{number}"
        self.names.add(candidate)
        return candidate

    # --- what groups and examples state --------------------------------------------------

    def _hook(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del text
        kind = _HOOKS.get(keyword, keyword)
        self.scopes[-1].hooks.setdefault(kind, []).extend(word.text for word in words[1:])

    def _include(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, words
        self.scopes[-1].add(Kind.SOURCE, strip_comment(text))

    def _name_paths(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, text
        for given in words[1:]:
            name = given.text.partition("=")[0]
            raw = given.raw.partition("=")[2]
            quoted = raw if given.raw.startswith(f"{name}=") else f'"{raw}'
            found = split_words(quoted)
            word = found[0] if found else Word("''", "", literal=True)
            self.scopes[-1].aliases.setdefault(name, word)

    def _set(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, text
        self.scopes[-1].sets_options = True
        self.scopes[-1].add(Kind.SHELL, f"__hx_set {' '.join(word.raw for word in words[1:])}")

    def _intercept(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del words
        self.scopes[-1].give_up(text, f"'{keyword}' has no equivalent in Python")

    def _skip(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword
        scope = self.scopes[-1]
        if len(words) > 1 and words[1].raw == "if":
            reason = words[2].text if len(words) > 2 else "skipped in the spec"
            code = strip_comment(rest_after(text, 3)) if len(words) > 3 else ""
            if not code:
                return  # without a command 'Skip if' skips nothing
            scope.add(
                Kind.PYTHON,
                f"if shell.evaluate({code!r}).status == 0:\n    pytest.skip({reason!r})",
            )
            return
        reason = words[1].text if len(words) > 1 else "skipped in the spec"
        if scope.is_example:
            scope.add(Kind.PYTHON, f"pytest.skip({reason!r})")
        else:
            scope.marks.append(f"@pytest.mark.skip(reason={reason!r})")

    def _pending(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword
        scope = self.scopes[-1]
        if scope.is_example and scope.has(Kind.EXPECTATION, Kind.ASSERTION):
            scope.give_up(text, "'Pending' does not apply to the expectations before it")
        reason = words[1].text if len(words) > 1 else "pending in the spec"
        scope.marks.append(
            f"@pytest.mark.xfail(reason={reason!r}, raises=AssertionError, strict=True)"
        )

    def _mock(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword
        scope, name = self.scopes[-1], words[1].text
        inner = self._mock_lines(scope)
        body = [line for line in inner if line.strip() and not line.lstrip().startswith("#")]
        if not words[1].literal:
            scope.give_up(text, "only the shell can expand the name of the mock")
            return
        found = [_SIMPLE_MOCK.match(line) for line in body]
        if all(found) and not self._is_defined(name):
            out = "".join(f"{split_words(m['text'])[0].text}\n" for m in found if m and m["text"])
            code = next((m["code"] for m in found if m and m["code"]), "0")
            answer = f".answers({out!r}, exit_code={code})" if found else ""
            scope.add(Kind.PYTHON, f"shell.mock({name!r}, optional=True){answer}")
            return
        script = "\n".join(["#!/bin/bash", *body, ""])
        if "/" in name and not name.startswith("/"):
            scope.give_up(text, "a relative path depends on the working directory of the code")
            return
        place = name if name.startswith("/") else f"{MOCKS}/{name}"
        scope.add(Kind.PYTHON, f"shell.write({place!r}, {script!r}, 0o755)")
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            scope.add(Kind.SHELL, f'{name}() {{ command {name} "$@"; }}')

    def _mock_lines(self, scope: Scope) -> list[str]:
        lines: list[str] = []
        while strip_comment(line := self._next_line()).strip() != "End":
            directive = directives.match(line)
            if directive is not None and directive.name in {"preserve", "const"}:
                self._directive(directive, line)
            elif directive is not None:
                scope.give_up(
                    line.strip(), "a mock that runs in a child process can't use this directive"
                )
            else:
                lines.append(line)
        return lines

    def _is_defined(self, name: str) -> bool:
        """Return whether the spec itself defines a function with this name."""
        pattern = re.compile(
            rf"^\s*(?:function\s+)?{re.escape(name)}\s*(?:\(\)|\{{)", re.MULTILINE
        )
        return any(
            statement.kind is Kind.SHELL and pattern.search(statement.text)
            for scope in self.scopes
            for statement in scope.statements
        )

    def _data(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del words
        before = self.scopes[-1]
        # 'Data' after the evaluation has no effect
        scope = Scope() if before.has(Kind.EVALUATION) else before
        rest = strip_comment(text[len(keyword) :]).strip()
        if rest and not rest.startswith("|"):
            found = split_words(rest)
            if rest.startswith("<"):
                scope.stdin = "", f" < <(__hx_slurp {rest})"
            elif rest[0] in "'\"" and all(word.literal for word in found):
                scope.stdin = " ".join(word.text for word in found) + "\n", ""
            else:
                source = f"__hx_putsn {rest}" if rest[0] in "'\"" else rest
                scope.stdin = "", f" < <({source})"
            return
        inner = (line.lstrip(" \t") for line in self._inner())
        given = "".join(f"{line[2:]}\n" for line in inner if line.startswith("#|"))
        if keyword == "Data:expand":
            scope.stdin = (
                "",
                f' < <(__hx_expand {quote_on_lines(given)} "$@"{" " + rest if rest else ""})',
            )
        elif rest:
            scope.stdin = "", f" < <(printf '%s' {quote_on_lines(given)} {rest})"
        else:
            scope.stdin = given, ""

    def _parameters(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del words
        scope = self.scopes[-1]
        mode = keyword.partition(":")[2] or "block"
        inner = [strip_comment(text[len(keyword) :])] if mode == "value" else self._inner()
        was_run: list[str] = []

        def evaluate(code: str) -> Sequence[tuple[str, ...]]:
            was_run.append(code)
            return self.evaluate_rows("\n".join([*self.constants, code]), line=self.at)

        scope.rows.extend(parameters.read(mode, inner, evaluate).rows)
        if was_run:
            scope.rows_comment = _ROWS_OF_CODE
        if any(_OF_THE_HOST.search(code) for code in was_run):
            scope.give_up(text, "commands that ran on this host printed the rows of 'Parameters'")

    # --- examples ------------------------------------------------------------------------

    def _when(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        del keyword, words
        scope = self.scopes[-1]
        if scope.has(Kind.EVALUATION, Kind.EXPECTATION, Kind.ASSERTION):
            scope.give_up(text, "'When' must come first, and only once")
            return
        text = strip_comment(without_articles(text))
        words = split_words(text)
        form = [word.raw for word in words[1:-1]]  # at least one word must follow
        kind = form[1] if form[:1] == ["run"] and len(form) > 1 else ""
        if form[:1] == ["call"]:
            code = f"Call {rest_after(text, 2)}"
        elif kind == "script":
            code = f"Run bash {rest_after(text, 3)}"
        elif kind == "source":
            code = f"Run . {rest_after(text, 3)}"
        elif kind == "command":
            code = f"Run command {rest_after(text, 3)}"
        elif form == ["run"] and words[2].raw in EVALUATIONS:
            scope.give_up(text, "'When run' names nothing to run")
            return
        elif form[:1] == ["run"]:
            code = f"Run {rest_after(text, 2)}"
        else:
            scope.give_up(text, "'When' must be followed by 'call' or 'run'")
            return
        scope.add(Kind.EVALUATION, code)

    def _expect(self, keyword: str, text: str, words: Sequence[Word]) -> None:
        if keyword == "Assert" and len(words) == 1:
            self.scopes[-1].give_up(text, "'Assert' names no command")
        kind = Kind.ASSERTION if keyword == "Assert" else Kind.EXPECTATION
        self.scopes[-1].add(kind, strip_comment(text))
