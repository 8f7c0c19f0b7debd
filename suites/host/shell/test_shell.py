"""Tests in Python for shell code: evaluations, strict mocks, virtual time, a throw-away root."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import ExpectationError, HarnessError
from harness.shell.testing import (
    Answer,
    Like,
    Shell,
    ShellTimeoutError,
)

_LIBRARY = """\
declare -A MAP=([key]="v w" [two]=$'a\\nb')
retry() {
  local try
  for ((try = 0; try < 5; try++)); do
    "$@" && return 0
    sleep 10
  done
  return 1
}
download() {
  LIST=(one "two three")
  TEXT='it'"'"'s "quoted" $HOME'
  retry curl -fsSL "$1"
}
in_child() { cd /etc; curl a "b c"; echo $?; bash -c 'curl a "b c"; echo $?'; }
piped() { curl 1 | curl 2; }
feed() {
  printf 'a\\0\\nb' | wget -i -
  printf '1\\n2\\n' | while read -r n; do curl "$n"; bash -c 'curl "$1"' - "$n"; done
}
configure() { mkdir -p /etc/harness-trial && echo on >/etc/harness-trial/state; }
strict() { set -e; false; echo unreached; }
lenient() { false; echo reached; }
show() { cat; echo "$#$1$X"; }
"""


@pytest.fixture
def code(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Return a shell that has sourced the library."""
    path = tmp_path_factory.getbasetemp() / "library.sh"
    path.write_text(_LIBRARY)
    shell.source(path)
    return shell


def test_retries_sleep_ten_virtual_seconds_and_no_real_time(code: Shell) -> None:
    code.mock("curl").answers_in_turn(
        Answer(exit_code=6), Answer(exit_code=6), Answer(stdout="data\n")
    )

    result = code.call("download", "http://host/x").check()

    assert result.stdout == "data\n"
    assert [sleep.seconds for sleep in result.sleeps] == [10, 10]
    code.assert_calls(*["curl -fsSL http://host/x"] * 3)


def test_evaluation_returns_variables_and_arrays(code: Shell) -> None:
    code.mock("curl")

    result = code.call("download", "x")

    assert result.array("LIST") == ["one", "two three"]
    assert result.variable("TEXT") == 'it\'s "quoted" $HOME'
    assert result.mapping("MAP") == {"key": "v w", "two": "a\nb"}
    assert result.variable("NO_SUCH") is None


def test_status_of_an_evaluation_is_set_by_exit_or_errexit(code: Shell) -> None:
    assert code.evaluate("exit 7").status == 7
    result = code.call("strict")
    assert (result.status, result.stdout) == (1, "")
    with pytest.raises(ExpectationError, match="ended with status 1"):
        result.check()
    assert code.call("lenient").stdout == "reached\n"
    for result in (code.call("lenient", errexit=True), code.evaluate("lenient", errexit=True)):
        assert (result.status, result.stdout) == (1, "")


def test_text_with_a_lone_surrogate_is_refused_and_the_shell_continues(code: Shell) -> None:
    with pytest.raises(HarnessError, match="a lone surrogate"):
        code.evaluate("true", env={"X": "\ud800"})
    with pytest.raises(HarnessError, match="a lone surrogate"):
        code.write("/x", "\ud800")

    assert code.call("echo", "\udce9").stdout == "\udce9\n"


def test_mock_answers_calls_from_functions_and_child_processes(code: Shell) -> None:
    code.mock("curl").when("a", Like("b*")).answers("hi\n\n", stderr="why\n", exit_code=4)

    result = code.call("in_child", FOO="bar")

    assert (result.stdout, result.stderr) == ("hi\n\n4\n" * 2, "why\n" * 2)
    assert [(call.env["FOO"], call.cwd) for call in code.calls] == [("bar", "/etc")] * 2


def test_mocks_in_one_pipeline_do_not_block_each_other(code: Shell) -> None:
    curl = code.mock("curl").answers(effect=lambda call: Answer(stdout=f"{call.arguments[0]}\n"))

    assert code.call("piped").stdout == "2\n"
    curl.assert_called_times(2)


def test_mock_records_stdin_only_if_reads_stdin_is_set(code: Shell) -> None:
    """A mock that does not read stdin leaves stdin to the loop around the command."""
    for name in ("tar", "wget"):
        code.mock(name, reads_stdin=True)
    code.mock("curl")

    code.call("feed").check()

    assert [call.stdin for call in code.calls] == ["a\nb", None, None, None, None]
    code.assert_calls("wget -i -", "curl 1", "curl 1", "curl 2", "curl 2")


def test_file_that_code_writes_exists_only_in_the_throwaway_root(code: Shell) -> None:
    code.call("configure").check()

    assert (code.root / "etc/harness-trial/state").read_text() == "on\n"
    assert not Path("/etc/harness-trial").exists()


def test_endless_loop_is_ended(code: Shell) -> None:
    code.timeout_s = 0.3
    with pytest.raises(ShellTimeoutError, match=r"ran longer than 0\.3 s"):
        code.evaluate("while :; do :; done")


def test_script_runs_in_dash_with_its_mocks(code: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text('curl "$1"; echo "status $?"\n')
    code.mock("curl").answers(exit_code=7)

    assert code.run_script(script, "x", interpreter="dash").stdout == "status 7\n"
    code.assert_calls("curl x")


def test_relative_script_path_is_resolved_from_the_pytest_root_directory(
    code: Shell, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script.sh").write_text("echo ran\n")
    up = [".."] * (len(pytestconfig.rootpath.parts) - 1)
    monkeypatch.chdir(tmp_path)

    script = Path(*up, *tmp_path.parts[1:], "script.sh")

    assert code.run_script(script).check().stdout == "ran\n"


def test_evaluate_and_call_and_run_script_pass_stdin_and_arguments_and_variables(
    code: Shell, tmp_path: Path
) -> None:
    script = tmp_path / "script.sh"
    script.write_text('cat; echo "$#$1$X"\n')

    for result in (
        code.evaluate("show 'a *'", stdin="text\n", env={"X": "'x' $"}),
        code.call("show", "a *", stdin="text\n", X="'x' $"),
        code.run_script(script, "a *", stdin="text\n", X="'x' $"),
    ):
        assert result.stdout == "text\n1a *'x' $\n"
    assert code.call("show", "").stdout == "1\n"


def test_variables_are_returned_even_if_the_code_changes_shell_options(code: Shell) -> None:
    result = code.evaluate("set -Ceux; shopt -s nullglob failglob; IFS=x GLOBIGNORE=* LEFT=a")

    assert (result.status, result.variable("LEFT")) == (0, "a")
    assert code.evaluate("set -Ce; LEFT=b; false").variable("LEFT") == "b"
