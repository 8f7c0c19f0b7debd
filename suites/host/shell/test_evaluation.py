"""What an evaluation of the `shell` fixture runs, and what it reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import HarnessError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.testing import Shell


@pytest.mark.parametrize(
    ("code", "stdout"),
    [
        ("echo a; echo b", "a\nb\n"),
        ("echo a && echo b", "a\nb\n"),
        ("echo a\necho b", "a\nb\n"),
        ("echo a | cat; echo b", "a\nb\n"),
        ("cat <<EOF\na\nEOF", "a\n"),
        ("echo a # comment", "a\n"),
        ("# comment\necho a", "a\n"),
        ("", ""),
        ("echo a; exit 0; echo b", "a\n"),
        ("echo $LINENO\necho $LINENO", "1\n2\n"),
    ],
)
def test_output_of_all_commands_is_returned(shell: Shell, code: str, stdout: str) -> None:
    result = shell.evaluate(code)

    assert (result.stdout, result.stderr, result.status) == (stdout, "", 0)


@pytest.mark.parametrize("stdin", ["text", ""])
def test_stdin_has_a_path_that_can_be_read(shell: Shell, stdin: str) -> None:
    result = shell.evaluate('cat "$(readlink -f /dev/stdin)"', stdin=stdin)

    assert (result.stdout, result.stderr) == (stdin, "")


def test_stdin_of_an_evaluation_differs_from_the_one_before(shell: Shell) -> None:
    shell.evaluate("cat", stdin="the first, longer one")

    assert shell.evaluate("cat", stdin="short").stdout == "short"
    assert shell.evaluate("cat").stdout == ""


def test_all_commands_read_the_same_stdin(shell: Shell) -> None:
    assert shell.evaluate("read a; read b; echo $b$a", stdin="1\n2\n").stdout == "21\n"


def test_trace_shows_the_code_under_test_only(shell: Shell) -> None:
    shell.mock("curl").answers("x\n", stderr="y\n")

    result = shell.evaluate(
        "set -x\nout=$(curl a 2>&1)\nsleep 5\ntimeout 5 curl b\ntrap 'echo end' EXIT\ndate >/dev/null"
    )

    assert result.variable("out") == "x\ny"
    assert [line.lstrip("+ ") for line in result.stderr.splitlines()] == [
        "curl a", "out='x", "y'", "sleep 5", "timeout 5 curl b", "y", "trap 'echo end' EXIT",
        "date", "echo end",
    ]  # fmt: skip
    assert result.stdout == "x\nend\n"


def test_trace_that_a_sourced_script_turned_on_stays_on(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("set -x\nf() { echo a; }\n")
    shell.source(script)
    shell.mock("curl")

    result = shell.call("f")

    assert [line.lstrip("+ ") for line in result.stderr.splitlines()] == ["f", "echo a"]


@pytest.mark.parametrize(
    ("code", "status", "stdout"),
    [
        ("X=1; trap 'echo end $?' EXIT; (exit 3)", 3, "end 3\n"),
        ("X=1; trap 'echo end $?' EXIT; exit 4", 4, "end 4\n"),
        ("set -eu; trap 'echo end $?' 0; X=1; false; X=2", 1, "end 1\n"),
        ("set -e; trap 'echo end; exit 5' exit; X=1; false", 5, "end\n"),
        ("X=1; trap 'echo a' EXIT; trap 'echo b' EXIT INT", 0, "b\n"),
        ("X=1; trap 'echo a' EXIT; trap - EXIT", 0, ""),
        ("X=1; trap 'echo a' EXIT; trap -p EXIT; trap EXIT", 0, "trap -- echo\\ a EXIT\n"),
        ("X=1; (trap 'echo sub' EXIT); echo main", 0, "sub\nmain\n"),
        ("X=1; trap -p", 0, ""),
        ("trap 'X=1' EXIT; X=0", 0, ""),
        ("trap 'echo error' ERR; X=1; false; true", 0, "error\n"),
        ("trap 'echo a' ERR; trap 'echo b' ERR; X=1; false; true", 0, "b\n"),
        ("trap 'echo term' TERM; X=1; kill -TERM $BASHPID", 0, "term\n"),
    ],
)
def test_traps_run_and_variables_are_kept(
    shell: Shell, code: str, status: int, stdout: str
) -> None:
    result = shell.evaluate(code)

    assert (result.status, result.stdout, result.stderr) == (status, stdout, "")
    assert result.variable("X") == "1"


def test_variable_of_an_array_is_its_first_element(shell: Shell) -> None:
    result = shell.evaluate("A=(x y) B=([2]=z) M=([0]=a [b]=c); declare -A M=([0]=a [b]=c); C=()")

    assert result.variable("A") == "x"
    assert [result.variable(name) for name in "BCD"] == [None] * 3
    assert result.array("A") == ["x", "y"]
    assert result.variable("M") == "a"


_STRICT = """\
#!/bin/bash -u
set -e -o pipefail; shopt -s nullglob
load() { false; false | cat; echo loaded; }
names() { echo /no-such-*; }
unset_one() { echo "$NO_SUCH_VARIABLE"; }
set -- a; main() { set +e; }
exit 3
"""


def test_test_chooses_errexit(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(_STRICT.replace("exit 3\n", ""))
    shell.source(script)

    assert shell.call("load").stdout == "loaded\n"
    strict = shell.call("load", errexit=True)
    assert (strict.status, strict.stdout) == (1, "")
    assert shell.evaluate("false; echo a").stdout == "a\n"
    assert shell.evaluate("X=1; false; X=2", errexit=True).variable("X") == "1"
    assert shell.evaluate("load || echo b", errexit=True).stdout == "loaded\n"


def test_extracted_function_has_the_options_of_its_script(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(_STRICT)
    shell.extract(script, "load", "names", "unset_one")

    assert shell.call("names").stdout == "\n"
    assert "unbound variable" in shell.call("unset_one").stderr
    assert shell.evaluate("false | true").status == 1
    assert shell.evaluate("echo $#").stdout == "0\n"
    assert shell.call("load").stdout == "loaded\n"
    assert shell.call("load", errexit=True).status == 1


def test_effect_that_raises_fails_this_test_only(shell: Shell) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    shell.mock("curl").answers(effect=fail)
    with pytest.raises(ZeroDivisionError):
        shell.evaluate("curl")
    shell.mock("curl").answers("x\n")
    assert shell.evaluate("curl").stdout == "x\n"


def test_message_on_sourcing_is_short(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("echo 'line of a long script' >&2\n" * 5000 + "exit 3\n")
    shell.source(script)

    with pytest.raises(HarnessError, match="exit code 3") as caught:
        shell.evaluate("true")
    message = str(caught.value)
    assert len(message.splitlines()) < 60
    assert str(script) in message


class TestBackgroundJobs:
    """A job that one test leaves running calls no mock of the next; these two run in order."""

    def test_leaves_a_job(self, shell: Shell) -> None:
        shell.mock("curl")
        shell.evaluate("(while :; do curl early; /bin/sleep 0.01; done) & disown")

    def test_has_no_calls_of_it(self, shell: Shell) -> None:
        shell.mock("curl")
        shell.evaluate("/bin/sleep 0.3; ls /proc | grep -c '^[0-9]'")
        assert shell.calls == []
