"""Traps of the code under test act as in bash, and do not see the harness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

    from harness.shell.testing import Shell

#: A background job ignores some signals, and bash would list these among its traps.
_BASH = ("env", "--default-signal", "bash", "-c")
_PROGRAMS = [
    "f() { trap 'echo cleaned $?' RETURN; g; echo data; }; g() { echo g; }\nf",
    "f() { h; g; echo f; }; h() { trap 'echo cleaned' RETURN; }; g() { echo g; }\nf",
    "f() { trap 'echo cleaned' RETURN; trap - RETURN; echo data; }\nf",
    "f() { trap 'echo cleaned' RETURN; return 3; }\nf",
    "f() { trap 'echo \"D:$BASH_COMMAND\"' DEBUG; true; false; trap - DEBUG; echo end; }\nf",
    "f() { trap 'echo \"D:$BASH_COMMAND $?\"' DEBUG; false; true; }\nf",
    "f() { trap 'echo \"D:$LINENO\"' DEBUG\ntrue\nfalse; }\nf",
    "f() { trap 'echo D' DEBUG; trap 'echo R' RETURN; g; trap '' DEBUG; g; }; g() { :; }\nf",
    "f() { trap 'echo D # comment' DEBUG; exit 3; }\nf",
    "f() { trap 'echo D' debug; trap -p DEBUG; trap; trap - debug; }\nf",
    "f() { trap 'echo \"it'\"'\"'s\"' RETURN; trap -p RETURN; trap -p; }\nf",
    "f() { trap 'echo ERR $? $LINENO' ERR; false; true; }\nf",
    "f() { trap 'echo ERR $?' ERR; false; }\nf",
    "f() { trap 'echo ERR $?' ERR; return 2; }\nf\ntrue",
    "f() { set -e; trap 'echo ERR $?' ERR; kill -0 9999999 2>/dev/null; echo no; }\nf",
    "set -E; f() { trap 'echo ERR $?' ERR; kill -0 9999999 2>/dev/null; echo a; }\nf",
    "set -E; f() { trap 'echo ERR' ERR; g; }; g() { false; true; }\nf",
    "set -e; f() { trap 'echo ERR' ERR; trap 'echo EXIT $?' EXIT; false; }\nf",
    "set -T; f() { trap 'echo R' RETURN; g; }; g() { echo g; }\nf",
    "f() { trap 'echo bye' EXIT; exit 3; }\nf",
    "f() ( trap 'echo bye' EXIT; echo hi )\nf",
    "f() { trap 'echo bye' EXIT; (exit 2); }\nf",
    "f() { (trap 'echo D' DEBUG; true); echo $(trap 'echo R' RETURN; g); }; g() { echo g; }\nf",
    "f() { trap 'echo bye' EXIT DEBUG RETURN; true; trap - DEBUG; }\nf",
    "f() { trap -- 'echo bye $?; exit 5' 0; exit 3; }\nf",
    "f() { trap 'echo bye; exit' EXIT; exit 3; }\nf",
    "f() { trap 'echo \"it'\"'\"'s\"' exit; trap -p EXIT; trap -p; trap EXIT; trap -p; }\nf",
    "f() { trap 'echo a' SIGEXIT 2>/dev/null; echo $?; trap -p; }\nf",
    "f() { trap 'echo D' DEBUG; trap DEBUG; trap 'echo a' exit INT; trap; trap - 0 INT; trap; }\nf",
    "f() { set -e; trap 'echo bye; false; echo no' EXIT; exit 3; }\nf",
    "f() { set -e; trap 'echo bye $?; g' EXIT; exit 3; }; g() { false; echo no; }\nf",
    "f() { set -e; trap 'false || echo bye; [[ -f /no/such ]] && echo no' EXIT; false; }\nf",
    "set -u; f() { trap 'exec 2>&-; echo bye; echo $NO; echo no' EXIT; exit 3; }\nf",
    "f() { trap 'echo D' DEBUG; cat <<E\nx\nE\n}\nf",
    "set -T; trap 'echo \"D:$BASH_COMMAND\"' DEBUG; f() { echo f; }\nf",
    "f() { trap 'echo \"[$*]\"' EXIT; set -- a b; }\nf",
    "f() { trap 'echo \"[$*]\"' EXIT; g x; }; g() { exit 3; }\nf a b",
]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_traps_act_as_in_bash(shell: Shell, program: str) -> None:
    expected = LocalRunner().run([*_BASH, program], timeout_s=30)

    result = shell.evaluate(program)

    assert (result.stdout, result.status) == (expected.stdout, expected.exit_code)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_traps_of_a_called_function_act_as_in_bash(
    shell: Shell, tmp_path: Path, program: str
) -> None:
    definitions, _, call = program.rpartition("\nf")
    script = tmp_path / "script.sh"
    script.write_text(f"{definitions}\n")
    expected = LocalRunner().run([*_BASH, f". {script}\nf{call}"], timeout_s=30)
    shell.source(script)

    result = shell.call("f") if not call else shell.evaluate(f"f{call}")

    assert (result.stdout, result.stderr) == (expected.stdout, expected.stderr)


@pytest.mark.parametrize("trap", ["'echo \"D:$BASH_COMMAND\"' DEBUG", "'echo R' RETURN"])
def test_debug_and_return_traps_do_not_run_for_functions_of_the_harness(
    shell: Shell, trap: str
) -> None:
    program = f"set -T; trap {trap}; probe; sleep 0; date +%s >/dev/null; kill -0 $$; echo a"
    expected = LocalRunner().run([*_BASH, program.replace("probe", "true")], timeout_s=30)
    shell.mock("probe")

    result = shell.evaluate(program)

    assert result.stdout == expected.stdout.replace("true", "probe")
