"""How the `shell` fixture evaluates code, and what an evaluation reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.errors import ExpectationError, HarnessError

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.testing import Shell


def test_error_message_about_sourcing_is_short(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text("echo 'line of a long script' >&2\n" * 5000 + "exit 3\n")
    shell.source(script)

    with pytest.raises(HarnessError, match="exit code 3") as caught:
        shell.evaluate("true")
    message = str(caught.value)
    assert len(message.splitlines()) < 60
    assert str(script) in message


@pytest.mark.parametrize(
    "record", ["x\\0y\\0", "mock\\0000\\0", "end\\0001\\0000\\0", "end\\0002\\0000\\0X\\0"]
)
@pytest.mark.parametrize("is_sourced", [False, True])
def test_code_that_writes_to_a_descriptor_of_the_harness_is_reported(
    shell: Shell, tmp_path: Path, record: str, *, is_sourced: bool
) -> None:
    script = tmp_path / "script.sh"
    script.write_text(f"speak() {{ printf '{record}' >&190; }}\n" + "speak\n" * is_sourced)
    shell.source(script)

    with pytest.raises(HarnessError, match="a descriptor of the harness"):
        shell.evaluate("speak")


def test_result_of_a_killed_evaluation_has_no_data_of_the_previous_evaluation(
    shell: Shell,
) -> None:
    first = shell.evaluate("KEPT=1; sleep 5; echo out; echo err >&2")
    assert (first.variable("KEPT"), len(first.sleeps)) == ("1", 1)

    result = shell.evaluate("kill -KILL $BASHPID")

    assert (result.status, result.stdout, result.stderr) == (137, "", "")
    assert (result.variables, result.sleeps) == ({}, ())


@pytest.mark.parametrize(("signal", "status"), [("TERM", 143), ("INT", 130), ("HUP", 129)])
def test_evaluation_that_a_signal_ended_has_status_128_plus_the_signal_number(
    shell: Shell, signal: str, status: int
) -> None:
    result = shell.evaluate(f"trap 'echo cleaned' EXIT; X=1; kill -{signal} $BASHPID; echo no")

    assert (result.status, result.stdout, result.stderr) == (status, "cleaned\n", "")
    assert result.variable("X") == "1"


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-"])
def test_code_that_closes_stdout_or_stderr_still_runs_its_exit_trap(
    shell: Shell, streams: str
) -> None:
    result = shell.evaluate(f"trap 'echo lost; X=2' EXIT; X=1; exec {streams}; exit 3")

    assert (result.status, result.stdout, result.variable("X")) == (
        3,
        "lost\n" if streams == "2>&-" else "",
        "2",
    )
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("code", "status", "stdout"),
    [
        ("echo a; kill $$; echo b", 143, "a\n"),
        ("trap 'exit 7' TERM; die() { kill -s TERM $$; }; a=$(die); echo b", 7, ""),
        ("trap 'echo got' USR1; kill -USR1 -- $$; echo b", 0, "got\nb\n"),
        ("trap 'kill 0' EXIT; sleep 60 & echo a", 143, "a\n"),
        ("trap 'echo got; exit 3' TERM; kill 0; echo b", 3, "got\n"),
        ("trap '' TERM; kill -TERM -- -$$; echo b", 0, "b\n"),
        ("kill -KILL $$", 137, ""),
    ],
)
def test_signal_from_code_to_its_shell_has_the_same_effect_as_in_a_script(
    shell: Shell, code: str, status: int, stdout: str
) -> None:
    result = shell.evaluate(code)

    assert (result.status, result.stdout) == (status, stdout), result.stderr
    assert shell.evaluate("echo next").stdout == "next\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("/bin/kill -TERM $$; echo b", "signal TERM"),
        ("/bin/kill -KILL $$", r"signal 9 \(Killed\)"),
    ],
)
def test_error_names_the_signal_that_killed_the_shell_of_the_fixture(
    shell: Shell, code: str, words: str
) -> None:
    with pytest.raises(ExpectationError, match=words):
        shell.evaluate(code)
    assert shell.evaluate("echo next").stdout == "next\n"


def test_evaluation_includes_the_output_of_background_jobs_that_end_soon(shell: Shell) -> None:
    log = "exec > >(command -p sleep 0.2; tee /var/log/setup) 2>&1; echo out; echo err >&2"
    assert shell.evaluate(log).stdout == "out\nerr\n"
    assert shell.path("/var/log/setup").read_text() == "out\nerr\n"

    assert shell.evaluate("command -p sleep 600 & echo out").stdout == "out\n"
    assert shell.evaluate("echo next").stdout == "next\n"


@pytest.mark.parametrize(
    ("first_line", "status"),
    [
        ("#!/bin/bash", 0),
        ("#!/bin/bash -e", 1),
        ("#!/bin/sh -ue", 1),
        ("#!/usr/bin/env -S bash -eo pipefail", 1),
        ("#!/bin/bash -l", 0),
    ],
)
@pytest.mark.parametrize("interpreter", ["bash", "dash"])
def test_script_runs_with_the_shell_options_in_its_shebang(
    shell: Shell, tmp_path: Path, first_line: str, status: int, interpreter: str
) -> None:
    if interpreter == "dash":
        first_line = first_line.replace("-eo pipefail", "-e")
    script = tmp_path / "script.sh"
    script.write_text(f"{first_line}\nfalse\ntrue\n")

    assert shell.run_script(script, interpreter=interpreter).status == status


_CODE = {
    "echo a\\": "a\n",
    "echo a # b": "a\n",
    "cat <<E\na\nE": "a\n",
    "echo $LINENO\necho $LINENO": "1\n2\n",
    "echo $# ${1-none}": "0 none\n",
    "local_() { local x=a; echo $x; }; local_; echo ${x-none}": "a\nnone\n",
    "cat <(echo a) - </dev/null": "a\n",
    "echo a | while read -r x; do echo $x; done; read -r || echo end": "a\nend\n",
    "printf '\\xe9\\n'; printf 'a\\0b'": "\udce9\nab",
}


@pytest.mark.parametrize("code", _CODE)
def test_evaluated_code_behaves_as_in_a_script(shell: Shell, code: str) -> None:
    result = shell.evaluate(code).check()

    assert (result.stdout, result.stderr) == (_CODE[code], "")


def test_shell_options_of_a_sourced_script_stay_set_except_errexit(
    shell: Shell, tmp_path: Path
) -> None:
    script = tmp_path / "script.sh"
    script.write_text("set -euCo pipefail; shopt -s extglob nullglob; set -x; cd /etc\n")
    shell.source(script)

    result = shell.evaluate('false | true; echo $? /no/such* $PWD; [[ a == @(a|b) ]] && : "$NONE"')

    assert (result.status, result.stdout) == (1, "1 /etc\n")
    # The two commands of the pipeline may be traced in either order.
    assert {"+ false", "+ true"} <= {
        line[line.rindex("+") :] for line in result.stderr.splitlines()[:2]
    }
    assert "__hx" not in result.stderr
    assert "NONE: unbound variable" in result.stderr
