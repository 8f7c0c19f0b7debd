"""The realistic suite passes, and runs the commands that the benchmark counts."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from typing import TYPE_CHECKING

from harness.bench.realistic import EXTERNAL_COMMANDS, PARTS, write_suite
from harness.provisioning.command import LocalRunner

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = [command.argv[0] for command in EXTERNAL_COMMANDS]


def test_examples_pass_and_run_the_counted_commands(tmp_path: Path) -> None:
    write_suite(tmp_path)
    log = tmp_path / "calls"
    counting = tmp_path / "counting"
    counting.mkdir()
    for name in _NAMES:
        command = counting / name
        command.write_text(f'#!/bin/sh\necho {name} >>{log}\nexec {shutil.which(name)} "$@"\n')
        command.chmod(0o755)

    result = LocalRunner().run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("--shell-time=virtual", "--shell-sandbox=off", f"--rootdir={tmp_path}"),
            str(tmp_path / "spec" / "node01_spec.sh"),
        ],
        timeout_s=120.0,
        env={"PATH": f"{counting}:{os.environ['PATH']}"},
    )

    assert result.ok, result.render()
    assert Counter(log.read_text().split()) == {
        command.argv[0]: command.calls * PARTS for command in EXTERNAL_COMMANDS
    }
