"""What ran in a machine is attributed to the project's scripts by their content."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from harness.lab.shell_trace import early_commands
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path


def test_set_up_leaves_the_trace_where_any_user_may_write(tmp_path: Path) -> None:
    ((*shell, script, name, _folder, trace, trace_name),) = early_commands()
    (tmp_path / "systemctl").write_text('#!/bin/sh\necho "$@" >"${0%/*}/told"\n')
    (tmp_path / "systemctl").chmod(0o755)
    folder = tmp_path / "traces of a node"

    LocalRunner().run(
        [*shell, script, name, str(folder), trace, trace_name],
        timeout_s=30,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    ).check("Setting the trace up")

    assert (folder / "trace.sh").read_text() == trace
    assert (folder / "traces").stat().st_mode & 0o7777 == 0o1777
    told = (tmp_path / "told").read_text()
    assert told == f"set-environment BASH_ENV={folder}/trace.sh\n"
