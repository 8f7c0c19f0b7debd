"""Functions extracted from a script, and the results of an evaluation."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from harness.errors import BadInputError, ExpectationError
from harness.provisioning.command import CommandResult
from harness.shell.variables import Variable
from harness.shell.warm_shell.evaluation import Evaluation, excerpt
from harness.shell.warm_shell.extraction import extract_function, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from harness.provisioning.command import Argv

_SCRIPT = """\
f() {
  first
}
function g { one; }
if a; then
  f() {
    if b; then {
      second
    }; fi
  }
fi
f
"""


class Bash:
    """Replaces `bash -n`: accepts a body with as many opening as closing brackets."""

    def run(
        self, argv: Argv, *, timeout_s: float, stdin: str | None = None, env: Mapping[str, str] | None = None
    ) -> CommandResult:  # fmt: skip
        del timeout_s, env
        text = stdin or ""
        opened, closed = (sum(map((stdin or "").count, pair)) for pair in ("{(", "})"))
        code = 0 if opened == closed and re.search(r"[^( ]\s*[})]", text) else 2
        return CommandResult(argv=tuple(argv), exit_code=code, stdout="", stderr="")


def test_last_definition_of_a_function_is_extracted_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "a.sh"
    script.write_text(_SCRIPT)

    assert extract_function(script, "g", Bash()) == ("function g { one; }", 4)
    text, line = extract_function(script, "f", Bash())
    assert (line, text.split("\n")[0].strip(), text.split("\n")[-1]) == (6, "f() {", "  }")
    assert "second" in text
    with pytest.raises(BadInputError, match="no function 'ff'"):
        extract_function(script, "ff", Bash())


def test_function_is_extracted_in_each_syntax(tmp_path: Path) -> None:
    definitions: list[str] = [
        "f.x() { a; }",
        "f.x ()\n{\n  a\n}",
        "function f.x {\n  a\n}",
        "  function f.x ( ) { # why\n    a\n  }",
        "f.x() (\n  a\n)",
        "  f.x() {\nif a; then { b\n}; fi\n  }",
        "f.x() { a # why\n  b; }",
        "f.x() { a\n  b; } 2>/dev/null",
    ]
    surroundings: list[tuple[str, str]] = [
        ("", ""),
        ("a || ", " || a"),
        ("e() { a; }; ", "; f.x"),
    ]
    for definition in definitions:
        for before, after in surroundings:
            script = tmp_path / "a.sh"
            line = f"{before}{definition}{after}"
            script.write_text(f"a\n{line}\nf.x a\nfunction f.xy {{\n a\n}}\nf-x() {{ a; }}\n")

            assert extract_function(script, "f.x", Bash()) == (definition.strip(), 2), line


OPTIONS = {
    "#!/bin/bash -u\nset -e\nf() {\n  set -x\n}\nset -- a\nshopt -s nullglob\nset +e\n":
        "set -u; set -e; shopt -s nullglob; set +e",
    "#!/bin/sh -e\n": "set -e",
    "#!/usr/bin/env -S bash -eu\na -x\n": "set -eu",
    "#!/usr/bin/env -S bash -euo pipefail -x\n": "set -euo pipefail -x",
    "#!/bin/bash -l\n": "",
    "#!/usr/bin/env bash\n": "",
    "#!/bin/bash\n-e\n": "",
    "#!/usr/bin/python3 -u\n": "",
    "a\n#!/bin/bash -e\n": "",
    "set -euo pipefail\nset --\nset - -x\nset a\nif a; then set -x; fi\n": "set -euo pipefail",
}  # fmt: skip


def test_shell_options_set_outside_of_functions_are_found_in_order() -> None:
    assert {text: options_of(text) for text in OPTIONS} == OPTIONS


def test_evaluation_returns_texts_and_arrays_and_mappings() -> None:
    evaluation = Evaluation(
        status=3,
        stdout="",
        stderr="why\n",
        variables={
            "text": Variable(value="a"),
            "list": Variable(elements={"0": "x", "2": "y"}),
            "map": Variable(elements={"k": "v"}),
            "declared": Variable(),
        },
    )

    names = ("text", "list", "map", "declared", "absent")
    assert [evaluation.variable(name) for name in names] == ["a", "x", None, None, None]
    assert [evaluation.array(name) for name in names] == [[], ["x", "y"], ["v"], [], []]
    assert evaluation.mapping("map") == {"k": "v"}
    with pytest.raises(ExpectationError, match=r"status 3\.\nstdout: -\nstderr: why"):
        evaluation.check()


def test_only_the_end_of_a_long_text_is_shown() -> None:
    assert excerpt("a\nb\n") == "a\nb"
    shown = excerpt("\n".join(map(str, range(1, 101)))).splitlines()
    assert (shown[1:], "100 lines" in shown[0]) == ([str(n) for n in range(61, 101)], True)
    assert excerpt("x" * 5000).endswith("\n" + "x" * 4000)
