"""The shell trace for `--shell-cov` in a machine: its set-up, and the stderr of traced scripts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.lab.shell_trace import early_commands, trace_environment
from harness.provisioning.command import LocalRunner
from harness.shell.coverage import any_uses_trace
from harness.shell.warm_shell.pool import TRACE

if TYPE_CHECKING:
    from pathlib import Path


def test_trace_setup_creates_a_world_writable_folder(tmp_path: Path) -> None:
    ((*shell, script, name, _folder, trace, trace_name),) = early_commands({})
    variables = ["BASH_ENV=/a b/trace.sh", "HX_TRACE_BY_TRAP=1"]
    (tmp_path / "systemctl").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >"${0%/*}/told"\n')
    (tmp_path / "systemctl").chmod(0o755)
    folder = tmp_path / "traces of a node"

    LocalRunner().run(
        [*shell, script, name, str(folder), trace, trace_name, *variables],
        timeout_s=30,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    ).check("Setting the trace up")

    assert (folder / "trace.sh").read_text() == trace
    assert (folder / "traces").stat().st_mode & 0o7777 == 0o1777
    told = (tmp_path / "told").read_text()
    assert told.splitlines() == ["set-environment", *variables]


@pytest.mark.parametrize(
    ("argv", "is_known"),
    [
        pytest.param(["main.sh"], True, id="a sourced library"),
        pytest.param(["-s"], True, id="a script from standard input"),
        pytest.param(["words.sh"], False, id="options of several words"),
        pytest.param(["-c", "set -x; echo hi"], False, id="a text"),
    ],
)
@pytest.mark.parametrize("coverage", [False, True], ids=["plain", "coverage"])
def test_stderr_of_a_script_with_set_x_is_unchanged(
    tmp_path: Path, argv: list[str], *, is_known: bool, coverage: bool
) -> None:
    """A bash process whose script is not in '--shell-cov' keeps its stderr."""
    (tmp_path / "library.sh").write_text("f() { set -x; echo hi; }\n")
    (tmp_path / "main.sh").write_text(". ./library.sh\nf\n")
    (tmp_path / "words.sh").write_text("set -e -x\necho hi\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "trace.sh").write_text(TRACE.read_text())
    by_trap = is_known and any_uses_trace((tmp_path / "library.sh",))
    environment = trace_environment(by_trap=by_trap) if coverage else {}

    result = LocalRunner().run(
        ["env", "-C", str(tmp_path), "bash", *argv],
        timeout_s=30,
        env={**environment, **({"BASH_ENV": str(tmp_path / "trace.sh")} if coverage else {})},
        stdin="set -x\necho hi\n",
    )

    assert (result.stdout, result.stderr.lstrip("+")) == ("hi\n", " echo hi\n")


@pytest.mark.parametrize("options", ["BASH_XTRACEFD=1; set -x", "set -xv"])
def test_traced_script_has_the_same_output_as_without_the_trace(
    tmp_path: Path, options: str
) -> None:
    (tmp_path / "a.sh").write_text(f"{options}\necho hi\n")
    (tmp_path / "traces").mkdir()
    (tmp_path / "trace.sh").write_text(TRACE.read_text())
    traced = {**trace_environment(by_trap=True), "BASH_ENV": str(tmp_path / "trace.sh")}
    argv = ["env", "-C", str(tmp_path), "bash", "a.sh"]

    plain, covered = (LocalRunner().run(argv, timeout_s=30, env=env) for env in ({}, traced))

    assert (covered.stdout, covered.stderr) == (plain.stdout, plain.stderr)
