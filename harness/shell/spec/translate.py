"""Translates the text of a `*_spec.sh` file into groups, cases and shell code that runs the cases.

In shellspec's language, the first word of a line decides the meaning of the line, even inside
quotes and heredocs. Each line of the shell code has the same line number as in the spec.

The module is long because all directives read and change the state of one translation.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from harness.errors import BadInputError
from harness.shell.lexer import Word, is_open, quote, rest_after, split_words, strip_comment
from harness.shell.mocks.lookups import is_looked_up, looked_up
from harness.shell.mocks.names import check_mock_name
from harness.shell.shells import BASH
from harness.shell.spec import directives, parameters
from harness.shell.spec.dialects import dialect_of
from harness.shell.spec.sentence_collector import fetcher
from harness.shell.spec.sentences import ARTICLES
from harness.shell.spec.spec_file import Case, Group, MockScript, SpecFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.shell.shells import SpecShell
    from harness.shell.spec.dialects import Dialect
    from harness.shell.spec.spec_file import RowEvaluator

_GROUPS = {"Describe", "Context", "ExampleGroup"}
_EXAMPLES = {"It", "Specify", "Example"}
_HOOKS = {
    "BeforeEach": "before_each", "Before": "before_each", "AfterEach": "after_each",
    "After": "after_each", "BeforeAll": "before_all", "AfterAll": "after_all",
    "BeforeCall": "before_call", "AfterCall": "after_call", "BeforeRun": "before_run",
    "AfterRun": "after_run",
}  # fmt: skip
_GROUP_ONLY = {"BeforeEach", "Before", "AfterEach", "After", "BeforeAll", "AfterAll"}
EVALUATIONS = frozenset({"command", "script", "source"})
FIRST_WORD = re.compile(r"[ \t]*([A-Za-z]+(?::[a-z]+)?)(?= |$|\n|\\\n)")
_SOURCED = re.compile(
    r"""^[ \t]*(?:Include|When[ \t]+run[ \t]+source)[ \t]+["']?([^\s"']+)""", re.MULTILINE
)
SELF_EXECUTING = re.compile(r"""\s*eval ["']\$\(shellspec\b""")

#: pytest collects each group inside the group around it, until Python raises RecursionError.
_MOST_GROUPS = 100


def translate(
    path: str,
    text: str,
    evaluate_rows: RowEvaluator,
    *,
    shell: SpecShell = BASH,
    lookups_of: Callable[[str], frozenset[str]] = lambda _: frozenset(),
) -> SpecFile:
    """Translate `text`, the content of the file `path`, for `shell`.

    A script that a spec sources may look up the paths of commands. `lookups_of` returns the names
    of the commands whose paths a sourced script looks up; its argument is the word that names the
    script in the spec.

    Raises BadInputError, with the line, for a block that is not closed or not allowed at its
    position, and for an unknown construct.
    """
    text = text.removeprefix("\ufeff")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise BadInputError("The line has a NUL byte; a spec is text.", source=path, line=line)
    names = looked_up(text).union(*map(lookups_of, _SOURCED.findall(text)))
    return _Translator(path, text, evaluate_rows, dialect_of(shell), names).run()


@dataclass(kw_only=True)
class _Block:
    """A group or example that is being read; the file itself is the outermost group.

    `parameters` is the keyword of the last `Parameters` block, or '' if there is no such block.
    """

    kind: str
    group: Group | None = None
    first_number: int = 0
    begin: int = 1
    out: list[str] = field(default_factory=list)
    rows: list[tuple[Word, ...]] = field(default_factory=list)
    parameters: str = ""
    has_blocks: bool = False
    has_body: bool = False
    name: str = ""
    tags: tuple[str, ...] = ()
    skipped: bool = False
    focused: bool = False
    path: str = ""
    children: int = 0
    has_path_mocks: bool = False

    def next_path(self) -> str:
        """Count one more inner block; return the position of the inner block in the file, such as `2-1`."""
        self.children += 1
        return f"{self.path}-{self.children}".lstrip("-")


class _Translator:
    def __init__(
        self,
        path: str,
        text: str,
        evaluate_rows: RowEvaluator,
        dialect: Dialect,
        names: frozenset[str],
    ) -> None:
        self.looked_up = names
        self.dialect = dialect
        self.path = path
        self.lines = [line.removesuffix("\r") for line in text.split("\n")]
        self.end = max((number for number, line in enumerate(self.lines, 1) if line), default=0)
        self.evaluate_rows = evaluate_rows
        self.at = 0
        self.texts: list[str] = []
        self.blocks = [_Block(kind="file")]
        self.cases: list[Case] = []
        self.mocks: list[MockScript] = []
        self.constants: list[str] = []
        self.preserves = False
        self.number = 0

    def run(self) -> SpecFile:
        while self.at < len(self.lines):
            line = self.at + 1
            generated = self._translate_line(self._take_logical_line(), line)
            block = self.blocks[-1]
            block.out.extend(generated.split("\n"))
            missing = self.at + 1 - block.begin - len(block.out)
            block.out.extend([""] * missing)
        if len(self.blocks) > 1:
            block = self.blocks[-1]
            raise self._error(f"'{block.kind}' is not closed by an 'End'.", block.begin)
        return SpecFile(
            path=self.path,
            cases=tuple(self.cases),
            script="\n".join(self.blocks[0].out) + "\n__hx_end_of_file\n",
            texts=tuple(self.texts),
            mocks=tuple(self.mocks),
            lines=tuple(self.lines),
            preserves=self.preserves,
        )

    def _error(self, message: str, line: int) -> BadInputError:
        return BadInputError(message, source=self.path, line=line)

    def _take_logical_line(self) -> str:
        first = self.at
        while self.at + 1 < len(self.lines) and continues(self.lines[self.at]):
            self.at += 1
        self.at += 1
        return "\n".join(self.lines[first : self.at])

    @property
    def _in_example(self) -> bool:
        return self.blocks[-1].kind == "example"

    def _expect_outside_of_examples(self, keyword: str, line: int) -> None:
        if self._in_example:
            raise self._error(f"'{keyword}' is not allowed inside an example.", line)

    # --- one line ------------------------------------------------------------------------

    def _translate_line(self, text: str, line: int) -> str:
        directive = directives.match(text)
        if directive is not None:
            return self._directive(directive, line)
        found = FIRST_WORD.match(text)
        keyword = found[1] if found else ""
        handler = self._handler(keyword)
        if handler is None:
            stripped = text.strip()
            if stripped and not stripped.startswith("#"):
                self.blocks[-1].has_body = True
            return ":" if SELF_EXECUTING.match(text) else text
        indent = text[: len(text) - len(text.lstrip())]
        return indent + handler(keyword, text.lstrip(" \t"), line)

    def _handler(self, keyword: str) -> Callable[[str, str, int], str] | None:
        name, _, mode = keyword.partition(":")
        if mode and name not in {"Data", "Parameters"}:
            return None
        plain = name[1:] if name[:1] in {"x", "f"} else name
        if plain in _GROUPS:
            return self._group
        if plain in _EXAMPLES:
            return self._example
        if name in _HOOKS:
            return self._hook
        return self._handlers.get(name)

    @cached_property
    def _handlers(self) -> dict[str, Callable[[str, str, int], str]]:
        return {
            "End": self._end, "Todo": self._todo, "Include": self._include, "When": self._when,
            "The": self._the, "Assert": self._assert, "Skip": self._mark, "Pending": self._mark,
            "Path": self._simple, "File": self._simple, "Dir": self._simple, "Set": self._simple,
            "Dump": self._simple, "Intercept": self._simple, "Data": self._data,
            "Parameters": self._parameters, "Mock": self._mock,
        }  # fmt: skip

    # --- blocks --------------------------------------------------------------------------

    def _group(self, keyword: str, text: str, line: int) -> str:
        self._expect_outside_of_examples(keyword, line)
        name, tags = self._name_and_tags(text)
        group = Group(
            name=name or f"<group:{line}>",
            begin=line,
            tags=tags,
            skipped=keyword.startswith("x"),
            focused=keyword.startswith("f"),
        )
        if len(self.blocks) > _MOST_GROUPS:
            raise self._error(f"More than {_MOST_GROUPS} groups are nested.", line)
        self.blocks[-1].has_blocks = True
        self.blocks.append(
            _Block(
                kind=keyword, group=group, first_number=self.number, begin=line,
                rows=list(self.blocks[-1].rows), path=self.blocks[-1].next_path(),
                parameters=self.blocks[-1].parameters,
            )
        )  # fmt: skip
        return ""

    def _example(self, keyword: str, text: str, line: int) -> str:
        self._expect_outside_of_examples(keyword, line)
        name, tags = self._name_and_tags(text)
        self.blocks[-1].has_blocks = True
        rows = self.blocks[-1].rows
        self.blocks.append(
            _Block(
                kind="example", begin=line, first_number=self.number, name=name, tags=tags,
                rows=list(rows), parameters=self.blocks[-1].parameters,
                skipped=keyword.startswith("x"),
                focused=keyword.startswith("f"), path=self.blocks[-1].next_path(),
            )
        )  # fmt: skip
        return ""

    def _todo(self, keyword: str, text: str, line: int) -> str:
        self._expect_outside_of_examples(keyword, line)
        name, tags = self._name_and_tags(text)
        self.blocks[-1].next_path()
        self._add_cases(
            _Block(
                kind="example", begin=line, name=name, tags=tags, first_number=self.number,
                rows=self.blocks[-1].rows, parameters=self.blocks[-1].parameters,
            ),
            line,
            todo=True,
        )  # fmt: skip
        return ":"

    def _name_and_tags(self, text: str) -> tuple[str, tuple[str, ...]]:
        words = split_words(text.replace("\\\n", " "))[1:]
        if not words:
            return "", ()
        return words[0].text.replace("\n", " "), tuple(word.text for word in words[1:])

    def _end(self, keyword: str, text: str, line: int) -> str:
        del text
        block = self.blocks.pop() if len(self.blocks) > 1 else None
        if block is None:
            raise self._error(f"'{keyword}' closes nothing.", line)
        # A body stays text until it runs. The shell would keep parsed code in memory twice, which
        # makes every fork slower. The body is evaluated on its first line, so that its line
        # numbers are right.
        text = self.dialect.text(len(self.texts))
        self.texts.append("\n".join(block.out))
        stdin = " </dev/null" if len(self.blocks) == 1 else ""
        below = "\n" * (line - block.begin)
        if block.has_path_mocks:
            below = f" __hx_unmock_paths {block.path};{below}"
        first = self.number
        if block.kind == "example":
            self._add_cases(block, line, todo=not block.has_body)
            if self.number == first:
                return f":{below}"
            begin, end = (
                (f"while __hx_example {first} {len(block.rows)}; do", "done")
                if block.rows
                else (f"if __hx_example {first}; then", "fi")
            )
            return (
                f"{begin} ( SHELLSPEC_EXAMPLE_ID={block.path} "
                f"SHELLSPEC_EXAMPLE_NO=$((__hx_target + 1)); __hx_it() {{ {text}; }}; __hx_run; ) {self.dialect.outputs()}{stdin}; "
                f'__hx_done "$?";{below} {end}'
            )
        place = f"{block.first_number} {self.number - 1}"
        return (
            f"if __hx_open {place}; then ( SHELLSPEC_GROUP_ID={block.path} __hx_group_line={block.begin}; __hx_group() {{ {text}; }}; __hx_enter; __hx_group; "
            f'__hx_close; ){stdin}; __hx_leave "$?" {place} {block.begin};{below} fi'
        )

    def _add_cases(self, block: _Block, line: int, *, todo: bool) -> None:
        groups = tuple(b.group for b in self.blocks if b.group is not None)
        name = block.name or f"<example:{block.begin}-{line}>"
        case = Case(
            number=self.number, name=name, groups=groups, begin=block.begin, end=line,
            tags=block.tags, todo=todo, skipped=block.skipped, focused=block.focused,
        )  # fmt: skip
        rows = block.rows
        if not rows and block.parameters.endswith(":dynamic"):
            return
        if not rows and block.parameters:
            raise self._error(
                f"The example '{name}' has no rows, because the block '{block.parameters}' above "
                "the example is empty; add a row, or remove the block.",
                block.begin,
            )
        if not rows:
            self.cases.append(case)
            self.number += 1
            return
        names = [parameters.name_of_row(name, row) for row in rows]
        for at, row_name in enumerate(names):
            unique = row_name if names.count(row_name) == 1 else f"{row_name} [{at + 1}]"
            self.cases.append(replace(case, number=self.number, name=unique, row=at))
            self.number += 1

    # --- statements ----------------------------------------------------------------------

    def _hook(self, keyword: str, text: str, line: int) -> str:
        if keyword in _GROUP_ONLY:
            self._expect_outside_of_examples(keyword, line)
        if keyword == "BeforeAll" and self.blocks[-1].has_blocks:
            raise self._error("'BeforeAll' must come before the first block of its group.", line)
        return f"__hx_hook {_HOOKS[keyword]} {text[len(keyword) :].lstrip()}"

    def _include(self, keyword: str, text: str, line: int) -> str:
        self.blocks[-1].has_body = True
        self._expect_outside_of_examples(keyword, line)
        if len(split_words(text)) < 2:
            raise self._error(f"'{keyword}' names no file.", line)
        return self.dialect.include(text)

    def _when(self, keyword: str, text: str, line: int) -> str:
        self._needs_example(keyword, line)
        text = without_articles(text)
        words = [word.raw for word in split_words(text)]
        if words[1:2] == ["call"] and len(words) > 2:
            return f"__hx_call {line} {rest_after(text, 2)}"
        if words[1:2] == ["run"] and len(words) > 2:
            if words[2] not in EVALUATIONS:
                return f"__hx_run_function {line} {rest_after(text, 2)}"
            if len(words) > 3:
                return f"__hx_run_{words[2]} {line} {rest_after(text, 3)}"
        return f"__hx_misuse {line} {quote(f'There is no evaluation {text!r}.')}"

    def _the(self, keyword: str, text: str, line: int) -> str:
        self._needs_example(keyword, line)
        last = line + text.count("\n")
        return f"{fetcher(text)} {last} {text[len(keyword) :].lstrip(' ')}"

    def _assert(self, keyword: str, text: str, line: int) -> str:
        self._needs_example(keyword, line)
        return f"__hx_assert {line + text.count(chr(10))} {text[len(keyword) :].lstrip()}"

    def _needs_example(self, keyword: str, line: int) -> None:
        self.blocks[-1].has_body = True
        if not self._in_example:
            raise self._error(f"'{keyword}' is allowed only inside an example.", line)

    def _mark(self, keyword: str, text: str, line: int) -> str:
        self.blocks[-1].has_body = True
        del line
        rest = text[len(keyword) :].lstrip()
        if keyword == "Skip" and split_words(rest)[:1] == [Word("if", "if", literal=True)]:
            return f"__hx_skip_if {rest_after(rest, 1)}"
        return f"__hx_{keyword.lower()} {rest}".rstrip()

    def _simple(self, keyword: str, text: str, line: int) -> str:
        self.blocks[-1].has_body = True
        del line
        name = {"File": "path", "Dir": "path"}.get(keyword, keyword.lower())
        return f"__hx_{name} {text[len(keyword) :].lstrip()}".rstrip()

    # --- text ----------------------------------------------------------------------------

    def _directive(self, directive: directives.Directive, line: int) -> str:
        self.blocks[-1].has_body = True
        self.preserves |= directive.name == "preserve"
        if directive.name == "const":
            if len(self.blocks) > 1:
                raise self._error("'%const' is not allowed inside a block.", line)
            assignment = directives.constant(directive)
            if assignment is None:
                raise self._error("'%const' needs 'NAME: value', with the name in capitals.", line)
            self.constants.append(assignment)
            return assignment
        if directive.name == "text":
            return directives.render_text(directive, self._peek_text())
        return directives.render(directive)

    def _peek_text(self) -> list[str]:
        """Return the texts of the `#|` lines that follow; these lines stay in the shell code as comments."""
        found: list[str] = []
        for text in self.lines[self.at :]:
            marked = text.lstrip(" \t")
            if not marked.startswith("#|"):
                break
            found.append(marked[2:])
        return found

    def _data(self, keyword: str, text: str, line: int) -> str:
        self.blocks[-1].has_body = True
        mode = keyword.partition(":")[2] or "raw"
        rest = strip_comment(text[len(keyword) :]).strip()
        if mode not in {"raw", "expand"}:
            raise self._error(f"There is no '{keyword}'.", line)
        if not rest or rest.startswith("|"):
            lines: list[str] = []
            while True:
                inner = self._take_inner_line(keyword, line).lstrip(" \t")
                if inner.startswith("#|"):
                    lines.append(inner[2:])
                elif strip_comment(inner) == "End":
                    break
                elif not inner.startswith("#"):
                    raise self._error("A 'Data' block may contain only '#|' lines.", self.at)
            body = directives.text_command(lines, expand=mode == "expand")
            return f"__hx_has_data=1 __hx_special=data; __hx_data() {{ {body} {rest}; }}"
        if rest.startswith("<"):
            body = f"__hx_slurp {rest}"
        elif rest[0] in "'\"":
            body = f"__hx_putsn {rest}"
        else:
            body = rest
        return f"__hx_has_data=1 __hx_special=data; __hx_data() {{ {body}; }}"

    def _take_inner_line(self, keyword: str, line: int) -> str:
        if self.at >= self.end:
            raise self._error(f"'{keyword}' is not closed by an 'End'.", line)
        return self._take_logical_line()

    def _parameters(self, keyword: str, text: str, line: int) -> str:
        self._expect_outside_of_examples(keyword, line)
        mode = keyword.partition(":")[2] or "block"
        if mode not in parameters.MODES:
            raise self._error(f"There is no '{keyword}'.", line)
        inner: list[str] = []
        if mode == "value":
            while is_open(text):
                if self.at >= self.end:
                    raise self._error(f"'{keyword}' has a quote that is not closed.", line)
                text += f"\n{self._take_logical_line()}"
            inner.append(strip_comment(text[len(keyword) :].replace("\\\n", " ")).strip())
        else:
            while strip_comment(taken := self._take_inner_line(keyword, line)).strip() != "End":
                inner.append(taken)
            if mode != "dynamic" and is_open("\n".join(inner)):
                raise self._error(f"'{keyword}' has a quote that is not closed.", line)

        def evaluate(code: str) -> Sequence[tuple[str, ...]]:
            return self.evaluate_rows("\n".join([*self.constants, code]), line=line)

        read = parameters.read(mode, inner, evaluate)
        self.blocks[-1].rows.extend(read.rows)
        self.blocks[-1].parameters = keyword
        return read.code

    def _mock_number(self, name: str | None, body: str) -> int:
        """Return the number of the mock with this text; mocks with the same text share a file."""
        for mock in self.mocks:
            if name is not None and (mock.name, mock.body) == (name, body):
                return mock.number
        self.mocks.append(MockScript(number=len(self.mocks), name=name, body=body))
        return len(self.mocks) - 1

    def _mock(self, keyword: str, text: str, line: int) -> str:
        self.blocks[-1].has_body = True
        words = split_words(text)
        if len(words) != 2:
            raise self._error("'Mock' takes one name.", line)
        body: list[str] = []
        while True:
            start = self.at
            inner = self._take_inner_line(keyword, line)
            if strip_comment(inner).strip() == "End":
                break
            directive = directives.match(inner)
            if directive is not None:
                inner = self._directive(directive, start + 1)
            found = FIRST_WORD.match(inner)
            if found and self._handler(found[1]):
                raise self._error(f"'{found[1]}' is not allowed inside 'Mock'.", start + 1)
            body.append(inner)
        name = words[1].text if words[1].literal else None
        if name is not None:
            check_mock_name(name, source=self.path, line=line)
        block = self.blocks[-1]
        if name is None or "/" in name:
            block.has_path_mocks = True
        number = self._mock_number(name, "\n".join(body) + "\n")
        is_file = name is not None and is_looked_up(name, self.looked_up)
        code = self.dialect.mock(number, words[1].raw, body, is_file=is_file)
        return f"__hx_block={block.path or 'file'} {code}" if block.has_path_mocks else code


def without_articles(text: str) -> str:
    """Leave out the words after `When` that have no meaning, as in `When I call f`."""
    words = split_words(text)[1:]
    count = len(list(itertools.takewhile(lambda word: word.raw in ARTICLES | {"I"}, words)))
    return f"When {rest_after(text, 1 + count)}" if count else text


def continues(line: str) -> bool:
    """Return whether the next line continues this line; a `#|` line is never continued."""
    ends_in_backslash = (len(line) - len(line.rstrip("\\"))) % 2 == 1
    return ends_in_backslash and not line.lstrip(" \t").startswith("#|")
