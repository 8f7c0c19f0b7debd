"""What the `shell` fixture refuses before a shell starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.errors import BadInputError, HarnessError
from harness.shell.warm_shell.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.shell.warm_shell.pool import WarmShellPool


class NoShells:
    """A pool that starts no shell."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "a.sh").write_text("f() { :; }\n")
    return Shell(cast("WarmShellPool", NoShells(tmp_path)), virtual=False, timeout_s=1.0)


def test_value_of_another_type_is_refused(shell: Shell) -> None:
    refusals: list[tuple[Callable[[Callable[[Any], Any]], object], str]] = [
        (lambda a: shell.call("f", a(1e-05)), "an argument of 'f': .*type float, but a text"),
        (lambda a: shell.call("f", "x", a(True)), "an argument of 'f': .*type bool, but a text"),
        (lambda a: shell.call(a(None)), "the function: .*type NoneType, but a text"),
        (lambda a: shell.call("f", stdin=a(b"x")), "stdin: .*type bytes, but a text"),
        (lambda a: shell.call("f", A=a(1)), "the variable 'A': .*type int, but a text"),
        (lambda a: shell.setenv(A=a(None)), "the variable 'A': .*type NoneType, but a text"),
        (lambda a: shell.source("a.sh", env={"A": a(1)}), "the variable 'A': .*type int"),
        (lambda a: shell.source(a(None)), "the path of a script: .*type NoneType, but a path"),
        (lambda a: shell.extract("a.sh", a(1)), "the name of a function: .*type int, but a text"),
        (lambda a: shell.run_script("a.sh", a(1)), "an argument of 'a.sh': .*type int"),
        (lambda a: shell.run_script(a(1)), "the path of a script: .*type int, but a path"),
        (lambda a: shell.run_script("a.sh", interpreter=a(1)), "the interpreter: .*type int"),
        (lambda a: shell.evaluate(a(5)), "the code: .*type int, but a text"),
        (lambda a: shell.define(a(5)), "the code: .*type int, but a text"),
        (lambda a: shell.mock(a(5)), "the name of a mock: .*type int, but a text"),
        (lambda a: shell.write(a(5), "x"), "the path of a file: .*type int, but a path"),
        (
            lambda a: shell.write("/x", a(5)),
            "the content of '/x': .*type int, but a text or bytes",
        ),
        (lambda a: shell.write("/x", "x", a("0644")), "the mode of '/x': .*str, but a whole num"),
    ]
    for make, message in refusals:
        with pytest.raises(BadInputError, match=message):
            make(lambda value: value)


def test_text_that_a_shell_would_change_is_refused(shell: Shell) -> None:
    refusals: list[Callable[[], object]] = [
        lambda: shell.evaluate("echo a\0b"),
        lambda: shell.define("echo a\0b"),
        lambda: shell.call("f", "a\0b"),
        lambda: shell.setenv(A="a\0b"),
    ]
    for refuse in refusals:
        with pytest.raises(BadInputError, match="has a NUL character, which a shell drops"):
            refuse()
    with pytest.raises(HarnessError, match="lone surrogate"):
        shell.define("\ud800")
    with pytest.raises(BadInputError, match=r"from 0 to 0o7777, not 0o10000"):
        shell.write("/x", "", 0o10000)


def test_variable_that_bash_can_not_set_is_refused(shell: Shell) -> None:
    for name in ("a b", "A;echo hi;B", "1A", "", "A\n", "é", "a-b"):
        for give in (shell.evaluate, shell.source):
            with pytest.raises(BadInputError, match="A variable can't be called"):
                give("a.sh", env={name: "x"})
    with pytest.raises(BadInputError, match="bash does not let code change 'UID'"):
        shell.setenv(UID="0")


def test_script_whose_path_no_file_can_have_is_missing(shell: Shell) -> None:
    for path in ("x" * 5000, "a\0", "\ud800", "absent"):
        with pytest.raises(HarnessError, match="There is no script"):
            shell.source(path)
